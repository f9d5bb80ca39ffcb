//! Reads sandboxes and containers from the runtime.

use std::collections::HashMap;
use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use knarr_cri::messages::{
    ContainerFilter, ContainerState, ContainerStatus, PodSandboxFilter, PodSandboxState, PodSandboxStatus,
};
use knarr_cri::{CallError, Runtime};

use super::{ContainerView, RuntimePod, Sandbox, State, label};
use crate::beneath;

/// All pods in the runtime, by uid, which a starting kubelet adopts.
pub async fn inventory(runtime: &Runtime) -> Result<HashMap<String, (RuntimePod, PodName)>, CallError> {
    list_by_labels(runtime, &HashMap::new(), |_| true).await
}

/// The containers and sandboxes of one pod whose ids the filter accepts.
pub async fn list_pod(runtime: &Runtime, uid: &str, include: impl Fn(&str) -> bool) -> Result<RuntimePod, CallError> {
    let labels = [(label::POD_UID.to_string(), uid.to_string())].into();
    let mut found = list_by_labels(runtime, &labels, include).await?;
    Ok(found.remove(uid).unwrap_or_default().0)
}

async fn list_by_labels(
    runtime: &Runtime,
    labels: &HashMap<String, String>,
    include: impl Fn(&str) -> bool,
) -> Result<HashMap<String, (RuntimePod, PodName)>, CallError> {
    let mut pods: HashMap<String, (RuntimePod, PodName)> = HashMap::new();
    let filter = PodSandboxFilter { label_selector: labels.clone(), ..Default::default() };
    for sandbox in runtime.list_pod_sandboxes(filter).await?.into_iter().filter(|sandbox| include(&sandbox.id)) {
        let Some(metadata) = sandbox.metadata else { continue };
        let entry = pods.entry(metadata.uid).or_default();
        entry.1 = PodName { namespace: metadata.namespace, name: metadata.name };
        match observe_sandbox(runtime, &sandbox.id).await {
            Ok(view) => entry.0.put_sandbox(view),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    let filter = ContainerFilter { label_selector: labels.clone(), ..Default::default() };
    for container in runtime.list_containers(filter).await?.into_iter().filter(|container| include(&container.id)) {
        let Some(uid) = container.labels.get(label::POD_UID) else { continue };
        match observe_container(runtime, &container.id, &container.pod_sandbox_id).await {
            Ok(view) => pods.entry(uid.clone()).or_default().0.put_container(view),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(pods)
}

/// The name of a pod in the runtime, for pods that the API no longer has.
#[derive(Clone, Debug, Default)]
pub struct PodName {
    pub namespace: String,
    pub name: String,
}

pub async fn observe_sandbox(runtime: &Runtime, id: &str) -> Result<Sandbox, CallError> {
    let response = runtime.pod_sandbox_status(id, false).await?;
    let status = response.status.ok_or(CallError::Incomplete { method: "PodSandboxStatus", field: "the status" })?;
    Ok(sandbox_view(status))
}

/// `sandbox` is not part of the status the runtime gives, and so must be known.
pub async fn observe_container(runtime: &Runtime, id: &str, sandbox: &str) -> Result<ContainerView, CallError> {
    let response = runtime.container_details(id).await?;
    let status = response.status.ok_or(CallError::Incomplete { method: "ContainerStatus", field: "the status" })?;
    let mut view = container_view(status, sandbox);
    view.1.process = response.info.get("info").and_then(|info| first_process(info));
    if view.1.state == State::Exited
        && let Some(message) = termination_message(&view.0, view.1.exit_code).await
    {
        view.1.message = message;
    }
    Ok(view.1)
}

fn sandbox_view(status: PodSandboxStatus) -> Sandbox {
    let network = status.network.unwrap_or_default();
    let first = (!network.ip.is_empty()).then_some(network.ip);
    Sandbox {
        id: status.id,
        attempt: status.metadata.map_or(0, |metadata| metadata.attempt),
        ready: status.state == PodSandboxState::Ready as i32,
        created_at: status.created_at,
        addresses: first.into_iter().chain(network.additional_ips.into_iter().map(|ip| ip.ip)).collect(),
    }
}

/// Where the termination message of a container can be read.
struct TerminationMessageSource {
    file: Option<String>,
    log: String,
    fall_back_to_log: bool,
}

fn container_view(status: ContainerStatus, sandbox: &str) -> (TerminationMessageSource, ContainerView) {
    let annotation = |key: &str| status.annotations.get(key).cloned().unwrap_or_default();
    let path = annotation(label::TERMINATION_PATH);
    // The kubelet's own file is mounted last; another mount at the same path is a volume, whose file may be the host's.
    let mount = status.mounts.iter().rfind(|mount| !path.is_empty() && mount.container_path == path);
    let source = TerminationMessageSource {
        file: mount.map(|mount| mount.host_path.clone()),
        log: status.log_path.clone(),
        fall_back_to_log: annotation(label::TERMINATION_POLICY) == "FallbackToLogsOnError",
    };
    let annotated_image = annotation(label::IMAGE);
    let view = ContainerView {
        name: status.labels.get(label::CONTAINER_NAME).cloned().unwrap_or_default(),
        sandbox: sandbox.to_string(),
        state: match ContainerState::try_from(status.state) {
            Ok(ContainerState::Created) => State::Created,
            Ok(ContainerState::Running) => State::Running,
            Ok(ContainerState::Exited) => State::Exited,
            _ => State::Unknown,
        },
        created_at: status.created_at,
        started_at: timestamp(status.started_at),
        finished_at: timestamp(status.finished_at),
        exit_code: status.exit_code,
        reason: status.reason,
        message: status.message,
        image: if annotated_image.is_empty() {
            status.image.map(|image| image.image).unwrap_or_default()
        } else {
            annotated_image
        },
        image_id: status.image_ref,
        restart_count: annotation(label::RESTART_COUNT).parse().unwrap_or(0),
        log_path: status.log_path,
        resources: status.resources.and_then(|resources| resources.linux),
        user: status.user.and_then(|user| user.linux).map(|user| (user.uid, user.gid, user.supplemental_groups)),
        annotations: status.annotations,
        process: None,
        id: status.id,
    };
    (source, view)
}

/// containerd's verbose information has the process id, as JSON.
fn first_process(info: &str) -> Option<u32> {
    #[derive(serde::Deserialize)]
    struct Info {
        pid: u32,
    }
    serde_json::from_str::<Info>(info).ok().map(|info| info.pid).filter(|pid| *pid > 0)
}

fn timestamp(nanoseconds: i64) -> Option<Timestamp> {
    if nanoseconds <= 0 { None } else { Timestamp::from_nanosecond(nanoseconds.into()).ok() }
}

const MAX_MESSAGE_LENGTH: u64 = 4096;
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
const MAX_LOG_MESSAGE_LENGTH: usize = 2048;
const MAX_LOG_LINES: usize = 80;

/// The content of the termination message file, or the end of the log if the container failed without one.
async fn termination_message(source: &TerminationMessageSource, exit_code: i32) -> Option<String> {
    if let Some(file) = &source.file {
        let content = read_message(file.clone()).await;
        if !content.is_empty() {
            return Some(String::from_utf8_lossy(&content).into_owned());
        }
    }
    if source.fall_back_to_log && exit_code != 0 && !source.log.is_empty() {
        return Some(crate::container_logs::last_lines(&source.log, MAX_LOG_LINES, MAX_LOG_MESSAGE_LENGTH).await);
    }
    None
}

/// The end of the termination message file, which is untrusted: the container may have put anything there.
async fn read_message(file: String) -> Vec<u8> {
    let work = tokio::task::spawn_blocking(move || {
        let file = beneath::open_regular(Path::new(&file))?;
        Ok::<_, beneath::ReadError>(beneath::read_tail(file, MAX_MESSAGE_LENGTH)?)
    });
    // An unreadable file has no message.
    match tokio::time::timeout(READ_TIMEOUT, work).await {
        Ok(Ok(Ok(content))) => content,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_volume_at_the_path_of_the_message_is_not_read() {
        let mount = |host: &str| knarr_cri::messages::Mount {
            container_path: "/dev/termination-log".into(),
            host_path: host.into(),
            ..Default::default()
        };
        let status = ContainerStatus {
            annotations: [(label::TERMINATION_PATH.to_string(), "/dev/termination-log".to_string())].into(),
            mounts: vec![mount("/etc/shadow"), mount("/pods/u/containers/c/0-1")],
            ..Default::default()
        };
        assert_eq!(container_view(status, "s").0.file.as_deref(), Some("/pods/u/containers/c/0-1"));
    }

    #[tokio::test]
    async fn a_termination_message_is_the_bounded_end_of_a_regular_file() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name).display().to_string();
        std::fs::write(path("long"), [vec![b'x'; 1 << 20], b"end".to_vec()].concat()).expect("written");
        std::os::unix::fs::symlink(path("long"), path("link")).expect("made");
        nix::unistd::mkfifo(path("fifo").as_str(), nix::sys::stat::Mode::S_IRWXU).expect("made");
        let read = async |name: &str| {
            let file = Some(path(name));
            let source = TerminationMessageSource { file, log: String::new(), fall_back_to_log: false };
            tokio::time::timeout(Duration::from_secs(5), termination_message(&source, 1)).await.expect("no waiting")
        };
        let message = read("long").await.expect("a message");
        assert!(message.len() == 4096 && message.ends_with("xend"), "{} bytes", message.len());
        assert_eq!(read("link").await, None);
        assert_eq!(read("fifo").await, None);
    }
}
