//! This process's journal of journey events: where its components record steps, how the API server serves it, and how a
//! process without an API server uploads it.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use knarr_apiserver::page::{Page, Pages};
use knarr_apiserver::response::Body;
use knarr_apiserver::route::query::Query;
use knarr_client::kube;
use knarr_journey::{Detail, Journal, Step, build_timeline};
use knarr_supervisor::Supervisor;

/// The path at which the API server serves the journal.
pub const PATH: &str = "/journey";

static JOURNAL: LazyLock<Journal> = LazyLock::new(Journal::default);

/// The journal of this process.
pub fn own() -> Journal {
    JOURNAL.clone()
}

/// The journal as pages of the API server.
pub fn pages() -> Pages {
    let page: Arc<dyn Page> = Arc::new(JournalPage(own()));
    Pages::from([("journey", page)])
}

struct JournalPage(Journal);

#[async_trait]
impl Page for JournalPage {
    async fn serve(&self, head: &Parts, query: &Query, body: &Bytes) -> Response<Body> {
        match head.method {
            Method::GET if query.text("follow") == "true" => {
                let lines = futures::stream::unfold(self.0.subscribe(), |mut subscription| async move {
                    let lines = subscription.next().await?;
                    Some((Bytes::from(lines), subscription))
                });
                response(StatusCode::OK, Body::stream(lines.boxed()))
            }
            Method::GET if query.has("object") => timeline(&self.0, query.text("object")),
            Method::GET => response(StatusCode::OK, Body::full(self.0.text())),
            Method::POST => match steps(body) {
                Ok(steps) => {
                    steps.iter().for_each(|step| self.0.append(step));
                    response(StatusCode::NO_CONTENT, Body::Empty)
                }
                Err(error) => response(
                    StatusCode::BAD_REQUEST,
                    Body::full(format!("a line is not a step of a journey: {error}\n")),
                ),
            },
            _ => response(StatusCode::METHOD_NOT_ALLOWED, Body::Empty),
        }
    }
}

/// The timeline of one object, as JSON.
fn timeline(journal: &Journal, object: &str) -> Response<Body> {
    let timeline = match steps(journal.text().as_bytes()) {
        Ok(steps) => build_timeline(&steps, object, Detail::Changes),
        Err(error) => {
            return response(
                StatusCode::INTERNAL_SERVER_ERROR,
                Body::full(format!("cannot read the journal: {error}\n")),
            );
        }
    };
    match timeline.map(|timeline| serde_json::to_vec(&timeline)) {
        Some(Ok(json)) => response(StatusCode::OK, Body::full(json)),
        Some(Err(error)) => response(StatusCode::INTERNAL_SERVER_ERROR, Body::full(format!("{error}\n"))),
        None => response(StatusCode::NOT_FOUND, Body::full(format!("no step of {object} is known\n"))),
    }
}

fn response(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = http::HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// Parses steps from lines of JSON.
pub fn steps(lines: &[u8]) -> serde_json::Result<Vec<Step>> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(serde_json::from_slice).collect()
}

/// Uploads the steps of this process as a component.
pub fn start_upload(supervisor: &Supervisor, client: &kube::Client) {
    let client = client.clone();
    supervisor.restart("journal-upload", move || upload(client.clone()));
}

/// Uploads the steps of this process to the API server. While it is unreachable, the newest steps are buffered; an API
/// server without a journal, such as kube-apiserver, is not an error.
async fn upload(client: kube::Client) {
    /// Combines a burst into one request.
    const BATCH_DELAY: Duration = Duration::from_millis(200);
    const RETRY_INTERVAL: Duration = Duration::from_secs(5);
    /// Maximum number of buffered bytes.
    const MAX_BUFFER: usize = 512 << 10;
    let mut subscription = own().subscribe();
    let mut unsent = String::new();
    while let Some(lines) = subscription.next().await {
        unsent.push_str(&lines);
        tokio::time::sleep(BATCH_DELAY).await;
        while !unsent.is_empty() {
            if let Ok(Some(more)) = tokio::time::timeout(Duration::ZERO, subscription.next()).await {
                unsent.push_str(&more);
            }
            keep_newest(&mut unsent, MAX_BUFFER);
            let request = match Request::post(PATH).body(unsent.clone().into_bytes()) {
                Ok(request) => request,
                Err(error) => return tracing::error!(%error, "cannot serialize journey events"),
            };
            match client.request_text(request).await {
                Ok(_) => unsent.clear(),
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                    tracing::debug!(code = status.code, "the API server has no journal for this component");
                    drop(subscription);
                    // To return would be a failure, and restart the upload.
                    return std::future::pending().await;
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot upload journey events");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
    }
}

/// Keeps the newest whole lines of a text, up to `max` bytes.
fn keep_newest(text: &mut String, max: usize) {
    let surplus = text.len().saturating_sub(max);
    if surplus > 0 {
        let end = text.as_bytes()[surplus - 1..].iter().position(|byte| *byte == b'\n');
        let cut = end.map_or(text.len(), |end| surplus + end);
        text.drain(..cut);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_whole_lines_are_kept() {
        for (max, expected) in [(100, "a\nµµ\nc\n"), (7, "µµ\nc\n"), (6, "c\n"), (2, "c\n"), (1, ""), (0, "")] {
            let mut text = "a\nµµ\nc\n".to_owned();
            keep_newest(&mut text, max);
            assert_eq!(text, expected, "{max}");
        }
    }
}
