//! The configuration file, the manifests directory, and error messages of the command line.

use std::process::Command;

use super::harness::{self, Cluster};

fn knarr(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_knarr")).args(arguments).output().expect("knarr runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_file_s_settings_are_used_and_wrong_ones_rejected() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("config.yaml");
    let file = path.to_string_lossy().into_owned();
    let token = format!("abcdef.0123456789abcdef.{:064}", 7);
    std::fs::write(&path, format!("cluster-cidr: 10.9.0.0/16\ndisable-ingress: true\ntoken: {token}\n")).unwrap();
    let (good, shown, error) = knarr(&["config", "--config", &file, "show", "--changed"]);
    assert!(good, "{error}");
    let rows: Vec<Vec<&str>> = shown.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    let expected =
        [["cluster-cidr", "10.9.0.0/16", &file], ["disable-ingress", "true", &file], ["token", "(hidden)", &file]];
    assert_eq!(rows, expected, "{shown}");

    std::fs::write(&path, "clster-cidr: 10.9.0.0/16\n").unwrap();
    let (good, _, error) = knarr(&["server", "--config", &file]);
    assert!(!good);
    assert!(error.contains(&file) && error.contains("did you mean \"cluster-cidr\"?"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
}

#[test]
fn missing_requirements_are_reported_in_one_line() {
    let data = tempfile::tempdir().expect("a directory");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_knarr"))
        .args(["server", "--listen", &address, "--data-dir", &data.path().to_string_lossy()])
        .env("PATH", "/nowhere")
        .output()
        .expect("knarr runs");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    for part in ["containerd", "apt-get install containerd nftables runc", &address, "--listen"] {
        assert!(error.contains(part), "{part} is missing in: {error}");
    }
    assert_eq!(error.lines().count(), 1, "{error}");
}

/// In its own mount namespace, so that the host's services are not touched.
#[test]
fn a_service_is_installed_with_its_settings_and_removed_completely() {
    if !harness::is_possible() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let script = r#"
        mkdir -p /etc/systemd/system /etc/knarr
        for path in /etc/systemd/system /etc/knarr /usr/local/bin; do mount -t tmpfs none $path; done
        $KNARR install agent --data-dir $DATA --server https://10.0.0.1:6443 --node-ip 10.0.0.2 \
            --token abcdef.0123456789abcdef.$(printf 'ab%.0s' $(seq 32)) > /dev/null
        stat -c '%a' /etc/knarr/config.yaml
        grep -c '^token: ' /etc/knarr/config.yaml
        grep '^ExecStart=\|^Type=\|^KillMode=' /etc/systemd/system/knarr-agent.service
        /usr/local/bin/knarr uninstall --yes --data-dir $DATA > /dev/null
        ls /etc/systemd/system /usr/local/bin | grep knarr || echo nothing is left
        ! $KNARR install server --bogus 2> /dev/null
    "#;
    let output = Command::new("unshare")
        .args(["--mount", "--net", "bash", "-euc", script])
        .env("KNARR", env!("CARGO_BIN_EXE_knarr"))
        .env("DATA", directory.path().join("data"))
        .output()
        .expect("unshare runs");
    let (printed, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let expected = "600\n1\nType=notify\nExecStart=/usr/local/bin/knarr agent\nKillMode=process\nnothing is left\n";
    assert_eq!(printed, expected, "{error}");
    // Mount points that had to be created are removed.
    let _ = std::fs::remove_dir("/etc/knarr");
}

#[test]
fn completions_contain_commands_and_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let (good, text, error) = knarr(&["completions", shell]);
        assert!(good, "{error}");
        for word in ["drain-and-stop", "cluster-cidr", "print-join-command"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn manifests_are_applied_and_removed_ones_deleted() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = Cluster::start(1);
    let directory = cluster.nodes[0].data.join("manifests");
    let map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: default}}\n");
    let exists = |cluster: &Cluster, name: &str| cluster.try_kubectl(&["get", "configmap", name]).is_ok();

    std::fs::write(directory.join("two.yaml"), format!("{}---\n{}", map("one"), map("two"))).unwrap();
    std::fs::write(directory.join("broken.yaml"), "kind: [").unwrap();
    cluster.wait_for("both objects", || exists(&cluster, "one") && exists(&cluster, "two"));

    std::fs::write(directory.join("two.yaml"), map("two")).unwrap();
    cluster.wait_for("the object that was taken out to go", || !exists(&cluster, "one"));
    assert!(exists(&cluster, "two"));

    cluster.nodes[0].stop();
    std::fs::remove_file(directory.join("two.yaml")).unwrap();
    cluster.nodes[0].start();
    cluster.wait_for("what a file made that went meanwhile to go", || {
        cluster.try_kubectl(&["get", "--raw", "/readyz"]).is_ok() && !exists(&cluster, "two")
    });
}
