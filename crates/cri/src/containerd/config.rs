//! The configuration file of the containerd that Knarr starts.

use std::path::PathBuf;

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
    /// Without CAP_SYS_RESOURCE a score below our own can't be set, and containers would not start.
    pub restrict_oom_score: bool,
    /// Whether systemd manages the cgroups.
    pub systemd_cgroup: bool,
    /// Other runtime handlers by name, each with its binary (runc-compatible).
    pub runtime_handlers: Vec<(String, PathBuf)>,
}

/// Renders the configuration file in version 2, which containerd 1.3 to 2.x read.
pub fn render(config: &ContainerdConfig) -> String {
    let text = |value: &std::path::Path| quote(&value.to_string_lossy());
    let mut file = String::new();
    let mut line = |value: String| {
        file.push_str(&value);
        file.push('\n');
    };
    line("version = 2".into());
    line(format!("root = {}", text(&config.root)));
    line(format!("state = {}", text(&config.state)));
    line(
        "disabled_plugins = [\"io.containerd.snapshotter.v1.aufs\", \"io.containerd.snapshotter.v1.btrfs\", \
         \"io.containerd.snapshotter.v1.devmapper\", \"io.containerd.snapshotter.v1.zfs\", \
         \"io.containerd.internal.v1.restart\"]"
            .into(),
    );
    line("[grpc]".into());
    line(format!("  address = {}", text(&config.socket)));
    line("[ttrpc]".into());
    line(format!("  address = {}", quote(&format!("{}.ttrpc", config.socket.to_string_lossy()))));
    line("[plugins.\"io.containerd.internal.v1.opt\"]".into());
    line(format!("  path = {}", text(&config.root.join("opt"))));
    line("[plugins.\"io.containerd.grpc.v1.cri\"]".into());
    line(format!("  sandbox_image = {}", quote(&config.sandbox_image)));
    line(format!("  restrict_oom_score_adj = {}", config.restrict_oom_score));
    line("  stream_server_address = \"127.0.0.1\"".into());
    line("  stream_server_port = \"0\"".into());
    line("  max_container_log_line_size = 16384".into());
    line("  tolerate_missing_hugetlb_controller = true".into());
    line("[plugins.\"io.containerd.grpc.v1.cri\".cni]".into());
    line(format!("  bin_dir = {}", text(&config.cni_binaries)));
    line(format!("  conf_dir = {}", text(&config.cni_configuration)));
    line("[plugins.\"io.containerd.grpc.v1.cri\".registry]".into());
    line(format!("  config_path = {}", text(&config.registry_configuration)));
    line("[plugins.\"io.containerd.grpc.v1.cri\".containerd]".into());
    line("  snapshotter = \"overlayfs\"".into());
    line("  default_runtime_name = \"runc\"".into());
    let mut handler = |name: &str, binary: Option<&std::path::Path>| {
        let section = format!("plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.{}", quote(name));
        line(format!("[{section}]"));
        line("  runtime_type = \"io.containerd.runc.v2\"".into());
        line(format!("[{section}.options]"));
        line(format!("  SystemdCgroup = {}", config.systemd_cgroup));
        if let Some(binary) = binary {
            line(format!("  BinaryName = {}", text(binary)));
        }
    };
    handler("runc", None);
    for (name, binary) in &config.runtime_handlers {
        handler(name, Some(binary));
    }
    file
}

/// A TOML basic string.
fn quote(value: &str) -> String {
    let mut quoted = String::with_capacity(value.len() + 2);
    quoted.push('"');
    for character in value.chars() {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            control if control.is_control() => quoted.push_str(&format!("\\u{:04x}", control as u32)),
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_and_handlers_listed() {
        let file = render(&ContainerdConfig {
            root: "/data/a \"b\"".into(),
            state: "/run/s".into(),
            socket: "/run/s/c.sock".into(),
            sandbox_image: "pause:1".into(),
            cni_binaries: "/usr/lib/cni".into(),
            cni_configuration: "/data/cni".into(),
            registry_configuration: "/data/registries".into(),
            restrict_oom_score: true,
            systemd_cgroup: false,
            runtime_handlers: vec![("test-handler".into(), "/usr/sbin/runc".into())],
        });
        for expected in [
            "root = \"/data/a \\\"b\\\"\"",
            "address = \"/run/s/c.sock.ttrpc\"",
            "restrict_oom_score_adj = true",
            "containerd.runtimes.\"test-handler\".options]",
            "BinaryName = \"/usr/sbin/runc\"",
            // This plugin obeys labels, which images can set.
            "\"io.containerd.internal.v1.restart\"",
        ] {
            assert!(file.contains(expected), "{expected} is missing in:\n{file}");
        }
    }
}
