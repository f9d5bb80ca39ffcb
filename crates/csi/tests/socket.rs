//! Client and server over a unix socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use knarr_csi::messages::*;
use knarr_csi::{Client, Code, Controller, Identity, Registration, Server, Status, listen};
use tokio::sync::Notify;

#[derive(Default)]
struct Driver {
    started: AtomicUsize,
    created: AtomicUsize,
    release: Notify,
}

#[async_trait::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(&self, _: GetPluginInfoRequest) -> Result<GetPluginInfoResponse, Status> {
        Ok(GetPluginInfoResponse { name: "test.example.com".into(), ..Default::default() })
    }

    async fn probe(&self, _: ProbeRequest) -> Result<ProbeResponse, Status> {
        panic!("a bug in the driver")
    }
}

#[async_trait::async_trait]
impl Controller for Driver {
    async fn create_volume(&self, request: CreateVolumeRequest) -> Result<CreateVolumeResponse, Status> {
        if request.name.is_empty() {
            return Err(Status::invalid_argument("no name"));
        }
        self.started.fetch_add(1, Ordering::SeqCst);
        self.release.notified().await;
        self.created.fetch_add(1, Ordering::SeqCst);
        Ok(CreateVolumeResponse::default())
    }
}

#[async_trait::async_trait]
impl Registration for Driver {
    async fn get_info(&self, _: InfoRequest) -> Result<PluginInfo, Status> {
        Ok(PluginInfo { kind: CSI_PLUGIN.into(), name: "test.example.com".into(), ..Default::default() })
    }
}

fn start(driver: &Arc<Driver>, socket: &std::path::Path) -> tokio::task::JoinHandle<std::io::Result<()>> {
    let server = Server::new().identity(driver.clone()).controller(driver.clone()).registration(driver.clone());
    tokio::spawn(server.serve(listen(socket).expect("listens")))
}

#[tokio::test]
async fn calls_reach_their_service_and_errors_their_caller() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("csi.sock");
    let driver = Arc::new(Driver::default());
    let _server = start(&driver, &socket);
    let client = Client::connect(&format!("unix://{}", socket.display())).expect("a client");

    let info = client.get_plugin_info(GetPluginInfoRequest {}).await.expect("info");
    assert_eq!(info.name, "test.example.com");
    assert_eq!(client.get_info(InfoRequest {}).await.expect("registration").kind, "CSIPlugin");

    let error = client.create_volume(CreateVolumeRequest::default()).await.expect_err("no name");
    assert_eq!(error.to_string(), "rpc error: code = InvalidArgument desc = no name");
    let error = client.list_volumes(ListVolumesRequest::default()).await.expect_err("not implemented");
    assert!(error.is_unimplemented(), "{error}");
    let error = client.node_get_info(NodeGetInfoRequest {}).await.expect_err("no such service");
    assert!(error.is_unimplemented(), "{error}");
    // A panic in a handler is an error of this call only.
    let error = client.probe(ProbeRequest {}).await.expect_err("panics");
    assert_eq!(error.code(), Code::Internal);
    client.get_plugin_info(GetPluginInfoRequest {}).await.expect("the connection is still there");
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u8, payload: &[u8]) -> Vec<u8> {
    let length = u8::try_from(payload.len()).expect("a short payload");
    [&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat()
}

/// The headers of a call as grpc-go writes them when it is given the path of a socket, with the authority
/// `%2Fvar%2Flib%2Fkubelet%2Fplugins_registry%2Flocal.knarr.io-reg.sock`; then those of the next call on the connection.
const GO_HEADERS: [&str; 2] = [
    "8386459c62ba2d98d558598c84d83498f52fb4b31909b06931ea63115392a94f41b154587b8ec545868346a8b0f5b632d054aa2c35d16cc6a91158598c\
     84d9e95161a0e41d0bf5a87658b98eb58599741c9d7f5f8b1d75d0620d263d4c4d65647a8a9acac8b4c7602bbc05c140027465864d833505b11f",
    "8386c2c1c0bfbe",
];

#[tokio::test]
async fn a_client_may_name_the_path_of_the_socket_as_host() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("reg.sock");
    let _server = start(&Arc::new(Driver::default()), &socket);
    let mut client = tokio::net::UnixStream::connect(&socket).await.expect("connects");
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.expect("sent");
    client.write_all(&frame(4, 0, 0, &[])).await.expect("sent");
    for (stream, headers) in [1, 3].into_iter().zip(GO_HEADERS) {
        let digits: Vec<_> = headers.bytes().collect();
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("text"), 16).expect("a number");
        let block: Vec<u8> = digits.chunks(2).map(byte).collect();
        client.write_all(&frame(1, 4, stream, &block)).await.expect("sent");
        // An empty message, and the end of the call.
        client.write_all(&frame(0, 1, stream, &[0; 5])).await.expect("sent");
        let mut message = Vec::new();
        loop {
            let mut header = [0; 9];
            client.read_exact(&mut header).await.expect("a frame");
            let mut payload = vec![0; u16::from_be_bytes([header[1], header[2]]).into()];
            client.read_exact(&mut payload).await.expect("its payload");
            match (header[3], header[4] & 1) {
                (0, _) => message.extend(payload),
                (1, 1) => break,
                (3, _) => panic!("the call was reset: {payload:?}"),
                _ => {}
            }
        }
        let message = String::from_utf8_lossy(&message);
        assert!(message.contains("test.example.com"), "{message}");
    }
}

#[tokio::test]
async fn a_call_ends_at_its_deadline_and_its_operation_runs_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("csi.sock");
    let driver = Arc::new(Driver::default());
    let _server = start(&driver, &socket);
    let client = Client::connect(&socket.display().to_string()).expect("a client");

    let hurried = client.clone().with_timeout(Duration::from_millis(200));
    let request = CreateVolumeRequest { name: "pvc-1".into(), ..Default::default() };
    let error = hurried.create_volume(request).await.expect_err("the driver hangs");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    assert!(!error.is_final());
    assert_eq!(driver.created.load(Ordering::SeqCst), 0);
    driver.release.notify_one();
    while driver.created.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_call_that_loses_its_driver_is_not_final() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("csi.sock");
    let driver = Arc::new(Driver::default());
    let server = start(&driver, &socket);
    let client = Client::connect(&socket.display().to_string()).expect("a client");
    client.get_plugin_info(GetPluginInfoRequest {}).await.expect("connects");
    let request = CreateVolumeRequest { name: "pvc-1".into(), ..Default::default() };
    let call = tokio::spawn(async move { client.create_volume(request).await });
    while driver.started.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    server.abort();
    let error = call.await.expect("the call ends").expect_err("the driver is gone");
    assert!(error.is_unavailable() && !error.is_final(), "{error:?}");
}

#[tokio::test]
async fn a_client_reconnects_when_the_driver_restarts() {
    let directory = tempfile::tempdir().expect("a directory");
    let socket = directory.path().join("csi.sock");
    let driver = Arc::new(Driver::default());
    let client = Client::connect(&socket.display().to_string()).expect("a client");
    let error = client.get_plugin_info(GetPluginInfoRequest {}).await.expect_err("no socket yet");
    assert!(error.is_unavailable() && !error.is_final(), "{error:?}");

    for _ in 0..3 {
        let server = start(&driver, &socket);
        client.get_plugin_info(GetPluginInfoRequest {}).await.expect("connects");
        server.abort();
        assert!(server.await.expect_err("was aborted").is_cancelled());
        let error = client.get_plugin_info(GetPluginInfoRequest {}).await.expect_err("nobody listens");
        assert!(error.is_unavailable(), "{error:?}");
    }
}

#[tokio::test]
async fn only_sockets_are_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("csi.sock");
    std::fs::write(&path, "data").expect("a file");
    assert!(listen(&path).is_err());
    assert_eq!(std::fs::read(&path).expect("still there"), b"data");
}
