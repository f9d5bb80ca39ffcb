use super::*;

#[test]
fn a_containerd_is_identified_by_its_configuration() {
    let directory = tempfile::tempdir().expect("a directory");
    let process = directory.path().join("7");
    std::fs::create_dir(&process).expect("a directory");
    std::fs::write(process.join("cmdline"), "containerd\0--config\0/a/config.toml\0").expect("a file");
    assert_eq!(running(directory.path(), Path::new("/a/config.toml")), Some(7));
    assert_eq!(running(directory.path(), Path::new("/b/config.toml")), None);
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
