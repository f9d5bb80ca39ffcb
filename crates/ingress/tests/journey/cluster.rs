//! An ingress controller with Services, on a fake API.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use knarr_client::Informers;
use knarr_client::kube::Client;
use knarr_client::kube::client::Body;
use serde_json::{Value, json};

use crate::pods::{pod, shape_shifter, streaming_pod, unused_address};

pub struct Cluster {
    pub http: SocketAddr,
    pub https: SocketAddr,
    pub certificate: rustls_pki_types::CertificateDer<'static>,
}

pub async fn start() -> Cluster {
    start_with(knarr_ingress::Timeouts::default()).await
}

/// The controller with its Services: `web` has one dead and one live pod, `empty` none, the others one.
pub async fn start_with(timeouts: knarr_ingress::Timeouts) -> Cluster {
    let made = rcgen::generate_simple_self_signed(["shop.example".to_owned()]).unwrap();
    let path = |path: &str, service: &str| json!({"path": path, "pathType": "Prefix", "backend": {"service": {"name": service, "port": {"number": 80}}}});
    let service = |name: &str| json!({"metadata": {"name": name, "namespace": "n", "uid": name}, "spec": {"ports": [{"port": 80}]}});
    let secret = json!({"metadata": {"name": "tls", "namespace": "n", "uid": "t"}, "type": "kubernetes.io/tls",
        "data": {"tls.crt": k8s_openapi::ByteString(made.cert.pem().into_bytes()),
            "tls.key": k8s_openapi::ByteString(made.signing_key.serialize_pem().into_bytes())}});
    let ingress = json!({"metadata": {"name": "i", "namespace": "n", "uid": "i"}, "spec": {"ingressClassName": "knarr",
        "rules": [{"host": "shop.example", "http": {"paths": [path("/", "web"), path("/api", "api"), path("/empty", "empty"), path("/shape", "shape"),
            path("/grpc", "grpc")]}}],
        "tls": [{"hosts": ["shop.example"], "secretName": "tls"}]}});
    let class = json!({"metadata": {"name": "knarr", "uid": "c"}, "spec": {"controller": knarr_ingress::CONTROLLER}});
    let mut slices = slice("web", &[unused_address(), pod("web")]);
    slices.extend(slice("api", &[pod("api")]));
    slices.extend(slice("shape", &[shape_shifter()]));
    slices.extend(slice("grpc", &[streaming_pod().await]));
    let mut streaming = service("grpc");
    streaming["spec"]["ports"][0]["appProtocol"] = json!("kubernetes.io/h2c");
    let objects = Arc::new(json!({"nodes": [], "ingresses": [ingress], "ingressclasses": [class], "secrets": [secret],
        "services": [service("web"), service("api"), service("empty"), service("shape"), streaming], "endpointslices": slices}));
    let response = move |request: http::Request<Body>| {
        let objects = Arc::clone(&objects);
        async move {
            let is_watch = request.uri().query().is_some_and(|query| query.contains("watch=true"));
            let kind = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
            if is_watch {
                // Nothing changes.
                std::future::pending::<()>().await;
            }
            let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": objects[kind.as_str()]});
            Ok::<_, Infallible>(http::Response::new(Full::new(Bytes::from(list.to_string()))))
        }
    };
    let client = Client::new(tower::service_fn(response), "default");
    let (http, https) = (unused_address(), unused_address());
    let listeners = knarr_ingress::Addresses { http: vec![http], https: vec![https] }.bind().unwrap();
    let informers = Informers::new(client.clone());
    let limits = knarr_ingress::Limits { connections_of_client: 100, allows_loopback_pods: true, ..Default::default() };
    tokio::spawn(knarr_ingress::run(informers, client, "here".into(), listeners, timeouts, limits));
    Cluster { http, https, certificate: made.cert.der().clone() }
}

fn slice(service: &str, pods: &[SocketAddr]) -> Vec<Value> {
    // Pods on one host differ in their port, so each has its own slice.
    let one = |(index, pod): (usize, &SocketAddr)| {
        json!({"metadata": {"name": format!("{service}-{index}"), "namespace": "n", "uid": format!("{service}{index}"),
            "labels": {"kubernetes.io/service-name": service}}, "addressType": "IPv4",
            "endpoints": [{"addresses": [pod.ip()], "conditions": {"ready": true}}], "ports": [{"name": "", "port": pod.port()}]})
    };
    pods.iter().enumerate().map(one).collect()
}

/// HTTP/2 over TLS to the ingress.
pub async fn connect(cluster: &Cluster) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(cluster.certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = tokio::net::TcpStream::connect(cluster.https).await.unwrap();
    let name = rustls_pki_types::ServerName::try_from("shop.example").unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender
}
