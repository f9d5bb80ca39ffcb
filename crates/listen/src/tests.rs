use super::*;
use http::Method;
use http::header::CONTENT_LENGTH;
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::{http1, http2};
use rustls_pki_types::{PrivateKeyDer, ServerName};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A timeout far longer than anything here takes; a test that reaches it has failed.
const NEVER: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(200);

/// More than the buffers of a connection hold.
const LARGE: usize = 64 * 1024 * 1024;

struct Listening {
    address: SocketAddr,
    connector: TlsConnector,
    stop: watch::Sender<bool>,
    serving: tokio::task::JoinHandle<()>,
}

type AnyBody = http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>;

/// `/endless` has no end, `/large` must be read soon, everything else is a page of six bytes.
async fn page(request: Request<Incoming>) -> Response<AnyBody> {
    if request.uri().path() == "/large" {
        let mut response = Response::new(Large(LARGE).boxed_unsync());
        response.extensions_mut().insert(SendBy(tokio::time::Instant::now() + SHORT));
        return response;
    }
    if request.uri().path() == "/endless" {
        return Response::new(Endless(true).boxed_unsync());
    }
    Response::new(Full::new(Bytes::from_static(b"a page")).boxed_unsync())
}

/// So many bytes, in pieces that fit into the buffers of a connection.
struct Large(usize);

impl http_body::Body for Large {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        const PIECE: &[u8] = &[b'a'; 64 * 1024];
        self.0 = self.0.saturating_sub(PIECE.len());
        let piece = (self.0 > 0).then(|| Ok(http_body::Frame::data(Bytes::from_static(PIECE))));
        std::task::Poll::Ready(piece)
    }
}

/// One piece, and then nothing for ever.
struct Endless(bool);

impl http_body::Body for Endless {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        match std::mem::replace(&mut self.0, false) {
            true => std::task::Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(b"first"))))),
            false => std::task::Poll::Pending,
        }
    }
}

impl Listening {
    async fn new(limits: Limits) -> Self {
        let generated = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let key = PrivateKeyDer::try_from(generated.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![generated.cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let mut roots = rustls::RootCertStore::empty();
        roots.add(generated.cert.der().clone()).unwrap();
        let client = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopping) = watch::channel(false);
        let serving = tokio::spawn(serve(listener, Arc::new(config), limits, stopping, |_: Peer<'_>| page));
        Listening { address, connector: TlsConnector::from(Arc::new(client)), stop, serving }
    }

    async fn try_connect(&self) -> std::io::Result<TlsStream<TcpStream>> {
        let stream = TcpStream::connect(self.address).await?;
        self.connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
    }

    async fn connect(&self) -> TlsStream<TcpStream> {
        self.try_connect().await.unwrap()
    }

    async fn http2(&self) -> (http2::SendRequest<Empty<Bytes>>, tokio::task::JoinHandle<hyper::Result<()>>) {
        let stream = TokioIo::new(self.connect().await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        (sender, tokio::spawn(connection))
    }

    async fn end(self) {
        self.stop.send_replace(true);
        tokio::time::timeout(NEVER, self.serving).await.expect("the server stops").unwrap();
    }
}

fn request(method: Method, path: &str) -> Request<Empty<Bytes>> {
    Request::builder().method(method).uri(format!("https://localhost{path}")).body(Empty::new()).unwrap()
}

async fn closed(mut stream: impl tokio::io::AsyncRead + Unpin) {
    let mut rest = Vec::new();
    // A reset is as good as an orderly end.
    let _ = tokio::time::timeout(NEVER, stream.read_to_end(&mut rest)).await.expect("the connection stays open");
}

#[tokio::test]
async fn the_response_to_head_is_the_head_of_get_without_a_body() {
    let listening = Listening::new(Limits::default()).await;
    let (mut sender, _) = listening.http2().await;
    let stream = TokioIo::new(listening.connect().await);
    let (mut plain, connection) = http1::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    for path in ["/", "/endless"] {
        let get = sender.send_request(request(Method::GET, path)).await.unwrap();
        let length = get.headers().get(CONTENT_LENGTH).cloned();
        assert_eq!(length.is_some(), path == "/");
        drop(get);
        for _ in 0..3 {
            let head = sender.send_request(request(Method::HEAD, path)).await.unwrap();
            assert_eq!(head.headers().get(CONTENT_LENGTH), length.as_ref(), "{path}");
            let body = tokio::time::timeout(NEVER, head.into_body().collect()).await.unwrap().unwrap().to_bytes();
            assert!(body.is_empty(), "{path}: {body:?}");
        }
        plain.ready().await.unwrap();
        let head = plain.send_request(request(Method::HEAD, path)).await.unwrap();
        assert_eq!(head.headers().get(CONTENT_LENGTH), length.as_ref(), "{path} over HTTP/1.1");
        assert!(head.into_body().collect().await.unwrap().to_bytes().is_empty());
    }
    drop((sender, plain));
    listening.end().await;
}

#[tokio::test]
async fn a_connection_without_requests_is_closed_and_one_with_requests_is_not() {
    let limits = Limits { idle: SHORT, ..Limits::default() };
    let listening = Listening::new(limits).await;
    let (mut busy, busy_connection) = listening.http2().await;
    let mut endless = busy.send_request(request(Method::GET, "/endless")).await.unwrap().into_body();
    endless.frame().await.unwrap().unwrap();
    let (mut idle, idle_connection) = listening.http2().await;
    idle.send_request(request(Method::GET, "/")).await.unwrap().into_body().collect().await.unwrap();
    tokio::time::timeout(NEVER, idle_connection).await.expect("an idle connection stays open").unwrap().unwrap();
    assert!(!busy_connection.is_finished());
    busy.send_request(request(Method::GET, "/")).await.unwrap();
    drop((endless, busy));
    listening.end().await;
}

#[tokio::test]
async fn clients_that_send_nothing_or_half_a_head_are_let_go() {
    let limits = Limits { handshake: SHORT, head: SHORT, ..Limits::default() };
    let listening = Listening::new(limits).await;
    closed(TcpStream::connect(listening.address).await.unwrap()).await;
    for sent in ["", "G", "GET / HTTP/1.1\r\nHost: x\r\n", "PRI * HTTP/2.0\r\n"] {
        let mut stream = listening.connect().await;
        stream.write_all(sent.as_bytes()).await.unwrap();
        closed(stream).await;
    }
    listening.end().await;
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_until_others_end() {
    let limits = Limits { connections: 2, ..Limits::default() };
    let listening = Listening::new(limits).await;
    let (first, second) = (listening.http2().await, listening.http2().await);
    assert!(listening.try_connect().await.is_err(), "a third connection is served");
    drop(first);
    let again = async { while listening.try_connect().await.is_err() {} };
    tokio::time::timeout(NEVER, again).await.expect("no permit after a connection was closed");
    drop(second);
    listening.end().await;
}

/// The frames of a rapid reset attack, which opens and resets requests in a loop.
#[tokio::test]
async fn streams_that_are_reset_at_once_end_the_connection() {
    let listening = Listening::new(Limits::default()).await;
    let mut stream = listening.connect().await;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // GET https / with an authority of one letter.
    let head = [0x82, 0x87, 0x84, 0x41, 0x01, b'x'];
    for number in 0..5_000_u32 {
        let id = (number * 2 + 1).to_be_bytes();
        bytes.extend([0, 0, head.len() as u8, 1, 5]);
        bytes.extend(id);
        bytes.extend(head);
        bytes.extend([0, 0, 4, 3, 0]);
        bytes.extend(id);
        bytes.extend(8_u32.to_be_bytes());
    }
    // The server closes before all is read.
    let _ = stream.write_all(&bytes).await;
    closed(stream).await;
    listening.end().await;
}

/// A head that goes on in frame after frame.
#[tokio::test]
async fn a_head_without_end_ends_the_connection() {
    let listening = Listening::new(Limits::default()).await;
    let (reader, mut writer) = tokio::io::split(listening.connect().await);
    let flood = tokio::spawn(async move {
        writer.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await?;
        writer.write_all(&[0, 0, 1, 1, 0, 0, 0, 0, 1, 0x82]).await?;
        loop {
            // One field of a name of one letter and a value of 100.
            let mut frame = vec![0, 0, 104, 9, 0, 0, 0, 0, 1, 0x00, 1, b'a', 100];
            frame.extend([b'x'; 100]);
            writer.write_all(&frame).await?;
        }
        #[allow(unreachable_code)]
        Ok::<(), std::io::Error>(())
    });
    closed(reader).await;
    assert!(tokio::time::timeout(NEVER, flood).await.expect("the flood goes on").unwrap().is_err());
    listening.end().await;
}

#[tokio::test]
async fn a_response_that_is_not_read_in_time_closes_its_connection() {
    let listening = Listening::new(Limits { idle: NEVER, ..Limits::default() }).await;
    let mut stream = listening.connect().await;
    stream.write_all(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    // Nothing is read until the deadline has passed.
    tokio::time::sleep(2 * SHORT).await;
    let mut read = Vec::new();
    let _ = tokio::time::timeout(NEVER, stream.read_to_end(&mut read)).await.expect("the connection stays open");
    assert!(read.len() < LARGE, "{} bytes", read.len());
    // One that is read in time leaves its connection open.
    let mut stream = listening.connect().await;
    for _ in 0..2 {
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut page = Vec::new();
        while !page.ends_with(b"a page") {
            page.push(stream.read_u8().await.unwrap());
        }
        tokio::time::sleep(2 * SHORT).await;
    }
    listening.end().await;
}
