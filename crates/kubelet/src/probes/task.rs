//! One task a probe, for as long as its container runs.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, Probe};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
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
    /// else, and a pod that ends is only asked whether it is still ready.
    pub fn sync(
        &mut self,
        context: &Arc<Context>,
        pod: &Arc<Pod>,
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
                let Some(probe) = probe else { continue };
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
                    pod: pod.clone(),
                    container: container.clone(),
                    id: view.id.clone(),
                    started_at: view.started_at.unwrap_or_else(Timestamp::now),
                    address: addresses.first().cloned().unwrap_or_default(),
                    probe: probe.clone(),
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

struct Task {
    context: Arc<Context>,
    pod: Arc<Pod>,
    container: Container,
    id: String,
    started_at: Timestamp,
    address: String,
    probe: Probe,
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

impl Task {
    async fn run(self) {
        let seconds = |value: Option<i32>, default: u64| {
            Duration::from_secs(value.and_then(|value| u64::try_from(value).ok()).filter(|v| *v > 0).unwrap_or(default))
        };
        let period = seconds(self.probe.period_seconds, 10);
        let limit = seconds(self.probe.timeout_seconds, 1);
        let initial = SignedDuration::from_secs(self.probe.initial_delay_seconds.unwrap_or(0).into());
        let begin = self.started_at.saturating_add(initial).unwrap_or(self.started_at);
        tokio::time::sleep(knarr_client::time::until(Timestamp::now(), begin)).await;
        let mut counter = Counter::new(
            self.probe.failure_threshold.filter(|threshold| *threshold > 0).unwrap_or(3),
            self.probe.success_threshold.filter(|threshold| *threshold > 0).unwrap_or(1),
        );
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut reported = None;
        loop {
            ticks.tick().await;
            let outcome = match tokio::time::timeout(limit, Box::pin(self.ask(limit))).await {
                Ok(outcome) => outcome,
                Err(_) => Outcome::Failure(self.late(limit)),
            };
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
                trail::probe(&self.pod, &self.container.name, self.kind.as_str(), verdict, &why);
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

    fn count(&self, result: &str) {
        let labels = [
            ("container", self.container.name.as_str()),
            ("namespace", pod::namespace(&self.pod)),
            ("pod", pod::name(&self.pod)),
            ("pod_uid", pod::uid(&self.pod)),
            ("probe_type", self.kind.as_str()),
            ("result", result),
        ];
        self.context.metrics.count("prober_probe_total", &labels);
    }

    fn event(&self, reason: &str, message: String) {
        self.context.container_event(&self.pod, &self.container.name, true, reason, message);
    }

    fn late(&self, limit: Duration) -> String {
        if self.probe.exec.is_some() {
            return format!("command timed out: \"{}\" timed out after {}s", self.command().join(" "), limit.as_secs());
        }
        "context deadline exceeded (Client.Timeout exceeded while awaiting headers)".to_string()
    }

    fn command(&self) -> Vec<String> {
        self.probe.exec.as_ref().and_then(|exec| exec.command.clone()).unwrap_or_default()
    }

    async fn ask(&self, limit: Duration) -> Outcome {
        if self.probe.exec.is_some() {
            return self.ask_by_command(limit).await;
        }
        let answer = if let Some(http) = &self.probe.http_get {
            return self.ask_by_http(http).await;
        } else if let Some(tcp) = &self.probe.tcp_socket {
            self.ask_by_tcp(tcp).await
        } else if let Some(probe) = &self.probe.grpc {
            match u16::try_from(probe.port) {
                Ok(port) => grpc::check(&self.address, port, probe.service.as_deref().unwrap_or_default()).await,
                Err(_) => Err("the port is out of range".to_string()),
            }
        } else {
            Ok(())
        };
        answer.map_or_else(Outcome::Failure, |()| Outcome::Success)
    }

    async fn ask_by_command(&self, limit: Duration) -> Outcome {
        let mut environment = std::collections::BTreeMap::new();
        for variable in self.container.env.iter().flatten() {
            environment.insert(variable.name.clone(), variable.value.clone().unwrap_or_default());
        }
        let command = self.command().iter().map(|word| crate::container::env::expand(word, &environment)).collect();
        match self.context.runtime.exec_sync(&self.id, command, Some(limit)).await {
            Ok(answer) if answer.exit_code == 0 => Outcome::Success,
            Ok(answer) => {
                let mut output = answer.stdout;
                output.extend_from_slice(&answer.stderr);
                output.truncate(10 << 10);
                Outcome::Failure(String::from_utf8_lossy(&output).into_owned())
            }
            Err(error) if error.is_late() => Outcome::Failure(self.late(limit)),
            Err(error) => Outcome::Unknown(error.rpc_text()),
        }
    }

    async fn ask_by_http(&self, http: &k8s_openapi::api::core::v1::HTTPGetAction) -> Outcome {
        let port = match resolve_port(&http.port, &self.container) {
            Ok(port) => port,
            Err(message) => return Outcome::Failure(message),
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

    async fn ask_by_tcp(&self, tcp: &k8s_openapi::api::core::v1::TCPSocketAction) -> Result<(), String> {
        let port = resolve_port(&tcp.port, &self.container)?;
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
