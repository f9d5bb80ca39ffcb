//! Links with the names of Kubernetes' programs, started as test frameworks (envtest) start them: with their flags, without
//! root, one directory for certificates and one for etcd.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Gid, Pid, Uid, chown};
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};

use crate::support::wait_for;

const PROGRAM: &str = env!("CARGO_BIN_EXE_knarr");
const NOBODY: u32 = 65534;

/// Links to the program, and everything they write.
struct Assets {
    directory: tempfile::TempDir,
    /// Whom the programs run as, if that is not the user of the test.
    user: Option<u32>,
    children: Vec<Child>,
}

impl Assets {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for name in ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"] {
            symlink(PROGRAM, directory.path().join(name)).expect("a link");
        }
        // Other users can start the program unless a parent directory is closed to them.
        let is_open = |path: &Path| fs::metadata(path).is_ok_and(|found| found.mode() & 0o005 == 0o005);
        let user =
            (Uid::effective().is_root() && Path::new(PROGRAM).ancestors().skip(1).all(is_open)).then_some(NOBODY);
        let assets = Assets { directory, user, children: Vec::new() };
        fs::set_permissions(assets.path(""), fs::Permissions::from_mode(0o755)).expect("it is ours");
        for name in ["etcd-data", "certificates"] {
            fs::create_dir(assets.path(name)).expect("a directory");
            assets.hand_over(&assets.path(name));
        }
        assets
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn hand_over(&self, path: &Path) {
        if let Some(user) = self.user {
            chown(path, Some(Uid::from_raw(user)), Some(Gid::from_raw(user))).expect("root may do that");
        }
    }

    /// Writes a file of the certificates' directory.
    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path("certificates").join(name);
        fs::write(&path, text).expect("it can be written");
        self.hand_over(&path);
        path.display().to_string()
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(self.path(name));
        command.env("KNARR_LOG", "warn").env("HOME", self.path("")).stdin(Stdio::null());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        command
    }

    fn start(&mut self, name: &str, flags: &[String]) -> usize {
        self.children.push(self.command(name).args(flags).spawn().expect("it starts"));
        self.children.len() - 1
    }

    fn run(&self, name: &str, flags: &[&str]) -> Output {
        self.command(name).args(flags).output().expect("it runs")
    }

    /// Stops a process as a service manager does; it must exit without an error.
    fn stop(&mut self, index: usize) {
        let child = &mut self.children[index];
        kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM).expect("it runs");
        let status = child.wait().expect("it ends");
        assert!(status.success(), "{status}");
    }

    fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("kubectl");
        command.arg("--kubeconfig").arg(self.path("kubeconfig")).args(arguments).env("HOME", self.path(""));
        let output = command.output().expect("kubectl is installed");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}

impl Drop for Assets {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have exited already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr()).expect("a free port").port()
}

/// The status line of a plain HTTP response.
fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).ok()?;
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n").ok()?;
    let mut response = String::new();
    stream.read_to_string(&mut response).ok()?;
    Some(response.lines().next()?.to_owned())
}

/// An authority, and a certificate of it: PEM of the authority, the certificate and its key.
fn certificate(names: &[&str], user: Option<(&str, &str)>) -> (String, String, String) {
    let key = KeyPair::generate().expect("a key");
    let mut authority = CertificateParams::new(Vec::new()).expect("parameters");
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.distinguished_name.push(DnType::CommonName, "test authority");
    let own = authority.self_signed(&key).expect("an authority");
    let issuer = Issuer::new(authority, key);
    let key = KeyPair::generate().expect("a key");
    let mut leaf =
        CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).expect("parameters");
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    if let Some((user, group)) = user {
        leaf.distinguished_name.push(DnType::CommonName, user);
        leaf.distinguished_name.push(DnType::OrganizationName, group);
    }
    let signed = leaf.signed_by(&key, &issuer).expect("a certificate");
    (own.pem(), signed.pem(), key.serialize_pem())
}

/// The flags that envtest gives kube-apiserver.
fn api_server_flags(assets: &Assets, etcd: u16, port: u16) -> Vec<String> {
    let (serving_authority, serving, serving_key) = certificate(&["localhost", "127.0.0.1"], None);
    let (client_authority, client, client_key) = certificate(&[], Some(("admin", "system:masters")));
    let (_, account, account_key) = certificate(&["accounts"], None);
    assets.write("apiserver.crt", &serving);
    assets.write("apiserver.key", &serving_key);
    let account = assets.write("sa-signer.crt", &account);
    let account_key = assets.write("sa-signer.key", &account_key);
    let client_authority = assets.write("client-ca.crt", &client_authority);
    let kubeconfig = serde_json::json!({"apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("https://127.0.0.1:{port}"),
            "certificate-authority": assets.write("serving-ca.crt", &serving_authority)}}],
        "users": [{"name": "test", "user": {"client-certificate": assets.write("admin.crt", &client),
            "client-key": assets.write("admin.key", &client_key)}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]});
    fs::write(assets.path("kubeconfig"), kubeconfig.to_string()).expect("it can be written");
    vec![
        "--allow-privileged=true".to_owned(),
        "--authorization-mode=RBAC".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        format!("--cert-dir={}", assets.path("certificates").display()),
        format!("--client-ca-file={client_authority}"),
        "--disable-admission-plugins=ServiceAccount".to_owned(),
        format!("--etcd-servers=http://127.0.0.1:{etcd}"),
        format!("--secure-port={port}"),
        format!("--service-account-issuer=https://127.0.0.1:{port}/"),
        format!("--service-account-key-file={account}"),
        format!("--service-account-signing-key-file={account_key}"),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
    ]
}

#[test]
fn links_named_etcd_and_kube_apiserver_serve_a_test_framework() {
    let mut assets = Assets::new();
    let (etcd_port, port) = (free_port(), free_port());
    let etcd_flags = [
        format!("--advertise-client-urls=http://127.0.0.1:{etcd_port}"),
        format!("--data-dir={}", assets.path("etcd-data").display()),
        format!("--listen-client-urls=http://127.0.0.1:{etcd_port}"),
        format!("--listen-peer-urls=http://127.0.0.1:{}", free_port()),
        "--unsafe-no-fsync=true".to_owned(),
    ];
    let etcd = assets.start("etcd", &etcd_flags);
    wait_for("etcd to be healthy", || get(etcd_port, "/health").is_some_and(|line| line.contains(" 200 ")));
    let flags = api_server_flags(&assets, etcd_port, port);
    let api_server = assets.start("kube-apiserver", &flags);
    wait_for("the API server to be healthy", || assets.kubectl(&["get", "--raw", "/healthz"]).as_deref() == Ok("ok"));
    // The plugin that would wait for a service account is disabled.
    let manifest = assets.path("pod.yaml");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {containers: [{name: a, image: b}]}\n";
    fs::write(&manifest, pod).expect("it can be written");
    assets.kubectl(&["create", "-f", &manifest.display().to_string()]).expect("the pod is created");
    assets.kubectl(&["create", "configmap", "kept", "--from-literal=a=b"]).expect("it is created");

    // Components keep the serving certificates that they sign themselves where they are told to.
    for name in ["kube-controller-manager", "kube-scheduler"] {
        let (directory, port) = (assets.path("certificates").join(name), free_port());
        let flags = [
            format!("--kubeconfig={}", assets.path("kubeconfig").display()),
            format!("--cert-dir={}", directory.display()),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--leader-elect=false".to_owned(),
        ];
        let component = assets.start(name, &flags);
        wait_for("the component to be healthy", || {
            let mut client = Command::new("curl");
            client.args(["-sf", &format!("https://localhost:{port}/healthz"), "--cacert"]);
            let output = client.arg(directory.join(format!("{name}.crt"))).output().expect("curl is installed");
            output.stdout == b"ok"
        });
        assets.stop(component);
    }

    // Objects live in etcd's directory: a restarted API server finds them.
    assets.stop(api_server);
    let again = assets.start("kube-apiserver", &flags);
    wait_for("the API server to be healthy again", || {
        assets.kubectl(&["get", "--raw", "/healthz"]).as_deref() == Ok("ok")
    });
    let kept = assets.kubectl(&["get", "configmap", "kept", "-o", "jsonpath={.data.a}"]);
    assert_eq!(kept.as_deref(), Ok("b"));
    let stored = fs::metadata(assets.path("etcd-data").join("knarr-store")).expect("the store");
    assert_eq!(stored.uid(), assets.user.unwrap_or_else(|| Uid::effective().as_raw()));
    assets.stop(again);
    assets.stop(etcd);
}

/// Messages and exit codes are those of the programs of v1.36.
#[test]
fn links_report_help_versions_and_errors_like_kubernetes() {
    let assets = Assets::new();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    for name in ["kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"] {
        let version = assets.run(name, &["--version"]);
        let printed = format!("Kubernetes {}", knarr_version::KUBERNETES);
        assert_eq!((text(&version.stdout).trim(), version.status.code()), (printed.as_str(), Some(0)), "{name}");
        let help = assets.run(name, &["--help"]);
        assert!(
            help.status.success() && text(&help.stdout).contains("\n      --kubeconfig string")
                || name == "kube-apiserver"
        );
        let wrong = assets.run(name, &["--no-such-flag"]);
        assert_eq!(wrong.status.code(), Some(1), "{name}");
        assert!(text(&wrong.stderr).contains("unknown flag: --no-such-flag"), "{}", text(&wrong.stderr));
    }
    let wrong = assets.run("kube-apiserver", &["--feature-gates=APIServerTracing=false"]);
    let message = "Error: cannot set feature gate APIServerTracing to false, feature is locked to true\n";
    assert_eq!((text(&wrong.stderr).as_str(), wrong.status.code()), (message, Some(1)));
    // Nothing listens there: flags are checked before the store is waited for.
    let required = [
        "--etcd-servers=http://127.0.0.1:1",
        "--service-account-issuer=https://issuer",
        "--service-account-key-file=k",
        "--service-account-signing-key-file=k",
    ];
    let wrong = assets.run("kube-apiserver", &[&required[..], &["--authorization-mode=Foo"]].concat());
    let message = "Error: authorization-mode \"Foo\" is not a valid mode\n";
    assert_eq!((text(&wrong.stderr).as_str(), wrong.status.code()), (message, Some(1)));
    let wrong = assets.run("kube-scheduler", &[]);
    let message = "Error: invalid configuration: no configuration has been provided, try setting KUBERNETES_MASTER \
                   environment variable\n";
    assert_eq!((text(&wrong.stderr).as_str(), wrong.status.code()), (message, Some(1)));
    let wrong = assets.run("etcd", &["--no-such-flag"]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(text(&wrong.stderr).starts_with("flag provided but not defined: -no-such-flag\n"));
}
