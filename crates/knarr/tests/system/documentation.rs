//! The user's pages, command by command, as somebody would type them on two new machines.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use super::harness::{self, Machine, Switch};

/// In the order in which a newcomer would read them.
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

/// A block of a page that is to be run.
#[derive(Debug, PartialEq)]
struct Block {
    line: usize,
    way: Way,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    Foreground,
    Background,
    Second,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found = Vec::new();
    let mut open: Option<Option<Block>> = None;
    for (index, line) in page.lines().enumerate() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(kind)) => {
                let way = match kind {
                    "sh" => Some(Way::Foreground),
                    "sh background" => Some(Way::Background),
                    "sh second" => Some(Way::Second),
                    _ => None,
                };
                open = Some(way.map(|way| Block { line: index + 2, way, text: String::new() }));
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

/// One machine that a reader sits at.
struct Desk {
    machine: Machine,
    folder: PathBuf,
    data: PathBuf,
    cgroup_root: String,
    processes: Vec<Child>,
    ready: UnixDatagram,
}

impl Desk {
    fn new(machine: Machine, folder: &Path, name: &str) -> Self {
        let folder = folder.join(name);
        let data = folder.join("data");
        harness::write_images(&data.join("images"));
        std::fs::create_dir_all(folder.join("bin")).expect("a folder");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_knarr"), folder.join("bin/knarr")).expect("a link");
        std::fs::copy(data.join("images/busybox.tar"), folder.join("busybox.tar")).expect("an archive");
        let cgroup_root = format!("/{}", machine.name);
        let mut settings = format!(
            "data-dir: {}\nnode-name: {name}\nnode-ip: {}\ncgroup-root: {cgroup_root}\neviction-hard: memory.available<1Mi\n\
             image-gc-high-threshold: 100\n",
            data.display(),
            machine.address
        );
        if name == "first" {
            settings.push_str(&format!("advertise-address: {}\n", machine.address));
        }
        std::fs::write(folder.join("config.yaml"), settings).expect("settings");
        let ready = UnixDatagram::bind(folder.join("notify")).expect("a socket");
        ready.set_read_timeout(Some(harness::PATIENCE)).expect("a patience");
        Desk { machine, folder, data, cgroup_root, processes: Vec::new(), ready }
    }

    /// The text with this machine's places instead of the usual ones.
    fn here(&self, text: &str) -> String {
        // Its own places may lie below /tmp, so that goes first.
        text.replace("/tmp/", &format!("{}/", self.folder.display()))
            .replace("/var/lib/knarr", &self.data.to_string_lossy())
            .replace("/etc/knarr/kubeconfig.yaml", &self.data.join("kubeconfig.yaml").to_string_lossy())
    }

    fn shell(&self, text: &str) -> Command {
        let mut command = self.machine.command("bash");
        let path = format!("{}:{}", self.folder.join("bin").display(), std::env::var("PATH").unwrap_or_default());
        command.args(["-euo", "pipefail", "-c"]).arg(self.here(text)).current_dir(&self.folder).env("PATH", path);
        command.env("HOME", &self.folder).env("KNARR_CONFIG", self.folder.join("config.yaml"));
        command.env("KUBECONFIG", self.data.join("kubeconfig.yaml"));
        command
    }

    /// Starts something that goes on running, and waits until it says that it is ready.
    fn start(&mut self, text: &str) {
        let log = std::fs::File::options().create(true).append(true).open(self.folder.join("log")).expect("a log");
        let errors = log.try_clone().expect("a log");
        let mut command = self.shell(&format!("exec {text}"));
        command.env("NOTIFY_SOCKET", self.folder.join("notify")).stdout(Stdio::from(log)).stderr(Stdio::from(errors));
        self.processes.push(command.spawn().expect("bash runs"));
        let mut told = [0; 512];
        while !self.ready.recv(&mut told).is_ok_and(|length| told[..length].starts_with(b"READY=1")) {
            let log = || std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
            assert!(matches!(self.processes.last_mut().unwrap().try_wait(), Ok(None)), "it ended:\n{}", log());
        }
    }

    /// Runs it to its end and returns what it printed.
    fn run(&self, text: &str) -> Result<String, String> {
        let output = self.shell(text).output().expect("bash runs");
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(printed);
        }
        Err(format!("{printed}\n{}", String::from_utf8_lossy(&output.stderr)))
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        for child in &mut self.processes {
            let _ = child.kill();
            let _ = child.wait();
        }
        let words = format!("knarr uninstall --yes --cgroup-root {}", self.cgroup_root);
        if let Err(complaint) = self.run(&words) {
            eprintln!("not removed: {complaint}");
        }
        if std::thread::panicking() {
            let log = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
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
    let folder = tempfile::tempdir().expect("a folder");
    let switch = Switch::new();
    let mut first = Desk::new(switch.plug(11), folder.path(), "first");
    let mut second = Desk::new(switch.plug(12), folder.path(), "second");
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let mut printed = String::new();
    for page in PAGES {
        let text = std::fs::read_to_string(docs.join(format!("{page}.md"))).expect("a page");
        for block in blocks(&text) {
            let place = format!("docs/{page}.md:{}", block.line);
            eprintln!("{place}");
            match block.way {
                Way::Foreground => {
                    printed = first.run(&block.text).unwrap_or_else(|complaint| panic!("{place}: {complaint}"));
                }
                Way::Background => first.start(block.text.trim()),
                Way::Second => second.start(&joined(block.text.trim(), &printed)),
            }
        }
    }
}

/// The pages use what kubectl learned by 1.31; Debian 12 has an older one.
fn is_kubectl_new_enough() -> bool {
    let output = Command::new("kubectl").args(["version", "--client", "-o", "json"]).output().expect("kubectl runs");
    let version: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let minor = version["clientVersion"]["minor"].as_str().unwrap_or_default().trim_end_matches('+').parse::<u32>();
    if !minor.as_ref().is_ok_and(|minor| *minor >= 31) {
        eprintln!("the pages are not tried: kubectl is {version}");
        return false;
    }
    true
}

/// The line of the page with the server's address and the token that were printed before it.
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
    let found: Vec<(usize, Way, String)> =
        blocks(page).into_iter().map(|block| (block.line, block.way, block.text)).collect();
    assert_eq!(found, [(3, Way::Foreground, "a\nb\n".to_owned()), (10, Way::Background, "c\n".to_owned())]);
}
