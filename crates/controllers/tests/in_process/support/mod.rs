//! A cluster in one process: the API server on an embedded store, controllers that act as their own accounts, and a simulated
//! kubelet. Time stands still except where a test advances it.

pub mod api_server;
pub mod kubelet;
mod metrics;
mod paths;
mod time;

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use http_body_util::Either;
use knarr_apiserver::request::Sender;
use knarr_apiserver::state::ApiServer;
use knarr_controllers::{Context, Settings};
use kube::Client;
use serde_json::{Value, json};

use api_server::{InProcessApiServer, sender};
use kubelet::Kubelet;
use metrics::Metrics;
pub use paths::path;
use time::Time;

pub const NAMESPACE: &str = "default";

/// How long a state may take to appear, in real time.
const TIMEOUT: Duration = Duration::from_secs(60);
/// How far time moves on while a test waits, so that backoffs and batches pass.
const CRAWL: Duration = Duration::from_millis(10);
/// For how many turns the store must not change to count as quiet.
const QUIET_TURNS: u32 = 25;

pub struct Cluster {
    server: InProcessApiServer,
    time: Arc<Time>,
    metrics: Metrics,
    kubelet: RefCell<Kubelet>,
    /// The revision up to which the kubelet saw the pods.
    synced: Cell<u64>,
}

impl Cluster {
    /// A cluster that runs these controllers with the default settings.
    pub async fn start(controllers: &[&str]) -> Cluster {
        Cluster::with_settings(controllers, Settings::default()).await
    }

    pub async fn with_settings(controllers: &[&str], settings: Settings) -> Cluster {
        let time = Arc::new(Time::stopped());
        let metrics = Metrics { usage: Arc::default(), time: time.clone() };
        let server = InProcessApiServer::start().await;
        let settings =
            Settings { controllers: controllers.iter().map(|name| (*name).to_owned()).collect(), ..settings };
        let context = context(&server.handle.server, settings, &metrics);
        server.components.restart("controllers", move || knarr_controllers::run(context.clone()));
        let cluster = Cluster { server, time, metrics, kubelet: RefCell::new(Kubelet::ready()), synced: Cell::new(0) };
        if controllers.contains(&"serviceaccount-controller") {
            return cluster;
        }
        // Pods need it.
        cluster.create(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}})).await;
        cluster
    }

    /// Replaces the simulated kubelet.
    pub fn set_kubelet(&self, kubelet: Kubelet) {
        *self.kubelet.borrow_mut() = kubelet;
        self.synced.set(0);
    }

    /// Lets every pod use this much CPU, in millicores; there are no metrics before.
    pub fn set_usage(&self, usage: Option<u64>) {
        *self.metrics.usage.lock() = usage;
    }

    /// The time by the controllers' clock.
    pub fn now(&self) -> jiff::Timestamp {
        self.time.now()
    }

    /// Steps the wall clock, as an administrator or NTP does. No time passes.
    pub fn step_wall_clock(&self, step: jiff::SignedDuration) {
        self.time.step(step);
    }

    /// Creates an object; one without a namespace goes into the default one. Panics if the API refuses it.
    pub async fn create(&self, object: Value) -> Value {
        let collection = path(text(&object["kind"]), object["metadata"]["namespace"].as_str().unwrap_or(NAMESPACE));
        let (code, created) = self.request("POST", &collection, "application/json", &object).await;
        assert!(code < 300, "{code} {created} for {object}");
        created
    }

    /// An object of the default namespace or of none.
    pub async fn get(&self, kind: &str, name: &str) -> Option<Value> {
        self.get_in(NAMESPACE, kind, name).await
    }

    pub async fn get_in(&self, namespace: &str, kind: &str, name: &str) -> Option<Value> {
        let at = format!("{}/{name}", path(kind, namespace));
        let (code, found) = self.request("GET", &at, "application/json", &Value::Null).await;
        match code {
            200 => Some(found),
            404 => None,
            _ => panic!("{code} {found} for {at}"),
        }
    }

    /// The objects of a kind in the default namespace, or those of a kind without namespaces, by name.
    pub async fn list(&self, kind: &str) -> Vec<Value> {
        self.list_in(NAMESPACE, kind).await
    }

    pub async fn list_in(&self, namespace: &str, kind: &str) -> Vec<Value> {
        let (code, mut list) = self.request("GET", &path(kind, namespace), "application/json", &Value::Null).await;
        assert_eq!(code, 200, "{list}");
        serde_json::from_value(list["items"].take()).expect("a list")
    }

    /// A merge patch. Panics if the API refuses it.
    pub async fn patch(&self, kind: &str, name: &str, patch: Value) -> Value {
        self.patch_at(&format!("{}/{name}", path(kind, NAMESPACE)), patch).await
    }

    /// A merge patch of the status.
    pub async fn patch_status(&self, kind: &str, name: &str, status: Value) -> Value {
        self.patch_at(&format!("{}/{name}/status", path(kind, NAMESPACE)), json!({"status": status})).await
    }

    pub async fn patch_at(&self, at: &str, patch: Value) -> Value {
        let (code, patched) = self.request("PATCH", at, "application/merge-patch+json", &patch).await;
        assert!(code < 300, "{code} {patched} for {at} {patch}");
        patched
    }

    /// Deletes an object in the background, in the foreground or as an orphan's owner.
    pub async fn delete(&self, kind: &str, name: &str, propagation: &str) {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation});
        let at = format!("{}/{name}", path(kind, NAMESPACE));
        let (code, deleted) = self.request("DELETE", &at, "application/json", &options).await;
        assert!(code < 300, "{code} {deleted} for {at}");
    }

    /// Sends a request as an administrator.
    pub async fn request(&self, method: &str, path: &str, media_type: &str, body: &Value) -> (u16, Value) {
        self.server.request(method, path, media_type, body).await
    }

    /// Waits for an object in a state.
    pub async fn until(&self, kind: &str, name: &str, state: impl Fn(&Value) -> bool) -> Value {
        let started = std::time::Instant::now();
        loop {
            let found = self.get(kind, name).await;
            if let Some(found) = found.as_ref().filter(|found| state(found)) {
                return found.clone();
            }
            assert!(started.elapsed() < TIMEOUT, "{kind} {name} is not in the state: {}", found.unwrap_or_default());
            self.turn(CRAWL).await;
        }
    }

    /// Waits until an object is gone.
    pub async fn until_gone(&self, kind: &str, name: &str) {
        self.until_list(kind, |all| !all.iter().any(|object| name_of(object) == name)).await;
    }

    /// Waits for the objects of a kind in the default namespace to be in a state.
    pub async fn until_list(&self, kind: &str, state: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let started = std::time::Instant::now();
        loop {
            let found = self.list(kind).await;
            if state(&found) {
                return found;
            }
            assert!(started.elapsed() < TIMEOUT, "the objects {kind} are not in the state: {}", Value::from(found));
            self.turn(CRAWL).await;
        }
    }

    /// Waits until nothing is written any more, for checks of what must not happen.
    pub async fn until_quiet(&self) {
        let (mut revision, mut quiet) = (0, 0);
        let started = std::time::Instant::now();
        while quiet < QUIET_TURNS {
            assert!(started.elapsed() < TIMEOUT, "the cluster never stops writing");
            self.turn(CRAWL).await;
            let current = self.server.handle.server.backend.store.revision();
            quiet = if current == revision { quiet + 1 } else { 0 };
            revision = current;
        }
    }

    /// Lets time pass in steps that are small against `duration`, then waits until everything is quiet.
    pub async fn advance(&self, duration: Duration) {
        const STEPS: u32 = 60;
        for _ in 0..STEPS {
            self.turn(duration / STEPS).await;
        }
        self.until_quiet().await;
    }

    /// Lets all tasks run, the kubelet too, and time move on.
    async fn turn(&self, duration: Duration) {
        let revision = self.server.handle.server.backend.store.revision();
        if self.synced.replace(revision) != revision {
            kubelet::sync(self).await;
        }
        self.time.advance(duration).await;
    }

    fn status_of(&self, pod: &Value) -> Option<Value> {
        self.kubelet.borrow().status(pod, self.now())
    }
}

/// The controllers' context: each has only the rights of its account.
fn context(server: &Arc<ApiServer>, settings: Settings, metrics: &Metrics) -> Context {
    let manager = client(server, metrics, sender("system:kube-controller-manager", &["system:authenticated"]));
    let (server, metrics) = (server.clone(), metrics.clone());
    Context::new(manager, settings).at(metrics.time.clock()).with_accounts(Arc::new(move |account| {
        let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
        client(&server, &metrics, sender(&format!("system:serviceaccount:kube-system:{account}"), &groups))
    }))
}

/// A client whose requests go to the server without a connection.
fn client(server: &Arc<ApiServer>, metrics: &Metrics, sender: Sender) -> Client {
    let (server, metrics) = (server.clone(), metrics.clone());
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let (server, metrics, sender) = (server.clone(), metrics.clone(), sender.clone());
        let uri = request.uri().clone();
        async move {
            if let Some(response) = metrics.respond(&server, &uri).await {
                return Ok::<_, Infallible>(response.map(Either::Left));
            }
            Ok(server.handle(request, &sender).await.map(Either::Right))
        }
    });
    Client::new(service, NAMESPACE)
}

/// The text of a value that is one, or nothing.
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub fn name_of(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}

pub fn names(objects: &[Value]) -> Vec<&str> {
    objects.iter().map(name_of).collect()
}

/// Whether the controller of an object is the named one.
pub fn is_controlled_by(object: &Value, owner: &str) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|reference| reference["controller"] == true && reference["name"] == owner)
}

/// A condition of an object's status.
pub fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    let conditions = object["status"]["conditions"].as_array();
    conditions.into_iter().flatten().find(|condition| condition["type"] == kind).unwrap_or(&Value::Null)
}

/// A pod template with one container and a label.
pub fn template(app: &str) -> Value {
    json!({"metadata": {"labels": {"app": app}}, "spec": {"containers": [{"name": "c", "image": "image:1"}]}})
}
