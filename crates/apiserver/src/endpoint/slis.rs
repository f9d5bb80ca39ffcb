//! Results of health checks as service level indicators in Prometheus format.

use http::Response;
use knarr_metrics::Indicators;

use crate::response::{self, Body};

/// Handles `/metrics/slis`.
pub fn serve(indicators: &Indicators) -> Response<Body> {
    response::with_type(200, "text/plain; version=0.0.4; charset=utf-8", Body::full(indicators.page().into_bytes()))
}

#[cfg(test)]
mod tests {
    use crate::request_tests::{Cluster, admin};
    use http::Request;
    use http_body_util::{BodyExt, Empty};

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
