//! Runs every command of the user documentation, on two fresh hosts.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::harness::{self, Switch, TestHost};

/// In reading order.
const PAGES: [&str; 10] = [
    "quick-start",
    "understanding",
    "adding-nodes",
    "networking",
    "configuration",
    "air-gap",
    "security",
    "how-a-pod-comes-to-run",
    "troubleshooting",
    "backup-and-restore",
];

/// A code block to run.
#[derive(Debug, PartialEq)]
pub struct Block {
    pub line: usize,
    pub mode: RunMode,
    pub text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RunMode {
    Foreground,
    Background,
    Second,
}

/// The blocks of a page that are marked as shell commands.
pub fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Option<Block>> = None;
    for (index, line) in page.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => {
                let mode = match kind {
                    "sh" => Some(RunMode::Foreground),
                    "sh background" => Some(RunMode::Background),
                    "sh second" => Some(RunMode::Second),
                    _ => None,
                };
                open = Some(mode.map(|mode| Block { line: index + 2, mode, text: String::new() }));
            }
            (Some(block), Some(_)) => {
                found.extend(block.take());
                open = None;
            }
            (Some(Some(block)), None) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            _ => {}
        }
    }
    found
}

/// A host on which the commands of a page run.
struct Reader {
    host: TestHost,
    directory: PathBuf,
    data: PathBuf,
    cgroup_root: String,
    processes: Vec<Child>,
    ready: UnixDatagram,
}

impl Reader {
    fn new(host: TestHost, directory: &Path, name: &str) -> Self {
        let directory = directory.join(name);
        let data = directory.join("data");
        harness::write_images(&data.join("images"));
        std::fs::create_dir_all(directory.join("bin")).expect("a directory");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_knarr"), directory.join("bin/knarr")).expect("a link");
        std::fs::copy(data.join("images/busybox.tar"), directory.join("busybox.tar")).expect("an archive");
        let cgroup_root = format!("/{}", host.name);
        let mut settings = format!(
            "data-dir: {}\nnode-name: {name}\nnode-ip: {}\ncgroup-root: {cgroup_root}\neviction-hard: memory.available<1Mi\n\
             image-gc-high-threshold: 100\n",
            data.display(),
            host.address
        );
        if name == "first" {
            settings.push_str(&format!("advertise-address: {}\n", host.address));
        }
        std::fs::write(directory.join("config.yaml"), settings).expect("settings");
        let ready = UnixDatagram::bind(directory.join("notify")).expect("a socket");
        ready.set_read_timeout(Some(harness::TIMEOUT)).expect("a timeout");
        Reader { host, directory, data, cgroup_root, processes: Vec::new(), ready }
    }

    /// The text with this host's paths instead of the default ones.
    fn here(&self, text: &str) -> String {
        // Its own paths may be below /tmp, so that is replaced first.
        text.replace("/tmp/", &format!("{}/", self.directory.display()))
            .replace("/var/lib/knarr", &self.data.to_string_lossy())
            .replace("/etc/knarr/kubeconfig.yaml", &self.data.join("kubeconfig.yaml").to_string_lossy())
    }

    fn shell(&self, text: &str) -> Command {
        let mut command = self.host.command("bash");
        let path = format!("{}:{}", self.directory.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        command.args(["-euo", "pipefail", "-c"]).arg(self.here(text)).current_dir(&self.directory).env("PATH", path);
        command.env("HOME", &self.directory).env("KNARR_CONFIG", self.directory.join("config.yaml"));
        command.env("KUBECONFIG", self.data.join("kubeconfig.yaml"));
        command
    }

    /// Starts a background command, and waits until it is ready.
    fn start(&mut self, text: &str) {
        let log = std::fs::File::options().create(true).append(true).open(self.directory.join("log")).expect("a log");
        let errors = log.try_clone().expect("a log");
        let mut command = self.shell(&format!("exec {text}"));
        command
            .env("NOTIFY_SOCKET", self.directory.join("notify"))
            .stdout(Stdio::from(log))
            .stderr(Stdio::from(errors));
        self.processes.push(command.spawn().expect("bash runs"));
        let mut message = [0; 512];
        while !self.ready.recv(&mut message).is_ok_and(|length| message[..length].starts_with(b"READY=1")) {
            let log = || std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            assert!(matches!(self.processes.last_mut().unwrap().try_wait(), Ok(None)), "it ended:\n{}", log());
        }
    }

    /// Runs a command to completion and returns its output.
    fn run(&self, text: &str) -> Result<String, String> {
        let output = self.shell(text).output().expect("bash runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(printed);
        }
        Err(format!("{printed}\n{}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
        let words = format!("knarr uninstall --yes --cgroup-root {}", self.cgroup_root);
        if let Err(error) = self.run(&words) {
            eprintln!("not removed: {error}");
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- the end of the log\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

#[test]
fn every_command_of_the_pages_works() {
    if !harness::is_possible() || !is_kubectl_new_enough() {
        return;
    }
    let _turn = harness::turn();
    let directory = tempfile::tempdir().expect("a directory");
    let switch = Switch::new();
    let mut first = Reader::new(switch.plug(11), directory.path(), "first");
    let mut second = Reader::new(switch.plug(12), directory.path(), "second");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut printed = String::new();
    for page in PAGES {
        let text = std::fs::read_to_string(docs.join(format!("{page}.md"))).expect("a page");
        for block in blocks(&text) {
            let place = format!("docs/{page}.md:{}", block.line);
            eprintln!("{place}");
            match block.mode {
                RunMode::Foreground => {
                    printed = first.run(&block.text).unwrap_or_else(|error| panic!("{place}: {error}"));
                }
                RunMode::Background => first.start(block.text.trim()),
                RunMode::Second => second.start(&joined(block.text.trim(), &printed)),
            }
        }
    }
}

/// The pages need kubectl 1.31; Debian 12 has an older one.
fn is_kubectl_new_enough() -> bool {
    let output = Command::new("kubectl").args(["version", "--client", "-o", "json"]).output().expect("kubectl runs");
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let minor = version["clientVersion"]["minor"].as_str().unwrap_or_default().trim_end_matches('+').parse::<u32>();
    if !minor.as_ref().is_ok_and(|minor| *minor >= 31) {
        harness::skip(&format!("the pages need kubectl 1.31, not {version}"));
        return false;
    }
    true
}

/// The join command of the page with the printed server address and token.
fn joined(line: &str, printed: &str) -> String {
    let after = |flag: &str| {
        let mut words = printed.split_whitespace();
        words.find(|word| *word == flag);
        words.next().unwrap_or_else(|| panic!("{flag} was not printed: {printed}")).to_owned()
    };
    line.replace("https://10.0.0.1:6443", &after("--server")).replace("ID.SECRET.HASH", &after("--token"))
}

#[test]
fn blocks_are_found_with_their_kind() {
    let page = "# x\n```sh\na\nb\n```\n```text\nno\n```\n```sh background\nc\n```\n";
    let found: Vec<(usize, RunMode, String)> =
        blocks(page).into_iter().map(|block| (block.line, block.mode, block.text)).collect();
    assert_eq!(found, [(3, RunMode::Foreground, "a\nb\n".to_owned()), (10, RunMode::Background, "c\n".to_owned())]);
}
