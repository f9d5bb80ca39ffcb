//! Three servers, each in its own network namespace with a cable and a clock of its own, and nodes.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::clock::{self, Clock};
use crate::disk::Disk;
use crate::harness::{ClusterPermit, Node, Switch, TestHost, program, turn, wait_for};
use crate::leaders::{self, Act, Holding};
use crate::wire::Wire;

/// The number of the first node's host.
const FIRST_AGENT: u8 = 50;

/// Fields are dropped in this order.
pub struct ThreeServers {
    /// Nodes that joined the first server.
    pub agents: Vec<Node>,
    pub nodes: Vec<Node>,
    pub wires: Vec<Wire>,
    pub clocks: Vec<Clock>,
    /// One for each server.
    pub disks: Vec<Disk>,
    /// A host on the same network that is not a server.
    pub client: TestHost,
    pub switch: Switch,
    directory: tempfile::TempDir,
    program: String,
    _turn: ClusterPermit,
}

fn number_of(server: usize) -> u8 {
    u8::try_from(11 + server).expect("few servers")
}

/// The number of a node's host.
pub fn agent_number(agent: usize) -> u8 {
    FIRST_AGENT + u8::try_from(agent).expect("few nodes")
}

fn name_of(server: usize) -> String {
    format!("server-{}", server + 1)
}

impl ThreeServers {
    pub fn start() -> Self {
        Self::start_with(&program())
    }

    /// Starts servers, and later agents, with a program.
    pub fn start_with(program: &str) -> Self {
        let turn = turn();
        let switch = Switch::new();
        let directory = tempfile::tempdir().expect("a directory");
        let client = switch.plug(99);
        clock::library(directory.path());
        let mut servers = Self {
            agents: Vec::new(),
            nodes: Vec::new(),
            wires: Vec::new(),
            clocks: Vec::new(),
            disks: Vec::new(),
            client,
            switch,
            directory,
            program: program.to_owned(),
            _turn: turn,
        };
        // The first has a store of its own, which moves into etcd.
        servers.add(&[]);
        servers.kubectl(0, &["create", "configmap", "before", "--from-literal=key=value"]);
        let before = servers.version_of("before");
        servers.nodes[0].stop();
        servers.nodes[0].add_flags(&["--cluster-init"]);
        servers.nodes[0].start();
        servers.await_ready(0);
        assert_eq!(servers.version_of("before"), before, "revisions are kept");
        for _ in 0..2 {
            let line = servers.knarr(0, &["token", "create", "--role", "server", "--print-join-command"]);
            assert!(line.starts_with("knarr server --server https://10.77.0.11:6443 --token "), "{line}");
            let words: Vec<&str> = line.split_whitespace().skip(2).collect();
            servers.add(&words);
        }
        servers.await_members();
        servers
    }

    fn add(&mut self, flags: &[&str]) {
        let number = self.nodes.len();
        let address = number_of(number);
        let (host, wire) = self.switch.plug_with(address, |switch, host| Wire::connect(address, switch, host));
        self.wires.push(wire);
        self.disks.push(Disk::mount(&self.directory.path().join(name_of(number))));
        let (policy, audit) = (self.directory.path().join("audit-policy.yaml"), self.audit_log(number));
        std::fs::write(&policy, leaders::POLICY).expect("a file");
        let mut arguments: Vec<String> = ["--disable-agent", "--advertise-address", &host.address]
            .into_iter()
            .chain(["--audit-policy-file", &policy.to_string_lossy(), "--audit-log-path", &audit.to_string_lossy()])
            .chain(["--audit-log-maxsize", "0"])
            .map(str::to_owned)
            .collect();
        arguments.extend(flags.iter().map(ToString::to_string));
        let mut node = Node::new(host, &name_of(number), "server", self.directory.path(), arguments);
        node.set_program(&self.program);
        self.clocks.push(Clock::of(&mut node, &self.directory.path().join(clock::LIBRARY)));
        node.start();
        self.nodes.push(node);
        self.await_ready(number);
    }

    fn audit_log(&self, server: usize) -> std::path::PathBuf {
        self.directory.path().join(format!("{}.audit", name_of(server)))
    }

    /// Elected components acted only on the server that held their Lease.
    pub fn check_acts(&self, holdings: &[Holding]) {
        let read = |server: usize| std::fs::read_to_string(self.audit_log(server)).expect("an audit log");
        let acts: Vec<Act> =
            (0..self.nodes.len()).flat_map(|server| leaders::acts(&name_of(server), &read(server))).collect();
        let transitions = holdings.windows(2).filter(|pair| pair[0].holder != pair[1].holder).count();
        eprintln!("{} versions of Leases ({transitions} changes in all), {} acts", holdings.len(), acts.len());
        assert!(!holdings.is_empty() && !acts.is_empty(), "nobody was elected, or did anything");
        if let Some(violation) = leaders::violation(holdings, &acts) {
            panic!("{violation}");
        }
    }

    /// Joins a node with the address of the first server, and waits until it is ready.
    pub fn add_agent(&mut self) {
        let line = self.knarr(0, &["token", "create", "--print-join-command"]);
        let words: Vec<String> = line.split_whitespace().skip(2).map(str::to_owned).collect();
        let number = self.agents.len();
        let host = self.switch.plug(agent_number(number));
        let name = format!("agent-{}", number + 1);
        let mut agent = Node::new(host, &name, "agent", self.directory.path(), words);
        agent.set_program(&self.program);
        agent.start();
        self.agents.push(agent);
        wait_for("the node to be ready", || {
            let status = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
            self.try_kubectl(1, &["get", "node", &name, "-o", status]).is_ok_and(|ready| ready == "True")
        });
    }

    /// Waits until the first node has renewed its Lease, as another server sees it.
    pub fn await_heartbeat(&self) {
        let renewed = || {
            let words = ["get", "lease", "-n", "kube-node-lease", "agent-1", "-o", "jsonpath={.spec.renewTime}"];
            self.try_kubectl(1, &words).unwrap_or_default()
        };
        let before = renewed();
        wait_for("the node to renew its Lease", || {
            let now = renewed();
            !now.is_empty() && now != before
        });
    }

    fn await_ready(&mut self, server: usize) {
        wait_for("a server to be ready", || {
            assert!(self.nodes[server].is_running(), "{} ended", self.nodes[server].name);
            self.try_kubectl(server, &["get", "--raw", "/readyz"]).is_ok()
        });
    }

    /// The output of a command of Knarr on a server's host.
    pub fn knarr(&self, server: usize, words: &[&str]) -> String {
        self.try_knarr(server, words).unwrap_or_else(|error| panic!("knarr {words:?}: {error}"))
    }

    pub fn try_knarr(&self, server: usize, words: &[&str]) -> Result<String, String> {
        let node = &self.nodes[server];
        let output = node.knarr(words).arg("--data-dir").arg(&node.data).output().expect("knarr runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    pub fn kubectl(&self, server: usize, words: &[&str]) -> String {
        self.try_kubectl(server, words).unwrap_or_else(|error| panic!("kubectl {words:?}: {error}"))
    }

    pub fn try_kubectl(&self, server: usize, words: &[&str]) -> Result<String, String> {
        let node = &self.nodes[server];
        let mut command = node.host.command("kubectl");
        command.arg("--kubeconfig").arg(node.data.join("kubeconfig.yaml")).arg("--request-timeout=10s").args(words);
        let output = command.env("HOME", self.directory.path()).output().expect("kubectl is installed");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }

    fn version_of(&self, name: &str) -> String {
        self.kubectl(0, &["get", "configmap", name, "-o", "jsonpath={.metadata.resourceVersion}"])
    }

    /// Waits until all three are members and respond.
    pub fn await_members(&mut self) {
        self.await_members_with(|_| {});
    }

    /// The same, and does something before it looks.
    pub fn await_members_with(&mut self, mut meanwhile: impl FnMut(&mut Self)) {
        wait_for("three healthy servers", || {
            meanwhile(self);
            // At once: each of these programs needs some time to start.
            std::thread::scope(|scope| {
                let is_ready = |server| self.try_kubectl(server, &["get", "--raw", "/readyz"]).is_ok();
                let ready = [0, 1, 2].map(|server| scope.spawn(move || is_ready(server)));
                let status = self.try_knarr(0, &["status"]).unwrap_or_default();
                let healthy = |line: &&str| line.contains(" healthy ") && !line.contains(" learner ");
                status.lines().filter(healthy).count() == 3
                    && ready.into_iter().all(|ready| ready.join().is_ok_and(|ready| ready))
            })
        });
    }

    /// The number of the server whose etcd leads.
    pub fn etcd_leader(&self) -> usize {
        let status = self.knarr(0, &["status"]);
        let line = status.lines().find(|line| line.contains(" leader ")).unwrap_or_else(|| panic!("{status}"));
        let name = line.split_whitespace().next().expect("a name");
        self.nodes.iter().position(|node| node.name == name).expect("one of ours")
    }

    pub fn etcd_of(&self, server: usize) -> Option<Pid> {
        let parent = self.nodes[server].pid();
        let mut children = std::fs::read_dir("/proc").expect("processes").flatten().filter_map(|entry| {
            let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            let (name, rest) = stat.rsplit_once(')')?;
            let of: u32 = rest.split_whitespace().nth(1)?.parse().ok()?;
            (of == parent && name.ends_with("(etcd")).then(|| Pid::from_raw(pid))
        });
        children.next()
    }

    /// Each component runs on one server, and the API says so.
    pub fn check_one_leader_each(&self) {
        for lease in ["kube-controller-manager", "kube-scheduler", "knarr-network"] {
            wait_for(&format!("a holder of {lease}"), || {
                let path = "jsonpath={.spec.holderIdentity}";
                let found = self.try_kubectl(1, &["get", "lease", "-n", "kube-system", lease, "-o", path]);
                found.is_ok_and(|holder| self.nodes.iter().any(|node| holder.starts_with(&node.name)))
            });
        }
        let endpoints =
            self.kubectl(1, &["get", "endpointslice", "kubernetes", "-o", "jsonpath={.endpoints[*].addresses[0]}"]);
        assert_eq!(endpoints.split_whitespace().count(), 3, "{endpoints}");
    }

    /// A token for nodes admits no server, and a server without a token is none.
    pub fn check_roles_and_tokens(&self) {
        let line = self.knarr(0, &["token", "create", "--print-join-command"]);
        let token = line.split_whitespace().last().expect("a token");
        let data = self.directory.path().join("intruder");
        let data = data.to_string_lossy();
        let server = "https://10.77.0.11:6443";
        let words = ["server", "--disable-agent", "--server", server, "--token", token, "--data-dir", &data];
        let refused = self.client.output(&[&[program().as_str()][..], &words[..]].concat());
        let reason = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && reason.contains("admits nodes, not servers"), "{reason}");
        assert!(!std::path::Path::new(&*data).join("pki/ca.key").exists());
    }

    /// A server is removed, and ends; the two others go on, though its etcd was full, for which all had refused writes.
    pub fn check_removal(&mut self) {
        let name = self.nodes[2].name.clone();
        // It would see that its etcd is not full.
        let process = Pid::from_raw(i32::try_from(self.nodes[2].pid()).expect("a process id"));
        kill(process, Signal::SIGSTOP).expect("it runs");
        self.raise_space_alarm(&name);
        let create =
            |server: usize| self.try_kubectl(server, &["create", "configmap", "after", "--from-literal=key=value"]);
        let refused = create(0).expect_err("etcd is full");
        assert!(refused.contains("space"), "{refused}");
        self.knarr(0, &["server", "remove", &name]);
        wait_for("writes without the full server", || create(0).is_ok());
        kill(process, Signal::SIGCONT).expect("it runs");
        wait_for("the removed server to end", || !self.nodes[2].is_running());
        assert!(self.nodes[2].log().contains("was removed from its cluster"));
        let status = self.knarr(0, &["status"]);
        assert_eq!(status.lines().filter(|line| line.contains(" healthy ")).count(), 2, "{status}");
    }

    /// Makes etcd refuse writes, as if the database of a server were full.
    fn raise_space_alarm(&self, name: &str) {
        let node = &self.nodes[0];
        let pki = node.data.join("pki/etcd");
        let file = |name: &str| pki.join(name).to_string_lossy().into_owned();
        let post = |path: &str, body: &str| -> serde_json::Value {
            let (authority, certificate, key) = (file("ca.crt"), file("client.crt"), file("client.key"));
            let url = format!("https://127.0.0.1:2379{path}");
            let words =
                ["curl", "-sS", "--cacert", &authority, "--cert", &certificate, "--key", &key, "-d", body, &url];
            let output = node.host.output(&words);
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}{errors}"))
        };
        let members = post("/v3/cluster/member/list", "{}");
        let all = members["members"].as_array().unwrap_or_else(|| panic!("{members}"));
        let member = all.iter().find(|member| member["name"] == name).unwrap_or_else(|| panic!("{members}"));
        let alarm = serde_json::json!({"action": "ACTIVATE", "memberID": member["ID"], "alarm": "NOSPACE"});
        let raised = post("/v3/maintenance/alarm", &alarm.to_string());
        assert_eq!(raised["alarms"][0]["alarm"], "NOSPACE", "{raised}");
    }
}
