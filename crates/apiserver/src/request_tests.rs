//! Tests of requests through the whole server, and the test cluster that other tests use.

use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request};
use http_body_util::{BodyExt, BodyStream, Full};
use knarr_store::{Embedded, Options, Store};
use serde_json::{Value, json};

use crate::admit::EnabledPlugins;
use crate::authenticate::{ServiceAccountTokens, TokenFile};
use crate::encrypt::Encryption;
use crate::kinds::no_descriptions;
use crate::page::Pages;
use crate::request::Sender;
use crate::request::{GROUP_MASTERS, User};
use crate::startup::{self, AccessSettings, ServerHandle, Settings};
use crate::state::ApiServer;

/// An API server on an embedded store.
pub(crate) struct Cluster {
    pub(crate) started: ServerHandle,
    _directory: Option<tempfile::TempDir>,
}

impl Cluster {
    pub(crate) async fn new() -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        Cluster { _directory: Some(directory), ..Cluster::on(store).await }
    }

    /// A server with other admission plugins than the default ones.
    pub(crate) async fn with_plugins(plugins: EnabledPlugins) -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let store = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        Cluster { _directory: Some(directory), ..Cluster::on_with(store, plugins).await }
    }

    /// A server on a store that other servers may share.
    pub(crate) async fn on(store: Arc<dyn Store>) -> Cluster {
        Cluster::on_with(store, EnabledPlugins::default()).await
    }

    /// A server on a store that encrypts.
    pub(crate) async fn encrypted(store: Arc<dyn Store>, encryption: Encryption) -> Cluster {
        let access = AccessSettings { encryption: Some(encryption), ..AccessSettings::default() };
        Cluster::started(store, EnabledPlugins::default(), access).await
    }

    async fn on_with(store: Arc<dyn Store>, admission_plugins: EnabledPlugins) -> Cluster {
        Cluster::started(store, admission_plugins, AccessSettings::default()).await
    }

    async fn started(store: Arc<dyn Store>, admission_plugins: EnabledPlugins, access: AccessSettings) -> Cluster {
        let ranges = vec!["10.96.0.0/24".to_owned()];
        let started = startup::start(Settings {
            behaviour: Default::default(),
            components: Default::default(),
            store,
            token_file: TokenFile::parse("").unwrap(),
            service_accounts: Arc::new(ServiceAccountTokens::for_tests()),
            descriptions: no_descriptions(),
            client_authority: "pem".to_owned(),
            front_proxy_authority: "pem".to_owned(),
            service_ranges: ranges.clone(),
            address: "10.0.0.1:6443".to_owned(),
            provided: Vec::new(),
            pages: Pages::new(),
            admission_plugins,
            access,
        });
        startup::prepare(&started.server, &ranges, "10.0.0.1:6443".parse().unwrap()).await.unwrap();
        Cluster { started, _directory: None }
    }

    pub(crate) fn server(&self) -> &Arc<ApiServer> {
        &self.started.server
    }

    pub(crate) async fn request(&self, method: &str, path: &str, media_type: &str, body: Value) -> (u16, Value) {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path)
            .header("content-type", media_type)
            .header("user-agent", "journey/1")
            .body(Full::new(body))
            .unwrap();
        self.handled(request, &admin(), method, path).await
    }

    /// Sends JSON as a user.
    pub(crate) async fn json_as(&self, user: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.request_as(user, method, path, "application/json", body).await
    }

    /// Applies an object as a user.
    pub(crate) async fn apply_as(&self, user: &str, path: &str, body: Value) -> (u16, Value) {
        self.request_as(user, "PATCH", path, "application/apply-patch+yaml", body).await
    }

    /// Sends JSON as the kubelet of a node.
    pub(crate) async fn json_as_node(&self, node: &str, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.request_as(&format!("system:node:{node}"), method, path, "application/json", body).await
    }

    async fn request_as(&self, user: &str, method: &str, path: &str, media_type: &str, body: Value) -> (u16, Value) {
        let request = Request::builder()
            .method(Method::from_bytes(method.as_bytes()).unwrap())
            .uri(path)
            .header("content-type", media_type)
            .body(Full::new(Bytes::from(body.to_string())))
            .unwrap();
        let groups: &[&str] = if user.starts_with("system:node:") { &["system:nodes"] } else { &[] };
        let sender = Sender::Trusted(Arc::new(User::named(user, groups)));
        self.handled(request, &sender, method, path).await
    }

    async fn handled(&self, request: Request<Full<Bytes>>, sender: &Sender, method: &str, path: &str) -> (u16, Value) {
        let response = self.server().handle(request, sender).await;
        let code = response.status().as_u16();
        let announced = response.body().length();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(announced, Some(bytes.len()), "{method} {path}");
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    /// The code and text of a page.
    pub(crate) async fn text(&self, path: &str) -> (u16, String) {
        let request = Request::builder().uri(path).body(Full::new(Bytes::new())).unwrap();
        let response = self.server().handle(request, &admin()).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(crate) async fn json(&self, method: &str, path: &str, body: Value) -> (u16, Value) {
        self.request(method, path, "application/json", body).await
    }
}

pub(crate) fn admin() -> Sender {
    Sender::Trusted(Arc::new(User::named("admin", &[GROUP_MASTERS])))
}

pub(crate) const MAPS: &str = "/api/v1/namespaces/default/configmaps";

pub(crate) fn map(name: &str, labels: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}})
}

#[tokio::test]
async fn objects_are_created_patched_and_deleted() {
    let cluster = Cluster::new().await;
    let (code, created) = cluster.json("POST", MAPS, map("m", json!({}))).await;
    assert_eq!((code, created["metadata"]["name"].as_str()), (201, Some("m")));
    assert_eq!(cluster.json("POST", MAPS, map("m", json!({}))).await.0, 409);
    let path = format!("{MAPS}/m");
    let patch = json!({"data": {"a": "1"}, "metadata": {"finalizers": ["example.com/wait"]}});
    let (code, patched) = cluster.request("PATCH", &path, "application/merge-patch+json", patch.clone()).await;
    assert_eq!((code, patched["data"]["a"].as_str()), (200, Some("1")));
    let again = cluster.request("PATCH", &path, "application/merge-patch+json", patch).await.1;
    assert_eq!(again["metadata"]["resourceVersion"], patched["metadata"]["resourceVersion"]);
    assert_eq!(cluster.json("PUT", &path, created).await.0, 409);
    let (_, deleted) = cluster.json("DELETE", &path, Value::Null).await;
    assert!(deleted["metadata"]["deletionTimestamp"].is_string());
    let release = json!({"metadata": {"finalizers": null}});
    assert_eq!(cluster.request("PATCH", &path, "application/merge-patch+json", release).await.0, 200);
    assert_eq!(cluster.json("GET", &path, Value::Null).await.0, 404);
}

#[tokio::test]
async fn pages_of_a_list_show_one_revision() {
    let cluster = Cluster::new().await;
    for name in ["a", "b", "c"] {
        cluster.json("POST", MAPS, map(name, json!({"odd": (name != "b").to_string()}))).await;
    }
    let names = |list: &Value| -> Vec<String> {
        list["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    };
    let first = cluster.json("GET", &format!("{MAPS}?limit=2"), Value::Null).await.1;
    assert_eq!(
        (names(&first), first["metadata"]["remainingItemCount"].as_i64()),
        (vec!["a".into(), "b".into()], Some(1))
    );
    cluster.json("DELETE", &format!("{MAPS}/c"), Value::Null).await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    let rest = cluster.json("GET", &format!("{MAPS}?limit=2&continue={token}"), Value::Null).await.1;
    assert_eq!(names(&rest), ["c"]);
    let selected = cluster.json("GET", &format!("{MAPS}?labelSelector=odd%3Dtrue"), Value::Null).await.1;
    assert_eq!(names(&selected), ["a"]);
}

#[tokio::test]
async fn a_long_list_is_sent_in_chunks() {
    let cluster = Cluster::new().await;
    for index in 0..40 {
        let mut object = map(&format!("m{index:02}"), json!({}));
        object["data"] = json!({"long": "x".repeat(20_000)});
        assert_eq!(cluster.json("POST", MAPS, object).await.0, 201);
    }
    let (code, list) = cluster.json("GET", MAPS, Value::Null).await;
    assert_eq!((code, list["items"].as_array().map(Vec::len)), (200, Some(40)));
}

#[tokio::test]
async fn a_watch_reports_objects_that_enter_and_leave_its_selection() {
    let cluster = Cluster::new().await;
    let start =
        cluster.json("GET", MAPS, Value::Null).await.1["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let uri = format!("{MAPS}?watch=true&resourceVersion={start}&labelSelector=in%3Dyes");
    let request = Request::builder().uri(uri).body(Full::new(Bytes::new())).unwrap();
    let mut events = BodyStream::new(cluster.server().handle(request, &admin()).await.into_body());
    cluster.json("POST", MAPS, map("out", json!({}))).await;
    cluster.json("POST", MAPS, map("m", json!({"in": "yes"}))).await;
    let change = |value: &str| json!({"metadata": {"labels": {"in": value}}});
    for value in ["no", "yes"] {
        cluster.request("PATCH", &format!("{MAPS}/m"), "application/merge-patch+json", change(value)).await;
    }
    cluster.json("DELETE", &format!("{MAPS}/m"), Value::Null).await;
    let mut seen = Vec::new();
    while seen.len() < 4 {
        let chunk = events.next().await.unwrap().unwrap().into_data().unwrap();
        for line in chunk.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let event: Value = serde_json::from_slice(line).unwrap();
            seen.push(format!(
                "{} {}",
                event["type"].as_str().unwrap(),
                event["object"]["metadata"]["name"].as_str().unwrap()
            ));
        }
    }
    assert_eq!(seen, ["ADDED m", "DELETED m", "ADDED m", "DELETED m"]);
}

#[tokio::test]
async fn services_get_unique_addresses() {
    let cluster = Cluster::new().await;
    let services = "/api/v1/namespaces/default/services";
    let service =
        |name: &str, ip: Value| json!({"metadata": {"name": name}, "spec": {"clusterIP": ip, "ports": [{"port": 80}]}});
    let (code, first) = cluster.json("POST", services, service("a", Value::Null)).await;
    let ip = first["spec"]["clusterIP"].as_str().unwrap().to_owned();
    assert_eq!((code, first["spec"]["clusterIPs"][0].as_str()), (201, Some(ip.as_str())));
    let (code, refusal) = cluster.json("POST", services, service("b", json!(ip))).await;
    assert_eq!(code, 422, "{refusal}");
    assert!(refusal["message"].as_str().unwrap().ends_with("provided IP is already allocated"));
    cluster.json("DELETE", &format!("{services}/a"), Value::Null).await;
    let address = format!("/apis/networking.k8s.io/v1/ipaddresses/{ip}");
    while cluster.json("GET", &address, Value::Null).await.0 != 404 {
        tokio::task::yield_now().await;
    }
    assert_eq!(cluster.json("POST", services, service("b", json!(ip))).await.0, 201);
}

#[tokio::test]
async fn a_client_with_a_certificate_is_served_over_tls() {
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let cluster = Cluster::new().await;
    cluster.json("POST", MAPS, map("m", json!({}))).await;
    let directory = tempfile::tempdir().unwrap();
    let now = jiff::Timestamp::now();
    let pki = crate::pki::Pki::open(directory.path(), crate::pki::Identity::default(), now).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = cluster.server().clone();
    let serving = crate::listen::serve(server.clone(), listener, pki.serving.clone(), server.backend.stopping.clone());
    let serving = tokio::spawn(serving);

    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pki.authority.certificate.as_bytes()).unwrap()).unwrap();
    let admin = pki.admin(now).unwrap();
    let chain = CertificateDer::pem_slice_iter(admin.certificate.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(admin.key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap();
    let request = format!("GET {MAPS} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut response = Vec::new();
    stream.read_to_end(&mut response).await.unwrap();
    let response = String::from_utf8(response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains(&format!("content-length: {}", body.len())), "{head}");
    let list: Value = serde_json::from_str(body).unwrap();
    assert_eq!(list["items"][0]["metadata"]["name"], "m");

    cluster.started.stop.send_replace(true);
    serving.await.unwrap();
}

#[tokio::test]
async fn a_renewed_certificate_is_used_without_a_restart() {
    use rustls_pki_types::pem::PemObject;
    use rustls_pki_types::{CertificateDer, ServerName};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let cluster = Cluster::new().await;
    let directory = tempfile::tempdir().unwrap();
    let now = jiff::Timestamp::now();
    let past = now - jiff::SignedDuration::from_hours(24 * 300);
    let pki = crate::pki::Pki::open(directory.path(), crate::pki::Identity::default(), past).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = cluster.server().clone();
    let serving = crate::listen::serve(server.clone(), listener, pki.serving.clone(), server.backend.stopping.clone());
    let serving = tokio::spawn(serving);

    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pki.authority.certificate.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let connect = || async {
        let stream = tokio::net::TcpStream::connect(address).await.unwrap();
        connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
    };
    let certificate = |stream: &tokio_rustls::client::TlsStream<tokio::net::TcpStream>| {
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let mut before = connect().await;
    pki.renew(past).unwrap();
    assert_eq!(certificate(&connect().await), certificate(&before), "a certificate that is not due stays");
    pki.renew(now).unwrap();
    let after = connect().await;
    assert_ne!(certificate(&after), certificate(&before));
    let renewed = certificate(&after);
    let (_, parsed) = x509_parser::parse_x509_certificate(&renewed).unwrap();
    assert!(parsed.validity().not_after.timestamp() > now.as_second() + 360 * 24 * 3600);

    // An established connection goes on.
    before.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    before.read_to_string(&mut response).await.unwrap();
    assert!(response.starts_with("HTTP/1.1 200"), "{response}");

    cluster.started.stop.send_replace(true);
    serving.await.unwrap();
}
