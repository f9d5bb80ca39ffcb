//! Whether the node is well, for whoever watches over it: in clear on this machine, and among the HTTPS endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::{Body, text};

/// What can be asked for by name. That there is an answer at all is what each of them tells: all parts of the node run on
/// the threads that give it.
const PROCESS: &[&str] = &["ping"];
pub const NODE: &[&str] = &["ping", "log", "syncloop"];

/// How long an address that is taken is left alone.
const PAUSE: Duration = Duration::from_secs(5);

pub fn answer(rest: &[&str], verbose: bool, checks: &[&str]) -> Response<Body> {
    match rest {
        [] if verbose => {
            let lines: String = checks.iter().map(|check| format!("[+]{check} ok\n")).collect();
            text(StatusCode::OK, format!("{lines}healthz check passed\n"))
        }
        [] => text(StatusCode::OK, "ok"),
        [one] if checks.contains(one) => text(StatusCode::OK, "ok"),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

/// Answers for as long as the node lives. An address that another node on this machine has is waited for.
pub async fn serve(address: SocketAddr) {
    let mut complained = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) if !complained => {
                complained = true;
                tracing::warn!(%address, %error, "the node's health can't be asked there yet");
            }
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    };
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        tokio::spawn(async move {
            let service = service_fn(|request: Request<Incoming>| async move {
                Ok::<_, std::convert::Infallible>(plain(request.method(), request.uri()))
            });
            let mut connection = hyper::server::conn::http1::Builder::new();
            let timer = hyper_util::rt::TokioTimer::new();
            let served = connection.timer(timer).serve_connection(TokioIo::new(stream), service).await;
            if let Err(error) = served {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
}

fn plain(method: &Method, uri: &http::Uri) -> Response<Body> {
    let path: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty()).collect();
    let verbose =
        uri.query().is_some_and(|query| query.split('&').any(|part| part.split('=').next() == Some("verbose")));
    match path.as_slice() {
        ["healthz", rest @ ..] if matches!(*method, Method::GET | Method::HEAD) => answer(rest, verbose, PROCESS),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_told_as_a_whole_and_by_name() {
        for (path, status) in
            [("/healthz", 200), ("/healthz/ping", 200), ("/healthz?verbose", 200), ("/healthz/x", 404), ("/", 404)]
        {
            let uri: http::Uri = path.parse().expect("a path");
            assert_eq!(plain(&Method::GET, &uri).status().as_u16(), status, "{path}");
        }
    }
}
