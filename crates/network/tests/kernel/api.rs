//! A fake API server for list and watch.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures::StreamExt;
use http::{Request, Response};
use http_body_util::StreamBody;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use knarr_client::Informers;
use knarr_client::kube::Client;
use knarr_client::kube::client::Body;
use serde_json::{Value, json};
use tokio::sync::mpsc;

pub const SERVICES: &str = "/api/v1/services";
pub const PODS: &str = "/api/v1/pods";
pub const NAMESPACES: &str = "/api/v1/namespaces";
pub const POLICIES: &str = "/apis/networking.k8s.io/v1/networkpolicies";
pub const NODES: &str = "/api/v1/nodes";
pub const SERVICE_CIDRS: &str = "/apis/networking.k8s.io/v1/servicecidrs";
pub const SLICES: &str = "/apis/discovery.k8s.io/v1/endpointslices";

#[derive(Clone, Default)]
pub struct Api {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    version: u64,
    objects: HashMap<&'static str, HashMap<String, Value>>,
    watchers: HashMap<String, Vec<mpsc::UnboundedSender<Bytes>>>,
    /// All events so far: version, path, event. A watch starts where its list ended.
    past: Vec<(u64, String, Bytes)>,
}

impl Api {
    pub fn informers(&self) -> Informers {
        let state = Arc::clone(&self.state);
        let service = tower::service_fn(move |request: Request<Body>| {
            let response = response(&state, &request);
            async move { Ok::<_, Infallible>(response) }
        });
        Informers::new(Client::new(service, "default"))
    }

    /// Creates or updates an object.
    pub fn put(&self, path: &'static str, mut object: Value) {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        object["metadata"]["resourceVersion"] = json!(state.version.to_string());
        let key = key(&object);
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(key);
        }
        let kind = if state.objects.entry(path).or_default().insert(key, object.clone()).is_some() {
            "MODIFIED"
        } else {
            "ADDED"
        };
        record_event(&mut state, path, kind, &object);
    }

    pub fn delete(&self, path: &'static str, namespace: &str, name: &str) {
        let mut state = self.state.lock().unwrap();
        state.version += 1;
        if let Some(object) = state.objects.entry(path).or_default().remove(&format!("{namespace}/{name}")) {
            record_event(&mut state, path, "DELETED", &object);
        }
    }
}

fn key(object: &Value) -> String {
    let of = |field: &str| object["metadata"][field].as_str().unwrap_or_default();
    format!("{}/{}", of("namespace"), of("name"))
}

fn record_event(state: &mut State, path: &str, kind: &str, object: &Value) {
    let line = Bytes::from(format!("{}\n", json!({"type": kind, "object": object})));
    state.past.push((state.version, path.to_owned(), line.clone()));
    if let Some(watchers) = state.watchers.get_mut(path) {
        watchers.retain(|watcher| watcher.send(line.clone()).is_ok());
    }
}

fn response(state: &Mutex<State>, request: &Request<Body>) -> Response<UnsyncBoxBody<Bytes, Infallible>> {
    let mut state = state.lock().unwrap();
    let path = request.uri().path();
    let query = request.uri().query().unwrap_or_default();
    let is_watch = query.split('&').any(|part| part == "watch=true" || part == "watch=1");
    let body = if is_watch {
        let (sender, receiver) = mpsc::unbounded_channel();
        let since = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
        let since: u64 = since.and_then(|text| text.parse().ok()).unwrap_or(0);
        for (_, _, line) in state.past.iter().filter(|(version, other, _)| *version > since && other == path) {
            let _ = sender.send(line.clone());
        }
        state.watchers.entry(path.to_owned()).or_default().push(sender);
        let frames = futures::stream::unfold(receiver, |mut receiver| async move {
            receiver.recv().await.map(|line| (line, receiver))
        });
        let frames = frames.map(|line| Ok::<_, Infallible>(http_body::Frame::data(line)));
        StreamBody::new(frames).boxed_unsync()
    } else {
        let items: Vec<&Value> = state.objects.get(path).into_iter().flat_map(|objects| objects.values()).collect();
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": state.version.to_string()},
            "items": items});
        Full::new(Bytes::from(list.to_string())).boxed_unsync()
    };
    Response::builder().header("content-type", "application/json").body(body).unwrap()
}
