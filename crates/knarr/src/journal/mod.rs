//! This process's journal of journey events: where its components record steps, how the API server serves it, and how a
//! process without an API server uploads it.

mod visible;

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use knarr_api::status::Status;
use knarr_apiserver::page::{Page, PageReader, Pages, Reader};
use knarr_apiserver::response::Body;
use knarr_apiserver::route::query::Query;
use knarr_client::kube;
use knarr_journey::{Journal, Step};
use knarr_supervisor::Supervisor;
use tokio::sync::Semaphore;

/// The path at which the API server serves the journal.
pub const PATH: &str = "/journey";

/// How many readers without the right to the whole journal follow it at the same time: for each of them it is read again as it grows.
const MAX_FOLLOWERS: usize = 16;

static JOURNAL: LazyLock<Journal> = LazyLock::new(Journal::default);

/// The journal of this process.
pub fn own() -> Journal {
    JOURNAL.clone()
}

/// The journal as pages of the API server.
pub fn pages() -> Pages {
    let page: Arc<dyn Page> =
        Arc::new(JournalPage { journal: own(), followers: Arc::new(Semaphore::new(MAX_FOLLOWERS)) });
    Pages::from([("journey", page)])
}

/// Uploads are for components only; what is read is limited to objects that the reader may get.
struct JournalPage {
    journal: Journal,
    followers: Arc<Semaphore>,
}

#[async_trait]
impl Page for JournalPage {
    async fn serve(&self, head: &Parts, query: &Query, body: &Bytes) -> Response<Body> {
        let Some(PageReader(reader)) = head.extensions.get() else {
            return response(StatusCode::INTERNAL_SERVER_ERROR, Body::full("the reader is unknown\n"));
        };
        match head.method {
            Method::GET => self.read(query, reader.clone()).await,
            Method::POST => match steps(body) {
                Ok(steps) => {
                    steps.iter().for_each(|step| self.journal.append(step));
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

impl JournalPage {
    /// The steps, or with `object` the timeline of one; with `follow`, also as they happen.
    async fn read(&self, query: &Query, reader: Arc<dyn Reader>) -> Response<Body> {
        let object = query.get("object");
        if let Some(object) = object
            && let Err(refused) = reader.get(object).await
        {
            return refusal(&refused);
        }
        if query.text("follow") == "true" {
            return self.follow(object, reader);
        }
        let Some(object) = object else { return body(visible::text(self.journal.text(), &*reader).await) };
        match visible::timeline(&self.journal.text(), object, &*reader).await {
            Ok(None) => response(StatusCode::NOT_FOUND, Body::full(format!("no step of {object} is known\n"))),
            found => body(found.map(Option::unwrap_or_default)),
        }
    }

    fn follow(&self, object: Option<&str>, reader: Arc<dyn Reader>) -> Response<Body> {
        let permit = match reader.reads_all() {
            true => None,
            false => match self.followers.clone().try_acquire_owned() {
                Ok(permit) => Some(permit),
                Err(_) => {
                    let message = "too many journeys are followed at the same time, please try again later";
                    return refusal(&Status::new(429, "TooManyRequests", message));
                }
            },
        };
        let stream = match object {
            Some(object) => visible::timelines(&self.journal, object, reader).boxed(),
            None => visible::lines(&self.journal, reader).boxed(),
        };
        let stream = stream.map(move |line| {
            // Held until the stream ends.
            let _ = &permit;
            line
        });
        response(StatusCode::OK, Body::stream(stream.boxed()))
    }
}

fn body(read: serde_json::Result<String>) -> Response<Body> {
    match read {
        Ok(text) => response(StatusCode::OK, Body::full(text)),
        Err(error) => {
            response(StatusCode::INTERNAL_SERVER_ERROR, Body::full(format!("cannot read the journal: {error}\n")))
        }
    }
}

fn refusal(refused: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(refused.code).unwrap_or(StatusCode::FORBIDDEN);
    let text = serde_json::json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": refused.code,
        "reason": refused.reason, "message": refused.message});
    let mut response = response(code, Body::full(text.to_string()));
    let kind = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
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

    struct Limited(bool);

    #[async_trait]
    impl Reader for Limited {
        fn reads_all(&self) -> bool {
            !self.0
        }

        async fn get(&self, _object: &str) -> Result<(), Status> {
            Ok(())
        }
    }

    #[test]
    fn few_readers_of_single_objects_follow_at_the_same_time() {
        let page = JournalPage { journal: Journal::default(), followers: Arc::new(Semaphore::new(2)) };
        let follow = |is_limited: bool| page.follow(Some("pods/a/web"), Arc::new(Limited(is_limited)));
        let mut first = [follow(true), follow(true)].map(Some);
        assert!(first.iter().flatten().all(|response| response.status() == StatusCode::OK));
        assert_eq!(follow(true).status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(follow(false).status(), StatusCode::OK, "those with the right to the journal are not counted");
        first[0] = None;
        assert_eq!(follow(true).status(), StatusCode::OK, "another one has ended");
    }

    #[test]
    fn the_newest_whole_lines_are_kept() {
        for (max, expected) in [(100, "a\nµµ\nc\n"), (7, "µµ\nc\n"), (6, "c\n"), (2, "c\n"), (1, ""), (0, "")] {
            let mut text = "a\nµµ\nc\n".to_owned();
            keep_newest(&mut text, max);
            assert_eq!(text, expected, "{max}");
        }
    }
}
