//! Starts, stops and runs the probes of a pod's containers.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod, Probe, TCPSocketAction};
use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::Message;
use super::state::WorkerState;
use crate::container::env::{Budget, expand};
use crate::context::Context;
use crate::journey_events;
use crate::pod::{self, Role};
use crate::probes::schedule::{self, Prober, Slot, Target, Timing};
use crate::probes::{HttpTarget, ProbeKind, connect, grpc, http_get, resolve_port};
use crate::runtime::{ContainerView, RuntimePod};

/// Bytes of a command's output that are kept.
const MAX_OUTPUT: usize = 10 << 10;

/// The probes of one pod's containers, by the container's name.
pub struct ProbeTasks {
    running: HashMap<(String, ProbeKind), Running>,
    /// The containers started before the kubelet: their probes are spread over the first period.
    adopted: bool,
}

struct Running {
    slot: Arc<Slot>,
    task: AbortHandle,
}

/// The context of a pod's probes. `latest` always holds the current version of the pod.
pub struct ProbeContext<'a> {
    pub context: &'a Arc<Context>,
    pub latest: &'a Arc<Mutex<Arc<Pod>>>,
    pub worker: &'a UnboundedSender<Message>,
}

impl ProbeTasks {
    pub fn new(adopted: bool) -> Self {
        Self { running: HashMap::new(), adopted }
    }

    /// Starts and stops probes and passes them the current containers. Probe loops start with their pod, before its
    /// containers. A terminating pod keeps its readiness probes only.
    pub fn sync(&mut self, probe_context: &ProbeContext<'_>, pod: &Pod, runtime: &RuntimePod, state: &WorkerState) {
        let termination = state.termination.is_some();
        self.running.retain(|(name, kind), probe| {
            let running = runtime.latest(name).is_some_and(ContainerView::is_running);
            let keep = !termination || (running && *kind == ProbeKind::Readiness);
            if !keep {
                probe.task.abort();
            }
            keep && !probe.task.is_finished()
        });
        if runtime.is_empty() && !state.volumes.ready {
            return;
        }
        let sidecars = pod::init_containers(pod).filter(|(role, _)| *role == Role::Sidecar);
        for container in sidecars.map(|(_, container)| container).chain(pod::main_containers(pod)) {
            let view = runtime.latest(&container.name);
            let target = view.map(|view| target(probe_context.context, pod, runtime, state, container, view));
            for (kind, probe) in probes_of(container) {
                let running = target.as_ref().is_some_and(|target| target.running);
                if termination && !(kind == ProbeKind::Readiness && running) {
                    continue;
                }
                let adopted = self.adopted;
                let start_probe = || start(probe_context, container, kind, probe, target.clone(), adopted);
                let known = self.running.entry((container.name.clone(), kind)).or_insert_with(start_probe);
                known.slot.put(target.clone());
            }
        }
    }

    /// Probes the readiness of containers that run and are not ready, as the pod's status has changed.
    pub fn status_changed(&self, pod: &Pod, runtime: &RuntimePod, state: &WorkerState) {
        for ((name, kind), probe) in &self.running {
            if *kind != ProbeKind::Readiness {
                continue;
            }
            let Some(view) = runtime.latest(name).filter(|view| view.is_running()) else { continue };
            let results = state.probes.get(&view.id).copied().unwrap_or_default();
            if is_started(pod, name, results.started) && results.ready != Some(true) {
                probe.slot.trigger();
            }
        }
    }
}

impl Drop for ProbeTasks {
    fn drop(&mut self) {
        self.running.values().for_each(|probe| probe.task.abort());
    }
}

fn probes_of(container: &Container) -> impl Iterator<Item = (ProbeKind, &Probe)> {
    let all = [
        (ProbeKind::Startup, &container.startup_probe),
        (ProbeKind::Liveness, &container.liveness_probe),
        (ProbeKind::Readiness, &container.readiness_probe),
    ];
    all.into_iter().filter_map(|(kind, probe)| Some((kind, probe.as_ref()?)))
}

fn is_started(pod: &Pod, name: &str, result: Option<bool>) -> bool {
    ProbeSpec::of(pod, name, ProbeKind::Startup).is_none() || result == Some(true)
}

fn target(
    context: &Context,
    pod: &Pod,
    runtime: &RuntimePod,
    state: &WorkerState,
    container: &Container,
    view: &ContainerView,
) -> Target {
    let results = state.probes.get(&view.id).copied().unwrap_or_default();
    let addresses = match pod::host_network(pod) {
        true => context.addresses.as_slice(),
        false => runtime.current_sandbox().map_or(&[][..], |sandbox| sandbox.addresses.as_slice()),
    };
    let now = Instant::now();
    let age = view.started_at.map_or(Duration::ZERO, |at| knarr_client::time::until(at, Timestamp::now()));
    Target {
        id: view.id.clone(),
        running: view.is_running(),
        // The monotonic clock cannot represent a start before the host's boot.
        started_at: now.checked_sub(age).unwrap_or(now),
        started: is_started(pod, &container.name, results.started),
        address: addresses.first().cloned().unwrap_or_default(),
    }
}

fn start(
    probe_context: &ProbeContext<'_>,
    container: &Container,
    kind: ProbeKind,
    probe: &Probe,
    target: Option<Target>,
    adopted: bool,
) -> Running {
    let ProbeContext { context, latest, worker } = probe_context;
    let timing = Timing::of(probe);
    let offset = match adopted {
        true => timing.offset(context.started_at.elapsed(), rand::random()),
        false => Duration::ZERO,
    };
    let slot = Arc::new(Slot::default());
    slot.put(target);
    let (context, pod, container) = (Arc::clone(context), Arc::clone(latest), container.name.clone());
    let (worker, shared) = ((*worker).clone(), slot.clone());
    let task = knarr_supervisor::spawn_restarting("kubelet/probe", move || {
        let task = Task {
            context: Arc::clone(&context),
            pod: Arc::clone(&pod),
            container: container.clone(),
            kind,
            timeout: timing.timeout,
            failure: Mutex::default(),
            worker: worker.clone(),
        };
        schedule::run(kind, timing, offset, shared.clone(), task)
    });
    Running { slot, task }
}

/// Lives as long as its pod, so it must not keep an old version of the pod alive.
struct Task {
    context: Arc<Context>,
    pod: Arc<Mutex<Arc<Pod>>>,
    container: String,
    kind: ProbeKind,
    timeout: Duration,
    /// The message of the last failure.
    failure: Mutex<String>,
    worker: UnboundedSender<Message>,
}

enum Outcome {
    Success,
    /// Success with a warning, which becomes an event.
    Warning(String),
    Failure(String),
    /// The probe could not be run.
    Unknown(String),
}

/// A probe and its container.
#[derive(Clone, Copy)]
struct ProbeSpec<'a> {
    container: &'a Container,
    probe: &'a Probe,
}

impl<'a> ProbeSpec<'a> {
    fn of(pod: &'a Pod, name: &str, kind: ProbeKind) -> Option<Self> {
        let mut containers = pod::init_containers(pod).map(|(_, c)| c).chain(pod::main_containers(pod));
        let container = containers.find(|container| container.name == name)?;
        let probe = match kind {
            ProbeKind::Startup => &container.startup_probe,
            ProbeKind::Liveness => &container.liveness_probe,
            ProbeKind::Readiness => &container.readiness_probe,
        };
        Some(Self { container, probe: probe.as_ref()? })
    }

    fn command(&self) -> &'a [String] {
        self.probe.exec.as_ref().and_then(|exec| exec.command.as_deref()).unwrap_or_default()
    }

    fn timeout_message(&self, limit: Duration) -> String {
        if self.probe.exec.is_some() {
            return format!("command timed out: \"{}\" timed out after {}s", self.command().join(" "), limit.as_secs());
        }
        "context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_string()
    }
}

impl Prober for Task {
    async fn probe(&self, target: &Target) -> Option<bool> {
        let started = Instant::now();
        let outcome = self.run_probe(target).await;
        let kind = self.kind.as_str();
        match outcome {
            Outcome::Unknown(message) => {
                // A probe that could not run is neither a success nor a failure.
                self.count("unknown");
                self.measure(started.elapsed());
                self.event("Unhealthy", format!("{kind} probe errored and resulted in unknown state: {message}"));
                None
            }
            Outcome::Failure(message) => {
                self.count("failed");
                self.event("Unhealthy", format!("{kind} probe failed: {message}"));
                *self.failure.lock() = message;
                Some(false)
            }
            Outcome::Success => {
                self.succeeded(started.elapsed());
                Some(true)
            }
            Outcome::Warning(message) => {
                self.succeeded(started.elapsed());
                self.event("ProbeWarning", format!("{kind} probe warning: {message}"));
                Some(true)
            }
        }
    }

    fn report(&self, id: &str, success: bool) -> bool {
        let why = if success { String::new() } else { std::mem::take(&mut *self.failure.lock()) };
        journey_events::probe(&self.pod(), &self.container, self.kind.as_str(), success, &why);
        let message = Message::Probe { id: id.to_string(), kind: self.kind, success };
        self.worker.send(message).is_ok()
    }
}

impl Task {
    fn succeeded(&self, took: Duration) {
        self.count("successful");
        self.measure(took);
    }

    /// The pod as it is now.
    fn pod(&self) -> Arc<Pod> {
        self.pod.lock().clone()
    }

    fn count(&self, result: &str) {
        let pod = self.pod();
        let labels = [
            ("container", self.container.as_str()),
            ("namespace", pod::namespace(&pod)),
            ("pod", pod::name(&pod)),
            ("pod_uid", pod::uid(&pod)),
            ("probe_type", self.kind.as_str()),
            ("result", result),
        ];
        self.context.metrics.count("prober_probe_total", &labels);
    }

    /// Records the duration of a completed probe. Timeouts are not measured.
    fn measure(&self, took: Duration) {
        let pod = self.pod();
        let labels = [
            ("container", self.container.as_str()),
            ("namespace", pod::namespace(&pod)),
            ("pod", pod::name(&pod)),
            ("probe_type", self.kind.as_str()),
        ];
        self.context.metrics.observe("prober_probe_duration_seconds", &labels, took);
    }

    fn event(&self, reason: &str, message: String) {
        self.context.events.about_container(&self.pod(), &self.container, true, reason, message);
    }

    async fn run_probe(&self, target: &Target) -> Outcome {
        let (pod, limit) = (self.pod(), self.timeout);
        let Some(spec) = ProbeSpec::of(&pod, &self.container, self.kind) else {
            return Outcome::Unknown("the container no longer has this probe".to_string());
        };
        if spec.probe.exec.is_some() {
            // The runtime applies the timeout itself, from when the command runs: a busy node may delay the start.
            return self.probe_command(spec, &target.id, limit).await;
        }
        let result = tokio::time::timeout(limit, self.probe_network(spec, pod::namespace(&pod), &target.address)).await;
        result.unwrap_or_else(|_| Outcome::Failure(spec.timeout_message(limit)))
    }

    async fn probe_network(&self, spec: ProbeSpec<'_>, namespace: &str, address: &str) -> Outcome {
        let probe = spec.probe;
        let result = if let Some(http) = &probe.http_get {
            return probe_http(http, spec.container, namespace, address).await;
        } else if let Some(tcp) = &probe.tcp_socket {
            match resolve_port(&tcp.port, spec.container) {
                Ok(port) => probe_tcp(tcp, port, namespace, address).await,
                Err(message) => return Outcome::Unknown(message),
            }
        } else if let Some(probe) = &probe.grpc {
            match u16::try_from(probe.port) {
                Ok(port) => grpc::check(address, port, probe.service.as_deref().unwrap_or_default()).await,
                Err(_) => Err("the port is out of range".to_string()),
            }
        } else {
            Ok(())
        };
        result.map_or_else(Outcome::Failure, |()| Outcome::Success)
    }

    async fn probe_command(&self, spec: ProbeSpec<'_>, id: &str, limit: Duration) -> Outcome {
        let mut environment = std::collections::BTreeMap::new();
        for variable in spec.container.env.iter().flatten() {
            environment.insert(variable.name.clone(), variable.value.clone().unwrap_or_default());
        }
        let mut budget = Budget::of_program();
        let expanded: Result<Vec<String>, _> =
            spec.command().iter().map(|word| expand(word, &environment, &mut budget)).collect();
        let command = match expanded {
            Ok(command) => command,
            Err(error) => return Outcome::Unknown(error.to_string()),
        };
        match self.context.runtime.exec_sync(id, command, Some(limit), MAX_OUTPUT).await {
            Ok(output) if output.exit_code == 0 => Outcome::Success,
            Ok(response) => {
                let mut output = response.stdout;
                output.extend_from_slice(&response.stderr);
                output.truncate(MAX_OUTPUT);
                Outcome::Failure(String::from_utf8_lossy(&output).into_owned())
            }
            Err(error) if error.is_timeout() => Outcome::Failure(spec.timeout_message(limit)),
            Err(error) => Outcome::Unknown(error.rpc_message()),
        }
    }
}

async fn probe_http(http: &HTTPGetAction, container: &Container, namespace: &str, address: &str) -> Outcome {
    let port = match resolve_port(&http.port, container) {
        Ok(port) => port,
        Err(message) => return Outcome::Unknown(message),
    };
    let target = HttpTarget {
        namespace: namespace.to_owned(),
        scheme: http.scheme.clone().unwrap_or_else(|| "HTTP".into()),
        host: http.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| address.to_string()),
        port,
        path: http.path.clone().unwrap_or_default(),
        headers: http.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect(),
    };
    match http_get(&target, &format!("kube-probe/{}", knarr_version::RELEASE)).await {
        Ok(response) if response.redirected_away => {
            Outcome::Warning("Probe terminated redirects, Response body: ".to_string() + &response.body)
        }
        Ok(response) if (200..400).contains(&response.status) => Outcome::Success,
        Ok(response) => Outcome::Failure(format!("HTTP probe failed with statuscode: {}", response.status)),
        Err(message) => Outcome::Failure(message),
    }
}

async fn probe_tcp(tcp: &TCPSocketAction, port: u16, namespace: &str, address: &str) -> Result<(), String> {
    let host = tcp.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| address.to_string());
    match connect(namespace, &host, port).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
            Err(format!("dial tcp {host}:{port}: connect: connection refused"))
        }
        Err(error) => Err(format!("dial tcp {host}:{port}: {error}")),
    }
}
