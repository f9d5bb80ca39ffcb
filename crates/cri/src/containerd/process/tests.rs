use super::*;

#[test]
fn a_running_containerd_is_found_by_the_configuration_it_sees() {
    let directory = tempfile::tempdir().expect("a directory");
    let (processes, file) = (directory.path().join("proc"), directory.path().join("config.toml"));
    std::fs::write(&file, "").expect("a file");
    let start = |pid: &str, root: &Path| {
        let process = processes.join(pid);
        std::fs::create_dir_all(&process).expect("a directory");
        std::os::unix::fs::symlink(root, process.join("root")).expect("a link");
        let command = format!("containerd\0--config\0{}\0", file.display());
        std::fs::write(process.join("cmdline"), command).expect("a file");
    };
    // Its root is another one, in which the same path leads nowhere.
    start("6", directory.path());
    assert_eq!(running(&processes, &file), None);
    start("7", Path::new("/"));
    assert_eq!(running(&processes, &file), Some(7));
    assert_eq!(running(&processes, &directory.path().join("other.toml")), None);
}

#[test]
fn other_users_cannot_read_the_runtime_s_data() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| directory.path().join(name);
    let config = ContainerdConfig {
        root: path("c/root"),
        state: path("run"),
        socket: path("run/c.sock"),
        sandbox_image: String::new(),
        cni_binaries: path("cni"),
        cni_configuration: path("net"),
        registry_configuration: path("registries"),
        privileges: Privileges { lower_oom_scores: false, apparmor: true, cgroups: true },
        systemd_cgroup: false,
        snippets: Vec::new(),
    };
    let kept = path("run/io.containerd.grpc.v1.cri");
    for open in [&config.root, &kept] {
        std::fs::create_dir_all(open).expect("made");
        std::fs::set_permissions(open, std::fs::Permissions::from_mode(0o755)).expect("set");
    }
    for (directory, max_mode) in directories(&path("c"), &config) {
        restrict(&directory, max_mode).expect("restricted");
    }
    let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
    assert_eq!((mode(&config.root), mode(&kept)), (0o700, 0o700));
    assert_eq!(mode(&config.state) & !0o711, 0);
}
