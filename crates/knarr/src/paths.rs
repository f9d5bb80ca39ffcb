//! The directories, files and interfaces that Knarr uses by default.

use std::path::{Path, PathBuf};

use clap::builder::{PathBufValueParser, TypedValueParser};

use crate::data_directory_lock;

/// The data directory.
pub const DATA: &str = "/var/lib/knarr";
/// The directory of the configuration file and the administrator's kubeconfig.
pub const CONFIGURATION: &str = "/etc/knarr";

/// The bridge with the gateway address of this node's pods.
pub const BRIDGE: &str = "knarr0";

/// What charts of CSI drivers and log collectors name, for nodes with the default data directory.
pub const DEFAULT_ROOT: &str = "/var/lib/kubelet";
pub const DEFAULT_LOGS: &str = "/var/log/pods";
pub const LOG_LINKS: &str = "/var/log/containers";

/// Reads the flag of a directory that other programs use, too: containerd runs in another working directory.
pub fn absolute() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(std::path::absolute::<PathBuf>)
}

/// Whether a node with this data directory uses the host's well-known directories.
pub fn is_default(data: &Path) -> bool {
    data == Path::new(DATA)
}

/// Whether this is the data directory of a server: only servers have the authority's key.
pub fn is_server(data: &Path) -> bool {
    data.join("pki/ca.crt").exists() && data.join("pki/ca.key").exists()
}

/// The command whose data directory this is. One that was never used is taken for a server's.
pub fn role(data: &Path) -> &'static str {
    if is_server(data) || !data_directory_lock::was_here(data) { "server" } else { "agent" }
}

/// The administrator's kubeconfig of a server with this data directory.
pub fn kubeconfig(data: &Path) -> PathBuf {
    let directory = if data == Path::new(DATA) { Path::new(CONFIGURATION) } else { data };
    directory.join("kubeconfig.yaml")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Arguments {
        #[arg(long, value_parser = absolute())]
        data_dir: PathBuf,
    }

    #[test]
    fn directories_become_absolute() {
        let here = std::env::current_dir().expect("a directory");
        for (given, expected) in
            [("data", here.join("data")), ("./data/", here.join("data/")), ("/data", "/data".into())]
        {
            let arguments = Arguments::try_parse_from(["knarr", "--data-dir", given]).expect("a directory");
            assert_eq!(arguments.data_dir, expected);
        }
        assert!(Arguments::try_parse_from(["knarr", "--data-dir", ""]).is_err());
    }
}
