//! A KMS plugin on a socket, for tests: it encrypts by reversing bytes.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use prost::Message;
use tokio::net::UnixListener;

use super::client::{DecryptRequest, DecryptResponse, EncryptRequest, EncryptResponse, StatusResponse};

pub struct TestPlugin {
    directory: tempfile::TempDir,
    state: Arc<State>,
    serving: std::thread::JoinHandle<()>,
}

struct State {
    key_id: Mutex<String>,
    health: Mutex<String>,
    decryptions: AtomicUsize,
    statuses: AtomicUsize,
    /// Which calls hang at present.
    hung: tokio::sync::watch::Sender<Hung>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Hung {
    Nothing,
    Decryptions,
    Everything,
}

impl TestPlugin {
    pub async fn start() -> TestPlugin {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kms.sock");
        let state = Arc::new(State {
            key_id: Mutex::new("k1".into()),
            health: Mutex::new("ok".into()),
            decryptions: AtomicUsize::new(0),
            statuses: AtomicUsize::new(0),
            hung: tokio::sync::watch::Sender::new(Hung::Nothing),
        });
        let shared = state.clone();
        let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
        listener.set_nonblocking(true).unwrap();
        // A thread of its own, since the client waits on the thread of the test.
        let serving = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = UnixListener::from_std(listener).unwrap();
                while let Ok((stream, _)) = listener.accept().await {
                    let state = shared.clone();
                    tokio::spawn(async move {
                        let service = service_fn(move |request: Request<Incoming>| {
                            let state = state.clone();
                            async move { Ok::<_, Infallible>(respond(&state, request).await) }
                        });
                        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                        let _ = server.serve_connection(TokioIo::new(stream), service).await;
                    });
                }
            });
        });
        TestPlugin { directory, state, serving }
    }

    pub fn endpoint(&self) -> String {
        assert!(!self.serving.is_finished());
        format!("unix://{}/kms.sock", self.directory.path().display())
    }

    pub fn rotate(&self, key_id: &str) {
        *self.state.key_id.lock() = key_id.to_owned();
    }

    pub fn set_health(&self, health: &str) {
        *self.state.health.lock() = health.to_owned();
    }

    /// Lets all calls wait, or go on.
    pub fn hang(&self, hangs: bool) {
        self.state.hung.send_replace(if hangs { Hung::Everything } else { Hung::Nothing });
    }

    /// The same for decryptions only.
    pub fn hang_decryptions(&self, hangs: bool) {
        self.state.hung.send_replace(if hangs { Hung::Decryptions } else { Hung::Nothing });
    }

    /// How many decryptions the plugin was asked for.
    pub fn decryptions(&self) -> usize {
        self.state.decryptions.load(Ordering::SeqCst)
    }

    /// How many times the plugin was asked for its status.
    pub fn statuses(&self) -> usize {
        self.state.statuses.load(Ordering::SeqCst)
    }
}

type Body = StreamBody<futures::stream::Iter<std::vec::IntoIter<Result<Frame<Bytes>, Infallible>>>>;

async fn respond(state: &State, request: Request<Incoming>) -> Response<Body> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    let body = request.into_body().collect().await.unwrap().to_bytes();
    let message = body.slice(5..);
    let reversed = |bytes: Vec<u8>| bytes.into_iter().rev().collect::<Vec<u8>>();
    let is_decryption = method == "Decrypt";
    if is_decryption {
        state.decryptions.fetch_add(1, Ordering::SeqCst);
    }
    let responds = |hung: &Hung| *hung == Hung::Nothing || *hung == Hung::Decryptions && !is_decryption;
    state.hung.subscribe().wait_for(responds).await.unwrap();
    let key_id = state.key_id.lock().clone();
    let response = match method.as_str() {
        "Status" => {
            state.statuses.fetch_add(1, Ordering::SeqCst);
            StatusResponse { version: "v2".into(), healthz: state.health.lock().clone(), key_id }.encode_to_vec()
        }
        "Encrypt" => {
            let request = EncryptRequest::decode(message).unwrap();
            let annotations = [("test.example".to_owned(), b"note".to_vec())].into();
            EncryptResponse { ciphertext: reversed(request.plaintext), key_id, annotations }.encode_to_vec()
        }
        _ => {
            let request = DecryptRequest::decode(message).unwrap();
            assert_eq!(request.annotations["test.example"], b"note");
            DecryptResponse { plaintext: reversed(request.ciphertext) }.encode_to_vec()
        }
    };
    let mut framed = BytesMut::with_capacity(5 + response.len());
    framed.put_u8(0);
    framed.put_u32(response.len() as u32);
    framed.extend_from_slice(&response);
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    let frames = vec![Ok(Frame::data(framed.freeze())), Ok(Frame::trailers(trailers))];
    Response::builder()
        .header("content-type", "application/grpc")
        .body(StreamBody::new(futures::stream::iter(frames)))
        .unwrap()
}
