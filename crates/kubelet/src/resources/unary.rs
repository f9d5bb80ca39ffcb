//! A minimal server of unary gRPC calls on a unix socket.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::path::Path;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Limited, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use knarr_csi::UnixConnection;
use tokio::net::UnixListener;

const MAX_MESSAGE_SIZE: usize = 4 << 20;
const ACCEPT_RETRY: std::time::Duration = std::time::Duration::from_millis(100);

/// The gRPC status of a failed call.
#[derive(Debug)]
pub struct Failure {
    code: tonic::Code,
    text: String,
}

impl Failure {
    pub fn invalid(text: impl Into<String>) -> Self {
        Self { code: tonic::Code::InvalidArgument, text: text.into() }
    }

    pub fn failed(text: impl Into<String>) -> Self {
        Self { code: tonic::Code::Unknown, text: text.into() }
    }

    pub fn not_found(text: impl Into<String>) -> Self {
        Self { code: tonic::Code::NotFound, text: text.into() }
    }

    pub fn unknown(path: &str) -> Self {
        Self { code: tonic::Code::Unimplemented, text: format!("unknown method {path}") }
    }
}

/// Serves until the task is aborted. `handler` gets the method's path and the message.
pub async fn serve<A, F>(socket: &Path, handler: A) -> io::Result<()>
where
    A: Fn(String, Bytes) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Vec<u8>, Failure>> + Send + 'static,
{
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(socket)?;
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Probably out of file descriptors: other connections must close first.
                tracing::warn!(%error, socket = %socket.display(), "cannot accept a connection on a unix socket");
                tokio::time::sleep(ACCEPT_RETRY).await;
                continue;
            }
        };
        let handler = handler.clone();
        knarr_supervisor::spawn(async move {
            let service = hyper::service::service_fn(move |request: Request<Incoming>| {
                let handler = handler.clone();
                async move { Ok::<_, Infallible>(respond(request, handler).await) }
            });
            let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(UnixConnection::new(stream)), service);
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection on a unix socket broke");
            }
        });
    }
}

type Frames = tokio_stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>;

async fn respond<A, F>(request: Request<Incoming>, handler: A) -> Response<StreamBody<Frames>>
where
    A: Fn(String, Bytes) -> F,
    F: Future<Output = Result<Vec<u8>, Failure>>,
{
    let path = request.uri().path().to_string();
    let result = match message_of(request.into_body()).await {
        Ok(message) => handler(path, message).await,
        Err(failure) => Err(failure),
    };
    let mut frames = Vec::new();
    let mut trailers = HeaderMap::new();
    match result {
        Ok(message) => {
            let mut framed = BytesMut::with_capacity(message.len() + 5);
            framed.put_u8(0);
            framed.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
            framed.extend_from_slice(&message);
            frames.push(Ok(Frame::data(framed.freeze())));
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
        }
        Err(failure) => {
            trailers.insert("grpc-status", HeaderValue::from(failure.code as i32));
            // Replaces characters that are not allowed in a header.
            let plain: String =
                failure.text.chars().map(|c| if c.is_ascii() && c >= ' ' && c != '%' { c } else { ' ' }).collect();
            if let Ok(text) = HeaderValue::from_str(&plain) {
                trailers.insert("grpc-message", text);
            }
        }
    }
    frames.push(Ok(Frame::trailers(trailers)));
    let mut response = Response::new(StreamBody::new(tokio_stream::iter(frames)));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// Reads the message of a call: the compression flag, the length, and the bytes.
async fn message_of(body: Incoming) -> Result<Bytes, Failure> {
    let collected = Limited::new(body, MAX_MESSAGE_SIZE).collect().await;
    let mut bytes = collected.map_err(|error| Failure::invalid(error.to_string()))?.to_bytes();
    if bytes.len() < 5 {
        return Err(Failure::invalid("the call has no message"));
    }
    let (compressed, length) = (bytes.get_u8() != 0, bytes.get_u32());
    match usize::try_from(length) {
        Ok(length) if !compressed && bytes.len() >= length => Ok(bytes.split_to(length)),
        _ => Err(Failure::invalid("the message is compressed or cut off")),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Device plugins and readers of pod resources that are given a path send it as `:authority`.
    #[tokio::test]
    async fn a_client_may_name_the_path_of_the_socket_as_host() {
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("kubelet.sock");
        let path = socket.clone();
        let served = tokio::spawn(async move { serve(&path, |path, _| async move { Ok(path.into_bytes()) }).await });
        let mut client = loop {
            match tokio::net::UnixStream::connect(&socket).await {
                Ok(client) => break client,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
            let length = u8::try_from(payload.len()).expect("a short payload");
            [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
        };
        // POST http /s/Call, the authority, and an empty message.
        let headers = frame(1, 4, 1, b"\x83\x86\x44\x07/s/Call\x41\x15/var/lib/kubelet.sock");
        let settings = frame(4, 0, 0, b"");
        let sent =
            [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".as_slice(), &settings, &headers, &frame(0, 1, 1, &[0; 5])].concat();
        client.write_all(&sent).await.expect("sent");
        let message = loop {
            let mut header = [0; 9];
            client.read_exact(&mut header).await.expect("a frame");
            let mut payload = vec![0; header[2].into()];
            client.read_exact(&mut payload).await.expect("its payload");
            match header[3] {
                0 => break payload,
                3 => panic!("the call was reset: {payload:?}"),
                _ => {}
            }
        };
        assert_eq!(&message[5..], b"/s/Call");
        served.abort();
    }
}
