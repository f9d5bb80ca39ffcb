//! Routes requests to their handlers.

use std::path::Path;
use std::sync::Arc;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_cri::CallError;
use knarr_cri::messages::{AttachRequest, ExecRequest};
use knarr_zpages::Uptime;

use super::logs::instance;
use super::query::{Query, decode};
use super::streams::CommandStreams;
use super::{
    Body, Server, cadvisor, checkpoint, configuration, health, json, log_query, logs, metrics, node_metrics, stats,
    streams, system_logs, text, zpages,
};
use crate::pod;
use crate::runtime::ContainerView;
use crate::settings::Tuning;
use crate::worker::Handle;

/// Bytes of each output of a command that `/run` responds with. The runtime keeps no more.
const MAX_OUTPUT: usize = 16 << 20;
/// The host's log directory.
const SYSTEM_LOGS: &str = "/var/log";

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

/// What a path consists of, for the choice of the handler and for the decision whether a request may reach it.
pub fn segments(path: &str) -> impl Iterator<Item = String> {
    path.split('/').filter(|part| !part.is_empty()).map(|part| decode(part, false))
}

pub async fn route(server: &Arc<Server>, request: Request<Incoming>) -> Response<Body> {
    let query = Query::of(&request);
    let path: Vec<String> = segments(request.uri().path()).collect();
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
            logs::respond(server, namespace, pod, container, &query).await
        }
        (&Method::POST, ["checkpoint", namespace, pod, container]) if server.context.settings.tuning.checkpoints => {
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
        (&Method::POST, ["checkpoint", ..]) => {
            text(StatusCode::NOT_FOUND, "this node does not support checkpoints of containers\n")
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn accept_header<B>(request: &Request<B>) -> &str {
    request.headers().get(http::header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

fn uptime(server: &Server) -> Uptime {
    let (now, elapsed) = (Timestamp::now(), server.context.started_at.elapsed());
    let seconds = i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX);
    Uptime { started: now.saturating_sub(SignedDuration::from_secs(seconds)).unwrap_or(now), elapsed }
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
    let url = server.context.runtime.exec(call).await;
    join_command(request, url, CommandStreams { stdin, stdout, stderr, tty }).await
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
    let url = server.context.runtime.attach(call).await;
    join_command(request, url, CommandStreams { stdin, stdout, stderr, tty }).await
}

/// Joins the client with the streams of a command, at the URL that the runtime has for them.
async fn join_command(
    request: Request<Incoming>,
    url: Result<String, CallError>,
    wanted: CommandStreams,
) -> Response<Body> {
    match url {
        Ok(url) => streams::join(request, &url, streams::Kind::Command(wanted)).await,
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
    match server.context.runtime.exec_sync(&id, command, None, MAX_OUTPUT).await {
        Ok(response) => {
            let mut output = response.stdout;
            output.extend_from_slice(&response.stderr);
            let status = if response.exit_code == 0 { StatusCode::OK } else { StatusCode::INTERNAL_SERVER_ERROR };
            text(status, String::from_utf8_lossy(&output).into_owned())
        }
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, error.rpc_message()),
    }
}
