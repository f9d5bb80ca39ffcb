//! The API server for tests, as far as mounts use it.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIDriver;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::ApiObjects;
use super::tests::DRIVER;

#[derive(Default)]
pub struct FakeApi {
    pub objects: Mutex<BTreeMap<String, Value>>,
    pub requests: Mutex<Vec<(String, Value)>>,
    pub driver: Mutex<Option<CSIDriver>>,
    pub node: Mutex<Value>,
}

impl FakeApi {
    pub fn client(self: &Arc<Self>) -> kube::Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let api = api.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = http_body_util::BodyExt::collect(body).await.expect("a body").to_bytes();
                let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
                Ok::<_, std::io::Error>(api.respond(&parts, body))
            }
        });
        kube::Client::new(service, "default")
    }

    fn respond(&self, request: &http::request::Parts, body: Value) -> http::Response<kube::client::Body> {
        let path = request.uri.path().to_string();
        if request.method != http::Method::GET {
            self.requests.lock().push((format!("{} {path}", request.method), body.clone()));
        }
        let path = path.trim_end_matches("/status").to_string();
        let (code, value) = match request.method.as_str() {
            "GET" => match self.objects.lock().get(&path) {
                Some(value) => (200, value.clone()),
                None => (
                    404,
                    json!({ "kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404,
                    "message": format!("{path} not found") }),
                ),
            },
            "POST" => {
                let name = body["metadata"]["name"].as_str().unwrap_or_default();
                self.objects.lock().insert(format!("{path}/{name}"), body.clone());
                (201, body)
            }
            "PUT" => {
                self.objects.lock().insert(path, body.clone());
                (200, body)
            }
            "PATCH" => {
                let mut objects = self.objects.lock();
                let known = objects.entry(path).or_default();
                merge(known, &body);
                (200, known.clone())
            }
            _ => (200, json!({})),
        };
        let body = kube::client::Body::from(value.to_string().into_bytes());
        http::Response::builder().status(code).body(body).expect("a response")
    }

    pub fn put(&self, path: &str, value: Value) {
        self.objects.lock().insert(path.to_string(), value);
    }

    pub fn set_driver(&self, spec: Value) {
        let driver = json!({ "metadata": { "name": DRIVER }, "spec": spec });
        *self.driver.lock() = Some(serde_json::from_value(driver).expect("a driver"));
    }
}

pub fn merge(known: &mut Value, change: &Value) {
    let Value::Object(fields) = change else {
        *known = change.clone();
        return;
    };
    if !known.is_object() {
        *known = json!({});
    }
    for (name, value) in fields {
        match value {
            Value::Null => drop(known.as_object_mut().expect("an object").remove(name)),
            value => merge(&mut known[name], value),
        }
    }
}

impl ApiObjects for FakeApi {
    fn node(&self) -> Option<Arc<Node>> {
        let node = self.node.lock().clone();
        (!node.is_null()).then(|| Arc::new(serde_json::from_value(node).expect("a node")))
    }

    fn driver<'a>(&'a self, _name: &'a str) -> BoxFuture<'a, Option<Arc<CSIDriver>>> {
        let driver = self.driver.lock().clone().map(Arc::new);
        Box::pin(async move { driver })
    }
}
