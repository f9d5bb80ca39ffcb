//! The API of resource metrics, as far as the autoscaler uses it: every pod uses the same amount of CPU.

use std::sync::Arc;

use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full};
use knarr_apiserver::state::ApiServer;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::sender;
use super::time::Time;

const PREFIX: &str = "/apis/metrics.k8s.io/v1beta1/";

/// The CPU that each pod uses, in millicores; nothing if there are no metrics.
#[derive(Clone)]
pub struct Metrics {
    pub usage: Arc<Mutex<Option<u64>>>,
    pub time: Arc<Time>,
}

impl Metrics {
    /// The response to a request for metrics, or nothing if it is for something else.
    pub async fn respond(&self, server: &Arc<ApiServer>, uri: &Uri) -> Option<Response<Full<Bytes>>> {
        let path = uri.path().strip_prefix(PREFIX)?;
        let Some(usage) = *self.usage.lock() else {
            let refused = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404,
                "message": "the server could not find the requested resource"});
            return Some(respond(404, &refused));
        };
        let pods = format!("/api/v1/{path}?{}", uri.query().unwrap_or_default());
        let listing = Request::builder().uri(pods).body(Full::new(Bytes::new())).expect("a request");
        let listed = server.handle(listing, &sender("admin", &["system:masters"])).await;
        let bytes = listed.into_body().collect().await.expect("a body").to_bytes();
        let list: Value = serde_json::from_slice(&bytes).expect("a list");
        let now = self.time.now().to_string();
        let items: Vec<Value> = list["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pod| {
                json!({"metadata": {"name": pod["metadata"]["name"]}, "timestamp": now, "window": "10s",
                    "containers": [{"name": "c", "usage": {"cpu": format!("{usage}m")}}]})
            })
            .collect();
        Some(respond(200, &json!({"kind": "PodMetricsList", "items": items})))
    }
}

fn respond(code: u16, value: &Value) -> Response<Full<Bytes>> {
    let body = Full::new(Bytes::from(value.to_string()));
    Response::builder().status(code).body(body).expect("a response")
}
