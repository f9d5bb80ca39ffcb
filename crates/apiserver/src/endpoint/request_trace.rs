//! The span of a request, and of what it waits for.

use http::request::Parts;
use knarr_traces::{Kind, Parent, Span, TraceContext, Tracer};

use crate::request::{GROUP_MASTERS, Target, User};

/// Users of these groups decide by their own traces what is sampled.
const TRUSTED: [&str; 2] = [GROUP_MASTERS, "system:monitoring"];

/// Starts the span of a request, if it is sampled.
pub fn start(tracer: &Tracer, parts: &Parts, target: &Target, user: &User, audit_id: &str) -> Option<Span> {
    let parent = match TraceContext::of_headers(&parts.headers) {
        None => Parent::None,
        Some(context) if user.groups.iter().any(|group| TRUSTED.contains(&group.as_str())) => Parent::Trusted(context),
        Some(context) => Parent::Linked(context),
    };
    let mut span = tracer.span(name(parts, target), Kind::Server, parent)?;
    span.text("http.request.method", parts.method.as_str());
    // Without the query, which may hold what a user types into a container.
    span.text("url.path", parts.uri.path());
    span.text("audit-id", audit_id);
    if let Some(agent) = parts.headers.get(http::header::USER_AGENT).and_then(|agent| agent.to_str().ok()) {
        span.text("user_agent.original", agent);
    }
    Some(span)
}

/// The method and the path without names, so that requests of a kind have the same name.
fn name(parts: &Parts, target: &Target) -> String {
    let method = parts.method.as_str();
    if !target.is_resource() {
        return method.to_owned();
    }
    let mut name = format!("{method} /{}", if target.group.is_empty() { "api" } else { "apis" });
    let parts = [
        target.group.as_str(),
        &target.version,
        if target.namespace.is_empty() { "" } else { "namespaces/{:namespace}" },
        &target.resource,
        if target.name.is_empty() { "" } else { "{:name}" },
        &target.subresource,
    ];
    for part in parts.into_iter().filter(|part| !part.is_empty()) {
        name.push('/');
        name.push_str(part);
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Sender;
    use crate::request_tests::{Cluster, MAPS, admin};
    use crate::route::query::Query;
    use crate::route::target::route;

    #[tokio::test]
    async fn administrators_decide_what_is_sampled_and_others_do_not() {
        let cluster = Cluster::new().await;
        let tracer = Tracer::without_collector(0);
        assert!(cluster.server().telemetry.tracer.set(tracer.clone()).is_ok());
        let send = async |sender: &Sender| {
            let request = http::Request::get(MAPS)
                .header("traceparent", "00-0000000000000000000000000000002a-00f067aa0ba902b7-01")
                .body(http_body_util::Empty::<bytes::Bytes>::new())
                .unwrap();
            cluster.server().handle(request, sender).await
        };
        send(&Sender::Remote(None)).await;
        assert_eq!(tracer.waiting(), []);
        drop(send(&admin()).await);
        let name = "GET /api/v1/namespaces/{:namespace}/configmaps".to_owned();
        assert_eq!(tracer.waiting(), [(name, 42)]);
    }

    #[test]
    fn spans_are_named_by_what_requests_have_in_common() {
        for (method, path, expected) in [
            ("GET", "/api/v1/namespaces/web/pods/one/log", "GET /api/v1/namespaces/{:namespace}/pods/{:name}/log"),
            (
                "POST",
                "/apis/apps/v1/namespaces/web/deployments",
                "POST /apis/apps/v1/namespaces/{:namespace}/deployments",
            ),
            ("GET", "/api/v1/nodes", "GET /api/v1/nodes"),
            ("GET", "/healthz", "GET"),
        ] {
            let (parts, ()) = http::Request::builder().method(method).uri(path).body(()).unwrap().into_parts();
            let routed = route(&parts.method, path, &Query::parse(""));
            assert_eq!(name(&parts, &routed.target), expected);
        }
    }
}
