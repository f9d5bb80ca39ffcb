//! This process's journal of journeys: where its parts record what they do, how the API server shows it, and how a process
//! without an API server hands it to one that has.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::StreamExt as _;
use http::{Method, Request, Response, StatusCode};
use knarr_apiserver::endpoint::page::{Page, Pages};
use knarr_apiserver::response::Body;
use knarr_apiserver::route::query::Query;
use knarr_client::kube;
use knarr_journey::{Journal, Step};

/// Where the API server shows the journal.
pub const PATH: &str = "/journey";

static JOURNAL: LazyLock<Journal> = LazyLock::new(Journal::default);

/// The journal of this process.
pub fn own() -> Journal {
    JOURNAL.clone()
}

/// The journal as a page of the API server.
pub fn pages() -> Pages {
    let page: Arc<dyn Page> = Arc::new(JournalPage(own()));
    Pages::from([("journey", page)])
}

struct JournalPage(Journal);

#[async_trait]
impl Page for JournalPage {
    async fn serve(&self, method: &Method, query: &Query, body: &Bytes) -> Response<Body> {
        match *method {
            Method::GET if query.text("follow") == "true" => {
                let lines = futures::stream::unfold(self.0.subscribe(), |mut subscription| async move {
                    let lines = subscription.next().await?;
                    Some((Bytes::from(lines), subscription))
                });
                answer(StatusCode::OK, Body::stream(lines.boxed()))
            }
            Method::GET => answer(StatusCode::OK, Body::full(self.0.text())),
            Method::POST => match steps(body) {
                Ok(steps) => {
                    steps.iter().for_each(|step| self.0.append(step));
                    answer(StatusCode::NO_CONTENT, Body::Empty)
                }
                Err(error) => {
                    answer(StatusCode::BAD_REQUEST, Body::full(format!("a line is no step of a journey: {error}\n")))
                }
            },
            _ => answer(StatusCode::METHOD_NOT_ALLOWED, Body::Empty),
        }
    }
}

fn answer(status: StatusCode, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let kind = http::HeaderValue::from_static("application/x-ndjson");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

/// The steps in lines of JSON.
pub fn steps(lines: &[u8]) -> serde_json::Result<Vec<Step>> {
    let lines = lines.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(serde_json::from_slice).collect()
}

/// Hands what this process records to the API server. While that is away, the newest waits for it; where it keeps no
/// journal, as Kubernetes' own does not, nothing is lost but the story.
pub async fn hand_over(client: kube::Client) {
    /// So that a burst is one request.
    const GATHER: Duration = Duration::from_millis(200);
    const AGAIN: Duration = Duration::from_secs(5);
    /// How many bytes wait at most.
    const MOST: usize = 512 << 10;
    let mut subscription = own().subscribe();
    let mut unsent = String::new();
    while let Some(lines) = subscription.next().await {
        unsent.push_str(&lines);
        tokio::time::sleep(GATHER).await;
        while !unsent.is_empty() {
            if let Ok(Some(more)) = tokio::time::timeout(Duration::ZERO, subscription.next()).await {
                unsent.push_str(&more);
            }
            forget_oldest(&mut unsent, MOST);
            let request = match Request::post(PATH).body(unsent.clone().into_bytes()) {
                Ok(request) => request,
                Err(error) => return tracing::error!(%error, "what was recorded cannot be sent"),
            };
            match client.request_text(request).await {
                Ok(_) => unsent.clear(),
                Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                    return tracing::debug!(code = status.code, "the API server keeps no journal");
                }
                Err(error) => {
                    tracing::debug!(%error, "what was recorded could not be handed over");
                    tokio::time::sleep(AGAIN).await;
                }
            }
        }
    }
}

/// Leaves the newest whole lines of a text, no more than so many bytes of them.
fn forget_oldest(text: &mut String, most: usize) {
    let surplus = text.len().saturating_sub(most);
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
    fn the_newest_whole_lines_are_left() {
        for (most, expected) in [(100, "a\nµµ\nc\n"), (7, "µµ\nc\n"), (6, "c\n"), (2, "c\n"), (1, ""), (0, "")] {
            let mut text = "a\nµµ\nc\n".to_owned();
            forget_oldest(&mut text, most);
            assert_eq!(text, expected, "{most}");
        }
    }
}
