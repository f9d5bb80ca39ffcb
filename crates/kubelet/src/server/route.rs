//! Routes requests to their handlers.

use std::path::Path;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_cri::messages::{AttachRequest, ExecRequest};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::{
    Body, Server, cadvisor, checkpoint, configuration, health, json, log_query, metrics, node_metrics, stats, streams,
    system_logs, text, zpages,
};
use crate::container_logs::{LogOptions, send};
use crate::pod;
use crate::runtime::{ContainerView, State};
use crate::settings::Tuning;
use crate::worker::Handle;

/// The host's log directory.
const SYSTEM_LOGS: &str = "/var/log";

/// The parameters of a query; a name may come more than once.
pub struct Query(Vec<(String, String)>);

impl Query {
    pub fn of<B>(request: &Request<B>) -> Self {
        let query = request.uri().query().unwrap_or_default();
        Self(query.split('&').filter(|part| !part.is_empty()).map(pair).collect())
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(key, _)| key == name).map(|(_, value)| value.clone()).collect()
    }

    fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| matches!(value, "1" | "true" | "True" | "TRUE"))
    }
}

fn pair(part: &str) -> (String, String) {
    let (key, value) = part.split_once('=').unwrap_or((part, ""));
    (decode(key, true), decode(value, true))
}

fn decode(text: &str, plus_is_blank: bool) -> String {
    let bytes = text.as_bytes();
    let mut result = Vec::with_capacity(bytes.len());
    let mut position = 0;
    while position < bytes.len() {
        let hex = (bytes[position] == b'%').then(|| text.get(position + 1..position + 3)).flatten();
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                result.push(byte);
                position += 3;
            }
            None => {
                result.push(if plus_is_blank && bytes[position] == b'+' { b' ' } else { bytes[position] });
                position += 1;
            }
        }
    }
    String::from_utf8_lossy(&result).into_owned()
}

/// Why an endpoint is not served on this node.
fn why_disabled(tuning: &Tuning, path: &[&str]) -> Option<&'static str> {
    match path.first()? {
        &"run" | &"exec" | &"attach" | &"portForward" | &"containerLogs" | &"runningpods" | &"logs"
            if !tuning.debugging_handlers =>
        {
            Some("Debug endpoints are disabled.")
        }
        &"logs" if !tuning.system_log_handler => Some("logs endpoint is disabled."),
        _ => None,
    }
}

pub async fn route(server: &Arc<Server>, request: Request<Incoming>) -> Response<Body> {
    let query = Query::of(&request);
    let path: Vec<String> =
        request.uri().path().split('/').filter(|part| !part.is_empty()).map(|part| decode(part, false)).collect();
    let parts: Vec<&str> = path.iter().map(String::as_str).collect();
    if let Some(why) = why_disabled(&server.context.settings.tuning, &parts) {
        return text(StatusCode::METHOD_NOT_ALLOWED, format!("{why}\n"));
    }
    match (request.method(), parts.as_slice()) {
        (&Method::GET, ["healthz", rest @ ..]) => {
            let is_stuck = server.context.heartbeat.is_stuck(std::time::Instant::now());
            let is_log_blocked = server.log.is_blocked(tokio::time::Instant::now());
            health::response(rest, query.get("verbose").is_some(), &health::of_node(is_stuck, is_log_blocked))
        }
        (&Method::GET, ["pods"]) => pods(server),
        (&Method::GET, ["runningpods"]) => running_pods(server),
        (&Method::GET, ["stats", "summary"]) => json(&stats::summary(server).await),
        (&Method::GET, ["metrics"]) => node_metrics::own(server, &stats::csi_volumes(server).await),
        (&Method::GET, ["metrics", "resource"]) => metrics::resource(server).await,
        (&Method::GET, ["metrics", "cadvisor"]) => cadvisor::page(server).await,
        (&Method::GET, ["metrics", "probes"]) => metrics::probes(server),
        (&Method::GET, ["metrics", "slis"]) => metrics::indicators(),
        (&Method::GET, ["configz"]) => configuration::response(server),
        (&Method::GET, ["statusz"]) => zpages::statusz(accept_header(&request), uptime(server)),
        (&Method::GET, ["flagz"]) => zpages::flagz(accept_header(&request), &server.context.settings),
        (&Method::GET, ["logs", rest @ ..]) if server.context.settings.system_log_query => {
            log_query::respond(Path::new(SYSTEM_LOGS), rest, &query).await
        }
        (&Method::GET, ["logs", rest @ ..]) => system_logs::respond(Path::new(SYSTEM_LOGS), rest).await,
        (&Method::GET, ["containerLogs", namespace, pod, container]) => {
            logs(server, namespace, pod, container, &query).await
        }
        (&Method::POST, ["checkpoint", namespace, pod, container]) => {
            checkpoint::respond(server, namespace, pod, container, &query).await
        }
        (_, ["exec", namespace, pod, container]) | (_, ["exec", namespace, pod, _, container]) => {
            let (namespace, pod, container) = (namespace.to_string(), pod.to_string(), container.to_string());
            exec(server, request, &namespace, &pod, &container, &query).await
        }
        (_, ["attach", namespace, pod, container]) | (_, ["attach", namespace, pod, _, container]) => {
            let (namespace, pod, container) = (namespace.to_string(), pod.to_string(), container.to_string());
            attach(server, request, &namespace, &pod, &container, &query).await
        }
        (_, ["portForward", namespace, pod]) | (_, ["portForward", namespace, pod, _]) => {
            let (namespace, pod) = (namespace.to_string(), pod.to_string());
            port_forward(server, request, &namespace, &pod, &query).await
        }
        (&Method::POST, ["run", namespace, pod, container])
        | (&Method::POST, ["run", namespace, pod, _, container]) => {
            run(server, namespace, pod, container, &query).await
        }
        (&Method::POST, ["checkpoint", ..]) => text(
            StatusCode::NOT_FOUND,
            "this node does not support checkpoints of containers
",
        ),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn accept_header<B>(request: &Request<B>) -> &str {
    request.headers().get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn uptime(server: &Server) -> zpages::Uptime {
    let seconds = i64::try_from(server.context.started_at.elapsed().as_secs()).unwrap_or(i64::MAX);
    let now = Timestamp::now();
    zpages::Uptime { started: now.saturating_sub(SignedDuration::from_secs(seconds)).unwrap_or(now), seconds }
}

fn pods(server: &Server) -> Response<Body> {
    let items: Vec<Pod> = server
        .pods
        .all()
        .into_iter()
        .map(|worker| {
            let mut pod = (**worker.pod.lock()).clone();
            let status: PodStatus = worker.status.lock().clone();
            pod.status = Some(status);
            pod
        })
        .collect();
    json(&serde_json::json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }))
}

pub fn upgrades_to_websocket<B>(request: &Request<B>) -> bool {
    let upgrade = request.headers().get(http::header::UPGRADE).and_then(|value| value.to_str().ok());
    upgrade.is_some_and(|protocol| protocol.eq_ignore_ascii_case("websocket"))
}

/// The `path` label of a request: its leading segments, without names of objects.
pub fn family(path: &str) -> &'static str {
    const KNOWN: [&str; 17] = [
        "attach",
        "checkpoint",
        "configz",
        "containerLogs",
        "exec",
        "flagz",
        "healthz",
        "logs",
        "metrics",
        "metrics/cadvisor",
        "metrics/probes",
        "metrics/resource",
        "pods",
        "portForward",
        "runningpods",
        "stats/summary",
        "statusz",
    ];
    let path = path.trim_matches('/');
    let fits = |known: &&&str| path == **known || path.strip_prefix(**known).is_some_and(|rest| rest.starts_with('/'));
    // Longer names come later.
    KNOWN.iter().rev().find(fits).copied().unwrap_or("other")
}

/// The pods with running containers, as the runtime reports them.
fn running_pods(server: &Server) -> Response<Body> {
    let one = |worker: &Handle| {
        let (pod, runtime) = (worker.pod.lock().clone(), worker.runtime.lock().clone());
        let containers: Vec<_> = runtime
            .running()
            .map(|view| serde_json::json!({ "name": view.name, "image": view.image_id, "resources": {} }))
            .collect();
        (!containers.is_empty()).then(|| {
            serde_json::json!({
                "metadata": { "name": pod::name(&pod), "namespace": pod::namespace(&pod), "uid": pod::uid(&pod) },
                "spec": { "containers": containers },
                "status": {},
            })
        })
    };
    let items: Vec<_> = server.pods.all().iter().filter_map(one).collect();
    json(&serde_json::json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }))
}

fn not_found() -> Response<Body> {
    text(StatusCode::NOT_FOUND, "pod does not exist")
}

/// The newest instance of a container, or the one before it.
fn instance(worker: &Handle, container: &str, previous: bool) -> Option<ContainerView> {
    let runtime = worker.runtime.lock();
    let mut all = runtime.all_of(container);
    if !previous {
        return all.next().cloned();
    }
    // For a container in back-off, the newest instance is the previous one.
    let newest = all.next()?;
    match all.next() {
        Some(before) => Some(before.clone()),
        None if newest.state == State::Exited && is_waiting(worker, container) => Some(newest.clone()),
        None => None,
    }
}

fn is_waiting(worker: &Handle, container: &str) -> bool {
    let status = worker.status.lock();
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    all.into_iter()
        .filter(|status| status.name == container)
        .any(|status| status.state.as_ref().is_some_and(|state| state.waiting.is_some()))
}

async fn logs(server: &Arc<Server>, namespace: &str, pod: &str, container: &str, query: &Query) -> Response<Body> {
    let Some(worker) = server.pods.find(namespace, pod) else {
        return text(StatusCode::NOT_FOUND, format!("pod \"{pod}\" does not exist"));
    };
    let known = crate::pod::roles(&worker.pod.lock()).any(|(_, name)| name == container);
    if !known {
        return text(StatusCode::NOT_FOUND, format!("container \"{container}\" not found in pod \"{pod}\"\n"));
    }
    let previous = query.flag("previous");
    let Some(view) = instance(&worker, container, previous) else {
        let message = if previous {
            format!("previous terminated container \"{container}\" in pod \"{pod}\" not found")
        } else {
            no_logs(&worker.status.lock(), pod, container)
        };
        return text(StatusCode::BAD_REQUEST, message);
    };
    let options = match log_options(query) {
        Ok(options) => options,
        Err(message) => return text(StatusCode::BAD_REQUEST, message),
    };
    if !std::path::Path::new(&view.log_path).exists() && view.state == State::Created {
        let message = no_logs(&worker.status.lock(), pod, container);
        return text(StatusCode::BAD_REQUEST, message);
    }
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let (path, id) = (view.log_path.clone(), view.id.clone());
    knarr_supervisor::spawn(async move {
        let is_finished = || !worker.runtime.lock().by_id(&id).is_some_and(ContainerView::is_running);
        send(path.into(), options, sender, is_finished).await;
    });
    let stream = ReceiverStream::new(receiver).map(|chunk| chunk.map(Frame::data));
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(stream)));
    let kind = http::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// Why there is no log to read.
fn no_logs(status: &PodStatus, pod: &str, container: &str) -> String {
    let all = status.container_statuses.iter().chain(&status.init_container_statuses);
    let mut all = all.chain(&status.ephemeral_container_statuses).flatten();
    let who = format!("container \"{container}\" in pod \"{pod}\"");
    let Some(found) = all.find(|status| status.name == container) else { return format!("{who} is not available") };
    let state = found.state.clone().unwrap_or_default();
    if state.terminated.is_some() || found.last_state.as_ref().is_some_and(|last| last.terminated.is_some()) {
        return format!("{who} is terminated");
    }
    match state.waiting.and_then(|waiting| waiting.reason).as_deref() {
        Some("ErrImagePull") => format!("{who} is waiting to start: image can't be pulled"),
        Some("ImagePullBackOff") => format!("{who} is waiting to start: trying and failing to pull image"),
        Some(reason) => format!("{who} is waiting to start: {reason}"),
        None => format!("{who} is waiting to start - no logs yet"),
    }
}

fn log_options(query: &Query) -> Result<LogOptions, String> {
    let number = |name: &str| match query.get(name) {
        Some(text) => text.parse::<u64>().map(Some).map_err(|_| format!("{name} must be a number")),
        None => Ok(None),
    };
    let since_seconds = number("sinceSeconds")?.and_then(|seconds| i64::try_from(seconds).ok());
    let since = match (since_seconds, query.get("sinceTime")) {
        (Some(seconds), _) => Timestamp::now().checked_sub(SignedDuration::from_secs(seconds)).ok(),
        (None, Some(time)) => Some(time.parse().map_err(|_| "sinceTime must be a time".to_string())?),
        (None, None) => None,
    };
    Ok(LogOptions {
        follow: query.flag("follow"),
        tail: number("tailLines")?,
        since,
        timestamps: query.flag("timestamps"),
        limit: number("limitBytes")?,
        stream: query.get("stream").filter(|stream| *stream != "All").map(str::to_lowercase),
    })
}

/// None if no such container runs.
fn running_id(server: &Server, namespace: &str, pod: &str, container: &str) -> Result<Option<String>, Response<Body>> {
    let worker = server.pods.find(namespace, pod).ok_or_else(not_found)?;
    Ok(instance(&worker, container, false).filter(ContainerView::is_running).map(|view| view.id))
}

fn not_running(message: String) -> Response<Body> {
    text(StatusCode::INTERNAL_SERVER_ERROR, message + "\n")
}

/// Old clients name the streams `input`, `output` and `error`.
fn stream_flags(query: &Query) -> (bool, bool, bool, bool) {
    let either = |new: &str, old: &str| query.flag(new) || query.flag(old);
    (either("stdin", "input"), either("stdout", "output"), either("stderr", "error"), query.flag("tty"))
}

async fn exec(
    server: &Arc<Server>,
    request: Request<Incoming>,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let id = match running_id(server, namespace, pod, container) {
        Ok(Some(id)) => id,
        Ok(None) => return not_running(format!("container not found (\"{container}\")")),
        Err(response) => return response,
    };
    let (stdin, stdout, stderr, tty) = stream_flags(query);
    if !stdin && !stdout && !stderr {
        return text(StatusCode::BAD_REQUEST, "you must specify at least 1 of stdin, stdout, stderr\n");
    }
    let call = ExecRequest { container_id: id, cmd: query.all("command"), tty, stdin, stdout, stderr: stderr && !tty };
    match server.context.runtime.exec(call).await {
        Ok(url) => {
            streams::join(request, &url, streams::Kind::Command(streams::CommandStreams { stdin, stdout, stderr, tty }))
                .await
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.rpc_message()),
    }
}

async fn attach(
    server: &Arc<Server>,
    request: Request<Incoming>,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
    let id = match running_id(server, namespace, pod, container) {
        Ok(Some(id)) => id,
        Ok(None) => return not_running(format!("container {container} not found in pod {pod}_{namespace}")),
        Err(response) => return response,
    };
    let (stdin, stdout, stderr, _) = stream_flags(query);
    let tty = server.pods.find(namespace, pod).is_some_and(|worker| {
        let pod = worker.pod.lock();
        crate::pod::find(&pod, container).is_some_and(|found| found.container.tty == Some(true))
    });
    let call = AttachRequest { container_id: id, stdin, tty, stdout, stderr: stderr && !tty };
    match server.context.runtime.attach(call).await {
        Ok(url) => {
            streams::join(request, &url, streams::Kind::Command(streams::CommandStreams { stdin, stdout, stderr, tty }))
                .await
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.rpc_message()),
    }
}

async fn port_forward(
    server: &Arc<Server>,
    request: Request<Incoming>,
    namespace: &str,
    pod: &str,
    query: &Query,
) -> Response<Body> {
    let Some(worker) = server.pods.find(namespace, pod) else { return not_found() };
    let sandbox = worker.runtime.lock().current_sandbox().filter(|sandbox| sandbox.ready).map(|s| s.id.clone());
    let Some(sandbox) = sandbox else {
        return text(StatusCode::NOT_FOUND, format!("pod {pod}_{namespace} has no running sandbox\n"));
    };
    let ports =
        query.all("port").iter().flat_map(|list| list.split(',')).filter_map(|port| port.parse().ok()).collect();
    match server.context.runtime.port_forward(&sandbox, ports).await {
        Ok(url) => streams::join(request, &url, streams::Kind::PortForward).await,
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.rpc_message()),
    }
}

/// Runs a command to completion and responds with its output.
async fn run(server: &Arc<Server>, namespace: &str, pod: &str, container: &str, query: &Query) -> Response<Body> {
    let id = match running_id(server, namespace, pod, container) {
        Ok(Some(id)) => id,
        Ok(None) => return not_running(format!("container not found (\"{container}\")")),
        Err(response) => return response,
    };
    let command = query.get("cmd").unwrap_or_default().split(' ').map(ToString::to_string).collect();
    match server.context.runtime.exec_sync(&id, command, None).await {
        Ok(response) => {
            let mut output = response.stdout;
            output.extend_from_slice(&response.stderr);
            let status = if response.exit_code == 0 { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            text(status, String::from_utf8_lossy(&output).into_owned())
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.rpc_message()),
    }
}
