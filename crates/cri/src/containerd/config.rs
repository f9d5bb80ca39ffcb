//! The configuration file of the containerd that Knarr starts.

use std::path::{Path, PathBuf};

use toml::{Table, Value, toml};

use super::snippets::{Snippet, merge};
use crate::privileges::Privileges;

/// The settings in which two containerds on one host differ.
#[derive(Clone, Debug)]
pub struct ContainerdConfig {
    /// Images, snapshots and metadata; survives a reboot.
    pub root: PathBuf,
    /// Sockets and the state of running containers; lost in a reboot.
    pub state: PathBuf,
    /// The unix socket to serve on.
    pub socket: PathBuf,
    /// The pause image.
    pub sandbox_image: String,
    /// The directory of CNI plugins.
    pub cni_binaries: PathBuf,
    /// The directory of CNI network configurations.
    pub cni_configuration: PathBuf,
    /// The directory of `hosts.toml` files per registry, for mirrors and private CAs.
    pub registry_configuration: PathBuf,
    /// What containers cannot be given here is turned off: they would not start.
    pub privileges: Privileges,
    /// Whether systemd manages the cgroups.
    pub systemd_cgroup: bool,
    /// What the operator adds, such as runtime handlers of other kinds; in the order of their names.
    pub snippets: Vec<Snippet>,
}

/// The first release that serves version 1 of CRI.
pub const OLDEST_RELEASE: (u32, u32) = (1, 6);

/// Major and minor number of the release that `containerd --version` prints.
pub fn release(printed: &str) -> Option<(u32, u32)> {
    let numbers = |word: &str| {
        let mut numbers = word.trim_start_matches('v').split('.').map(|number| number.parse::<u32>().ok());
        Some((numbers.next()??, numbers.next()??))
    };
    printed.split_whitespace().filter(|word| !word.contains('/')).find_map(numbers)
}

/// The format of the file: containerd 1.x reads version 2, and 2.x has other plugins in version 3.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    #[default]
    Version2,
    Version3,
    /// From 2.1 on, the directory of CNI plugins is a list; 2.3 no longer reads the single one.
    Version3WithBinDirs,
}

impl Format {
    /// The format for what `containerd --version` prints.
    pub fn for_release(printed: &str) -> Self {
        match release(printed) {
            Some(release) if release >= (2, 1) => Format::Version3WithBinDirs,
            Some(release) if release >= (2, 0) => Format::Version3,
            _ => Format::Version2,
        }
    }

    /// The `version` of the configuration file.
    pub fn number(self) -> i64 {
        match self {
            Format::Version2 => 2,
            Format::Version3 | Format::Version3WithBinDirs => 3,
        }
    }
}

/// The CRI plugin of version 2. Version 3 divides it.
pub const CRI: &str = "io.containerd.grpc.v1.cri";

/// Renders the configuration file.
pub fn render(config: &ContainerdConfig, format: Format) -> String {
    let mut all = base(config, format);
    if format != Format::Version2 {
        all = super::snippets::converted(all, format);
    }
    for snippet in &config.snippets {
        merge(&mut all, snippet, format);
    }
    all.to_string()
}

/// What Knarr needs, in version 2, but for the list of directories of CNI plugins, which no file of that version has.
fn base(config: &ContainerdConfig, format: Format) -> Table {
    let text = |value: &Path| Value::from(value.to_string_lossy().into_owned());
    let table = |entries: Vec<(&str, Value)>| {
        Value::Table(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    };
    let mut file = toml! {
        version = 2
        disabled_plugins = [
            "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
            "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
            "io.containerd.internal.v1.restart"
        ]
    };
    file.insert("root".into(), text(&config.root));
    file.insert("state".into(), text(&config.state));
    file.insert("grpc".into(), table(vec![("address", text(&config.socket))]));
    let ttrpc = Value::from(format!("{}.ttrpc", config.socket.to_string_lossy()));
    file.insert("ttrpc".into(), table(vec![("address", ttrpc)]));
    let options = table(vec![("SystemdCgroup", Value::from(config.systemd_cgroup))]);
    let runc = table(vec![("runtime_type", Value::from("io.containerd.runc.v2")), ("options", options)]);
    let containerd = vec![
        ("snapshotter", Value::from("overlayfs")),
        ("default_runtime_name", Value::from("runc")),
        ("runtimes", table(vec![("runc", runc)])),
    ];
    let binaries = text(&config.cni_binaries);
    let binaries = match format {
        Format::Version3WithBinDirs => ("bin_dirs", Value::Array(vec![binaries])),
        Format::Version2 | Format::Version3 => ("bin_dir", binaries),
    };
    let mut cri = vec![
        ("sandbox_image", Value::from(config.sandbox_image.as_str())),
        ("restrict_oom_score_adj", Value::from(!config.privileges.lower_oom_scores)),
        ("stream_server_address", Value::from("127.0.0.1")),
        ("stream_server_port", Value::from("0")),
        ("max_container_log_line_size", Value::from(16384)),
        ("tolerate_missing_hugetlb_controller", Value::from(true)),
        ("cni", table(vec![binaries, ("conf_dir", text(&config.cni_configuration))])),
        ("registry", table(vec![("config_path", text(&config.registry_configuration))])),
        ("containerd", table(containerd)),
    ];
    let lacking = [("disable_apparmor", config.privileges.apparmor), ("disable_cgroup", config.privileges.cgroups)];
    cri.extend(lacking.into_iter().filter(|(_, is_possible)| !is_possible).map(|(key, _)| (key, Value::from(true))));
    let opt = table(vec![("path", text(&config.root.join("opt")))]);
    file.insert("plugins".into(), table(vec![("io.containerd.internal.v1.opt", opt), (CRI, table(cri))]));
    file
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn config() -> ContainerdConfig {
        ContainerdConfig {
            root: "/data/a \"b\"".into(),
            state: "/run/s".into(),
            socket: "/run/s/c.sock".into(),
            sandbox_image: "pause:1".into(),
            cni_binaries: "/usr/lib/cni".into(),
            cni_configuration: "/data/cni".into(),
            registry_configuration: "/data/registries".into(),
            privileges: Privileges { lower_oom_scores: false, apparmor: true, cgroups: true },
            systemd_cgroup: false,
            snippets: Vec::new(),
        }
    }

    /// The value at a path of the rendered file.
    pub fn at(file: &str, path: &[&str]) -> Option<Value> {
        let file: Table = file.parse().expect("TOML");
        path.iter().try_fold(Value::Table(file), |value, key| value.get(key).cloned())
    }

    #[test]
    fn both_formats_hold_the_same_settings() {
        let runtime = "io.containerd.cri.v1.runtime";
        let images = "io.containerd.cri.v1.images";
        for (two, three, expected) in [
            (vec!["version"], vec![], Value::from(2)),
            (vec![], vec!["version"], Value::from(3)),
            (vec!["root"], vec!["root"], Value::from("/data/a \"b\"")),
            (vec!["ttrpc", "address"], vec!["ttrpc", "address"], Value::from("/run/s/c.sock.ttrpc")),
            (
                vec!["plugins", CRI, "restrict_oom_score_adj"],
                vec!["plugins", runtime, "restrict_oom_score_adj"],
                Value::from(true),
            ),
            (vec!["plugins", CRI, "stream_server_port"], vec!["plugins", CRI, "stream_server_port"], Value::from("0")),
            (
                vec!["plugins", CRI, "containerd", "runtimes", "runc", "options", "SystemdCgroup"],
                vec!["plugins", runtime, "containerd", "runtimes", "runc", "options", "SystemdCgroup"],
                Value::from(false),
            ),
            (
                vec!["plugins", CRI, "registry", "config_path"],
                vec!["plugins", images, "registry", "config_path"],
                Value::from("/data/registries"),
            ),
            (
                vec!["plugins", CRI, "sandbox_image"],
                vec!["plugins", images, "pinned_images", "sandbox"],
                "pause:1".into(),
            ),
            (
                vec!["plugins", CRI, "containerd", "snapshotter"],
                vec!["plugins", images, "snapshotter"],
                Value::from("overlayfs"),
            ),
            (vec!["plugins", CRI, "cni", "bin_dir"], vec!["plugins", runtime, "cni", "bin_dir"], "/usr/lib/cni".into()),
        ] {
            for (path, format) in [(two, Format::Version2), (three, Format::Version3)] {
                let file = render(&config(), format);
                if !path.is_empty() {
                    assert_eq!(at(&file, &path), Some(expected.clone()), "{path:?} in\n{file}");
                }
            }
        }
        let file = render(&config(), Format::Version3WithBinDirs);
        let directories = Value::Array(vec!["/usr/lib/cni".into()]);
        assert_eq!(at(&file, &["plugins", runtime, "cni", "bin_dirs"]), Some(directories), "{file}");
        assert_eq!(at(&file, &["plugins", runtime, "cni", "bin_dir"]), None, "{file}");
        assert_eq!(at(&file, &["plugins", CRI, "containerd"]), None, "{file}");
        // This plugin obeys labels, which images can set.
        assert!(file.contains("\"io.containerd.internal.v1.restart\""), "{file}");
    }

    #[test]
    fn only_what_the_kernel_refuses_is_turned_off() {
        let runtime = "io.containerd.cri.v1.runtime";
        let refused = Privileges { lower_oom_scores: false, apparmor: false, cgroups: false };
        for (privileges, expected) in [(config().privileges, None), (refused, Some(Value::from(true)))] {
            let config = ContainerdConfig { privileges, ..config() };
            for (format, plugin) in [(Format::Version2, CRI), (Format::Version3, runtime)] {
                let file = render(&config, format);
                for key in ["disable_apparmor", "disable_cgroup"] {
                    assert_eq!(at(&file, &["plugins", plugin, key]), expected, "{key} in\n{file}");
                }
            }
        }
    }

    #[test]
    fn the_format_is_that_of_the_release() {
        for (printed, number, expected) in [
            ("containerd github.com/containerd/containerd 1.5.9-0ubuntu3", Some((1, 5)), Format::Version2),
            (
                "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3",
                Some((1, 6)),
                Format::Version2,
            ),
            ("containerd containerd.io 1.7.27 05044ec0a9a75232cad458027ca83437", Some((1, 7)), Format::Version2),
            (
                "containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b71",
                Some((2, 1)),
                Format::Version3WithBinDirs,
            ),
            ("containerd github.com/containerd/containerd/v2 2.0.0-rc.1 75cb2b71", Some((2, 0)), Format::Version3),
            ("", None, Format::Version2),
        ] {
            assert_eq!((release(printed), Format::for_release(printed)), (number, expected), "{printed}");
        }
    }
}
