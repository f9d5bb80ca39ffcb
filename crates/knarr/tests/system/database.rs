//! PostgreSQL on a claim, while node, server, driver and the database itself are killed. Needs Debian's package `postgresql` on
//! the host, whose files the pods use: `make test-database`.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::harness::{self, Cluster, IMAGE, Node};

/// How often each component is killed.
const ROUNDS: usize = 3;

/// What is killed while rows are written.
#[derive(Clone, Copy, Debug)]
enum Victim {
    /// The kubelet and the driver.
    Agent,
    Server,
    /// The pod, without grace.
    Pod,
    /// Everything on the node: kubelet, driver, containerd and all containers.
    Node,
}

const VICTIMS: [Victim; 4] = [Victim::Agent, Victim::Server, Victim::Pod, Victim::Node];

fn programs() -> Option<PathBuf> {
    let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.flatten().map(|version| version.path().join("bin"));
    programs.filter(|directory| directory.join("postgres").exists()).max()
}

/// The id of the user that Debian's package created: PostgreSQL refuses root.
fn user() -> String {
    let users = std::fs::read_to_string("/etc/passwd").expect("users");
    let line = users.lines().find(|line| line.starts_with("postgres:")).expect("the user postgres");
    line.split(':').nth(2).expect("an id").to_owned()
}

/// A database and a writer, which appends the number of each row to `acknowledged` once it is committed.
fn manifest(programs: &Path, records: &Path) -> String {
    let (programs, records) = (programs.display(), records.display());
    let (user, mounts) = (
        user(),
        "[{name: data, mountPath: /data}, {name: run, mountPath: /run/db}, {name: records, mountPath: /records}, \
          {name: usr, mountPath: /usr, readOnly: true}, {name: lib, mountPath: /lib, readOnly: true}, \
          {name: lib64, mountPath: /lib64, readOnly: true}, {name: passwd, mountPath: /etc/passwd, readOnly: true}]",
    );
    let database = format!(
        "set -e; PATH={programs}:$PATH; test -e /data/db/complete || {{ busybox rm -rf /data/db; initdb -A trust --no-locale -E UTF8 -D \
         /data/db; touch /data/db/complete; }}; busybox rm -f /data/db/postmaster.pid; exec postgres -D /data/db -k /run/db -c \
         listen_addresses= -c shared_buffers=8MB"
    );
    let writer = format!(
        "PATH={programs}:$PATH; export PGHOST=/run/db PGDATABASE=postgres; q() {{ psql -qtA -v ON_ERROR_STOP=1 -c \"$1\"; }}; \
         until q 'create table if not exists rows (id bigint primary key)'; do busybox sleep 0.2; done; \
         n=$(q 'select coalesce(max(id), 0) from rows'); while true; do n=$((n + 1)); \
         if q \"insert into rows values ($n)\"; then echo $n >> /records/acknowledged; \
         else busybox sleep 0.2; n=$(q 'select coalesce(max(id), 0) from rows' || echo $n); fi; done"
    );
    format!(
        r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {{name: db}}
spec:
  serviceName: db
  selector: {{matchLabels: {{app: db}}}}
  template:
    metadata: {{labels: {{app: db}}}}
    spec:
      terminationGracePeriodSeconds: 0
      nodeSelector: {{kubernetes.io/hostname: node-2}}
      securityContext: {{runAsUser: {user}, runAsGroup: {user}, fsGroup: {user}, fsGroupChangePolicy: OnRootMismatch}}
      containers:
      - {{name: database, image: {IMAGE}, command: [sh, -c, {database:?}], volumeMounts: {mounts}}}
      - {{name: writer, image: {IMAGE}, command: [sh, -c, {writer:?}], volumeMounts: {mounts}}}
      volumes:
      - {{name: run, emptyDir: {{}}}}
      - {{name: records, hostPath: {{path: {records}}}}}
      - {{name: usr, hostPath: {{path: /usr}}}}
      - {{name: lib, hostPath: {{path: /usr/lib}}}}
      - {{name: lib64, hostPath: {{path: /usr/lib64}}}}
      - {{name: passwd, hostPath: {{path: /etc/passwd}}}}
  volumeClaimTemplates:
  - metadata: {{name: data}}
    # No two pods have it at once, even after one was deleted by force.
    spec: {{accessModes: [ReadWriteOncePod], resources: {{requests: {{storage: 256Mi}}}}}}
"#
    )
}

fn acknowledged(records: &Path) -> Vec<u64> {
    let text = std::fs::read_to_string(records.join("acknowledged")).unwrap_or_default();
    // The last line may be incomplete.
    let complete = text.rsplit_once('\n').map_or("", |(complete, _)| complete);
    complete.lines().filter_map(|line| line.parse().ok()).collect()
}

/// Waits until this many more rows are committed.
fn wait_for_rows(cluster: &Cluster, records: &Path, more: usize, after: &str) {
    let before = acknowledged(records).len();
    cluster.wait_for(&format!("rows after {after}"), || acknowledged(records).len() >= before + more);
}

/// Kills all processes of a node, in its network namespace and in its cgroups, until there are none.
fn kill_processes(node: &Node) {
    let namespace = std::fs::metadata(node.host.path()).expect("a namespace").ino();
    let cgroup = format!(":{}/", node.cgroup_root);
    let is_on_node = |process: &Path| {
        let network = std::fs::metadata(process.join("ns/net")).map(|network| network.ino());
        let groups = std::fs::read_to_string(process.join("cgroup")).unwrap_or_default();
        network.is_ok_and(|network| network == namespace) || groups.contains(&cgroup)
    };
    harness::wait_for("the processes to be gone", || {
        let entries = std::fs::read_dir("/proc").expect("processes").flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let left: Vec<i32> = pids.filter(|pid| is_on_node(&Path::new("/proc").join(pid.to_string()))).collect();
        for pid in &left {
            // It may have ended by itself.
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(*pid), nix::sys::signal::Signal::SIGKILL);
        }
        left.is_empty()
    });
}

impl Victim {
    fn kill(self, cluster: &mut Cluster) {
        match self {
            Victim::Agent => cluster.nodes[1].kill(),
            Victim::Server => cluster.nodes[0].kill(),
            Victim::Pod => drop(cluster.kubectl(&["delete", "pod", "db-0", "--grace-period=0", "--force"])),
            Victim::Node => {
                cluster.nodes[1].kill();
                kill_processes(&cluster.nodes[1]);
            }
        }
    }

    fn start(self, cluster: &mut Cluster) {
        match self {
            Victim::Agent | Victim::Node => cluster.nodes[1].start(),
            Victim::Server => cluster.nodes[0].start(),
            Victim::Pod => {}
        }
    }
}

#[test]
#[ignore = "takes minutes and needs PostgreSQL: make test-database"]
fn no_committed_row_is_lost() {
    let Some(programs) = programs() else { panic!("install postgresql") };
    assert!(harness::is_possible());
    let records = tempfile::tempdir().expect("a directory");
    std::fs::set_permissions(records.path(), PermissionsExt::from_mode(0o777)).expect("open to all");
    let mut cluster = Cluster::start(2);
    cluster.apply(&manifest(&programs, records.path()));
    wait_for_rows(&cluster, records.path(), 20, "the start");
    for round in 0..ROUNDS {
        for victim in VICTIMS {
            let started = Instant::now();
            victim.kill(&mut cluster);
            // Rows are written while it is gone, where that is possible.
            std::thread::sleep(Duration::from_millis(500 * round as u64));
            victim.start(&mut cluster);
            wait_for_rows(&cluster, records.path(), 20, &format!("{victim:?} was killed"));
            eprintln!("{victim:?}: rows again after {:?}", started.elapsed());
        }
    }
    let rows = "psql -h /run/db -qtA -d postgres -c 'select id from rows'";
    let script = format!("PATH={}:$PATH; {rows}", programs.display());
    let mut found = String::new();
    // Acknowledged before the rows are read, so that they must be among them.
    let expected = acknowledged(records.path());
    cluster.wait_for("the rows", || {
        let read = cluster.try_kubectl(&["exec", "db-0", "-c", "database", "--", "sh", "-c", &script]);
        read.is_ok_and(|rows| {
            found = rows;
            true
        })
    });
    let found: std::collections::HashSet<u64> = found.lines().filter_map(|line| line.parse().ok()).collect();
    let lost: Vec<u64> = expected.iter().filter(|row| !found.contains(row)).copied().collect();
    eprintln!("{} rows acknowledged, {} found", expected.len(), found.len());
    assert!(lost.is_empty(), "lost: {lost:?}");
}
