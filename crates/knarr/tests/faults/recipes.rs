//! Runs every command of docs/high-availability.md on three fresh hosts, and checks what is kept and what is lost.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::harness::{self, Switch, TestHost, wait_for};

const NAMES: [&str; 3] = ["server-1", "server-2", "server-3"];

/// Commands of the page that run on each of some hosts.
#[derive(Debug, PartialEq)]
struct Block {
    line: usize,
    section: String,
    hosts: Vec<String>,
    commands: Vec<String>,
}

/// The blocks that start with "```sh HOST…".
fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let (mut section, mut is_code, mut is_run) = (String::new(), false, false);
    for (index, line) in page.lines().enumerate() {
        if let Some(kind) = line.strip_prefix("```") {
            is_code = !is_code;
            is_run = is_code && kind.starts_with("sh ");
            if is_run {
                let hosts = kind.split_whitespace().skip(1).map(str::to_owned).collect();
                found.push(Block { line: index + 2, section: section.clone(), hosts, commands: Vec::new() });
            }
        } else if is_run {
            found.last_mut().expect("a block").commands.push(line.to_owned());
        } else if let Some(title) = line.strip_prefix("## ") {
            section = title.to_owned();
        }
    }
    found
}

/// Whether a command runs until it is stopped.
fn is_daemon(command: &str) -> bool {
    command.starts_with("knarr server") && !command.contains("server remove") && !command.contains("--cluster-reset")
}

/// A host on which commands of the page run.
struct Reader {
    host: TestHost,
    directory: PathBuf,
    data: PathBuf,
    process: Option<Child>,
    ready: UnixDatagram,
}

impl Reader {
    fn new(host: TestHost, parent: &Path, name: &str) -> Self {
        let directory = parent.join(name);
        let data = directory.join("data");
        std::fs::create_dir_all(directory.join("bin")).expect("a directory");
        std::os::unix::fs::symlink(harness::program(), directory.join("bin/knarr")).expect("a link");
        let settings = format!(
            "data-dir: {}\nnode-name: {name}\nadvertise-address: {}\ndisable-agent: true\nsnapshot-schedule: 1h\n",
            data.display(),
            host.address
        );
        std::fs::write(directory.join("config.yaml"), settings).expect("settings");
        let ready = UnixDatagram::bind(directory.join("notify")).expect("a socket");
        ready.set_read_timeout(Some(harness::wait_timeout())).expect("a timeout");
        Reader { host, directory, data, process: None, ready }
    }

    fn shell(&self, text: &str) -> Command {
        let text = text
            .replace("/tmp/", &format!("{}/", self.directory.display()))
            .replace("/var/lib/knarr", &self.data.to_string_lossy());
        let mut command = self.host.command("bash");
        let path = format!("{}:{}", self.directory.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        command.args(["-euo", "pipefail", "-c"]).arg(text).current_dir(&self.directory).env("PATH", path);
        command.env("HOME", &self.directory).env("KNARR_CONFIG", self.directory.join("config.yaml"));
        command.env("KUBECONFIG", self.data.join("kubeconfig.yaml"));
        command
    }

    /// Starts a server, and waits until it is ready.
    fn start(&mut self, text: &str) {
        if let Some(mut previous) = self.process.take() {
            wait_for("the server to end", || matches!(previous.try_wait(), Ok(Some(_))));
        }
        self.ready.set_nonblocking(true).expect("a socket");
        let mut message = [0; 512];
        while self.ready.recv(&mut message).is_ok() {}
        self.ready.set_nonblocking(false).expect("a socket");
        let log = std::fs::File::options().create(true).append(true).open(self.directory.join("log")).expect("a log");
        let mut command = self.shell(&format!("exec {text}"));
        command.env("NOTIFY_SOCKET", self.directory.join("notify"));
        command.stdout(log.try_clone().expect("a log")).stderr(Stdio::from(log));
        let process = self.process.insert(command.spawn().expect("bash runs"));
        while !self.ready.recv(&mut message).is_ok_and(|length| message[..length].starts_with(b"READY=1")) {
            assert!(matches!(process.try_wait(), Ok(None)), "{text} ended");
        }
    }

    /// Runs a command to completion and returns its output.
    fn run(&self, text: &str) -> Result<String, String> {
        let output = self.shell(text).output().expect("bash runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(printed) } else { Err(format!("{printed}\n{errors}")) }
    }

    fn create(&self, name: &str) {
        self.run(&format!("kubectl create configmap {name} --from-literal=key=value")).expect("it is created");
    }

    /// The names of the objects that `create` made.
    fn created(&self) -> Vec<String> {
        let listed = self.run("kubectl get configmaps -o jsonpath='{.items[*].metadata.name}'").expect("a list");
        listed.split_whitespace().filter(|name| *name != "kube-root-ca.crt").map(str::to_owned).collect()
    }

    fn healthy_servers(&self) -> usize {
        let status = self.run("knarr status").unwrap_or_default();
        status.lines().filter(|line| line.contains(" healthy ") && !line.contains(" learner ")).count()
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            // It may have exited by itself.
            let _ = process.kill();
            let _ = process.wait();
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            let end = lines[lines.len().saturating_sub(40)..].join("\n");
            eprintln!("--- the end of the log in {}\n{end}", self.directory.display());
        }
    }
}

/// The join command of the page with the printed server address and token.
fn joined(line: &str, printed: &str) -> String {
    let after = |flag: &str| {
        let mut words = printed.split_whitespace();
        words.find(|word| *word == flag);
        words.next().unwrap_or_else(|| panic!("{flag} was not printed: {printed}")).to_owned()
    };
    if !line.contains("ID.SECRET.HASH") {
        return line.to_owned();
    }
    line.replace("https://10.0.0.1:6443", &after("--server")).replace("ID.SECRET.HASH", &after("--token"))
}

#[test]
#[ignore = "takes minutes: run by `make faults`"]
fn every_command_of_the_page_works() {
    if !crate::is_possible() {
        return;
    }
    let _turn = harness::turn();
    let directory = tempfile::tempdir().expect("a directory");
    let switch = Switch::new();
    let mut readers: Vec<Reader> =
        NAMES.iter().zip(11..).map(|(name, number)| Reader::new(switch.plug(number), directory.path(), name)).collect();
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/high-availability.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let (mut printed, mut section) = (String::new(), String::new());
    let blocks = blocks(&page);
    assert!(blocks.len() > 12, "the page has fewer commands than expected: {blocks:?}");
    for block in blocks {
        if block.section != section {
            before(&block.section, &readers);
            section.clone_from(&block.section);
        }
        for host in &block.hosts {
            let reader = NAMES.iter().position(|name| name == host).expect("one of the hosts");
            for command in &block.commands {
                let place = format!("docs/high-availability.md:{} on {host}: {command}", block.line);
                eprintln!("{place}");
                let command = joined(command, &printed);
                if is_daemon(&command) {
                    readers[reader].start(&command);
                } else {
                    let output = readers[reader].run(&command).unwrap_or_else(|error| panic!("{place}: {error}"));
                    if command.contains("--print-join-command") {
                        printed = output;
                    }
                }
            }
        }
    }
    // What was written after the snapshot is gone, and a billion revisions with it.
    assert_eq!(readers[0].created(), ["start"]);
    let list = readers[0].run("kubectl get --raw /api/v1/configmaps").expect("a list");
    let list: serde_json::Value = serde_json::from_str(&list).expect("JSON");
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    assert!(revision.parse::<u64>().is_ok_and(|revision| revision > 1_000_000_000), "{revision}");
    assert_eq!(readers[0].healthy_servers(), 1);
    shrink(&mut readers);
    restore_on_a_fresh_host(&switch, &mut readers, directory.path());
}

/// What is true, and written, before the commands of a section.
fn before(section: &str, readers: &[Reader]) {
    match section {
        "Backup" => {
            readers[2].create("start");
            wait_for("three servers", || readers[0].healthy_servers() == 3);
            // Servers save scheduled snapshots of etcd as of their own store.
            let scheduled = readers[1].data.join("snapshots");
            wait_for("a scheduled snapshot", || {
                std::fs::read_dir(&scheduled).is_ok_and(|entries| {
                    entries.flatten().any(|entry| entry.path().extension().is_some_and(|kind| kind == "snapshot"))
                })
            });
            let refused = readers[0].run("knarr snapshot restore /tmp/nothing.knarr").expect_err("it is refused");
            assert!(refused.contains("--cluster-reset-restore-path"), "{refused}");
        }
        "When a server fails" => {
            readers[1].create("after-snapshot");
            let status = readers[0].run("knarr status").expect("a status");
            assert!(status.contains("Last snapshot: 20") && status.contains("cluster.knarr"), "{status}");
        }
        "When most servers are lost" => {
            wait_for("three servers", || readers[0].healthy_servers() == 3);
            readers[2].create("before-loss");
        }
        "Going back to a snapshot" => {
            assert_eq!(readers[2].created(), ["after-snapshot", "before-loss", "start"]);
            wait_for("three servers", || readers[2].healthy_servers() == 3);
        }
        _ => {}
    }
}

/// A server joins, and is uninstalled: one remains and accepts writes.
fn shrink(readers: &mut [Reader]) {
    readers[1].run("rm -r /var/lib/knarr").expect("it is removed");
    let line = readers[0].run("knarr token create --role server --print-join-command").expect("a token");
    readers[1].start(line.trim());
    wait_for("two servers", || readers[0].healthy_servers() == 2);
    let removed = readers[1].run("knarr uninstall --yes").expect("it is uninstalled");
    assert!(!removed.contains("still counted"), "{removed}");
    assert_eq!(readers[0].healthy_servers(), 1);
    readers[0].create("shrunk");
    let refused = readers[0].run("knarr server remove server-1").expect_err("it is refused");
    assert!(refused.contains("last server"), "{refused}");
}

/// A snapshot and the old keys are enough to go on elsewhere; the old administrator's certificate is still good.
fn restore_on_a_fresh_host(switch: &Switch, readers: &mut [Reader], parent: &Path) {
    readers[0].run("knarr snapshot save /tmp/moved.knarr && knarr stop").expect("a snapshot");
    let mut fresh = Reader::new(switch.plug(14), parent, "server-4");
    let old = &readers[0];
    std::fs::create_dir_all(&fresh.data).expect("a directory");
    let kept = ["pki", "encryption.yaml"].map(|name| old.data.join(name));
    let copied = Command::new("cp").arg("-a").args(&kept).arg(&fresh.data).status().expect("cp runs");
    assert!(copied.success(), "{kept:?} cannot be copied");
    std::fs::copy(old.directory.join("moved.knarr"), fresh.directory.join("moved.knarr")).expect("it is copied");
    fresh.run("knarr server --cluster-reset --cluster-reset-restore-path moved.knarr").expect("it is restored");
    fresh.start("knarr server");
    assert_eq!(fresh.created(), ["start", "shrunk"]);
}

#[test]
fn blocks_are_found_with_their_hosts() {
    let page = "## One\n```sh a b\nx\ny\n```\n```text\nno\n```\n## Two\n```sh a\nz\n```\n";
    let found: Vec<(String, Vec<String>, Vec<String>)> =
        blocks(page).into_iter().map(|block| (block.section, block.hosts, block.commands)).collect();
    let words = |words: &[&str]| words.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        found,
        [("One".to_owned(), words(&["a", "b"]), words(&["x", "y"])), ("Two".to_owned(), words(&["a"]), words(&["z"]))]
    );
    assert!(is_daemon("knarr server") && !is_daemon("knarr server remove server-2"));
}
