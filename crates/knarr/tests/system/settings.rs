//! The configuration file, the manifests folder, and what the command line says when something is wrong.

use std::process::Command;

use super::harness::{self, Cluster};

fn knarr(arguments: &[&str]) -> (bool, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_knarr")).args(arguments).output().expect("knarr runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.success(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_file_s_settings_are_in_force_and_wrong_ones_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("config.yaml");
    let file = path.to_string_lossy().into_owned();
    std::fs::write(&path, "cluster-cidr: 10.9.0.0/16\ndisable-ingress: true\ntoken: hidden-in-the-file\n").unwrap();
    let (good, shown, complaint) = knarr(&["config", "--config", &file, "show", "--changed"]);
    assert!(good, "{complaint}");
    let rows: Vec<Vec<&str>> = shown.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows, [["cluster-cidr", "10.9.0.0/16", &file], ["disable-ingress", "true", &file]], "{shown}");

    std::fs::write(&path, "clster-cidr: 10.9.0.0/16\n").unwrap();
    let (good, _, complaint) = knarr(&["server", "--config", &file]);
    assert!(!good);
    assert!(complaint.contains(&file) && complaint.contains("did you mean \"cluster-cidr\"?"), "{complaint}");
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
}

#[test]
fn a_machine_without_what_is_needed_is_told_in_one_line() {
    let data = tempfile::tempdir().expect("a folder");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_knarr"))
        .args(["server", "--listen", &address, "--data-dir", &data.path().to_string_lossy()])
        .env("PATH", "/nowhere")
        .output()
        .expect("knarr runs");
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    for part in ["containerd", "apt-get install containerd nftables runc", &address, "--listen"] {
        assert!(complaint.contains(part), "{part} is missing in: {complaint}");
    }
    assert_eq!(complaint.lines().count(), 1, "{complaint}");
}

/// In a mount namespace of its own, so that the machine's services are not touched.
#[test]
fn a_service_is_installed_with_its_settings_and_removed_without_a_trace() {
    if !harness::is_possible() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
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
        .env("DATA", folder.path().join("data"))
        .output()
        .expect("unshare runs");
    let (printed, complaint) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let expected = "600\n1\nType=notify\nExecStart=/usr/local/bin/knarr agent\nKillMode=process\nnothing is left\n";
    assert_eq!(printed, expected, "{complaint}");
    // Where the mount points had to be made, they are left as they were.
    let _ = std::fs::remove_dir("/etc/knarr");
}

#[test]
fn completions_know_commands_and_flags() {
    for shell in ["bash", "zsh", "fish"] {
        let (good, text, complaint) = knarr(&["completions", shell]);
        assert!(good, "{complaint}");
        for word in ["drain-and-stop", "cluster-cidr", "print-join-command"] {
            assert!(text.contains(word), "{shell}: {word}");
        }
    }
}

#[test]
fn manifests_are_applied_and_what_is_taken_out_is_deleted() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = Cluster::start(1);
    let folder = cluster.nodes[0].data.join("manifests");
    let map = |name: &str| format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: default}}\n");
    let exists = |cluster: &Cluster, name: &str| cluster.try_kubectl(&["get", "configmap", name]).is_ok();

    std::fs::write(folder.join("two.yaml"), format!("{}---\n{}", map("one"), map("two"))).unwrap();
    std::fs::write(folder.join("broken.yaml"), "kind: [").unwrap();
    cluster.wait_for("both objects", || exists(&cluster, "one") && exists(&cluster, "two"));

    std::fs::write(folder.join("two.yaml"), map("two")).unwrap();
    cluster.wait_for("the object that was taken out to go", || !exists(&cluster, "one"));
    assert!(exists(&cluster, "two"));

    cluster.nodes[0].stop();
    std::fs::remove_file(folder.join("two.yaml")).unwrap();
    cluster.nodes[0].start();
    cluster.wait_for("what a file made that went meanwhile to go", || {
        cluster.try_kubectl(&["get", "--raw", "/readyz"]).is_ok() && !exists(&cluster, "two")
    });
}
