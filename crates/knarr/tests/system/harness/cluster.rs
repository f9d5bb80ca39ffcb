//! A cluster of nodes, and kubectl on it.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex};

use super::machine::{Machine, Switch};
use super::node::Node;
use super::wait_for;

/// Clusters are heavy: one at a time in a test program. Whether somebody has one.
static TAKEN: Mutex<bool> = Mutex::new(false);
static FREED: Condvar = Condvar::new();

/// The right to have a cluster, given back when dropped. Any thread may do so.
pub struct Turn(());

/// Waits until no other test of this program has a cluster.
pub fn turn() -> Turn {
    let taken = TAKEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let mut taken = FREED.wait_while(taken, |taken| *taken).unwrap_or_else(|poisoned| poisoned.into_inner());
    *taken = true;
    Turn(())
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = false;
        FREED.notify_one();
    }
}

/// How a cluster differs from the plainest one.
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub nodes: usize,
    /// The server's machine has no network but its loopback.
    pub is_unplugged: bool,
    /// More flags of `knarr server`, and of every `knarr agent`.
    pub server: Vec<&'static str>,
    pub agents: Vec<&'static str>,
}

/// A server and agents that joined it with a token. Fields are dropped in this order.
pub struct Cluster {
    /// The first runs the server.
    pub nodes: Vec<Node>,
    switch: Switch,
    folder: tempfile::TempDir,
    _turn: Turn,
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
        let folder = tempfile::tempdir().expect("a folder");
        let machine = if options.is_unplugged { switch.leave_unplugged() } else { switch.plug(11) };
        let mut flags = Vec::new();
        if !options.is_unplugged {
            flags.extend(["--advertise-address".to_owned(), machine.address.clone()]);
        }
        flags.extend(options.server.iter().map(ToString::to_string));
        let mut server = Node::new(machine, "node-1", "server", folder.path(), flags);
        server.start();
        let mut cluster = Cluster { nodes: vec![server], switch, folder, _turn: turn };
        wait_for("the server to answer", || {
            assert!(cluster.nodes[0].is_running(), "the server ended");
            cluster.try_kubectl(&["get", "--raw", "/readyz"]).is_ok()
        });
        for number in 2..=options.nodes {
            cluster.add_node(number, &options.agents);
        }
        cluster
    }

    /// Joins another machine, with a token of its own; it is `node-NUMBER`.
    pub fn add_node(&mut self, number: usize, flags: &[&str]) {
        let machine = self.switch.plug(u8::try_from(10 + number).expect("few nodes"));
        self.join(machine, number, flags);
    }

    /// The same with a machine that is behind a router.
    pub fn add_far_node(&mut self, number: usize, flags: &[&str]) {
        let machine = self.switch.plug_far(u8::try_from(number).expect("few nodes"));
        self.join(machine, number, flags);
    }

    fn join(&mut self, machine: Machine, number: usize, flags: &[&str]) {
        let join = self.token(&["create", "--print-join-command"]);
        // knarr agent --server URL --token TOKEN
        let mut words: Vec<String> = join.split_whitespace().skip(2).map(str::to_owned).collect();
        words.extend(flags.iter().map(ToString::to_string));
        let mut node = Node::new(machine, &format!("node-{number}"), "agent", self.folder.path(), words);
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

    /// A machine on the same network that is no node.
    pub fn outsider(&self, number: u8) -> Machine {
        self.switch.plug(number)
    }

    /// What `knarr token …` prints on the server.
    pub fn token(&self, arguments: &[&str]) -> String {
        let data = self.nodes[0].data.to_string_lossy().into_owned();
        let mut words = vec!["token", "--data-dir", &data];
        words.extend(arguments);
        let output = self.nodes[0].knarr(&words).output().expect("knarr runs");
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// What kubectl prints, or what it complains of.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        self.kubectl_with(arguments, "")
    }

    /// What kubectl prints; it must succeed.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        self.try_kubectl(arguments).unwrap_or_else(|complaint| panic!("kubectl {arguments:?}: {complaint}"))
    }

    pub fn apply(&self, manifest: &str) {
        let applied = self.kubectl_with(&["apply", "-f", "-"], manifest);
        applied.unwrap_or_else(|complaint| panic!("{complaint}: {manifest}"));
    }

    /// kubectl on the server's machine.
    pub fn kubectl_command(&self, arguments: &[&str]) -> Command {
        let server = &self.nodes[0];
        let mut command = server.machine.command("kubectl");
        command.arg("--kubeconfig").arg(server.data.join("kubeconfig.yaml")).args(arguments);
        command.env("HOME", self.folder.path()).env_remove("KUBECONFIG");
        command
    }

    /// What kubectl prints when it is given something to read.
    pub fn kubectl_with(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = self.kubectl_command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl is installed");
        // When kubectl ends early its own words say why.
        let _ = child.stdin.take().expect("its input").write_all(input.as_bytes());
        let output = child.wait_with_output().expect("its output");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    /// Waits for a state; when it does not come, the pods and events are shown.
    pub fn wait_for(&self, what: &str, mut come: impl FnMut() -> bool) {
        let begun = std::time::Instant::now();
        while !come() {
            if begun.elapsed() > super::patience() {
                let shown = |words: &[&str]| self.try_kubectl(words).unwrap_or_else(|complaint| complaint);
                let pods = shown(&["get", "pods", "-A", "-o", "wide"]);
                let events = shown(&["get", "events", "-A", "--sort-by=.lastTimestamp"]);
                panic!("waited in vain for {what}\n{pods}\n{events}");
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// How many pods with a label are ready.
    pub fn ready_pods(&self, label: &str) -> usize {
        let ready = "jsonpath={.items[*].status.conditions[?(@.type==\"Ready\")].status}";
        let listed = self.try_kubectl(&["get", "pods", "-l", label, "-o", ready]).unwrap_or_default();
        listed.split_whitespace().filter(|status| *status == "True").count()
    }
}
