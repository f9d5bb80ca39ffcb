//! `etcd`: stands in for etcd where tools start an API server and its store as two programs.
//!
//! It owns the data directory and reports health; the API server keeps its store in that directory (`store_host`). It does not
//! serve etcd's API: other API servers cannot use it.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::{TokioIo, TokioTimer};
use knarr_supervisor::{Registry, Supervisor};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::store_host::{self, Announcement};
use crate::commands::common;
use crate::signals;

/// The release of etcd whose flags these are.
const VERSION: &str = "3.6.8";
/// One line per flag: its name and default; flags without a value say `bool`.
const FLAGS: &str = include_str!("etcd_flags.txt");
/// The exit code of a wrong command line.
const USAGE: u8 = 2;
/// Clients that ask for health are few.
const MAX_CONNECTIONS: usize = 256;
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// The flags that are given, by name.
type Given = BTreeMap<String, String>;

pub fn run(words: &[OsString]) -> ExitCode {
    let words: Vec<String> = words.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let given = match parse(&words) {
        Ok(Some(given)) => given,
        Ok(None) => {
            let text =
                if words.iter().any(|word| word.trim_start_matches('-') == "version") { version() } else { help() };
            // A closed standard output is no error.
            let _ = std::io::stdout().write_all(text.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(message) => {
            eprintln!("{message}\nUsage:\n\n  etcd [flags]\n    Run `etcd --help` for the flags.");
            return ExitCode::from(USAGE);
        }
    };
    common::start_logging(None, true);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.context("cannot start").and_then(|runtime| runtime.block_on(serve(&given)));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("etcd: {}", crate::error_message::error_message(&error));
            ExitCode::FAILURE
        }
    }
}

fn version() -> String {
    format!("etcd Version: {VERSION}\nKnarr Version: {}\n", env!("CARGO_PKG_VERSION"))
}

fn help() -> String {
    let mut text = "Usage:\n\n  etcd [flags]\n    Own the directory in which Knarr's kube-apiserver keeps its objects, and \
                    report its health.\n\n  Only the data directory, the client URLs and unsafe-no-fsync have an effect.\n\n"
        .to_owned();
    for line in FLAGS.lines() {
        let (name, default) = line.split_once(' ').unwrap_or((line, ""));
        let default = if default == "bool" { "false" } else { default };
        text.push_str(&format!("  --{name} '{default}'\n"));
    }
    text
}

/// Parses as Go's `flag` does; `None` if help or the version is requested.
fn parse(words: &[String]) -> Result<Option<Given>, String> {
    let mut given = Given::new();
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let Some(body) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')).filter(|body| !body.is_empty())
        else {
            return Err(format!("{word:?} is not a valid flag"));
        };
        let (name, value) = body.split_once('=').map_or((body, None), |(name, value)| (name, Some(value.to_owned())));
        if matches!(name, "h" | "help" | "version") {
            return Ok(None);
        }
        let Some(default) = default_of(name) else { return Err(format!("flag provided but not defined: -{name}")) };
        let value = match value {
            Some(value) => value,
            None if is_switch(default) => "true".to_owned(),
            None => rest.next().cloned().ok_or_else(|| format!("flag needs an argument: -{name}"))?,
        };
        if is_switch(default) && !matches!(value.as_str(), "true" | "false" | "1" | "0" | "t" | "f") {
            return Err(format!("invalid boolean value {value:?} for -{name}: parse error"));
        }
        given.insert(name.to_owned(), value);
    }
    Ok(Some(given))
}

fn default_of(name: &str) -> Option<&'static str> {
    FLAGS.lines().find_map(|line| {
        let (known, default) = line.split_once(' ').unwrap_or((line, ""));
        (known == name).then_some(default)
    })
}

fn is_switch(default: &str) -> bool {
    matches!(default, "bool" | "true" | "false")
}

/// The addresses of `--listen-client-urls`.
fn addresses(given: &Given) -> anyhow::Result<Vec<SocketAddr>> {
    let urls = given.get("listen-client-urls").map_or("http://localhost:2379", String::as_str);
    let mut all = Vec::new();
    for url in urls.split(',') {
        let Some(address) = url.trim().strip_prefix("http://") else {
            bail!("cannot serve {url}: Knarr's etcd serves plain HTTP only");
        };
        let found = std::net::ToSocketAddrs::to_socket_addrs(address.trim_end_matches('/'));
        all.extend(found.with_context(|| format!("cannot resolve {url}"))?.next());
    }
    Ok(all)
}

async fn serve(given: &Given) -> anyhow::Result<()> {
    let name = given.get("name").map_or("default", String::as_str);
    let directory = given.get("data-dir").map_or_else(|| PathBuf::from(format!("{name}.etcd")), PathBuf::from);
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(&directory)
        .with_context(|| format!("cannot create {}", directory.display()))?;
    let directory = directory.canonicalize()?;
    let is_unsafe = given.get("unsafe-no-fsync").is_some_and(|value| matches!(value.as_str(), "true" | "1" | "t"));
    let announcement = Announcement { identity: store_host::identity(&directory)?, directory, is_durable: !is_unsafe };
    let announcement = Arc::new(announcement);
    let supervisor = Supervisor::new(&Registry::default());
    knarr_supervisor::spawn_restarting("footprint", crate::footprint::keep_small);
    for address in addresses(given)? {
        let listener = TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        tracing::info!(%address, directory = %announcement.directory.display(), "serving health");
        supervisor.essential(format!("health at {address}"), accept(listener, announcement.clone()));
    }
    signals::stopped_or_failed(supervisor.registry()).await
}

async fn accept(listener: TcpListener, announcement: Arc<Announcement>) -> std::io::Result<()> {
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let (stream, _) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                // Out of descriptors, for example: a client must not end this process by opening connections.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_BACKOFF).await;
                continue;
            }
        };
        let Ok(permit) = permits.clone().try_acquire_owned() else { continue };
        let announcement = announcement.clone();
        knarr_supervisor::spawn(async move {
            let _permit = permit;
            let service = hyper::service::service_fn(|request: Request<_>| {
                let response = respond(&request, &announcement);
                async move { Ok::<_, Infallible>(response) }
            });
            let mut connection = hyper::server::conn::http1::Builder::new();
            let served = connection.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), service).await;
            if let Err(error) = served {
                tracing::debug!(%error, "a connection broke");
            }
        });
    }
}

fn respond<B>(request: &Request<B>, announcement: &Announcement) -> Response<Full<Bytes>> {
    let (status, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/health") => match is_present(announcement) {
            true => (StatusCode::OK, json!({"health": "true", "reason": ""}).to_string()),
            false => (
                StatusCode::SERVICE_UNAVAILABLE,
                json!({"health": "false", "reason": "the data directory is lost"}).to_string(),
            ),
        },
        (&Method::GET | &Method::HEAD, "/livez" | "/readyz") => match is_present(announcement) {
            true => (StatusCode::OK, "ok\n".to_owned()),
            false => (StatusCode::SERVICE_UNAVAILABLE, "the data directory is lost\n".to_owned()),
        },
        (&Method::GET | &Method::HEAD, "/version") => {
            (StatusCode::OK, json!({"etcdserver": VERSION, "etcdcluster": "3.6.0", "knarr": announcement}).to_string())
        }
        _ => (StatusCode::NOT_FOUND, "404 page not found\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
}

fn is_present(announcement: &Announcement) -> bool {
    let found = std::fs::read_to_string(Path::new(&announcement.directory).join(store_host::IDENTITY));
    found.is_ok_and(|identity| identity.trim() == announcement.identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client that opens connections and says nothing keeps others out for the header timeout at most, and ends nothing.
    #[tokio::test]
    async fn silent_connections_are_bounded() {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let directory = tempfile::tempdir().unwrap();
        let identity = store_host::identity(directory.path()).unwrap();
        let announcement =
            Arc::new(Announcement { directory: directory.path().to_owned(), identity, is_durable: true });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(accept(listener, announcement));
        let mut held = Vec::new();
        for _ in 0..MAX_CONNECTIONS {
            held.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        let mut refused = tokio::net::TcpStream::connect(address).await.unwrap();
        assert!(matches!(refused.read(&mut [0; 1]).await, Ok(0) | Err(_)), "one too many");
        drop(held);
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            let _ = stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await;
            let mut response = String::new();
            if stream.read_to_string(&mut response).await.is_ok() && response.contains("\"health\":\"true\"") {
                break;
            }
            assert!(tokio::time::Instant::now() < deadline, "{response}");
        }
        assert!(!serving.is_finished());
    }

    fn read(line: &str) -> Result<Option<Given>, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    /// The messages are those of etcd 3.6.
    #[test]
    fn flags_are_parsed_as_etcd_parses_them() {
        let given =
            read("--data-dir=/d -listen-client-urls http://127.0.0.1:1 --unsafe-no-fsync --pre-vote=false").unwrap();
        let expected = [
            ("data-dir", "/d"),
            ("listen-client-urls", "http://127.0.0.1:1"),
            ("pre-vote", "false"),
            ("unsafe-no-fsync", "true"),
        ];
        assert_eq!(given.unwrap().into_iter().collect::<Vec<_>>(), expected.map(|(k, v)| (k.to_owned(), v.to_owned())));
        assert_eq!(read("--data-dir=/d --help"), Ok(None));
        for (line, message) in [
            ("--foo", "flag provided but not defined: -foo"),
            ("--data-dir", "flag needs an argument: -data-dir"),
            ("--unsafe-no-fsync=x", "invalid boolean value \"x\" for -unsafe-no-fsync: parse error"),
            ("gateway", "\"gateway\" is not a valid flag"),
        ] {
            assert_eq!(read(line).unwrap_err(), message);
        }
        assert!(addresses(&read("--listen-client-urls=https://127.0.0.1:1").unwrap().unwrap()).is_err());
        // Test frameworks look for this flag in the help.
        assert!(help().lines().any(|line| line.trim_start().starts_with("--unsafe-no-fsync")));
    }

    #[test]
    fn health_fails_when_the_directory_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let identity = store_host::identity(&path).unwrap();
        let announcement = Announcement { directory: path, identity, is_durable: false };
        let status = |path: &str| {
            let request = Request::builder().uri(path).body(()).unwrap();
            respond(&request, &announcement).status().as_u16()
        };
        assert_eq!([status("/health"), status("/readyz"), status("/version"), status("/v3/kv")], [200, 200, 200, 404]);
        std::fs::remove_file(directory.path().join(store_host::IDENTITY)).unwrap();
        assert_eq!([status("/health"), status("/livez")], [503, 503]);
    }
}
