//! `knarr cluster` of an ordinary user: everything is in namespaces of its own, and nothing is left.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::harness::{self, Switch, TestHost, wait_for};

const NAME: &str = "sailor";
const ID: u32 = 54_321;
const FIRST_SUBORDINATE: u32 = 1_700_000_000;
const SUBORDINATES: u32 = 65_536;

/// Disk usage of the tester's host must not matter.
const SETTINGS: &str = "eviction-hard: memory.available<1Mi\nimage-gc-high-threshold: 100\n";

/// Binds the files of a user over those of the host, moves into a cgroup if one is given, and becomes that user.
const BECOME: &str = "
set -eu
files=$1 cgroup=$2; shift 2
for name in passwd group subuid subgid; do mount --bind $files/$name /etc/$name; done
mount --bind $KNARR $files/knarr
mount --bind $files/tun /dev/net/tun
if [ -n \"$cgroup\" ]; then echo $$ >$cgroup/cgroup.procs; fi
exec setpriv --reuid $OWN --regid $OWN --clear-groups -- \"$@\"
";

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers: [{name: web, image: 'nginx:1', imagePullPolicy: Never, resources: {limits: {memory: 64Mi, cpu: 500m}}}]
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: web}
spec: {defaultBackend: {service: {name: web, port: {number: 80}}}}
---
apiVersion: v1
kind: Pod
metadata: {name: other}
spec:
  securityContext: {runAsUser: 1000, runAsGroup: 3000, fsGroup: 2000}
  volumes: [{name: data, emptyDir: {}}]
  containers:
  - {name: other, image: 'nginx:1', imagePullPolicy: Never, command: [sh, -c, 'echo started; exec sleep 100000'], volumeMounts: [{name: data, mountPath: /data}]}
";

/// An ordinary user of a host, whose entries in `/etc` only its own commands see.
struct Sailor<'a> {
    host: &'a TestHost,
    files: PathBuf,
    /// A cgroup that is delegated to the user.
    cgroup: Option<PathBuf>,
}

impl Sailor<'_> {
    fn new<'a>(host: &'a TestHost, directory: &Path) -> Sailor<'a> {
        std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o711)).expect("an own directory");
        let files = directory.join("files");
        std::fs::create_dir(&files).expect("a directory");
        let append = |name: &str, line: String| {
            let before = std::fs::read_to_string(Path::new("/etc").join(name)).unwrap_or_default();
            std::fs::write(files.join(name), before + &line).expect("a file");
        };
        append("passwd", format!("{NAME}:x:{ID}:{ID}::{}:/bin/sh\n", directory.join("home").display()));
        append("group", format!("{NAME}:x:{ID}:\n"));
        std::fs::write(files.join("knarr"), "").expect("a file to bind over");
        // As udev creates it on most hosts.
        let device = nix::sys::stat::makedev(10, 200);
        let kind = nix::sys::stat::SFlag::S_IFCHR;
        nix::sys::stat::mknod(&files.join("tun"), kind, nix::sys::stat::Mode::empty(), device).expect("a device");
        std::fs::set_permissions(files.join("tun"), std::fs::Permissions::from_mode(0o666)).expect("an own device");
        let sailor = Sailor { host, files, cgroup: None };
        sailor.set_subordinates(&format!("{NAME}:{FIRST_SUBORDINATE}:{SUBORDINATES}\n"));
        std::fs::create_dir(sailor.home()).expect("a directory");
        std::fs::set_permissions(sailor.home(), std::fs::Permissions::from_mode(0o700)).expect("an own directory");
        chown(sailor.home(), Some(ID), Some(ID)).expect("a home");
        sailor
    }

    fn home(&self) -> PathBuf {
        self.files.with_file_name("home")
    }

    fn set_subordinates(&self, line: &str) {
        for name in ["subuid", "subgid"] {
            std::fs::write(self.files.join(name), line).expect("a file");
        }
    }

    /// A command of the user, in its home directory.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.host.command("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", BECOME, "sh"]).arg(&self.files);
        command.arg(self.cgroup.as_deref().unwrap_or(Path::new(""))).args(words).current_dir(self.home());
        command.env("KNARR", env!("CARGO_BIN_EXE_knarr")).env("OWN", ID.to_string()).env("HOME", self.home());
        // As users have it: without the directories of the administrator.
        command.env("PATH", "/usr/local/bin:/usr/bin:/bin");
        for name in ["KUBECONFIG", "KNARR_CLUSTERS", "XDG_DATA_HOME"] {
            command.env_remove(name);
        }
        command
    }

    /// What a command of the user prints on both channels.
    fn try_run(&self, words: &[&str]) -> Result<String, String> {
        let output = self.command(words).output().expect("unshare runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        let printed = format!("{}\n{}", text(&output.stdout), text(&output.stderr)).trim().to_owned();
        if output.status.success() { Ok(printed) } else { Err(printed) }
    }

    fn run(&self, words: &[&str]) -> String {
        self.try_run(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    fn cluster(&self, arguments: &[&str]) -> String {
        let knarr = self.files.join("knarr");
        self.run(&[&[&*knarr.to_string_lossy(), "cluster"], arguments].concat())
    }

    fn kubectl(&self, arguments: &[&str]) -> String {
        self.run(&[&["kubectl"], arguments].concat())
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> String {
        let path = self.home().join(name);
        std::fs::write(&path, content).expect("a file");
        chown(&path, Some(ID), Some(ID)).expect("a file of the user");
        path.to_string_lossy().into_owned()
    }

    /// The processes of the user and of its subordinate ids, by their ids.
    fn processes() -> Vec<String> {
        let is_own = |status: &str| {
            let users = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
            let mut users = users.split_whitespace().filter_map(|user| user.parse::<u32>().ok());
            users.any(|user| user == ID || (FIRST_SUBORDINATE..FIRST_SUBORDINATE + SUBORDINATES).contains(&user))
        };
        let entries = std::fs::read_dir("/proc").expect("processes").flatten();
        let statuses = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
        // Whoever adopted a process that has ended reaps it when it likes.
        let runs = |status: &String| !status.contains("State:\tZ");
        statuses
            .filter(|status| is_own(status) && runs(status))
            .filter_map(|status| status.lines().next().map(str::to_owned))
            .collect()
    }
}

/// Deletes the cluster whatever the test did.
impl Drop for Sailor<'_> {
    fn drop(&mut self) {
        let knarr = self.files.join("knarr");
        if self.home().join(".local/share/knarr/clusters/dev").exists() {
            for name in ["namespace.log", "outgoing.log", "node-1.log", "node-2.log"] {
                let log = self.home().join(".local/share/knarr/clusters/dev").join(name);
                eprintln!("{name}:\n{}", std::fs::read_to_string(log).unwrap_or_default());
            }
            let deleted = self.try_run(&[&*knarr.to_string_lossy(), "cluster", "delete", "dev"]);
            eprintln!("{deleted:?}");
        }
        if let Some(cgroup) = &self.cgroup {
            // A test that failed may have left some in use.
            let _ = std::fs::remove_dir(cgroup);
        }
    }
}

fn is_possible() -> bool {
    harness::is_possible() && knarr_test_host::has(&["newuidmap", "newgidmap", "setpriv", "unshare", "slirp4netns"])
}

/// A server of the network outside.
struct Outside(Child);

impl Outside {
    fn serve(host: &TestHost, directory: &Path) -> Outside {
        let pages = directory.join("outside");
        std::fs::create_dir(&pages).expect("a directory");
        std::fs::write(pages.join("index.html"), "another network\n").expect("a page");
        let mut command = host.command("/bin/busybox");
        command.args(["httpd", "-f", "-p", "8000", "-h"]).arg(pages);
        Outside(command.spawn().expect("busybox runs"))
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        // It runs until here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_user_has_a_cluster_and_nothing_is_left() {
    if !is_possible() {
        return;
    }
    let _turn = harness::turn();
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let switch = Switch::new();
    let (host, far) = (switch.plug(11), switch.plug(12));
    let _outside = Outside::serve(&far, directory);
    let sailor = Sailor::new(&host, directory);
    let settings = sailor.write("settings.yaml", SETTINGS);
    let create = ["create", "dev", "--nodes", "2", "--port", "8080:80", "--server-config", &settings, "--agent-config"];
    let create = [&create[..], &[&settings, "--registry", "5001"]].concat();

    // Without subordinate ids, nothing is created, and the message says what to do.
    sailor.set_subordinates("");
    let knarr = sailor.files.join("knarr").to_string_lossy().into_owned();
    let refused = sailor.try_run(&[&[&*knarr, "cluster"], &create[..]].concat()).expect_err("it has no ids");
    assert!(refused.contains("/etc/subuid: there is no line for sailor"), "{refused}");
    assert!(refused.contains("usermod --add-subgids"), "{refused}");
    assert!(!sailor.home().join(".local").exists());
    sailor.set_subordinates(&format!("{NAME}:{FIRST_SUBORDINATE}:{SUBORDINATES}\n"));

    let printed = sailor.cluster(&create);
    assert!(printed.contains("without root, pods have no limits"), "{printed}");
    let listed = sailor.cluster(&["list"]);
    assert!(listed.contains("2/2      https://127.0.0.1:16443  knarr-dev"), "{listed}");
    let clusters = sailor.home().join(".local/share/knarr/clusters");
    assert_eq!(std::fs::metadata(&clusters).expect("a directory").mode() & 0o777, 0o700);

    // Pods of several users, on both nodes, behind a Service, a name and the ingress controller.
    let images = directory.join("images");
    harness::write_images(&images);
    let archive = sailor.write("nginx.tar", std::fs::read(images.join("nginx.tar")).expect("an image"));
    sailor.cluster(&["load", "dev", &archive]);
    let manifest = sailor.write("web.yaml", WEB);
    sailor.kubectl(&["apply", "-f", &manifest]);
    sailor.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"]);
    sailor.kubectl(&["wait", "--for=condition=Ready", "pod/other", "--timeout=120s"]);
    let nodes = sailor.kubectl(&["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.nodeName}"]);
    assert!(nodes.contains("node-1") && nodes.contains("node-2"), "{nodes}");
    let is_served = || host.fetch("http://127.0.0.1:8080/").is_some_and(|page| page.contains("It works!"));
    wait_for("the ingress controller", is_served);
    let within = |script: &str| sailor.kubectl(&["exec", "other", "--", "sh", "-c", script]);
    assert!(within("wget -qO- http://web.default.svc.cluster.local").contains("It works!"));
    assert!(within("touch /data/file; ls -ln /data/file").contains("1000     2000"), "{}", within("ls -ln /data"));
    assert_eq!(sailor.kubectl(&["logs", "other"]), "started");
    let log = sailor.run(&[&knarr, "logs", "--cluster", "dev"]);
    assert!(log.contains("the API server is ready"), "{log}");
    assert!(within("wget -qO- http://10.77.0.12:8000/").contains("another network"));
    let failed = sailor.kubectl(&["get", "pods", "-A", "--field-selector=status.phase!=Running", "-o", "name"]);
    assert!(failed.is_empty() || failed.contains("No resources"), "{failed}");

    // The host has no way in but the mapped ports.
    assert!(!host.run(&["ip", "route"]).contains("10.190."));
    assert!(!host.run(&["ip", "-o", "link"]).contains(": kn"));

    sailor.cluster(&["stop", "dev"]);
    assert_eq!(Sailor::processes(), [""; 0], "of a cluster that is stopped");
    sailor.cluster(&["start", "dev"]);
    wait_for("the ingress controller again", is_served);

    sailor.cluster(&["delete", "dev"]);
    assert_eq!(Sailor::processes(), [""; 0]);
    let left: Vec<_> = std::fs::read_dir(&clusters).expect("the directory").flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["lock"]);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    assert!(!mounts.contains(&*directory.to_string_lossy()), "{mounts}");
    let config = std::fs::read_to_string(sailor.home().join(".kube/config")).expect("the file");
    assert!(!config.contains("knarr-dev"), "{config}");
}

/// With cgroup v2, a cgroup that is delegated to the user gives pods limits. Hosts with version 1 leave this out even in CI:
/// `make test-cgroup2` runs it in a virtual machine.
#[test]
fn a_delegated_cgroup_gives_pods_limits() {
    let mount = Path::new("/sys/fs/cgroup");
    if !is_possible() {
        return;
    }
    if !mount.join("cgroup.controllers").exists() {
        eprintln!("skipped: this host has cgroup v1");
        return;
    }
    let _turn = harness::turn();
    let directory = tempfile::tempdir().expect("a directory");
    let directory = directory.path();
    let switch = Switch::new();
    let host = switch.plug(11);
    let mut sailor = Sailor::new(&host, directory);
    let cgroup = mount.join("knarr-test-delegated");
    std::fs::create_dir(&cgroup).expect("a cgroup");
    for name in ["", "cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
        chown(cgroup.join(name), Some(ID), Some(ID)).expect("a cgroup of the user");
    }
    sailor.cgroup = Some(cgroup.clone());
    let settings = sailor.write("settings.yaml", SETTINGS);
    let printed = sailor.cluster(&["create", "dev", "--offline", "--server-config", &settings]);
    assert!(!printed.contains("no limits"), "{printed}");
    // Controllers are enabled: no other process can be where the first command was.
    sailor.cgroup = None;
    let images = directory.join("images");
    harness::write_images(&images);
    let archive = sailor.write("nginx.tar", std::fs::read(images.join("nginx.tar")).expect("an image"));
    sailor.cluster(&["load", "dev", &archive]);
    let web = WEB.replace("replicas: 2", "replicas: 1");
    sailor.kubectl(&["apply", "-f", &sailor.write("web.yaml", web)]);
    sailor.kubectl(&["rollout", "status", "deployment/web", "--timeout=600s"]);
    let limit = sailor.kubectl(&["exec", "deployment/web", "--", "cat", "/sys/fs/cgroup/memory.max"]);
    assert_eq!(limit, (64 << 20).to_string());
    sailor.cluster(&["delete", "dev"]);
    sailor.cgroup = Some(cgroup.clone());
    let left: Vec<_> =
        std::fs::read_dir(&cgroup).expect("the cgroup").flatten().filter(|e| e.path().is_dir()).collect();
    assert!(left.is_empty(), "{left:?}");
}
