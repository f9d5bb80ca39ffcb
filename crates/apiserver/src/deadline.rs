//! Request timeouts.
//!
//! Watches, logs and streams have none; every other request gets a response by its deadline, so that a client never waits
//! for a hung peer of this server.

use std::time::Duration;

use knarr_api::go_duration;
use knarr_api::status::Status;

use crate::request::Target;
use crate::route::query::Query;

/// The timeout of a request, at most and by default `max`; `None` for a long-running one.
pub fn timeout(target: &Target, query: &Query, max: Duration) -> Result<Option<Duration>, Status> {
    if is_long_running(target) {
        return Ok(None);
    }
    match query.text("timeout") {
        "" => Ok(Some(max)),
        text => match go_duration::parse(text) {
            // As in Kubernetes, a duration that is not positive means the default.
            Ok(nanoseconds) => match u64::try_from(nanoseconds) {
                Ok(positive) if positive > 0 => Ok(Some(Duration::from_nanos(positive).min(max))),
                _ => Ok(Some(max)),
            },
            Err(why) => Err(Status::bad_request(format!("invalid timeout specified in the request URL - {why}"))),
        },
    }
}

/// Whether a request may stay open: a watch, a log or a stream.
pub fn is_long_running(target: &Target) -> bool {
    let streams = matches!(target.subresource.as_str(), "attach" | "exec" | "proxy" | "log" | "portforward");
    target.verb == "watch" || target.is_resource() && streams
}

/// The response to a request that exceeded its timeout.
pub fn exceeded() -> Status {
    Status::timeout("Timeout: request did not complete within the allotted timeout").with_empty_details()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_tests::{Cluster, MAPS, admin};
    use bytes::Bytes;
    use http_body_util::{BodyExt, StreamBody};
    use serde_json::Value;

    fn target(verb: &str, resource: &str, subresource: &str) -> Target {
        Target {
            verb: verb.into(),
            resource: resource.into(),
            subresource: subresource.into(),
            path: "/x".into(),
            ..Target::default()
        }
    }

    #[test]
    fn the_timeout_parameter_is_parsed_and_limited() {
        let timeout_of = |text: &str| {
            timeout(&target("get", "pods", ""), &Query::parse(&format!("timeout={text}")), Duration::from_secs(60))
        };
        for (text, expected) in [
            ("", 60_000),
            ("0", 60_000),
            ("0s", 60_000),
            ("-5s", 60_000),
            ("5s", 5_000),
            ("1.5s", 1_500),
            ("1m", 60_000),
            ("30s500ms", 30_500),
            ("10h", 60_000),
        ] {
            let parsed = timeout_of(text).unwrap().unwrap();
            assert_eq!(parsed.as_millis(), expected, "{text}");
        }
        for (text, why) in [
            ("invalid", "time: invalid duration \"invalid\""),
            ("10", "time: missing unit in duration \"10\""),
            ("10x", "time: unknown unit \"x\" in duration \"10x\""),
            ("s", "time: invalid duration \"s\""),
            (".s", "time: invalid duration \".s\""),
            ("1..5s", "time: missing unit in duration \"1..5s\""),
            ("-", "time: invalid duration \"-\""),
            ("99999999999h", "time: invalid duration \"99999999999h\""),
        ] {
            let refused = timeout_of(text).unwrap_err();
            let expected = format!("invalid timeout specified in the request URL - {why}");
            assert_eq!((refused.code, refused.message), (400, expected), "{text}");
        }
    }

    #[test]
    fn long_running_requests_have_no_deadline() {
        for (verb, resource, subresource, long) in [
            ("watch", "pods", "", true),
            ("get", "pods", "log", true),
            ("create", "pods", "exec", true),
            ("get", "nodes", "proxy", true),
            ("list", "pods", "", false),
            ("get", "pods", "status", false),
        ] {
            let found = timeout(&target(verb, resource, subresource), &Query::parse("timeout=invalid"), Duration::MAX);
            assert_eq!(matches!(found, Ok(None)), long, "{verb} {resource}/{subresource}");
        }
    }

    #[tokio::test]
    async fn a_wrong_timeout_is_refused_before_anything_else() {
        let cluster = Cluster::new().await;
        let (code, status) = cluster.json("GET", &format!("{MAPS}?timeout=invalid"), Value::Null).await;
        assert_eq!((code, status["reason"].as_str()), (400, Some("BadRequest")));
        let expected = "invalid timeout specified in the request URL - time: invalid duration \"invalid\"";
        assert_eq!(status["message"], expected);
    }

    #[tokio::test]
    async fn a_slow_request_gets_a_timeout_response_at_its_deadline() {
        let cluster = Cluster::new().await;
        tokio::time::pause();
        let started = tokio::time::Instant::now();
        let never = futures::stream::pending::<Result<http_body::Frame<Bytes>, std::io::Error>>();
        let request = http::Request::post(format!("{MAPS}?timeout=7s")).body(StreamBody::new(never)).unwrap();
        let response = cluster.server().handle(request, &admin()).await;
        assert_eq!(response.status(), 504);
        assert_eq!(started.elapsed().as_secs(), 7);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(status["message"], "Timeout: request did not complete within the allotted timeout");
        assert_eq!(status["reason"], "Timeout");
    }
}
