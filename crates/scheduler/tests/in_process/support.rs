//! A control plane without nodes in one process.

#[path = "../../../controllers/tests/in_process/support/api_server.rs"]
mod api_server;

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::Request;
use knarr_apiserver::state::ApiServer;
use knarr_client::Informers;
use knarr_scheduler::{Configuration, Settings};
use kube::Client;
use serde_json::{Value, json};

use api_server::{InProcessApiServer, sender};

const TIMEOUT: Duration = Duration::from_secs(120);

pub struct Plane {
    server: InProcessApiServer,
}

impl Plane {
    pub async fn start() -> Plane {
        let plane = Plane { server: InProcessApiServer::start().await };
        plane.start_controllers();
        plane.start_scheduler();
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
        plane.create("/api/v1/namespaces/default/serviceaccounts", account).await;
        plane
    }

    fn start_controllers(&self) {
        let server = self.server.handle.server.clone();
        let controllers = ["resourceclaim-controller", "garbage-collector-controller"].map(str::to_owned).to_vec();
        let settings = knarr_controllers::Settings { controllers, ..Default::default() };
        let manager = client(&server, "system:kube-controller-manager", &["system:authenticated"]);
        let context = knarr_controllers::Context::new(manager, settings);
        let context = context.with_accounts(Arc::new(move |account| {
            let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
            client(&server, &format!("system:serviceaccount:kube-system:{account}"), &groups)
        }));
        self.server.components.restart("controllers", move || knarr_controllers::run(context.clone()));
    }

    fn start_scheduler(&self) {
        let client = client(&self.server.handle.server, "system:kube-scheduler", &["system:authenticated"]);
        self.server.components.restart("scheduler", move || {
            let settings = Settings { configuration: Configuration::default(), now: jiff::Timestamp::now };
            knarr_scheduler::run(client.clone(), Informers::new(client.clone()), settings)
        });
    }

    /// Sends a request as an administrator.
    pub async fn request(&self, method: &str, path: &str, body: &Value) -> (u16, Value) {
        let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        self.server.request(method, path, media, body).await
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

/// A client whose requests go to the server without a connection.
fn client(server: &Arc<ApiServer>, user: &str, groups: &[&str]) -> Client {
    let (server, sender) = (server.clone(), sender(user, groups));
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (server, sender) = (server.clone(), sender.clone());
        async move { Ok::<_, Infallible>(server.handle(request, &sender).await) }
    });
    Client::new(service, "default")
}
