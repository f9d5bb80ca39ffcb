//! Results of health checks as service level indicators in Prometheus format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use http::Response;
use parking_lot::Mutex;

use crate::response::{self, Body};

/// Results of health checks since the start, by check and endpoint.
#[derive(Default)]
pub struct Indicators(Mutex<BTreeMap<(Arc<str>, &'static str), Results>>);

#[derive(Default)]
struct Results {
    passed_last: bool,
    passed: u64,
    failed: u64,
}

impl Indicators {
    pub fn record(&self, check: &Arc<str>, endpoint: &'static str, passed: bool) {
        let mut all = self.0.lock();
        let results = all.entry((check.clone(), endpoint)).or_default();
        results.passed_last = passed;
        *(if passed { &mut results.passed } else { &mut results.failed }) += 1;
    }

    fn page(&self) -> String {
        let all = self.0.lock();
        let mut out = String::new();
        let head = |out: &mut String, name: &str, help: &str, kind: &str| {
            let _ = writeln!(out, "# HELP {name} [STABLE] {help}\n# TYPE {name} {kind}");
        };
        let name = "kubernetes_healthcheck";
        head(&mut out, name, "Last result of each health check: 1 passed, 0 failed.", "gauge");
        for ((check, endpoint), results) in all.iter() {
            let last = u8::from(results.passed_last);
            let _ = writeln!(out, "{name}{{name={check:?},type={endpoint:?}}} {last}");
        }
        let name = "kubernetes_healthchecks_total";
        head(&mut out, name, "Results of health checks, by outcome.", "counter");
        for ((check, endpoint), results) in all.iter() {
            for (status, count) in [("error", results.failed), ("success", results.passed)] {
                if count > 0 {
                    let _ = writeln!(out, "{name}{{name={check:?},status={status:?},type={endpoint:?}}} {count}");
                }
            }
        }
        out
    }
}

/// Handles `/metrics/slis`.
pub fn serve(indicators: &Indicators) -> Response<Body> {
    response::with_type(200, "text/plain; version=0.0.4; charset=utf-8", Body::full(indicators.page().into_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_tests::{Cluster, admin};
    use http::Request;
    use http_body_util::{BodyExt, Empty};

    #[test]
    fn checks_are_counted_by_result() {
        let indicators = Indicators::default();
        for passed in [true, true, false] {
            indicators.record(&"etcd".into(), "readyz", passed);
        }
        let page = indicators.page();
        for line in [
            "# TYPE kubernetes_healthcheck gauge",
            "kubernetes_healthcheck{name=\"etcd\",type=\"readyz\"} 0",
            "kubernetes_healthchecks_total{name=\"etcd\",status=\"error\",type=\"readyz\"} 1",
            "kubernetes_healthchecks_total{name=\"etcd\",status=\"success\",type=\"readyz\"} 2",
        ] {
            assert!(page.lines().any(|own| own == line), "{line} in {page}");
        }
    }

    #[tokio::test]
    async fn executed_checks_are_reported() {
        let cluster = Cluster::new().await;
        let get = async |path: &str| {
            let request = Request::get(path).body(Empty::<bytes::Bytes>::new()).unwrap();
            let response = cluster.server().handle(request, &admin()).await;
            let code = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (code, String::from_utf8(body.to_vec()).unwrap())
        };
        assert_eq!(get("/livez?exclude=storage-quota").await.0, 200);
        let (code, page) = get("/metrics/slis").await;
        assert_eq!(code, 200);
        assert!(page.contains("kubernetes_healthcheck{name=\"ping\",type=\"livez\"} 1\n"), "{page}");
        assert!(page.contains("kubernetes_healthchecks_total{name=\"etcd\",status=\"success\",type=\"livez\"} 1\n"));
        assert!(!page.contains("name=\"storage-quota\""), "what was left out was not run");
    }
}
