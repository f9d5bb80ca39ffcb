//! One task a probe, for as long as its container runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, HTTPGetAction, Pod, Probe, TCPSocketAction};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use parking_lot::Mutex;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;

use super::counter::Counter;
use super::{HttpTarget, ProbeKind, grpc, http_get, resolve_port};
use crate::context::Context;
use crate::pod;
use crate::runtime::{ContainerView, RuntimePod};
use crate::trail;
use crate::worker::Message;
use crate::worker::memory::Memory;

/// The probes of one pod's containers.
#[derive(Default)]
pub struct ProbeTasks(HashMap<(String, ProbeKind), AbortHandle>);

impl ProbeTasks {
    /// Starts what should run and ends what should not. Until its startup probe succeeded a container is asked nothing
    /// else, and a pod that ends is only asked whether it is still ready. Where the pod will be found as it is then, is
    /// `latest`.
    pub fn sync(
        &mut self,
        context: &Arc<Context>,
        latest: &Arc<Mutex<Arc<Pod>>>,
        pod: &Pod,
        runtime: &RuntimePod,
        memory: &Memory,
        worker: &UnboundedSender<Message>,
    ) {
        self.0.retain(|(id, kind), task| {
            let running = runtime.by_id(id).is_some_and(ContainerView::is_running);
            let wanted = running && (memory.ending.is_none() || *kind == ProbeKind::Readiness);
            if !wanted {
                task.abort();
            }
            wanted && !task.is_finished()
        });
        let addresses = runtime.current_sandbox().map(|sandbox| sandbox.addresses.clone()).unwrap_or_default();
        let addresses = if pod::host_network(pod) { context.addresses.clone() } else { addresses };
        let containers = pod::init_containers(pod).map(|(_, c)| c).chain(pod::main_containers(pod));
        for container in containers {
            let Some(view) = runtime.latest(&container.name).filter(|view| view.is_running()) else { continue };
            let results = memory.probes.get(&view.id).copied().unwrap_or_default();
            let started = container.startup_probe.is_none() || results.started == Some(true);
            let wanted = [
                (ProbeKind::Startup, container.startup_probe.as_ref().filter(|_| !started)),
                (ProbeKind::Liveness, container.liveness_probe.as_ref().filter(|_| started)),
                (ProbeKind::Readiness, container.readiness_probe.as_ref().filter(|_| started)),
            ];
            for (kind, probe) in wanted {
                if probe.is_none() {
                    continue;
                }
                let failed = results.liveness_failed || results.startup_failed;
                if (memory.ending.is_some() || failed) && kind != ProbeKind::Readiness {
                    continue;
                }
                let key = (view.id.clone(), kind);
                if self.0.contains_key(&key) {
                    continue;
                }
                let task = Task {
                    context: context.clone(),
                    pod: latest.clone(),
                    container: container.name.clone(),
                    id: view.id.clone(),
                    started_at: view.started_at.unwrap_or_else(Timestamp::now),
                    address: addresses.first().cloned().unwrap_or_default(),
                    kind,
                    worker: worker.clone(),
                };
                self.0.insert(key, tokio::spawn(task.run()).abort_handle());
            }
        }
    }
}

impl Drop for ProbeTasks {
    fn drop(&mut self) {
        self.0.values().for_each(AbortHandle::abort);
    }
}

/// It lives as long as its container, so it holds neither the pod as it was once nor parts of it.
struct Task {
    context: Arc<Context>,
    pod: Arc<Mutex<Arc<Pod>>>,
    container: String,
    id: String,
    started_at: Timestamp,
    address: String,
    kind: ProbeKind,
    worker: UnboundedSender<Message>,
}

enum Outcome {
    Success,
    /// Success with a word of doubt, which an event tells.
    Warning(String),
    Failure(String),
    /// The container could not be asked.
    Unknown(String),
}

/// What a probe is told, and of which container.
#[derive(Clone, Copy)]
struct Asked<'a> {
    container: &'a Container,
    probe: &'a Probe,
}

impl<'a> Asked<'a> {
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

    fn late(&self, limit: Duration) -> String {
        if self.probe.exec.is_some() {
            return format!("command timed out: \"{}\" timed out after {}s", self.command().join(" "), limit.as_secs());
        }
        "context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_string()
    }
}

/// When a probe is asked, and how many answers count.
struct Rhythm {
    initial: SignedDuration,
    period: Duration,
    limit: Duration,
    counter: Counter,
}

impl Rhythm {
    fn of(probe: &Probe) -> Self {
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).filter(|v| *v > 0).unwrap_or(default))
        };
        let threshold = |value: Option<i32>, default| value.filter(|threshold| *threshold > 0).unwrap_or(default);
        Self {
            initial: SignedDuration::from_secs(probe.initial_delay_seconds.unwrap_or(0).into()),
            period: seconds(probe.period_seconds, 10),
            limit: seconds(probe.timeout_seconds, 1),
            counter: Counter::new(threshold(probe.failure_threshold, 3), threshold(probe.success_threshold, 1)),
        }
    }
}

impl Task {
    async fn run(self) {
        let rhythm = Asked::of(&self.pod(), &self.container, self.kind).map(|asked| Rhythm::of(asked.probe));
        let Some(Rhythm { initial, period, limit, mut counter }) = rhythm else { return };
        let begin = self.started_at.saturating_add(initial).unwrap_or(self.started_at);
        tokio::time::sleep(knarr_client::time::until(Timestamp::now(), begin)).await;
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut reported = None;
        loop {
            ticks.tick().await;
            let asked_at = tokio::time::Instant::now();
            let outcome = Box::pin(self.ask(limit)).await;
            if !matches!(outcome, Outcome::Failure(_)) {
                self.measure(asked_at.elapsed());
            }
            if let Outcome::Unknown(message) = &outcome {
                // Who could not ask knows nothing: neither a success nor a failure.
                self.count("unknown");
                let kind = self.kind.as_str();
                self.event("Unhealthy", format!("{kind} probe errored and resulted in unknown state: {message}"));
                continue;
            }
            let success = !matches!(outcome, Outcome::Failure(_));
            let why = if let Outcome::Failure(message) = &outcome { message.clone() } else { String::new() };
            self.count(if success { "successful" } else { "failed" });
            match outcome {
                Outcome::Success | Outcome::Unknown(_) => {}
                Outcome::Warning(message) => {
                    self.event("ProbeWarning", format!("{} probe warning: {message}", self.kind.as_str()))
                }
                Outcome::Failure(message) => {
                    self.event("Unhealthy", format!("{} probe failed: {message}", self.kind.as_str()))
                }
            }
            let Some(verdict) = counter.answer(success) else { continue };
            if reported != Some(verdict) {
                reported = Some(verdict);
                trail::probe(&self.pod(), &self.container, self.kind.as_str(), verdict, &why);
                let message = Message::Probe { id: self.id.clone(), kind: self.kind, success: verdict };
                if self.worker.send(message).is_err() {
                    return;
                }
            }
            if self.kind == ProbeKind::Startup || (self.kind == ProbeKind::Liveness && !verdict) {
                return;
            }
        }
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

    /// How long it took until there was an answer; one that is late says nothing of that.
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
        self.context.container_event(&self.pod(), &self.container, true, reason, message);
    }

    async fn ask(&self, limit: Duration) -> Outcome {
        let pod = self.pod();
        let Some(asked) = Asked::of(&pod, &self.container, self.kind) else {
            return Outcome::Unknown("the container has no such probe any more".to_string());
        };
        if asked.probe.exec.is_some() {
            // The runtime counts the time from when the command runs: a busy node may need longer until it does.
            return self.ask_by_command(asked, limit).await;
        }
        let answer = tokio::time::timeout(limit, self.ask_as_told(asked)).await;
        answer.unwrap_or_else(|_| Outcome::Failure(asked.late(limit)))
    }

    async fn ask_as_told(&self, asked: Asked<'_>) -> Outcome {
        let probe = asked.probe;
        let answer = if let Some(http) = &probe.http_get {
            return self.ask_by_http(http, asked.container).await;
        } else if let Some(tcp) = &probe.tcp_socket {
            match resolve_port(&tcp.port, asked.container) {
                Ok(port) => self.ask_by_tcp(tcp, port).await,
                Err(message) => return Outcome::Unknown(message),
            }
        } else if let Some(probe) = &probe.grpc {
            match u16::try_from(probe.port) {
                Ok(port) => grpc::check(&self.address, port, probe.service.as_deref().unwrap_or_default()).await,
                Err(_) => Err("the port is out of range".to_string()),
            }
        } else {
            Ok(())
        };
        answer.map_or_else(Outcome::Failure, |()| Outcome::Success)
    }

    async fn ask_by_command(&self, asked: Asked<'_>, limit: Duration) -> Outcome {
        let mut environment = std::collections::BTreeMap::new();
        for variable in asked.container.env.iter().flatten() {
            environment.insert(variable.name.clone(), variable.value.clone().unwrap_or_default());
        }
        let command = asked.command().iter().map(|word| crate::container::env::expand(word, &environment)).collect();
        match self.context.runtime.exec_sync(&self.id, command, Some(limit)).await {
            Ok(answer) if answer.exit_code == 0 => Outcome::Success,
            Ok(answer) => {
                let mut output = answer.stdout;
                output.extend_from_slice(&answer.stderr);
                output.truncate(10 << 10);
                Outcome::Failure(String::from_utf8_lossy(&output).into_owned())
            }
            Err(error) if error.is_late() => Outcome::Failure(asked.late(limit)),
            Err(error) => Outcome::Unknown(error.rpc_text()),
        }
    }

    async fn ask_by_http(&self, http: &HTTPGetAction, container: &Container) -> Outcome {
        let port = match resolve_port(&http.port, container) {
            Ok(port) => port,
            Err(message) => return Outcome::Unknown(message),
        };
        let target = HttpTarget {
            scheme: http.scheme.clone().unwrap_or_else(|| "HTTP".into()),
            host: http.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| self.address.clone()),
            port,
            path: http.path.clone().unwrap_or_default(),
            headers: http.http_headers.iter().flatten().map(|h| (h.name.clone(), h.value.clone())).collect(),
        };
        match http_get(&target, "kube-probe/1.36").await {
            Ok(answer) if answer.redirected_away => {
                Outcome::Warning("Probe terminated redirects, Response body: ".to_string() + &answer.body)
            }
            Ok(answer) if (200..400).contains(&answer.status) => Outcome::Success,
            Ok(answer) => Outcome::Failure(format!("HTTP probe failed with statuscode: {}", answer.status)),
            Err(message) => Outcome::Failure(message),
        }
    }

    async fn ask_by_tcp(&self, tcp: &TCPSocketAction, port: u16) -> Result<(), String> {
        let host = tcp.host.clone().filter(|host| !host.is_empty()).unwrap_or_else(|| self.address.clone());
        match tokio::net::TcpStream::connect((host.as_str(), port)).await {
            Ok(_) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                Err(format!("dial tcp {host}:{port}: connect: connection refused"))
            }
            Err(error) => Err(format!("dial tcp {host}:{port}: {error}")),
        }
    }
}
