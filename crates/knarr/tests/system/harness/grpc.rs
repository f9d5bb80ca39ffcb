//! A gRPC health service on a host: all services are healthy except `sick`.

use std::convert::Infallible;
use std::net::SocketAddr;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use hyper_util::service::TowerToHyperService;

use super::host::TestHost;

/// Serves until dropped.
pub struct GrpcHealth(Option<tokio::runtime::Runtime>);

/// Messages have a compression byte and four length bytes; the first field is 1 for serving and 2 for not serving.
const WELL: &[u8] = &[0, 0, 0, 0, 2, 8, 1];
const SICK: &[u8] = &[0, 0, 0, 0, 2, 8, 2];

impl GrpcHealth {
    pub fn serve(host: &TestHost, port: u16) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        // A socket stays in the network namespace in which it was created.
        let socket = host.within(|| std::net::TcpListener::bind(SocketAddr::from(([0, 0, 0, 0], port))));
        let socket = socket.expect("a free port");
        socket.set_nonblocking(true).expect("a socket");
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(socket).expect("a listener");
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let service = TowerToHyperService::new(tower::service_fn(response));
                    // A closed connection is not an error.
                    let _ = Builder::new(TokioExecutor::new())
                        .http2_only()
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        GrpcHealth(Some(runtime))
    }
}

async fn response<B>(
    request: Request<B>,
) -> Result<Response<impl http_body_util::BodyExt<Data = Bytes, Error = Infallible>>, Infallible>
where
    B: http_body_util::BodyExt + Unpin,
{
    let question = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
    let is_sick = question.windows(4).any(|part| part == b"sick");
    let body = Full::new(Bytes::from_static(if is_sick { SICK } else { WELL }));
    let mut end = HeaderMap::new();
    end.insert("grpc-status", HeaderValue::from_static("0"));
    let mut response = Response::new(body.with_trailers(async move { Some(Ok(end)) }));
    response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    Ok(response)
}

impl Drop for GrpcHealth {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
