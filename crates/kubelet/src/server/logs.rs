//! `/containerLogs`: the log of a container, as it is or while it grows.

use std::path::Path;
use std::sync::Arc;

use http::{Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::query::Query;
use super::{Body, Server, text};
use crate::container_logs::{LogOptions, send};
use crate::runtime::{ContainerView, State};
use crate::worker::Handle;

pub async fn respond(
    server: &Arc<Server>,
    namespace: &str,
    pod: &str,
    container: &str,
    query: &Query,
) -> Response<Body> {
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
    if !Path::new(&view.log_path).exists() && view.state == State::Created {
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

/// The newest instance of a container, or the one before it.
pub fn instance(worker: &Handle, container: &str, previous: bool) -> Option<ContainerView> {
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
