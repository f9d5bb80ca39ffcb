//! Whether the node is well, for whoever watches over it: in clear on this machine, and among the HTTPS endpoints.

use std::net::SocketAddr;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;

use super::{Body, text};

/// What can be asked for by name, and what is wrong with it. Of most, that there is an answer at all is what they tell:
/// all parts of the node run on the threads that give it.
pub type Check = (&'static str, Option<&'static str>);

const PROCESS: &[Check] = &[("ping", None)];

/// `is_stuck` if the runtime does not answer or pods are not looked after.
pub fn of_node(is_stuck: bool) -> [Check; 3] {
    [("ping", None), ("log", None), ("syncloop", is_stuck.then_some("sync Loop took longer than expected"))]
}

/// How long an address that is taken is left alone.
const PAUSE: Duration = Duration::from_secs(5);

pub fn answer(rest: &[&str], verbose: bool, checks: &[Check]) -> Response<Body> {
    let (status, body) = match rest {
        [] => all(verbose, checks),
        [one] => match checks.iter().find(|(name, _)| name == one) {
            Some((_, None)) => (StatusCode::OK, "ok".to_owned()),
            Some((_, Some(wrong))) => (StatusCode::INTERNAL_SERVER_ERROR, format!("internal server error: {wrong}\n")),
            None => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
        },
        _ => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    };
    text(status, body)
}

/// What is wrong is shown by name alone: not everybody who asks may know more.
fn all(verbose: bool, checks: &[Check]) -> (StatusCode, String) {
    let lines = checks.iter().map(|(name, wrong)| match wrong {
        None => format!("[+]{name} ok\n"),
        Some(_) => format!("[-]{name} failed: reason withheld\n"),
    });
    let lines: String = lines.collect();
    if checks.iter().any(|(_, wrong)| wrong.is_some()) {
        return (StatusCode::INTERNAL_SERVER_ERROR, format!("{lines}healthz check failed\n"));
    }
    (StatusCode::OK, if verbose { format!("{lines}healthz check passed\n") } else { "ok".to_owned() })
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

    #[test]
    fn a_stuck_node_is_not_well() {
        let failed = "[+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n";
        for (is_stuck, status, body) in [(false, 200, "ok"), (true, 500, failed)] {
            let (found, text) = all(false, &of_node(is_stuck));
            assert_eq!((found.as_u16(), text.as_str()), (status, body));
            assert_eq!(answer(&["syncloop"], false, &of_node(is_stuck)).status().as_u16(), status);
            assert_eq!(answer(&["log"], false, &of_node(is_stuck)).status().as_u16(), 200);
        }
    }
}
