//! The node's containerd, from its start to a container that ran in it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt;
use knarr_cri::Runtime;
use knarr_cri::containerd::{Containerd, ImageArchive, import};
use knarr_cri::events::{ContainerEvent, subscribe};
use knarr_cri::messages::*;

const IMAGE: &str = "localhost/knarr/test:1";
const CGROUP: &str = "/knarr-cri-test";

/// What all tests here need.
const NEEDS: [&str; 4] = ["root", "containerd", "runc", "/bin/busybox"];

/// Stops what was started, whatever the outcome of the test.
struct Cleanup {
    directory: PathBuf,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let config = self.directory.join("config.toml");
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let ours = String::from_utf8_lossy(&command).contains(&*config.to_string_lossy());
            let Some(pid) = entry.file_name().to_string_lossy().parse().ok().filter(|_| ours) else { continue };
            let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL);
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let below = mounts
            .lines()
            .filter_map(|line| line.split(' ').nth(4))
            .filter(|p| Path::new(p).starts_with(&self.directory));
        for point in below.collect::<Vec<_>>().into_iter().rev() {
            let _ = nix::mount::umount2(point, nix::mount::MntFlags::MNT_DETACH);
        }
        // One directory per hierarchy, or one at the root of a unified hierarchy.
        let hierarchies = std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
        for hierarchy in hierarchies.chain([PathBuf::from("/sys/fs/cgroup")]) {
            let _ = std::fs::remove_dir(hierarchy.join(CGROUP.trim_start_matches('/')));
        }
    }
}

fn sandbox_config(parent: &Path) -> PodSandboxConfig {
    let namespaces = NamespaceOption {
        // On the node's own network no pod network is needed, and the host's network is not changed.
        network: NamespaceMode::Node as i32,
        ..Default::default()
    };
    PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: "pod".into(),
            uid: "uid".into(),
            namespace: "default".into(),
            attempt: 0,
        }),
        log_directory: parent.join("logs").to_string_lossy().into_owned(),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: CGROUP.into(),
            security_context: Some(LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

async fn run_container(runtime: &Runtime, parent: &Path) -> (String, String) {
    let config = sandbox_config(parent);
    let sandbox = runtime.run_pod_sandbox(config.clone(), "").await.expect("a sandbox");
    let container = ContainerConfig {
        metadata: Some(ContainerMetadata { name: "main".into(), attempt: 0 }),
        image: Some(ImageSpec { image: IMAGE.into(), ..Default::default() }),
        command: [
            "/bin/busybox",
            "sh",
            "-c",
            "echo hello; trap 'exit 7' TERM; while :; do /bin/busybox sleep 0.05; done",
        ]
        .map(String::from)
        .to_vec(),
        log_path: "main.log".into(),
        linux: Some(LinuxContainerConfig {
            security_context: Some(LinuxContainerSecurityContext {
                namespace_options: Some(NamespaceOption {
                    network: NamespaceMode::Node as i32,
                    pid: NamespaceMode::Container as i32,
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    };
    let id = runtime.create_container(&sandbox, container, config).await.expect("a container");
    runtime.start_container(&id).await.expect("started");
    (sandbox, id)
}

#[tokio::test]
async fn a_container_runs_in_a_containerd_of_our_own() {
    if !knarr_test_host::has(&NEEDS) {
        return;
    }
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("containerd");
    let cleanup = Cleanup { directory: directory.clone() };
    let containerd = Containerd::new(&directory, Path::new("/usr/lib/cni"), &parent.path().join("cni"));
    let runtime = containerd.ensure().await.expect("containerd starts");
    containerd.ensure().await.expect("it is adopted, not started twice");

    let busybox = std::fs::read("/bin/busybox").expect("busybox");
    let archive = ImageArchive::new(IMAGE).directory("bin", 0o755).file("bin/busybox", 0o755, &busybox).build();
    let path = parent.path().join("image.tar");
    std::fs::write(&path, archive).expect("written");
    assert_eq!(import(containerd.socket(), &path).await.expect("imported"), [IMAGE]);
    let known = tokio::time::timeout(Duration::from_secs(30), async {
        while runtime.image_status(IMAGE).await.expect("a response").is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    known.await.expect("the image is known in time");

    std::fs::create_dir_all(parent.path().join("logs")).expect("a directory");
    let (sandbox, id) = run_container(&runtime, parent.path()).await;
    let output = runtime
        .exec_sync(
            &id,
            ["/bin/busybox", "sh", "-c", "/bin/busybox yes | /bin/busybox head -c 12000000 >&2; echo inside; exit 3"]
                .map(String::from)
                .to_vec(),
            Some(Duration::from_secs(10)),
            1000,
        )
        .await
        .expect("a command runs");
    assert_eq!((output.exit_code, output.stdout.as_slice()), (3, b"inside\n".as_slice()));
    assert_eq!(output.stderr.len(), 1000, "the rest of the output is dropped");

    let elsewhere = Containerd::new(&directory, Path::new("/usr/lib/cni"), &parent.path().join("elsewhere"));
    let runtime = elsewhere.ensure().await.expect("a restart with other settings");
    let settings = std::fs::read_to_string(directory.join("config.toml")).expect("its settings");
    assert!(settings.contains("elsewhere"), "{settings}");
    let status = runtime.container_status(&id).await.expect("a status");
    assert_eq!(status.state, ContainerState::Running as i32, "the container was stopped with its containerd");
    let mut stream = subscribe(&runtime);
    let (sender, mut events) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(event)) = stream.next().await {
            let _ = sender.send(event);
        }
    });

    runtime.stop_container(&id, Duration::from_secs(30)).await.expect("stopped");
    let exited = tokio::time::timeout(Duration::from_secs(10), async {
        while let Some(event) = events.recv().await {
            if event.event == (ContainerEvent::Exited { id: id.clone() }) {
                return true;
            }
        }
        false
    });
    assert_eq!(exited.await, Ok(true), "the exit of the command does not count, that of the container does");
    let status = runtime.container_status(&id).await.expect("a status");
    assert_eq!((status.state, status.exit_code), (ContainerState::Exited as i32, 7));
    let log = std::fs::read_to_string(parent.path().join("logs/main.log")).expect("a log");
    assert!(log.ends_with("stdout F hello\n"), "{log}");

    runtime.remove_container(&id).await.expect("removed");
    runtime.stop_pod_sandbox(&sandbox).await.expect("stopped");
    runtime.remove_pod_sandbox(&sandbox).await.expect("removed");
    assert!(runtime.list_containers(ContainerFilter::default()).await.expect("a list").is_empty());
    drop(cleanup);
}

/// A registry on loopback that has one image, for one user.
fn serve_registry(repository: &'static str, login: &'static str) -> std::net::SocketAddr {
    use std::io::{BufRead, BufReader, Write};

    let digest = |bytes: &[u8]| {
        let hash = <sha2::Sha256 as sha2::Digest>::digest(bytes);
        format!("sha256:{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
    };
    let layer = vec![0; 1024];
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let config = serde_json::json!({ "architecture": architecture, "os": "linux", "config": {},
        "rootfs": { "type": "layers", "diff_ids": [digest(&layer)] } })
    .to_string();
    let part = |kind: &str, bytes: &[u8]| {
        let kind = format!("application/vnd.oci.image.{kind}");
        serde_json::json!({ "mediaType": kind, "digest": digest(bytes), "size": bytes.len() })
    };
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    let manifest = serde_json::json!({ "schemaVersion": 2, "mediaType": MANIFEST,
        "config": part("config.v1+json", config.as_bytes()), "layers": [part("layer.v1.tar", &layer)] })
    .to_string();
    let files: Vec<(String, &str, Vec<u8>)> = vec![
        (format!("/v2/{repository}/manifests/1"), MANIFEST, manifest.clone().into_bytes()),
        (format!("/v2/{repository}/manifests/{}", digest(manifest.as_bytes())), MANIFEST, manifest.into_bytes()),
        (format!("/v2/{repository}/blobs/{}", digest(config.as_bytes())), "application/json", config.into_bytes()),
        (format!("/v2/{repository}/blobs/{}", digest(&layer)), "application/octet-stream", layer),
    ];
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut lines = BufReader::new(stream.try_clone().expect("a stream")).lines().map_while(Result::ok);
            let first = lines.next().unwrap_or_default();
            let head: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
            let is_user = head.iter().any(|line| line.eq_ignore_ascii_case(&format!("Authorization: Basic {login}")));
            let path = first.split(' ').nth(1).unwrap_or_default();
            let path = path.split('?').next().unwrap_or_default();
            let (status, kind, body) = match files.iter().find(|(name, _, _)| name == path) {
                _ if !is_user => ("401 Unauthorized\r\nWWW-Authenticate: Basic realm=\"r\"", "text/plain", &[][..]),
                Some((_, kind, body)) => ("200 OK", *kind, body.as_slice()),
                None => ("404 Not Found", "text/plain", &[][..]),
            };
            let id = digest(body);
            let mut stream = stream;
            let response = format!(
                "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nDocker-Content-Digest: {id}\r\n\
                 Connection: close\r\n\r\n",
                body.len()
            );
            // A client that hangs up gets no response.
            let _ = stream.write_all(response.as_bytes());
            if first.starts_with("GET ") {
                let _ = stream.write_all(body);
            }
        }
    });
    address
}

/// The real containerd reads what the registries file and the snippets become: it pulls through a mirror with a rewrite and
/// credentials, and has the snippet's handler.
#[tokio::test]
async fn mirrors_and_snippets_reach_containerd() {
    if !knarr_test_host::has(&NEEDS) {
        return;
    }
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("containerd");
    let _cleanup = Cleanup { directory: directory.clone() };
    // user:word
    let address = serve_registry("team/r/app", "dXNlcjp3b3Jk");
    let file = parent.path().join("registries.yaml");
    let text = format!(
        "mirrors:\n  r.test:\n    endpoint: ['http://{address}']\n    rewrite: {{'^(.*)$': 'team/r/$1'}}\n\
         configs:\n  '{address}': {{auth: {{username: user, password: word}}}}\n"
    );
    std::fs::write(&file, text).expect("written");
    let snippets = parent.path().join("snippets");
    std::fs::create_dir(&snippets).expect("a directory");
    let snippet = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.other]\n\
        runtime_type = 'io.containerd.runc.v2'\n";
    std::fs::write(snippets.join("other.toml"), snippet).expect("written");
    let containerd = Containerd::new(&directory, Path::new("/usr/lib/cni"), &parent.path().join("cni"))
        .with_snippets(knarr_cri::containerd::read_snippets(&snippets).expect("valid"));
    let registries = knarr_cri::containerd::Registries::read(&file).expect("valid");
    registries.write(containerd.registry_configuration()).expect("written");
    let runtime = containerd.ensure().await.expect("containerd starts");
    let status = runtime.status(true).await.expect("a status");
    let config: serde_json::Value = serde_json::from_str(&status.info["config"]).expect("JSON");
    assert_eq!(config["containerd"]["runtimes"]["other"]["runtimeType"], "io.containerd.runc.v2", "{config}");
    assert_eq!(config["containerd"]["runtimes"]["runc"]["runtimeType"], "io.containerd.runc.v2", "{config}");
    let logins = registries.logins("r.test");
    assert_eq!(logins.len(), 1);
    let auth = AuthConfig {
        username: logins[0].username.clone(),
        password: logins[0].password.clone(),
        server_address: format!("https://{}", logins[0].host),
        ..Default::default()
    };
    let reference = runtime.pull_image("r.test/app:1", Some(auth), PodSandboxConfig::default()).await.expect("pulled");
    let image = runtime.image_status(&reference).await.expect("a response").expect("the image");
    assert_eq!(image.repo_tags, ["r.test/app:1"]);
}
