//! EventRateLimit: limits how many events are written, by server, namespace, user, or source and object.

use std::collections::HashMap;
use std::time::Instant;

use async_trait::async_trait;
use knarr_api::field::{Errors, Path};
use knarr_api::status::Status;
use knarr_api::value::Read;
use parking_lot::Mutex;
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::{Operation, Plugin, Write};
use crate::configuration_file::{Kind, Shape};
use crate::object_reader::ObjectReader;

const FILE: Kind = Kind {
    group: "eventratelimit.admission.k8s.io",
    versions: &["v1alpha1"],
    kind: "Configuration",
    fields: &[(
        "limits",
        Shape::List(&Shape::Object(&[
            ("type", Shape::Text),
            ("qps", Shape::Integer),
            ("burst", Shape::Integer),
            ("cacheSize", Shape::Integer),
        ])),
    )],
};

const TYPES: [&str; 4] = ["Server", "Namespace", "User", "SourceAndObject"];
const DEFAULT_CACHE_SIZE: usize = 4096;

/// The limits, each of which an event must be within.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventRateLimitSettings(Vec<Limit>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Limit {
    kind: String,
    qps: u32,
    burst: u32,
    cache_size: usize,
}

impl EventRateLimitSettings {
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut errors = Errors::new();
        let document =
            if text.is_empty() { Value::Null } else { FILE.decode(text).map_err(|error| error.to_string())? };
        let root = Path::root("limits");
        let limits = document.items(&["limits"]);
        if limits.is_empty() {
            errors.invalid_verbatim(&root, "[]", "must have at least one limit");
        }
        let read = |index: usize, limit: &Value, errors: &mut Errors| {
            let path = root.index(index);
            let kind = limit.text(&["type"]);
            if !TYPES.contains(&kind) {
                errors.not_supported(&path.child("type"), kind, &TYPES);
            }
            let number = |field: &'static str, errors: &mut Errors| -> u32 {
                let given = limit.integer(&[field]).unwrap_or(0);
                match u32::try_from(given) {
                    Ok(number) if number > 0 => number,
                    _ => {
                        errors.invalid(&path.child(field), given, "must be positive");
                        0
                    }
                }
            };
            let (burst, qps) = (number("burst", errors), number("qps", errors));
            let size = limit.integer(&["cacheSize"]).unwrap_or(0);
            if size < 0 && kind != "Server" {
                errors.invalid(&path.child("cacheSize"), size, "must not be negative");
            }
            let cache_size = usize::try_from(size).ok().filter(|size| *size > 0).unwrap_or(DEFAULT_CACHE_SIZE);
            Limit { kind: kind.to_owned(), qps, burst, cache_size }
        };
        let limits: Vec<Limit> =
            limits.iter().enumerate().map(|(index, limit)| read(index, limit, &mut errors)).collect();
        match errors.0.as_slice() {
            [] => Ok(EventRateLimitSettings(limits)),
            [one] => Err(one.to_string()),
            many => Err(format!("[{}]", many.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))),
        }
    }
}

pub struct EventRateLimit(Vec<Enforcer>);

struct Enforcer {
    limit: Limit,
    /// By a hash of the key, which holds texts of any length that users choose.
    buckets: Mutex<HashMap<[u8; 32], Bucket>>,
}

struct Bucket {
    tokens: f64,
    filled: Instant,
}

impl Enforcer {
    fn accepts(&self, key: &str, now: Instant) -> bool {
        let key: [u8; 32] = Sha256::digest(key.as_bytes()).into();
        let mut buckets = self.buckets.lock();
        if buckets.len() >= self.limit.cache_size && !buckets.contains_key(&key) {
            // The least recently used is forgotten.
            let oldest = buckets.iter().min_by_key(|(_, bucket)| bucket.filled).map(|(key, _)| *key);
            oldest.and_then(|key| buckets.remove(&key));
        }
        let burst = f64::from(self.limit.burst);
        let bucket = buckets.entry(key).or_insert(Bucket { tokens: burst, filled: now });
        let elapsed = now.saturating_duration_since(bucket.filled).as_secs_f64();
        bucket.tokens = burst.min(bucket.tokens + elapsed * f64::from(self.limit.qps));
        bucket.filled = now;
        let accepts = bucket.tokens >= 1.0;
        if accepts {
            bucket.tokens -= 1.0;
        }
        accepts
    }
}

impl EventRateLimit {
    pub fn new(settings: &EventRateLimitSettings) -> Self {
        let enforcers = settings.0.iter().map(|limit| Enforcer { limit: limit.clone(), buckets: Mutex::default() });
        EventRateLimit(enforcers.collect())
    }

    fn check(&self, write: &Write<'_>, now: Instant) -> Result<(), Status> {
        let mut reached = Vec::new();
        for enforcer in &self.0 {
            let key = key(&enforcer.limit.kind, write);
            if !enforcer.accepts(&key, now) {
                reached.push(format!("limit reached on type {} for key {key}", enforcer.limit.kind));
            }
        }
        match reached.as_slice() {
            [] => Ok(()),
            [one] => Err(Status::too_many_requests(one.clone(), 0)),
            many => Err(Status::too_many_requests(format!("[{}]", many.join(", ")), 0)),
        }
    }
}

fn key(kind: &str, write: &Write<'_>) -> String {
    match kind {
        "Namespace" => write.namespace.to_owned(),
        "User" => write.user.name.clone(),
        "SourceAndObject" => {
            // The newer group names the same fields differently.
            let event = &*write.object;
            let either = |one: [&str; 2], other: [&str; 2]| match event.text(&one) {
                "" => event.text(&other).to_owned(),
                text => text.to_owned(),
            };
            let mut key = either(["source", "component"], ["deprecatedSource", "component"]);
            key.push_str(&either(["source", "host"], ["deprecatedSource", "host"]));
            for field in ["kind", "namespace", "name", "uid", "apiVersion"] {
                key.push_str(&either(["involvedObject", field], ["regarding", field]));
            }
            key
        }
        _ => String::new(),
    }
}

#[async_trait]
impl Plugin for EventRateLimit {
    fn name(&self) -> &'static str {
        "EventRateLimit"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update)
            && write.resource == "events"
            && matches!(write.group, "" | "events.k8s.io")
            && !write.dry_run
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        self.check(write, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;
    use std::time::Duration;

    fn parse(limits: &str) -> Result<EventRateLimitSettings, String> {
        EventRateLimitSettings::parse(&format!(
            "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\nlimits: {limits}\n"
        ))
    }

    #[tokio::test]
    async fn events_beyond_the_limit_are_refused() {
        let plugin = EventRateLimit::new(&parse("[{type: Namespace, qps: 1, burst: 2}]").unwrap());
        let none = Fixed::new(vec![]);
        let create = |namespace: &'static str| {
            let (plugin, none) = (&plugin, &none);
            async move {
                let event = json!({"kind": "Event", "metadata": {"name": "e", "namespace": namespace}});
                run(plugin, Operation::Create, ("", "events"), event, None, none).await.err()
            }
        };
        assert_eq!((create("a").await, create("a").await), (None, None));
        assert_eq!(create("a").await.as_deref(), Some("limit reached on type Namespace for key a"));
        assert_eq!(create("b").await, None, "another namespace");
    }

    #[test]
    fn buckets_are_filled_again_and_few() {
        let limit = Limit { kind: "User".into(), qps: 2, burst: 2, cache_size: 3 };
        let enforcer = Enforcer { limit, buckets: Mutex::default() };
        let start = Instant::now();
        assert!(enforcer.accepts("a", start) && enforcer.accepts("a", start) && !enforcer.accepts("a", start));
        assert!(enforcer.accepts("a", start + Duration::from_millis(500)));
        assert!(!enforcer.accepts("a", start + Duration::from_millis(500)));
        for index in 0..100 {
            enforcer.accepts(&index.to_string(), start + Duration::from_secs(1));
        }
        assert_eq!(enforcer.buckets.lock().len(), 3);
    }

    #[test]
    fn limits_are_checked() {
        assert_eq!(
            EventRateLimitSettings::parse(""),
            Err("limits: Invalid value: []: must have at least one limit".into())
        );
        assert_eq!(
            parse("[{type: Foo, qps: 1, burst: 1}]").unwrap_err(),
            "limits[0].type: Unsupported value: \"Foo\": supported values: \"Server\", \"Namespace\", \"User\", \
             \"SourceAndObject\""
        );
        assert_eq!(parse("[{type: User, burst: 1}]").unwrap_err(), "limits[0].qps: Invalid value: 0: must be positive");
    }
}
