//! API priority and fairness: finds the FlowSchema and priority level of each request.
//!
//! The objects are compiled when they change; a request reads the compiled form without a lock. Requests are only
//! classified: a queue set per priority level would use the [`Class`] of a request to decide when it may run.

mod classify;
pub mod ensure;
mod status;

pub use classify::{Class, Classifier};

use std::sync::Arc;

use arc_swap::ArcSwapOption;

use crate::deadline;
use crate::object_reader::ObjectReader;
use crate::request::{Target, User};
use crate::state::ApiServer;

pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
pub const SCHEMAS: &str = "flowschemas";
pub const LEVELS: &str = "prioritylevelconfigurations";

/// The current classifier; empty until the objects are loaded for the first time.
#[derive(Default)]
pub struct Fairness(ArcSwapOption<Classifier>);

impl Fairness {
    /// Compiles the current objects.
    pub fn load(&self, objects: &dyn ObjectReader) {
        let classifier = Classifier::new(&objects.list(GROUP, SCHEMAS, ""), &objects.list(GROUP, LEVELS, ""));
        self.0.store(Some(Arc::new(classifier)));
    }

    /// Whether the objects were loaded.
    pub fn is_loaded(&self) -> bool {
        self.0.load().is_some()
    }

    /// The class of a request. Streams have none: they hold no seat.
    pub fn classify(&self, user: &User, target: &Target) -> Option<Arc<Class>> {
        if target.verb != "watch" && deadline::is_long_running(target) {
            return None;
        }
        self.0.load().as_ref().map(|classifier| classifier.classify(user, target).clone())
    }
}

/// Keeps the classifier, the built-in objects and the schemas' status up to date until the server stops.
pub async fn run(server: Arc<ApiServer>) {
    tokio::join!(status::run(server.clone()), ensure::run(server));
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::Request;
    use http_body_util::Full;
    use serde_json::Value;

    use super::*;
    use crate::request::Sender;
    use crate::request_tests::Cluster;

    #[tokio::test]
    async fn responses_name_the_schema_and_the_level_by_uid() {
        let cluster = Cluster::new().await;
        let admin = User::named("admin", &["system:masters", "system:authenticated"]);
        let ann = User::named("ann", &["system:authenticated"]);
        for (user, path, code, expected) in [
            (&admin, "/api/v1/nodes", 200, Some(("exempt", "exempt"))),
            (&ann, "/version", 200, Some(("global-default", "global-default"))),
            (&ann, "/api/v1/namespaces/a/secrets", 403, Some(("global-default", "global-default"))),
            (&ann, "/livez", 200, Some(("probes", "exempt"))),
            (&admin, "/api/v1/namespaces/default/pods/p/log", 404, None),
        ] {
            let request = Request::get(path).body(Full::new(Bytes::new())).unwrap();
            let response = cluster.server().handle(request, &Sender::Trusted(Arc::new(user.clone()))).await;
            assert_eq!(response.status(), code, "{path}");
            let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap().to_owned());
            let headers = (header("x-kubernetes-pf-flowschema-uid"), header("x-kubernetes-pf-prioritylevel-uid"));
            let uid = async |plural: &str, name: &str| {
                let object = cluster.json("GET", &format!("/apis/{GROUP}/v1/{plural}/{name}"), Value::Null).await.1;
                Some(object["metadata"]["uid"].as_str().unwrap().to_owned())
            };
            let expected = match expected {
                Some((schema, level)) => (uid(SCHEMAS, schema).await, uid(LEVELS, level).await),
                None => (None, None),
            };
            assert_eq!(headers, expected, "{} {path}", user.name);
        }
    }
}
