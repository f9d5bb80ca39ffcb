//! Snapshots of a running server in S3-compatible storage: uploads, retention, wrong credentials, a storage that is away, and
//! a cluster that is restored from there. Neither logs nor messages contain a secret or a signature.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use super::fake_storage::{BUCKET, FakeStorage, REGION, SECRET};
use super::support::{ControlPlane, wait_for};

const WRONG: &str = "wrong-secret-of-test";

struct Snapshots {
    plane: ControlPlane,
    storage: FakeStorage,
}

impl Snapshots {
    /// Writes the configuration file that all commands read.
    fn configure(&self) {
        let text = format!(
            "snapshot-s3-endpoint: {}\nsnapshot-s3-region: {REGION}\nsnapshot-s3-credentials: {}\n",
            self.storage.endpoint(),
            self.plane.data().join("credentials").display()
        );
        std::fs::write(self.plane.data().join("config.yaml"), text).expect("a file");
    }

    /// Starts the server with its log in a file.
    fn start(&self) -> std::process::Child {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address").to_string();
        drop(listener);
        let log = File::options().create(true).append(true).open(self.log_path()).expect("a log");
        let location = format!("s3://{BUCKET}/clusters/one");
        let mut command = self.knarr(&["server", "--disable-agent", "--listen", &address, "--node-ip", "127.0.0.1"]);
        command.args(["--snapshot-schedule", "1s", "--snapshot-retention", "2", "--snapshot-s3", &location]);
        command.arg("--snapshot-dir").arg(self.directory());
        command.env("KNARR_LOG", "debug").stdout(Stdio::null()).stderr(log);
        command.spawn().expect("the server starts")
    }

    fn knarr(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_knarr"));
        command.args(words).arg("--data-dir").arg(self.plane.data()).stdin(Stdio::null());
        command.arg("--config").arg(self.plane.data().join("config.yaml"));
        command
    }

    /// The output of `knarr snapshot`, or its errors.
    fn snapshot(&self, words: &[&str]) -> Result<String, String> {
        let output = self.knarr(&[&["snapshot"], words].concat()).output().expect("knarr runs");
        let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_contains_no_secret(&format!("{out}{errors}"));
        if output.status.success() { Ok(out.into_owned()) } else { Err(errors.into_owned()) }
    }

    fn log_path(&self) -> std::path::PathBuf {
        self.plane.data().join("server.log")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Not the one that is used by default.
    fn directory(&self) -> std::path::PathBuf {
        self.plane.data().join("elsewhere")
    }

    /// Whether `knarr status` succeeds, and what it prints.
    fn status(&self) -> (bool, String) {
        let output = self.knarr(&["status"]).env("KUBECONFIG", self.plane.kubeconfig()).output().expect("knarr runs");
        let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        (output.status.success(), format!("{out}{errors}"))
    }

    fn local(&self) -> usize {
        let names = std::fs::read_dir(self.directory()).into_iter().flatten().flatten();
        names.filter(|entry| entry.path().extension().is_some_and(|kind| kind == "snapshot")).count()
    }
}

fn assert_contains_no_secret(text: &str) {
    for secret in [SECRET, WRONG, "X-Amz-Signature", "X-Amz-Credential"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
}

fn stop(server: &mut std::process::Child) {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(server.id()).expect("a process id"));
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it runs");
    wait_for("the server to stop", || server.try_wait().expect("its state").is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_saved_to_object_storage_and_restored_from_there() {
    let snapshots = Snapshots { plane: ControlPlane::empty(), storage: FakeStorage::start().await };
    let credentials = snapshots.plane.data().join("credentials");
    FakeStorage::credentials(&credentials, WRONG);
    snapshots.configure();
    let mut server = snapshots.start();
    let plane = &snapshots.plane;
    wait_for("the server", || plane.kubeconfig().exists() && plane.kubectl(&["get", "--raw", "/readyz"]).is_ok());

    // Wrong credentials: snapshots stay on this host, and the reason is logged.
    wait_for("a refusal", || snapshots.log().contains("SignatureDoesNotMatch"));
    wait_for("local snapshots", || snapshots.local() > 0);
    assert!(snapshots.storage.keys().is_empty());
    let error = snapshots.snapshot(&["list", &format!("s3://{BUCKET}/")]).expect_err("they are wrong");
    assert!(error.contains("403") && error.contains("SignatureDoesNotMatch"), "{error}");

    // They are read again for each attempt. Then the oldest are deleted, here and there.
    FakeStorage::credentials(&credentials, SECRET);
    wait_for("uploads", || snapshots.storage.keys().len() == 2);
    let first = snapshots.storage.keys();
    assert!(first.iter().all(|key| key.starts_with("clusters/one/") && key.ends_with(".snapshot")), "{first:?}");
    wait_for("newer ones", || {
        let keys = snapshots.storage.keys();
        // One is uploaded before another is deleted.
        assert!(keys.len() <= 3, "{keys:?}");
        keys.len() == 2 && keys.iter().all(|key| !first.contains(key))
    });

    plane.kubectl(&["create", "configmap", "kept", "--from-literal=a=b"]).expect("created");
    let place = format!("s3://{BUCKET}/by hand+é");
    let saved = snapshots.snapshot(&["save", &place]).expect("saved");
    assert!(saved.contains("saved revision") && saved.contains(&place), "{saved}");
    let listed = snapshots.snapshot(&["list", &format!("s3://{BUCKET}/by")]).expect("listed");
    assert!(listed.trim_end().ends_with(&place) && listed.lines().count() == 1, "{listed}");
    plane.kubectl(&["delete", "configmap", "kept"]).expect("deleted");

    // A server that does not run has a status, too, but not a good one.
    let scheduled = format!("({}/knarr-", snapshots.directory().display());
    let is_complete = |text: &str| text.contains("Last scheduled snapshot: ") && text.contains(&scheduled);
    let (is_good, text) = snapshots.status();
    assert!(is_good && is_complete(&text) && text.contains(&place), "{text}");
    stop(&mut server);
    let (is_good, text) = snapshots.status();
    assert!(!is_good && is_complete(&text) && text.contains("the API server does not respond"), "{text}");

    // A store is in the way; then there is none.
    let error = snapshots.snapshot(&["restore", &place]).expect_err("it exists");
    assert!(error.contains("already exists"), "{error}");
    std::fs::rename(plane.data().join("store"), plane.data().join("old")).expect("moved");
    let error = snapshots.snapshot(&["restore", &format!("s3://{BUCKET}/none")]).expect_err("no such object");
    assert!(error.contains("NoSuchKey"), "{error}");
    snapshots.snapshot(&["restore", &place]).expect("restored");
    assert_no_downloads(plane.data());
    std::fs::remove_file(plane.kubeconfig()).expect("removed");
    let mut server = snapshots.start();
    wait_for("the restored cluster", || {
        plane.kubeconfig().exists() && plane.kubectl(&["get", "configmap", "kept"]).is_ok()
    });
    stop(&mut server);
    assert_contains_no_secret(&snapshots.log());
}

/// What was downloaded contains all secrets of the cluster.
fn assert_no_downloads(data: &Path) {
    let left = std::fs::read_dir(data).expect("a directory").flatten().map(|entry| entry.file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("snapshot-")).collect();
    assert!(left.is_empty(), "{left:?}");
}
