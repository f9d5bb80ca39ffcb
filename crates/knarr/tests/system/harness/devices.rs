//! A device plugin with two devices, `a` and `b`, of which `b` may become unhealthy.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::StreamExt;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::sync::watch;

/// Serves until dropped.
pub struct DevicePlugin {
    runtime: Option<tokio::runtime::Runtime>,
    directory: PathBuf,
    is_well: watch::Sender<bool>,
}

pub const RESOURCE: &str = "example.com/dongle";
const SOCKET: &str = "dongle.sock";

impl DevicePlugin {
    /// `directory` is the node's plugin directory.
    pub fn serve(directory: &Path) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let (is_well, news) = watch::channel(true);
        let path = directory.join(SOCKET);
        runtime.spawn(async move {
            let listener = tokio::net::UnixListener::bind(path).expect("a socket");
            while let Ok((stream, _)) = listener.accept().await {
                let news = news.clone();
                let service = hyper::service::service_fn(move |request| response(request, news.clone()));
                let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(builder.serve_connection(TokioIo::new(stream), service));
            }
        });
        DevicePlugin { runtime: Some(runtime), directory: directory.to_path_buf(), is_well }
    }

    /// Whether the node listens for plugins. It clears the directory before it does.
    pub fn is_awaited(directory: &Path) -> bool {
        std::os::unix::net::UnixStream::connect(directory.join("kubelet.sock")).is_ok()
    }

    /// Registers with the node, as plugins do whenever the node was restarted.
    pub fn register(&self) -> bool {
        let request: Vec<u8> = [(1, "v1beta1"), (2, SOCKET), (3, RESOURCE)]
            .iter()
            .flat_map(|(tag, word)| field(*tag, word.as_bytes()))
            .collect();
        let call = async {
            let stream = tokio::net::UnixStream::connect(self.directory.join("kubelet.sock")).await.ok()?;
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.ok()?;
            tokio::spawn(connection);
            let request = Request::post("http://node/v1beta1.Registration/Register")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Full::new(framed(&request)))
                .ok()?;
            let response = sender.send_request(request).await.ok()?;
            let early = response.headers().get("grpc-status").cloned();
            let trailers = response.into_body().collect().await.ok()?.trailers().cloned().unwrap_or_default();
            Some(early.as_ref().or(trailers.get("grpc-status"))? == "0")
        };
        self.runtime.as_ref().and_then(|runtime| runtime.block_on(call)).unwrap_or(false)
    }

    /// Sets the health of the second device.
    pub fn set_well(&self, is_well: bool) {
        self.is_well.send_replace(is_well);
    }
}

impl Drop for DevicePlugin {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

type Frames = futures::stream::BoxStream<'static, Result<Frame<Bytes>, Infallible>>;

async fn response(
    request: Request<Incoming>,
    news: watch::Receiver<bool>,
) -> Result<Response<StreamBody<Frames>>, Infallible> {
    let path = request.uri().path().to_string();
    let asked = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let mut end = HeaderMap::new();
    end.insert("grpc-status", HeaderValue::from_static("0"));
    let end = futures::stream::iter([Ok(Frame::trailers(end))]);
    let frames = match path.rsplit('/').next() {
        Some("ListAndWatch") => states(news).map(|is_well| Ok(Frame::data(framed(&devices(is_well))))).boxed(),
        Some("Allocate") => {
            let message = framed(&field(1, &allocation(&asked)));
            futures::stream::iter([Ok(Frame::data(message))]).chain(end).boxed()
        }
        _ => futures::stream::iter([Ok(Frame::data(framed(&[])))]).chain(end).boxed(),
    };
    let mut response = Response::new(StreamBody::new(frames));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// The current state, and each later one.
fn states(news: watch::Receiver<bool>) -> impl futures::Stream<Item = bool> {
    futures::stream::unfold((news, true), |(mut news, is_first)| async move {
        if !is_first && news.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let is_well = *news.borrow_and_update();
        Some((is_well, (news, false)))
    })
}

fn devices(is_well: bool) -> Vec<u8> {
    let device = |id: &str, health: &str| field(1, &[field(1, id.as_bytes()), field(2, health.as_bytes())].concat());
    [device("a", "Healthy"), device("b", if is_well { "Healthy" } else { "Unhealthy" })].concat()
}

/// A container's devices are in its environment; their ids are the only letters in the request.
fn allocation(asked: &[u8]) -> Vec<u8> {
    let ids: Vec<String> =
        asked.iter().filter(|byte| matches!(**byte, b'a' | b'b')).map(|byte| char::from(*byte).to_string()).collect();
    let variable = [field(1, b"DONGLES"), field(2, ids.join(",").as_bytes())].concat();
    let device = [field(1, b"/dev/dongle"), field(2, b"/dev/null"), field(3, b"rw")].concat();
    [field(1, &variable), field(3, &device)].concat()
}

/// A field of bytes, text or a message, all short.
fn field(tag: u8, content: &[u8]) -> Vec<u8> {
    [&[(tag << 3) | 2, u8::try_from(content.len()).expect("a short field")], content].concat()
}

fn framed(message: &[u8]) -> Bytes {
    let length = u32::try_from(message.len()).expect("a short message").to_be_bytes();
    Bytes::from([&[0], length.as_slice(), message].concat())
}
