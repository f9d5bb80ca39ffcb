//! A plugin from its registration to its end, over real sockets.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use prost::Message;
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::plugin::{
    Allocated, AllocatedDevice, DeviceIds, DeviceList, Empty, HEALTHY, NumaNode, Options, Plugin, RegisterRequest,
    ToldDevice, TopologyInfo,
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

/// Answers as a plugin does: lists two good devices and a broken one for as long as it lives, and allocates.
async fn answer(request: Request<Incoming>) -> Result<Response<StreamBody<Frames>>, Infallible> {
    let path = request.uri().path().to_string();
    let body = request.into_body().collect().await.expect("a body").to_bytes();
    let (sender, receiver) = mpsc::unbounded_channel();
    let send = |frame: Frame<Bytes>| sender.send(Ok(frame)).expect("a listener");
    match path.as_str() {
        "/v1beta1.DevicePlugin/ListAndWatch" => {
            let device = |id: &str, health: &str| ToldDevice {
                id: id.into(),
                health: health.into(),
                topology: Some(TopologyInfo { nodes: vec![NumaNode { id: 0 }] }),
            };
            let devices = vec![device("a", HEALTHY), device("b", HEALTHY), device("c", "Unhealthy")];
            send(framed(&DeviceList { devices }));
            tokio::spawn(async move { sender.closed().await });
        }
        "/v1beta1.DevicePlugin/Allocate" => {
            let asked = AllocationRequests::decode(&body[5..]).expect("a request");
            let ids = asked.containers[0].ids.join(",");
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
        other => panic!("unexpected call {other}"),
    }
    let mut response = Response::new(StreamBody::new(UnboundedReceiverStream::new(receiver)));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

async fn run_plugin(socket: std::path::PathBuf) {
    let listener = tokio::net::UnixListener::bind(socket).expect("a socket");
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let service = hyper::service::service_fn(answer);
        let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        connections.spawn(builder.serve_connection(TokioIo::new(stream), service));
    }
}

async fn register(folder: &Path, request: RegisterRequest) -> Result<(), tonic::Status> {
    let kubelet = Plugin::new(&folder.join(SOCKET), Options::default(), 0);
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
async fn a_plugin_brings_devices_gives_them_and_takes_them_along() {
    let folder = tempfile::tempdir().expect("a folder");
    let resources = Resources::open(folder.path(), Policies::default(), 0, Arc::default());
    let devices = resources.devices.clone();
    let registration = Registration::new(folder.path(), &resources, Arc::new(|| {}));
    let serving = tokio::spawn(registration.serve());
    wait_for("the socket", || folder.path().join(SOCKET).exists()).await;

    let request = RegisterRequest {
        version: "v1beta1".into(),
        endpoint: "dongle.sock".into(),
        resource_name: RESOURCE.into(),
        options: None,
    };
    let old = RegisterRequest { version: "v1alpha".into(), ..request.clone() };
    assert_eq!(register(folder.path(), old).await.expect_err("an old plugin").code(), tonic::Code::InvalidArgument);

    let plugin = tokio::spawn(run_plugin(folder.path().join("dongle.sock")));
    wait_for("the plugin", || folder.path().join("dongle.sock").exists()).await;
    register(folder.path(), request).await.expect("registered");
    let amounts = || devices.amounts(Timestamp::now());
    wait_for("the devices", || amounts() == BTreeMap::from([(RESOURCE.to_string(), (3, 2))])).await;

    assert!(resources.concern(&pod("p", "1")));
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
    let shown = &resources.health_of("p")["c"][0];
    let health = shown.resources.as_ref().and_then(|devices| devices[0].health.clone());
    assert_eq!((shown.name.as_str(), health.as_deref()), (RESOURCE, Some("Healthy")));
    resources.release("p");
    resources.allocate(&pod("q", "2")).await.expect("both are free");

    plugin.abort();
    wait_for("the end of the plugin", || amounts()[RESOURCE] == (3, 0)).await;
    let unwell = |resources: &Resources| {
        let shown = resources.health_of("q").remove("c").expect("a container").remove(0).resources.unwrap_or_default();
        shown.iter().filter(|device| device.health.as_deref() == Some("Unhealthy")).count()
    };
    assert_eq!(unwell(&resources), 2);
    let refused = resources.allocate(&pod("r", "1")).await.expect_err("no plugin");
    assert!(refused.message.contains("cannot allocate unregistered device"), "{}", refused.message);
    let again = Resources::open(folder.path(), Policies::default(), 0, Arc::default());
    assert_eq!(again.grant("q", "c").devices[RESOURCE].ids.len(), 2, "a restarted node knows who has what");
    assert_eq!(unwell(&again), 0, "nobody has said so yet");
    serving.abort();
}
