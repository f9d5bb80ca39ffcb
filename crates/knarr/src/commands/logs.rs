//! `knarr logs [COMPONENT]`: the log of Knarr on this host, or of one of its components.
//!
//! Knarr writes one log to its standard error. Where that leads decides where it is read: systemd's journal, or a file.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::{Args, ValueEnum};

use super::common;
use crate::log_source::{Source, containerd_log, find};
use crate::output;

#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// The component; by default all of them.
    #[arg(value_enum, default_value_t = Component::All)]
    component: Component,
    /// Keep printing lines as they are written.
    #[arg(long, short)]
    follow: bool,
    /// How many of the last lines of the log to read.
    #[arg(long, short = 'n', default_value_t = 1000)]
    tail: usize,
    /// Data directory of the server or agent.
    #[arg(long, default_value = common::DATA)]
    data_dir: PathBuf,
    /// A local cluster (`knarr cluster`) whose node to read.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// The node of the local cluster.
    #[arg(long, default_value = "node-1", requires = "cluster")]
    node: String,
    /// Where local clusters are kept; by default where `knarr cluster` keeps them.
    #[arg(long, requires = "cluster")]
    directory: Option<PathBuf>,
}

/// Whose lines to print.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Component {
    All,
    /// Startup, settings and several servers.
    Server,
    Apiserver,
    Store,
    Etcd,
    Controllers,
    Scheduler,
    Kubelet,
    Network,
    Dns,
    Ingress,
    Storage,
    /// The container runtime, which has a file of its own.
    Containerd,
}

impl Component {
    /// The modules whose events are the component's; none stands for all.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Component::All | Component::Containerd => &[],
            Component::Server => &["knarr"],
            Component::Apiserver => &["knarr_apiserver", "knarr_api", "knarr_rules", "knarr_listen"],
            Component::Store => &["knarr_store"],
            Component::Etcd => &["knarr::etcd"],
            Component::Controllers => &["knarr_controllers"],
            Component::Scheduler => &["knarr_scheduler"],
            Component::Kubelet => &["knarr_kubelet", "knarr_cri"],
            Component::Network => &["knarr_network"],
            Component::Dns => &["knarr_dns"],
            Component::Ingress => &["knarr_ingress"],
            Component::Storage => &["knarr_local_storage", "knarr_csi", "knarr_csi_controller"],
        }
    }

    fn includes(self, module: &str) -> bool {
        let is_within =
            |own: &str| module.strip_prefix(own).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"));
        self.modules().is_empty() || self.modules().iter().any(|own| is_within(own))
    }
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let data = match &arguments.cluster {
        Some(cluster) => {
            let directory = arguments.directory.clone().map_or_else(super::cluster::default_directory, Ok)?;
            data_of(&directory, cluster, &arguments.node)?
        }
        None => arguments.data_dir.clone(),
    };
    let source = match arguments.component {
        Component::Containerd => Source::File(containerd_log(&data)),
        _ => find(&data)?,
    };
    let mut reader = source.open(arguments.tail, arguments.follow)?;
    let output = reader.stdout.take().context("the log has no output")?;
    let mut filter = Filter::new(arguments.component);
    let mut out = std::io::stdout().lock();
    for line in BufReader::new(output).split(b'\n') {
        let line = String::from_utf8_lossy(&line.context("cannot read the log")?).into_owned();
        if filter.passes(&line) {
            // Pods and nodes choose some of the text.
            let written = writeln!(out, "{}", output::printable(&line));
            if written.is_err() {
                // The reader closed the pipe.
                let _ = reader.kill();
                break;
            }
        }
    }
    reader.wait().context("cannot read the log")?;
    Ok(())
}

/// The data directory of a node of a local cluster. Names are labels, so that they lead nowhere else.
fn data_of(directory: &Path, cluster: &str, node: &str) -> anyhow::Result<PathBuf> {
    crate::local_cluster::validate_name(cluster)?;
    crate::local_cluster::validate_name(node)?;
    let data = directory.join(cluster).join(node);
    if !data.is_dir() {
        bail!("there is no node {node} of a cluster {cluster} in {}", directory.display());
    }
    Ok(data)
}

/// Passes the lines of a component. A line without a module belongs to the one before.
struct Filter {
    component: Component,
    is_in: bool,
}

impl Filter {
    fn new(component: Component) -> Filter {
        Filter { component, is_in: component.modules().is_empty() }
    }

    fn passes(&mut self, line: &str) -> bool {
        if let Some(module) = module_of(line) {
            self.is_in = self.component.includes(module);
        }
        self.is_in
    }
}

/// The module that wrote a line: in a file it follows time and level, in the journal what journalctl adds.
fn module_of(line: &str) -> Option<&str> {
    let is_module = |word: &&str| {
        word.starts_with("knarr")
            && word
                .bytes()
                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b':'))
    };
    let words = line.split_whitespace().take(4);
    words.filter_map(|word| word.strip_suffix(':')).find(is_module)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: [&str; 6] = [
        "2026-11-16T14:43:46.123456Z  INFO knarr::server: ready in=2s",
        "2026-11-16T14:43:46+00:00 host knarr[123]: knarr_scheduler::cycle: no node fits pod=web",
        "  because of taints",
        "knarr_kubelet::worker: pulling image=nginx",
        "knarr_scheduler_extra::x: other",
        "2026-11-16T14:43:47Z  WARN knarr::etcd: slow",
    ];

    #[test]
    fn lines_are_those_of_the_component_with_their_continuations() {
        for (component, expected) in [
            (Component::All, vec![0, 1, 2, 3, 4, 5]),
            (Component::Scheduler, vec![1, 2]),
            (Component::Kubelet, vec![3]),
            (Component::Etcd, vec![5]),
            (Component::Server, vec![0, 5]),
            (Component::Dns, vec![]),
        ] {
            let mut filter = Filter::new(component);
            let passed: Vec<usize> =
                LINES.iter().enumerate().filter(|(_, line)| filter.passes(line)).map(|(index, _)| index).collect();
            assert_eq!(passed, expected, "{component:?}");
        }
    }

    #[test]
    fn the_log_of_a_local_node_is_beside_its_directory() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("dev/node-1");
        std::fs::create_dir_all(&data).unwrap();
        assert!(find(&data).unwrap_err().to_string().contains("not running"));
        std::fs::write(directory.path().join("dev/node-1.log"), "one\ntwo\n").unwrap();
        let found = find(&data_of(directory.path(), "dev", "node-1").unwrap()).unwrap();
        assert_eq!(found, Source::File(directory.path().join("dev/node-1.log")));
        let output = found.open(1, false).unwrap().wait_with_output().unwrap();
        assert_eq!(output.stdout, b"two\n");
        for (cluster, node) in [("dev", "../../etc"), ("..", "node-1"), ("dev", "node-2")] {
            assert!(data_of(directory.path(), cluster, node).is_err());
        }
    }
}
