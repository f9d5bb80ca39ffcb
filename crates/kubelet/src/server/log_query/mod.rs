//! Queries for the logs of the host's services: `/logs/?query=kubelet&tailLines=10`.
//!
//! A service is looked up in the journal first, then among the log files. `journalctl` runs without a shell, with each
//! checked option as one argument, and for at most [`TIMEOUT`].

mod options;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::Command;
use tokio::sync::mpsc::Sender;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;

use super::query::Query;
use super::{Body, system_logs, text};
use options::LogQuery;

/// The maximum duration of a response.
const TIMEOUT: Duration = Duration::from_secs(30);
const CHUNK_SIZE: usize = 32 << 10;

type Chunks = Sender<Result<Bytes, std::io::Error>>;

/// Handles a request below `/logs`: a service's log if it has a query, otherwise the file at its path.
pub async fn respond(root: &Path, path: &[&str], query: &Query) -> Response<Body> {
    let log_query = match LogQuery::parse(query) {
        Ok(Some(log_query)) => log_query,
        Ok(None) => return system_logs::respond(root, path).await,
        Err(message) => return text(StatusCode::BAD_REQUEST, message + "\n"),
    };
    if !path.is_empty() {
        return text(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode\n");
    }
    if let Err(message) = log_query.validate(root) {
        return text(StatusCode::NOT_ACCEPTABLE, message + "\n");
    }
    if let [file] = log_query.files.as_slice() {
        let slashes = file.replace('\\', "/");
        let parts: Vec<&str> = slashes.split('/').filter(|part| !part.is_empty()).collect();
        return system_logs::respond(root, &parts).await;
    }
    let (sender, receiver) = tokio::sync::mpsc::channel(4);
    let root = root.to_owned();
    knarr_supervisor::spawn(async move {
        if tokio::time::timeout(TIMEOUT, copy(&root, &log_query, &sender)).await.is_err() {
            send_text(&sender, "\ncontext error: context deadline exceeded\n".into()).await;
        }
    });
    let stream = ReceiverStream::new(receiver).map(|chunk| chunk.map(Frame::data));
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(stream)));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain;charset=UTF-8"));
    response
}

async fn copy(root: &Path, query: &LogQuery, to: &Chunks) {
    let known = journal_units().await;
    let own = own_unit(&std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default());
    let (mut units, mut files) = (Vec::new(), Vec::new());
    for service in &query.services {
        match unit_of(service, &known, own.as_deref()) {
            Some(unit) => units.push(unit),
            None => files.push(service.clone()),
        }
    }
    if !units.is_empty()
        && let Err(error) = copy_journal(&query.arguments(&units), to).await
    {
        tracing::debug!(%error, "cannot read the journal");
        if query.options.boot.unwrap_or(0) == 0 {
            send_text(to, "\nerror: journal output not available\n".into()).await;
        }
    }
    if files.is_empty() {
        return;
    }
    if query.options != options::Options::default() {
        let list = files.join(" ");
        let message =
            format!("\noptions present and query resolved to log files for [{list}]\ntry without specifying options\n");
        send_text(to, message).await;
        return;
    }
    for service in &files {
        copy_files(root, service, to).await;
    }
}

/// The units that have entries in the journal; empty without a journal.
async fn journal_units() -> String {
    let mut command = Command::new("journalctl");
    let output = command.args(["--field", "_SYSTEMD_UNIT"]).stdin(Stdio::null()).kill_on_drop(true).output().await;
    match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ => String::new(),
    }
}

/// The unit of a service's log entries. For the kubelet without its own unit, the unit of this process.
fn unit_of(service: &str, known: &str, own: Option<&str>) -> Option<String> {
    let has = |unit: &str| known.contains(&format!("{unit}.service"));
    if has(service) {
        return Some(service.to_owned());
    }
    own.filter(|own| service == "kubelet" && has(own)).map(str::to_owned)
}

/// The systemd service a process with these cgroups belongs to.
fn own_unit(cgroups: &str) -> Option<String> {
    let parts = cgroups.lines().filter_map(|line| line.splitn(3, ':').nth(2)).flat_map(|path| path.split('/'));
    parts.filter_map(|part| part.strip_suffix(".service")).next_back().map(str::to_owned)
}

/// Copies the command's standard output and standard error as they come.
async fn copy_journal(arguments: &[String], to: &Chunks) -> std::io::Result<()> {
    let (reader, writer) = std::io::pipe()?;
    let mut child = Command::new("journalctl")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(writer.try_clone()?)
        .stderr(writer)
        .kill_on_drop(true)
        .spawn()?;
    copy_chunks(tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into())?, to).await?;
    child.wait().await.map(drop)
}

async fn copy_chunks(mut from: impl AsyncRead + Unpin, to: &Chunks) -> std::io::Result<()> {
    let mut buffer = vec![0; CHUNK_SIZE];
    loop {
        let read = from.read(&mut buffer).await?;
        if read == 0 || to.send(Ok(Bytes::copy_from_slice(&buffer[..read]))).await.is_err() {
            return Ok(());
        }
    }
}

/// Copies the first of the files in which a service may log.
async fn copy_files(root: &Path, service: &str, to: &Chunks) {
    for name in [service.to_owned(), format!("{service}.log"), format!("{service}/{service}.log")] {
        let copied = match system_logs::open(root, Path::new(&name)) {
            Ok(file) => copy_chunks(tokio::fs::File::from_std(file), to).await,
            Err(error) => Err(error),
        };
        match copied {
            Ok(()) => return,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) if error.kind() == std::io::ErrorKind::CrossesDevices => {
                let message = format!("\nerror getting log for {service}: openat {name}: path escapes from parent\n");
                return send_text(to, message).await;
            }
            Err(error) => return send_text(to, format!("\nerror getting log for {service}: {error}\n")).await,
        }
    }
    send_text(to, format!("\nlog not found for {service}\n")).await;
}

async fn send_text(to: &Chunks, message: String) {
    // The reader may be gone.
    let _ = to.send(Ok(message.into())).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn status_and_body(root: &Path, path: &[&str], query: &str) -> (u16, String) {
        let request = http::Request::get(format!("/logs/{query}")).body(()).expect("a request");
        let response = respond(root, path, &Query::of(&request)).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[tokio::test]
    async fn services_are_found_among_files_and_nothing_else_is() {
        let directory = tempfile::tempdir().expect("a directory");
        let root = directory.path().join("log");
        std::fs::create_dir_all(root.join("deep-one")).expect("a directory");
        std::fs::write(root.join("knarr-plain"), "plain").expect("a file");
        std::fs::write(root.join("knarr-dotted.log"), "dotted").expect("a file");
        std::fs::write(root.join("deep-one/deep-one.log"), "deep").expect("a file");
        std::fs::write(directory.path().join("secret"), "secret").expect("a file");
        std::os::unix::fs::symlink("../secret", root.join("knarr-link.log")).expect("a link");
        let cases = [
            ("?query=knarr-plain", 200, "plain"),
            ("?query=knarr-dotted", 200, "dotted"),
            ("?query=deep-one", 200, "deep"),
            ("?query=deep-one/deep-one.log", 200, "deep"),
            ("?query=knarr-nothing", 200, "\nlog not found for knarr-nothing\n"),
            (
                "?query=knarr-link",
                200,
                "\nerror getting log for knarr-link: openat knarr-link.log: path escapes from parent\n",
            ),
            ("?query", 400, "query: Invalid value: [\"\"]: may not be empty\n"),
            ("?query=a%24b", 406, "query: Invalid value: \"a$b\": input contains unsupported characters\n"),
            (
                "?query=knarr-plain&boot=0",
                200,
                "\noptions present and query resolved to log files for [knarr-plain]\ntry without specifying options\n",
            ),
        ];
        for (query, status, body) in cases {
            assert_eq!(status_and_body(&root, &[], query).await, (status, body.to_owned()), "{query}");
        }
        let (status, body) = status_and_body(&root, &["x"], "?query=a").await;
        assert_eq!((status, body.as_str()), (406, "path not allowed in query mode\n"));
        assert_eq!(status_and_body(&root, &["knarr-plain"], "").await, (200, "plain".to_owned()));
    }

    #[test]
    fn the_kubelet_logs_where_this_process_does() {
        let units = "ssh.service\nknarr.service\n";
        let own = own_unit("1:name=systemd:/system.slice/knarr.service\n0::/system.slice/knarr.service\n");
        assert_eq!(own.as_deref(), Some("knarr"));
        assert_eq!(own_unit("0::/user.slice/session-1.scope\n"), None);
        let cases = [("ssh", Some("ssh")), ("kubelet", Some("knarr")), ("crio", None)];
        for (service, expected) in cases {
            assert_eq!(unit_of(service, units, own.as_deref()).as_deref(), expected, "{service}");
        }
        assert_eq!(unit_of("kubelet", "kubelet.service\n", Some("knarr")).as_deref(), Some("kubelet"));
    }
}
