//! Health checks: on a local address without TLS, and among the HTTPS endpoints.

use std::net::SocketAddr;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use knarr_listen::Admission;
use knarr_metrics::Indicators;
use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::time::Instant;

use super::{Body, text};

/// A check by name and its error, if any. `ping` succeeds whenever there is a response.
pub type Check = (&'static str, Option<&'static str>);

const PROCESS: &[Check] = &[("ping", None)];

/// `is_stuck` if the runtime does not respond or workers hang; `is_log_blocked` if the log cannot be written.
pub fn of_node(is_stuck: bool, is_log_blocked: bool) -> [Check; 3] {
    [
        ("ping", None),
        ("log", is_log_blocked.then_some("logging blocked")),
        ("syncloop", is_stuck.then_some("sync Loop took longer than expected")),
    ]
}

/// Detects a blocked log: if its reader stops reading, every write blocks.
pub struct LogCheck(Mutex<Instant>);

/// How often the log is checked, and when it counts as blocked.
const LOG_PERIOD: Duration = Duration::from_secs(60);
const LOG_TIMEOUT: Duration = Duration::from_secs(120);

impl LogCheck {
    pub fn new(now: Instant) -> Self {
        Self(Mutex::new(now))
    }

    pub fn is_blocked(&self, now: Instant) -> bool {
        now.saturating_duration_since(*self.0.lock()) > LOG_TIMEOUT
    }

    /// Calls `flush`, which blocks while the log is blocked, periodically.
    pub async fn run(self: Arc<Self>, flush: impl Fn() + Clone + Send + 'static) {
        let mut ticks = tokio::time::interval(LOG_PERIOD);
        loop {
            ticks.tick().await;
            if tokio::task::spawn_blocking(flush.clone()).await.is_ok() {
                *self.0.lock() = Instant::now();
            }
        }
    }
}

/// Waits for the lock that a blocked write holds.
pub fn flush_log() {
    use std::io::Write;
    // A failed flush loses output but does not block.
    let _ = std::io::stderr().lock().flush();
    let _ = std::io::stdout().lock().flush();
}

/// More connections, and more than three quarters of one client, are closed: any process of the host can open them.
const MAX_CONNECTIONS: usize = 256;
/// How long to wait before binding a used address again.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// The results of executed checks.
pub static INDICATORS: LazyLock<Indicators> = LazyLock::new(Indicators::default);

pub fn response(rest: &[&str], verbose: bool, checks: &[Check]) -> Response<Body> {
    for (name, wrong) in checks.iter().filter(|(name, _)| rest.is_empty() || rest == [*name]) {
        INDICATORS.record(name, "healthz", wrong.is_none());
    }
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

/// Lists failed checks by name only: not every client may see details.
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

/// Serves the health of the process forever.
pub async fn serve(address: SocketAddr) {
    let respond = |request: Request<Incoming>| async move { plain(request.method(), request.uri()) };
    accept(bound(address).await, respond).await;
}

/// Waits for an address that another node on this host uses.
pub async fn bound(address: SocketAddr) -> TcpListener {
    let mut warned = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return listener,
            Err(error) if !warned => {
                warned = true;
                tracing::warn!(%address, %error, "cannot serve an endpoint without TLS yet");
            }
            Err(_) => {}
        }
        tokio::time::sleep(BIND_RETRY_INTERVAL).await;
    }
}

/// Serves without TLS, forever.
pub async fn accept<F>(listener: TcpListener, respond: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static)
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let admission = Admission::new(MAX_CONNECTIONS);
    loop {
        let Ok((stream, client)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let Some(permit) = admission.admit(client.ip()) else { continue };
        let respond = respond.clone();
        knarr_supervisor::spawn(async move {
            let _permit = permit;
            let service = service_fn(move |request: Request<Incoming>| {
                let response = respond(request);
                async move { Ok::<_, std::convert::Infallible>(response.await) }
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
        ["healthz", rest @ ..] if matches!(*method, Method::GET | Method::HEAD) => response(rest, verbose, PROCESS),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn health_is_reported_as_a_whole_and_by_name() {
        for (path, status) in
            [("/healthz", 200), ("/healthz/ping", 200), ("/healthz?verbose", 200), ("/healthz/x", 404), ("/", 404)]
        {
            let uri: http::Uri = path.parse().expect("a path");
            assert_eq!(plain(&Method::GET, &uri).status().as_u16(), status, "{path}");
        }
    }

    #[tokio::test]
    async fn silent_connections_do_not_use_up_the_kubelet() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = tokio::spawn(accept(listener, |request: Request<Incoming>| async move {
            plain(request.method(), request.uri())
        }));
        let connect = async |from: [u8; 4]| {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.bind((from, 0).into()).expect("bound");
            socket.connect(address).await.expect("connected")
        };
        let mut silent = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            silent.push(connect([127, 0, 0, 2]).await);
        }
        let mut other = connect([127, 0, 0, 3]).await;
        other.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.expect("sent");
        let mut response = String::new();
        other.read_to_string(&mut response).await.expect("a response");
        assert!(response.starts_with("HTTP/1.1 200"), "{response}");
        let last = silent.last_mut().expect("connected");
        // A connection that was accepted is closed after half a minute without a request.
        let closed = tokio::time::timeout(Duration::from_secs(5), last.read(&mut [0])).await;
        assert_eq!(closed.expect("not accepted").expect("closed"), 0, "one too many");
        serving.abort();
    }

    #[test]
    fn executed_checks_are_indicators() {
        response(&["a-check"], false, &[("a-check", Some("broken")), ("other-check", None)]);
        let page = INDICATORS.page();
        assert!(page.contains("kubernetes_healthcheck{name=\"a-check\",type=\"healthz\"} 0\n"), "{page}");
        assert!(!page.contains("other-check"), "{page}");
    }

    #[test]
    fn a_stuck_node_is_not_well() {
        let lines = |log: &str, loops: &str| format!("[+]ping ok\n{log}\n{loops}\nhealthz check failed\n");
        let (log_failed, loop_failed) = ("[-]log failed: reason withheld", "[-]syncloop failed: reason withheld");
        let cases = [
            (false, false, 200, "ok".to_owned()),
            (true, false, 500, lines("[+]log ok", loop_failed)),
            (false, true, 500, lines(log_failed, "[+]syncloop ok")),
        ];
        for (is_stuck, is_log_blocked, status, body) in cases {
            let checks = of_node(is_stuck, is_log_blocked);
            let (found, text) = all(false, &checks);
            assert_eq!((found.as_u16(), text), (status, body));
            let of = |name: &str| response(&[name], false, &checks).status().as_u16();
            let expected = |failed: bool| if failed { 500 } else { 200 };
            assert_eq!([of("ping"), of("log"), of("syncloop")], [200, expected(is_log_blocked), expected(is_stuck)]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_log_that_blocks_is_noticed() {
        let check = Arc::new(LogCheck::new(Instant::now()));
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let (tried, mut tries) = tokio::sync::mpsc::unbounded_channel();
        let task = tokio::spawn(check.clone().run(move || {
            // The test may have finished.
            let _ = tried.send(());
            let _ = gate.lock().recv();
        }));
        open.send(()).expect("the check waits");
        tries.recv().await.expect("a first try");
        assert!(!check.is_blocked(Instant::now()));
        tries.recv().await.expect("a second try");
        let later = Instant::now() + LOG_TIMEOUT + LOG_PERIOD;
        assert!(check.is_blocked(later), "nothing was written since");
        drop(open);
        task.abort();
    }
}
