//! A cluster of nodes, and kubectl on it.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex};

use super::host::{Switch, TestHost};
use super::node::Node;
use super::wait_for;

/// Clusters are heavy: one at a time per test program.
static IN_USE: Mutex<bool> = Mutex::new(false);
static RELEASED: Condvar = Condvar::new();

/// The permit to have a cluster, released on drop. Any thread may do so.
pub struct ClusterPermit(());

/// Waits until no other test of this program has a cluster.
pub fn turn() -> ClusterPermit {
    let taken = IN_USE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut taken = RELEASED.wait_while(taken, |taken| *taken).unwrap_or_else(|poisoned| poisoned.into_inner());
    *taken = true;
    ClusterPermit(())
}

impl Drop for ClusterPermit {
    fn drop(&mut self) {
        *IN_USE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = false;
        RELEASED.notify_one();
    }
}

/// Differences from the default cluster.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub nodes: usize,
    /// The server's host has only loopback.
    pub is_unplugged: bool,
    /// Additional flags of `knarr server`, and of every `knarr agent`.
    pub server: Vec<&'static str>,
    pub agents: Vec<&'static str>,
}

/// A server and agents that joined with a token. Fields are dropped in this order.
pub struct Cluster {
    /// The first runs the server.
    pub nodes: Vec<Node>,
    switch: Switch,
    directory: tempfile::TempDir,
    _turn: ClusterPermit,
}

impl Cluster {
    /// Starts a cluster and waits until all nodes are ready.
    pub fn start(nodes: usize) -> Self {
        Self::with(Options { nodes, ..Options::default() })
    }

    pub fn with(options: Options) -> Self {
        let cluster = Self::unready(options.clone());
        cluster.wait_for_nodes(options.nodes);
        cluster
    }

    /// The same without waiting until nodes are ready.
    pub fn unready(options: Options) -> Self {
        let turn = turn();
        let switch = Switch::new();
        let directory = tempfile::tempdir().expect("a directory");
        let host = if options.is_unplugged { switch.leave_unplugged() } else { switch.plug(11) };
        let mut flags = Vec::new();
        if !options.is_unplugged {
            flags.extend(["--advertise-address".to_owned(), host.address.clone()]);
        }
        flags.extend(options.server.iter().map(ToString::to_string));
        let mut server = Node::new(host, "node-1", "server", directory.path(), flags);
        server.start();
        let mut cluster = Cluster { nodes: vec![server], switch, directory, _turn: turn };
        wait_for("the server to response", || {
            assert!(cluster.nodes[0].is_running(), "the server ended");
            cluster.try_kubectl(&["get", "--raw", "/readyz"]).is_ok()
        });
        for number in 2..=options.nodes {
            cluster.add_node(number, &options.agents);
        }
        cluster
    }

    /// Joins another host, with its own token; it is `node-NUMBER`.
    pub fn add_node(&mut self, number: usize, flags: &[&str]) {
        let host = self.switch.plug(u8::try_from(10 + number).expect("few nodes"));
        self.join(host, number, flags);
    }

    /// The same with a host behind a router.
    pub fn add_far_node(&mut self, number: usize, flags: &[&str]) {
        let host = self.switch.plug_far(u8::try_from(number).expect("few nodes"));
        self.join(host, number, flags);
    }

    fn join(&mut self, host: TestHost, number: usize, flags: &[&str]) {
        let join = self.token(&["create", "--print-join-command"]);
        // knarr agent --server URL --token TOKEN
        let mut words: Vec<String> = join.split_whitespace().skip(2).map(str::to_owned).collect();
        words.extend(flags.iter().map(ToString::to_string));
        let mut node = Node::new(host, &format!("node-{number}"), "agent", self.directory.path(), words);
        node.start();
        self.nodes.push(node);
    }

    pub fn wait_for_nodes(&self, count: usize) {
        wait_for(&format!("{count} nodes to be ready"), || {
            let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
            let listed = self.try_kubectl(&["get", "nodes", "-o", ready]).unwrap_or_default();
            listed.split_whitespace().filter(|status| *status == "True").count() == count
        });
    }

    /// A host on the same network that is not a node.
    pub fn outsider(&self, number: u8) -> TestHost {
        self.switch.plug(number)
    }

    /// The output of `knarr token …` on the server.
    pub fn token(&self, arguments: &[&str]) -> String {
        let data = self.nodes[0].data.to_string_lossy().into_owned();
        let mut words = vec!["token", "--data-dir", &data];
        words.extend(arguments);
        let output = self.nodes[0].knarr(&words).output().expect("knarr runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// The output of kubectl, or its error.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_with(arguments, "")
    }

    /// The output of kubectl, which must succeed.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}"))
    }

    pub fn apply(&self, manifest: &str) {
        let applied = self.kubectl_with(&["apply", "-f", "-"], manifest);
        applied.unwrap_or_else(|error| panic!("{error}: {manifest}"));
    }

    /// kubectl on the server's host.
    pub fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let server = &self.nodes[0];
        let mut command = server.host.command("kubectl");
        command.arg("--kubeconfig").arg(server.data.join("kubeconfig.yaml")).args(arguments);
        command.env("HOME", self.directory.path()).env_remove("KUBECONFIG");
        command
    }

    /// The output of kubectl with standard input.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.kubectl_command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl is installed");
        // If kubectl exits early, its stderr says why.
        let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("its output");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Waits for a state; on a timeout, prints pods and events.
    pub fn wait_for(&self, what: &str, mut come: impl FnMut() -> bool) {
        let started = std::time::Instant::now();
        while !come() {
            if started.elapsed() > super::wait_timeout() {
                let shown = |words: &[&str]| self.try_kubectl(words).unwrap_or_else(|error| error);
                let pods = shown(&["get", "pods", "-A", "-o", "wide"]);
                let events = shown(&["get", "events", "-A", "--sort-by=.lastTimestamp"]);
                panic!("waited in vain for {what}\n{pods}\n{events}");
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// The number of ready pods with a label.
    pub fn ready_pods(&self, label: &str) -> usize {
        let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
        let listed = self.try_kubectl(&["get", "pods", "-l", label, "-o", ready]).unwrap_or_default();
        listed.split_whitespace().filter(|status| *status == "True").count()
    }
}
