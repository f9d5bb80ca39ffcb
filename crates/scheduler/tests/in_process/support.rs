//! A control plane without nodes in one process.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use knarr_apiserver::admit::EnabledPlugins;
use knarr_apiserver::authenticate::{ServiceAccountTokens, TokenFile, TokenSettings};
use knarr_apiserver::endpoint::page::Pages;
use knarr_apiserver::kinds::no_descriptions;
use knarr_apiserver::request::{Sender, User};
use knarr_apiserver::startup::{self, ServerHandle};
use knarr_apiserver::state::ApiServer;
use knarr_client::Informers;
use knarr_scheduler::{Configuration, Settings};
use knarr_store::{Embedded, Options};
use knarr_supervisor::{Registry, Supervisor};
use kube::Client;
use serde_json::{Value, json};

const SERVICE_RANGE: &str = "10.96.0.0/24";
const TIMEOUT: Duration = Duration::from_secs(120);

pub struct Plane {
    handle: ServerHandle,
    components: Supervisor,
    _directory: tempfile::TempDir,
}

impl Plane {
    pub async fn start() -> Plane {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Arc::new(Embedded::open(directory.path(), Options::default()).expect("a store"));
        let registry = Registry::default();
        let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
        let issuer = ServiceAccountTokens::new(&key, &[], TokenSettings::of_issuer("https://issuer"));
        let ranges = vec![SERVICE_RANGE.to_owned()];
        let handle = startup::start(startup::Settings {
            behaviour: Default::default(),
            components: registry.clone(),
            store,
            token_file: TokenFile::parse("").expect("an empty file"),
            service_accounts: Arc::new(issuer.expect("an issuer")),
            descriptions: no_descriptions(),
            client_authority: "pem".to_owned(),
            front_proxy_authority: "pem".to_owned(),
            service_ranges: ranges.clone(),
            address: "10.0.0.1:6443".to_owned(),
            provided: Vec::new(),
            pages: Pages::new(),
            admission_plugins: EnabledPlugins::default(),
            access: Default::default(),
        });
        let address = "10.0.0.1:6443".parse().expect("an address");
        startup::prepare(&handle.server, &ranges, address).await.expect("the objects of every cluster");
        let components = Supervisor::new(&registry);
        knarr_apiserver::background::run(&handle.server, &components);
        let plane = Plane { handle, components, _directory: directory };
        plane.start_controllers();
        plane.start_scheduler();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        plane.create("/api/v1/namespaces/default/serviceaccounts", account).await;
        plane
    }

    fn start_controllers(&self) {
        let server = self.handle.server.clone();
        let controllers = ["resourceclaim-controller", "garbage-collector-controller"].map(str::to_owned).to_vec();
        let settings = knarr_controllers::Settings { controllers, ..Default::default() };
        let manager = client(&server, "system:kube-controller-manager", &["system:authenticated"]);
        let context = knarr_controllers::Context::new(manager, settings);
        let context = context.with_accounts(Arc::new(move |account| {
            let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
            client(&server, &format!("system:serviceaccount:kube-system:{account}"), &groups)
        }));
        self.components.restart("controllers", move || knarr_controllers::run(context.clone()));
    }

    fn start_scheduler(&self) {
        let client = client(&self.handle.server, "system:kube-scheduler", &["system:authenticated"]);
        self.components.restart("scheduler", move || {
            let settings = Settings { configuration: Configuration::default(), now: jiff::Timestamp::now };
            knarr_scheduler::run(client.clone(), Informers::new(client.clone()), settings)
        });
    }

    /// Sends a request as an administrator.
    pub async fn request(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = Request::builder().method(method).uri(path).header("content-type", media);
        let request = request.header("user-agent", "test").body(Full::new(body)).expect("a request");
        let response = self.handle.server.handle(request, &sender("admin", &["system:masters"])).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }

    pub async fn create(&self, collection: &str, object: Value) -> Value {
        let (code, created) = self.request("POST", collection, &object).await;
        assert!(code < 300, "{code} {created} for {object}");
        created
    }

    pub async fn patch(&self, path: &str, patch: Value) -> Value {
        let (code, patched) = self.request("PATCH", path, &patch).await;
        assert!(code < 300, "{code} {patched} for {path}");
        patched
    }

    /// Waits for what is at the path, an object or a list, to be in a state.
    pub async fn until(&self, path: &str, state: impl Fn(&Value) -> bool) -> Value {
        let started = Instant::now();
        loop {
            let (code, found) = self.request("GET", path, &Value::Null).await;
            if code == 200 && state(&found) {
                return found;
            }
            assert!(started.elapsed() < TIMEOUT, "{path} is not in the state: {code} {found}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.handle.stop.send_replace(true);
    }
}

fn sender(user: &str, groups: &[&str]) -> Sender {
    Sender::Trusted(Arc::new(User::named(user, groups)))
}

/// A client whose requests go to the server without a connection.
fn client(server: &Arc<ApiServer>, user: &str, groups: &[&str]) -> Client {
    let (server, sender) = (server.clone(), sender(user, groups));
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (server, sender) = (server.clone(), sender.clone());
        async move { Ok::<_, Infallible>(server.handle(request, &sender).await) }
    });
    Client::new(service, "default")
}
