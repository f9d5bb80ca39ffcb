//! `knarr cluster`: clusters of several nodes on one host, from creation to removal.

use std::path::Path;
use std::process::Command;

use crate::harness::{self, Switch, TestHost, wait_for};

/// `knarr cluster` on a host, with clusters and kubeconfig below a directory, which is the working directory.
fn cluster(host: &TestHost, directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = host.command(env!("CARGO_BIN_EXE_knarr"));
    command.current_dir(directory).arg("cluster").args(arguments).args(["--directory", "clusters"]);
    command.arg("--kubeconfig").arg(directory.join("config"));
    output(&mut command)
}

fn kubectl(host: &TestHost, directory: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = host.command("kubectl");
    command.args(arguments).arg("--kubeconfig").arg(directory.join("config")).env("HOME", directory);
    output(&mut command)
}

fn output(command: &mut Command) -> Result<String, String> {
    let output = command.output().expect("the program is installed");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Deletes the clusters whatever the test did.
struct Removal<'a>(&'a TestHost, &'a Path, Vec<&'a str>);

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        for name in &self.2 {
            // Most tests have deleted it.
            let _ = cluster(self.0, self.1, &["delete", name]);
        }
    }
}

const WEB: &str = "
apiVersion: v1
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {containers: [{name: web, image: 'nginx:1', imagePullPolicy: Never}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{port: 80, nodePort: 30080}]}
";

const PULLED: &str = "
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: pulled}
spec:
  selector: {matchLabels: {app: pulled}}
  template:
    metadata: {labels: {app: pulled}}
    spec: {containers: [{name: web, image: 'localhost:5001/team/web:1', imagePullPolicy: Always}]}
";

/// Pushes an image of the first node to the registry of the cluster.
fn push(host: &TestHost, directory: &Path, image: &str, name: &str) {
    let socket = directory.join("clusters/one/node-1/containerd/containerd.sock").to_string_lossy().into_owned();
    host.run(&["ctr", "--address", &socket, "--namespace", "k8s.io", "images", "tag", image, name]);
    host.run(&["ctr", "--address", &socket, "--namespace", "k8s.io", "images", "push", "--plain-http", name]);
}

/// Puts secrets where people put them.
fn plant(kubectl: &dyn Fn(&[&str]) -> String) {
    kubectl(&["create", "secret", "generic", "planted", "--from-literal=word=hunter2-hunter2"]);
    kubectl(&["create", "configmap", "planted", "--from-literal=word=hunter2"]);
    kubectl(&["annotate", "pod", "web", "note=the word is hunter2-hunter2", "login=password: hunter2"]);
    let environment =
        r#"{"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"A","value":"hunter2"}]}]}}}}"#;
    kubectl(&["patch", "daemonset", "pulled", "-p", environment]);
}

fn is_served(host: &TestHost) -> bool {
    host.fetch("http://127.0.0.1:8080/").is_some_and(|page| page.contains("It works!"))
}

#[test]
fn clusters_live_side_by_side_and_leave_nothing() {
    if !harness::is_possible() {
        return;
    }
    let _turn = harness::turn();
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let switch = Switch::new();
    let host = switch.plug(11);
    let _removal = Removal(&host, directory, vec!["one", "two"]);
    let run = |arguments: &[&str]| cluster(&host, directory, arguments).unwrap_or_else(|error| panic!("{error}"));
    let ask = |arguments: &[&str]| kubectl(&host, directory, arguments).unwrap_or_else(|error| panic!("{error}"));

    // Disk usage of the tester's host must not matter.
    let settings = directory.join("server.yaml");
    std::fs::write(&settings, "eviction-hard: memory.available<1Mi\nimage-gc-high-threshold: 100\n").expect("a file");
    let settings = settings.to_string_lossy().into_owned();
    let agent = ["--agent-flag=--eviction-hard=memory.available<1Mi", "--agent-flag=--image-gc-high-threshold=100"];
    let one = ["create", "one", "--nodes", "2", "--offline", "--port", "8080:30080", "--server-config", &settings];
    run(&[&one[..], &["--registry", "5001"], &agent].concat());
    run(&["create", "two", "--offline"]);
    assert!(cluster(&host, directory, &["create", "two"]).unwrap_err().contains("exists"));
    assert!(cluster(&host, directory, &["create", "../x"]).unwrap_err().contains("not a name"));
    let listed = run(&["list"]);
    assert!(listed.contains("one   2/2") && listed.contains("two   1/1"), "{listed}");
    assert_eq!(ask(&["config", "current-context"]), "knarr-two");
    assert_eq!(ask(&["get", "nodes", "--context", "knarr-one", "-o", "name"]).lines().count(), 2);
    assert_eq!(ask(&["get", "nodes", "--context", "knarr-two", "-o", "name"]).lines().count(), 1);

    // An image reaches all nodes, and a node port reaches this host.
    harness::write_images(&directory.join("images"));
    run(&["load", "one", &directory.join("images/nginx.tar").to_string_lossy()]);
    std::fs::write(directory.join("web.yaml"), WEB).expect("a manifest");
    ask(&["--context", "knarr-one", "apply", "-f", &directory.join("web.yaml").to_string_lossy()]);
    wait_for("the mapped port", || is_served(&host));

    // An image that was pushed to the registry is pulled by every node; nodes and pods cannot push.
    push(&host, directory, "docker.io/library/nginx:1", "localhost:5001/team/web:1");
    std::fs::write(directory.join("pulled.yaml"), PULLED).expect("a manifest");
    ask(&["--context", "knarr-one", "apply", "-f", &directory.join("pulled.yaml").to_string_lossy()]);
    ask(&["--context", "knarr-one", "rollout", "status", "daemonset/pulled", "--timeout=60s"]);
    let refused = host.run(&["curl", "-s", "-X", "POST", "http://10.190.1.1:5000/v2/team/web/blobs/uploads/"]);
    assert!(refused.contains("DENIED"), "{refused}");

    // Logs, and a bundle for whoever is asked for help: no secret is in it, whatever holds one.
    let knarr = |arguments: &[&str]| {
        let mut command = host.command(env!("CARGO_BIN_EXE_knarr"));
        command.args(arguments).env("KUBECONFIG", directory.join("config"));
        output(&mut command).unwrap_or_else(|error| panic!("{error}"))
    };
    let clusters = directory.join("clusters").to_string_lossy().into_owned();
    assert!(knarr(&["logs", "--cluster", "one", "--directory", &clusters]).contains("the API server is ready"));
    plant(&|arguments| ask(&[&["--context", "knarr-one"], arguments].concat()));
    let bundle = directory.join("bundle.tar.gz").to_string_lossy().into_owned();
    let data = format!("{clusters}/one/node-1");
    knarr(&["support-bundle", "--context", "knarr-one", "--data-dir", &data, "--output", &bundle]);
    let content = host.run(&["tar", "-xzOf", &bundle]);
    assert!(content.contains("planted") && content.contains("node-2"), "the bundle is empty");
    for secret in ["hunter2", "aHVudGVyMi", "BEGIN PRIVATE KEY", "BEGIN EC PRIVATE KEY"] {
        assert!(!content.contains(secret), "{secret} is in the bundle");
    }

    // A stopped cluster keeps its objects.
    run(&["stop", "one"]);
    assert!(run(&["list"]).contains("one   0/2"));
    run(&["start", "one"]);
    wait_for("the mapped port again", || is_served(&host));

    run(&["delete", "one", "two"]);
    assert_eq!(run(&["list"]).lines().count(), 1);
    let interfaces = host.run(&["ip", "-o", "link"]);
    assert!(!interfaces.contains(": kn"), "{interfaces}");
    let namespaces = host.run(&["ip", "netns", "list"]);
    assert!(!namespaces.contains("knarr-one") && !namespaces.contains("knarr-two"), "{namespaces}");
    assert!(!std::fs::read_to_string(directory.join("config")).expect("the file").contains("knarr-one"));
}

#[test]
fn a_cluster_of_three_servers_starts_again_and_others_have_the_same_name() {
    if !harness::is_possible() {
        return;
    }
    let _turn = harness::turn();
    let [first, second] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
    let switch = Switch::new();
    let host = switch.plug(11);
    let _removals = [first.path(), second.path()].map(|directory| Removal(&host, directory, vec!["dev"]));
    let run = |directory: &Path, arguments: &[&str]| {
        cluster(&host, directory, arguments).unwrap_or_else(|error| panic!("{error}"))
    };
    let settings = first.path().join("server.yaml");
    std::fs::write(&settings, "eviction-hard: memory.available<1Mi\nimage-gc-high-threshold: 100\n").expect("a file");
    let settings = settings.to_string_lossy().into_owned();
    let create = ["create", "dev", "--offline", "--server-config", &settings];
    run(first.path(), &[&create[..], &["--servers", "3"]].concat());
    run(second.path(), &create);
    let nodes = |directory: &Path| {
        kubectl(&host, directory, &["get", "nodes", "-o", "name"]).map_or(0, |nodes| nodes.lines().count())
    };
    assert_eq!((nodes(first.path()), nodes(second.path())), (3, 1));
    run(first.path(), &["stop", "dev"]);
    assert_eq!(nodes(second.path()), 1, "a cluster of the same name in another directory is not touched");
    run(first.path(), &["start", "dev"]);
    assert_eq!(nodes(first.path()), 3);
    run(first.path(), &["delete", "dev"]);
    run(second.path(), &["delete", "dev"]);
    let interfaces = host.run(&["ip", "-o", "link"]);
    assert!(!interfaces.contains(": kn"), "{interfaces}");
}

const APPLICATION: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: app}
spec:
  replicas: 2
  selector: {matchLabels: {app: app}}
  template:
    metadata: {labels: {app: app}}
    spec: {containers: [{name: app, image: 'localhost/app:1', imagePullPolicy: Never}]}
---
apiVersion: v1
kind: Service
metadata: {name: app}
spec: {type: NodePort, selector: {app: app}, ports: [{port: 80, nodePort: 30080}]}
";

/// Runs the recipes of docs/local-clusters.md in the order of the page. Before each block there is a new build of the
/// application, under the same name; the page that is served afterwards must be that one.
#[test]
fn the_recipes_of_the_page_work() {
    if !harness::is_possible() {
        return;
    }
    let _turn = harness::turn();
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let switch = Switch::new();
    let host = switch.plug(11);
    let _removal = Removal(&host, directory, vec!["ci-7", "dev"]);
    std::fs::create_dir_all(directory.join("manifests")).expect("a directory");
    std::fs::write(directory.join("manifests/app.yaml"), APPLICATION).expect("a manifest");
    // Disk usage of the tester's host must not matter.
    std::fs::write(
        directory.join("server.yaml"),
        "eviction-hard: memory.available<1Mi\nimage-gc-high-threshold: 100\n",
    )
    .expect("a file");
    std::fs::create_dir(directory.join("bin")).expect("a directory");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_knarr"), directory.join("bin/knarr")).expect("a link");
    let path = format!("{}:{}", directory.join("bin").display(), std::env::var("PATH").unwrap_or_default());

    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/local-clusters.md"));
    let blocks = crate::documentation::blocks(&page.expect("the page"));
    assert!(blocks.len() >= 3, "{blocks:?}");
    for (number, block) in blocks.iter().enumerate() {
        let build = format!("build {number}");
        std::fs::write(directory.join("app.tar"), harness::application("localhost/app:1", &build)).expect("an image");
        let create = "knarr cluster create --server-config server.yaml --agent-config server.yaml ";
        let text = block.text.replace("knarr cluster create ", create);
        let mut command = host.command("bash");
        command.args(["-euo", "pipefail", "-c", &text]).current_dir(directory).env("PATH", &path).env("JOB", "7");
        command.env("HOME", directory).env("KNARR_CLUSTERS", directory.join("clusters")).env_remove("KUBECONFIG");
        eprintln!("docs/local-clusters.md:{}", block.line);
        let printed = output(&mut command).unwrap_or_else(|error| panic!("line {}: {error}", block.line));
        if text.contains("--port 8080:30080") || text.contains("rollout restart") {
            assert!(printed.contains("rolled out"), "{printed}");
            wait_for("the page of this build", || {
                host.fetch("http://127.0.0.1:8080/").is_some_and(|page| page.contains(&build))
            });
        }
    }
    let mut list = host.command(env!("CARGO_BIN_EXE_knarr"));
    list.args(["cluster", "list"]).env("KNARR_CLUSTERS", directory.join("clusters")).env("HOME", directory);
    assert_eq!(output(&mut list).expect("a list").lines().count(), 1, "the recipes delete what they create");
}
