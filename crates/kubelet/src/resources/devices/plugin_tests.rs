//! Tests a plugin from registration to disconnection over real sockets.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Pod;
use prost::Message;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::plugin::{
    Allocated, AllocatedDevice, DeviceIds, DeviceList, Empty, HEALTHY, NumaNode, Options, Plugin, PluginDevice,
    RegisterRequest, TopologyInfo,
};
use super::registration::{Registration, SOCKET};
use crate::resources::{Policies, Resources};

const RESOURCE: &str = "example.com/dongle";

#[derive(Clone, PartialEq, Message)]
struct Allocations {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<Allocated>,
}

#[derive(Clone, PartialEq, Message)]
struct AllocationRequests {
    #[prost(message, repeated, tag = "1")]
    containers: Vec<DeviceIds>,
}

type Frames = UnboundedReceiverStream<Result<Frame<Bytes>, Infallible>>;

fn framed(message: &impl Message) -> Frame<Bytes> {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(u32::try_from(message.encoded_len()).expect("a small message"));
    message.encode(&mut bytes).expect("room");
    Frame::data(bytes.freeze())
}

fn end() -> Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static("0"));
    Frame::trailers(trailers)
}

/// Responds as a plugin does: lists two healthy devices and a broken one for as long as it runs, and allocates.
async fn respond(request: Request<Incoming>) -> Result<Response<StreamBody<Frames>>, Infallible> {
    let path = request.uri().path().to_string();
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let (sender, receiver) = mpsc::unbounded_channel();
    let send = |frame: Frame<Bytes>| sender.send(Ok(frame)).expect("a listener");
    match path.as_str() {
        "/v1beta1.DevicePlugin/ListAndWatch" => {
            let device = |id: &str, health: &str| PluginDevice {
                id: id.into(),
                health: health.into(),
                topology: Some(TopologyInfo { nodes: vec![NumaNode { id: 0 }] }),
            };
            let devices = vec![device("a", HEALTHY), device("b", HEALTHY), device("c", "Unhealthy")];
            send(framed(&DeviceList { devices }));
            tokio::spawn(async move { sender.closed().await });
        }
        "/v1beta1.DevicePlugin/Allocate" => {
            let request = AllocationRequests::decode(&body[5..]).expect("a request");
            let ids = request.containers[0].ids.join(",");
            let device = AllocatedDevice {
                container_path: "/dev/x".into(),
                host_path: "/dev/null".into(),
                permissions: "rw".into(),
            };
            let environment = HashMap::from([("DONGLES".to_string(), ids)]);
            send(framed(&Allocations {
                containers: vec![Allocated { environment, devices: vec![device], ..Default::default() }],
            }));
            send(end());
        }
        "/v1beta1.DevicePlugin/GetDevicePluginOptions" => {
            send(framed(&Options::default()));
            send(end());
        }
        other => panic!("unexpected call {other}"),
    }
    let mut response = Response::new(StreamBody::new(UnboundedReceiverStream::new(receiver)));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// A plugin whose calls of this method fail; it counts all calls.
async fn run_failing_plugin(socket: std::path::PathBuf, method: &'static str, calls: Arc<AtomicUsize>) {
    let listener = tokio::net::UnixListener::bind(socket).expect("a socket");
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let calls = calls.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            calls.fetch_add(1, Ordering::SeqCst);
            async move {
                if !request.uri().path().ends_with(method) {
                    return respond(request).await;
                }
                let (_, receiver) = mpsc::unbounded_channel();
                let mut response = Response::new(StreamBody::new(UnboundedReceiverStream::new(receiver)));
                let headers = response.headers_mut();
                headers.insert("content-type", HeaderValue::from_static("application/grpc"));
                headers.insert("grpc-status", HeaderValue::from_static("2"));
                headers.insert("grpc-message", HeaderValue::from_static("broken"));
                Ok(response)
            }
        });
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        connections.spawn(builder.serve_connection(TokioIo::new(stream), service));
    }
}

#[tokio::test]
async fn a_plugin_without_options_is_refused_and_one_without_devices_has_none() {
    let directory = tempfile::tempdir().expect("a directory");
    let resources = Resources::open(directory.path(), Policies::default(), 0, Arc::default()).expect("a checkpoint");
    let devices = resources.devices.clone();
    let registration = Registration::new(directory.path(), &resources, Arc::new(|| {}));
    let serving = tokio::spawn(registration.serve());
    wait_for("the socket", || directory.path().join(SOCKET).exists()).await;
    for (endpoint, method, message, amounts, expected_calls) in [
        (
            "options.sock",
            "/GetDevicePluginOptions",
            "failed to get device plugin options: rpc error: code = Unknown desc = broken",
            None,
            1,
        ),
        ("list.sock", "/ListAndWatch", "", Some((0, 0)), 2),
    ] {
        let calls = Arc::new(AtomicUsize::new(0));
        let plugin = tokio::spawn(run_failing_plugin(directory.path().join(endpoint), method, calls.clone()));
        wait_for("the plugin", || directory.path().join(endpoint).exists()).await;
        let request = RegisterRequest {
            version: "v1beta1".into(),
            endpoint: endpoint.into(),
            resource_name: RESOURCE.into(),
            options: None,
        };
        let registered = register(directory.path(), request).await;
        assert_eq!(registered.err().map(|status| status.message().to_owned()).unwrap_or_default(), message);
        wait_for("the calls", || calls.load(Ordering::SeqCst) == expected_calls).await;
        assert_eq!(devices.amounts(Instant::now()).get(RESOURCE).copied(), amounts, "{method}");
        plugin.abort();
    }
    serving.abort();
}

async fn run_plugin(socket: std::path::PathBuf) {
    let listener = tokio::net::UnixListener::bind(socket).expect("a socket");
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let service = hyper::service::service_fn(respond);
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        connections.spawn(builder.serve_connection(TokioIo::new(stream), service));
    }
}

async fn register(directory: &Path, request: RegisterRequest) -> Result<(), tonic::Status> {
    let kubelet = Plugin::new(&directory.join(SOCKET), Options::default(), 0);
    kubelet.call::<_, Empty>("/v1beta1.Registration/Register", request).await.map(drop)
}

async fn wait_for(what: &str, mut come: impl FnMut() -> bool) {
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !come() {
        assert!(std::time::Instant::now() < until, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn pod(uid: &str, count: &str) -> Pod {
    serde_json::from_value(json!({ "metadata": { "uid": uid },
        "spec": { "containers": [{ "name": "c", "resources": { "limits": { RESOURCE: count } } }] } }))
    .expect("a pod")
}

#[tokio::test]
async fn a_plugins_devices_are_listed_allocated_and_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let resources = Resources::open(directory.path(), Policies::default(), 0, Arc::default()).expect("a checkpoint");
    let devices = resources.devices.clone();
    let registration = Registration::new(directory.path(), &resources, Arc::new(|| {}));
    let serving = tokio::spawn(registration.serve());
    wait_for("the socket", || directory.path().join(SOCKET).exists()).await;

    let request = RegisterRequest {
        version: "v1beta1".into(),
        endpoint: "dongle.sock".into(),
        resource_name: RESOURCE.into(),
        options: None,
    };
    let old = RegisterRequest { version: "v1alpha".into(), ..request.clone() };
    assert_eq!(register(directory.path(), old).await.expect_err("an old plugin").code(), tonic::Code::InvalidArgument);

    let plugin = tokio::spawn(run_plugin(directory.path().join("dongle.sock")));
    wait_for("the plugin", || directory.path().join("dongle.sock").exists()).await;
    register(directory.path(), request).await.expect("registered");
    let amounts = || devices.amounts(Instant::now());
    wait_for("the devices", || amounts() == BTreeMap::from([(RESOURCE.to_string(), (3, 2))])).await;

    assert!(resources.needs_allocation(&pod("p", "1")));
    resources.allocate(&pod("p", "1")).await.expect("a device");
    let grant = resources.grant("p", "c").devices.remove(RESOURCE).expect("a device");
    assert_eq!(grant.use_with.environment["DONGLES"], "a");
    assert_eq!(grant.use_with.devices[0].container_path, "/dev/x");
    let refused = resources.allocate(&pod("q", "2")).await.expect_err("one is left");
    assert_eq!(
        refused.message,
        "Allocate failed due to requested number of devices unavailable for example.com/dongle. Requested: 2, \
         Available: 1, which is unexpected"
    );
    let status = &resources.health_of("p")["c"][0];
    let health = status.resources.as_ref().and_then(|devices| devices[0].health.clone());
    assert_eq!((status.name.as_str(), health.as_deref()), (RESOURCE, Some("Healthy")));
    resources.release("p");
    resources.allocate(&pod("q", "2")).await.expect("both are free");

    plugin.abort();
    wait_for("the end of the plugin", || amounts()[RESOURCE] == (3, 0)).await;
    let unhealthy = |resources: &Resources| {
        let status = resources.health_of("q").remove("c").expect("a container").remove(0).resources.unwrap_or_default();
        status.iter().filter(|device| device.health.as_deref() == Some("Unhealthy")).count()
    };
    assert_eq!(unhealthy(&resources), 2);
    let refused = resources.allocate(&pod("r", "1")).await.expect_err("no plugin");
    assert!(refused.message.contains("cannot allocate unregistered device"), "{}", refused.message);
    let again = Resources::open(directory.path(), Policies::default(), 0, Arc::default()).expect("a checkpoint");
    assert_eq!(again.grant("q", "c").devices[RESOURCE].ids.len(), 2, "a restarted node knows who has what");
    assert_eq!(unhealthy(&again), 0, "nobody has said so yet");
    serving.abort();
}
