//! API priority and fairness: finds the FlowSchema and priority level of each request, and lets it wait for seats there.
//!
//! The objects are compiled when they change; a request reads the compiled form without a lock, and then takes the lock of
//! its own level for a moment when it starts and when it ends. What a level decides is in `queue_set`, without time and
//! without waiting; `level` adds both.

mod allocation;
pub mod built_in;
mod classify;
mod demand;
mod dump;
mod estimate;
mod in_flight;
mod level;
mod metrics;
mod queue_set;
mod registry;
mod retry_after;
#[cfg(test)]
mod server_tests;
mod shuffle;
mod stats;
mod watch_counts;

pub use classify::{Class, Classifier};
pub use level::Refused;
pub use watch_counts::{CountedWatch, WatchCounts};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use knarr_store::{Range, Store};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;

use crate::deadline;
use crate::kinds::Kinds;
use crate::object_reader::ObjectReader;
use crate::selection::{Selection, topic};

use crate::request::{Target, User};
use crate::route::query::Query;
use estimate::{Estimate, MAX_LIST_BYTES};
use in_flight::InFlight;
use level::{Description, Level};
use registry::{KnownLevels, StatsRegistry};

pub const GROUP: &str = "flowcontrol.apiserver.k8s.io";
pub const SCHEMAS: &str = "flowschemas";
pub const LEVELS: &str = "prioritylevelconfigurations";

/// How long a request without a deadline may wait in its queue.
const DEFAULT_WAIT: Duration = Duration::from_secs(15);
/// How long any request may wait in its queue.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// How many requests are executed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FairnessSettings {
    /// Otherwise there are only the two limits below.
    pub enabled: bool,
    /// With `max_writes` in flight, the number of seats; 0 for no limit where fairness is disabled.
    pub max_reads: u32,
    pub max_writes: u32,
}

impl Default for FairnessSettings {
    fn default() -> FairnessSettings {
        FairnessSettings { enabled: true, max_reads: 400, max_writes: 200 }
    }
}

/// The current classifier and levels; empty until the objects are loaded for the first time.
pub struct Fairness {
    store: Arc<dyn Store>,
    kinds: Arc<ArcSwap<Kinds>>,
    current: ArcSwapOption<Config>,
    seats: AtomicU32,
    enabled: AtomicBool,
    /// The limits that hold where fairness is disabled.
    in_flight: ArcSwapOption<InFlight>,
    loading: Mutex<()>,
    stats: StatsRegistry,
    watches: Arc<WatchCounts>,
}

struct Config {
    classifier: Classifier,
    levels: Vec<Arc<Level>>,
}

/// What entitles a request to execute. Dropping it lets the next one start.
pub enum Permit {
    Seats(level::Permit),
    InFlight(OwnedSemaphorePermit),
}

impl Fairness {
    pub fn new(store: Arc<dyn Store>, kinds: Arc<ArcSwap<Kinds>>) -> Fairness {
        let FairnessSettings { enabled, max_reads, max_writes } = FairnessSettings::default();
        Fairness {
            store,
            kinds,
            current: ArcSwapOption::empty(),
            seats: AtomicU32::new(max_reads + max_writes),
            enabled: AtomicBool::new(enabled),
            in_flight: ArcSwapOption::empty(),
            loading: Mutex::default(),
            stats: StatsRegistry::default(),
            watches: Arc::default(),
        }
    }

    /// Changes the limits of the server.
    pub fn configure(&self, settings: FairnessSettings, objects: &dyn ObjectReader) {
        let FairnessSettings { enabled, max_reads, max_writes } = settings;
        self.enabled.store(enabled, Ordering::Relaxed);
        self.seats.store(max_reads.saturating_add(max_writes), Ordering::Relaxed);
        self.in_flight.store((!enabled).then(|| Arc::new(InFlight::new(max_reads, max_writes))));
        self.load(objects);
    }

    /// Compiles the current objects. If they cannot be read, the last ones stay in effect.
    pub fn load(&self, objects: &dyn ObjectReader) {
        let read = |resource: &str| objects.read_all(GROUP, resource, "");
        let (schemas, levels) = match (read(SCHEMAS), read(LEVELS)) {
            (Ok(schemas), Ok(levels)) => (schemas, levels),
            (Err(error), _) | (_, Err(error)) => {
                tracing::error!(%error, "cannot read the configuration of priority and fairness");
                return;
            }
        };
        let _loading = self.loading.lock();
        let before = self.current.load_full();
        let before = before.as_ref().map_or(&[][..], |config| &config.levels[..]);
        let known = KnownLevels::new(&levels, before);
        let levels = known.with_quiescing(before);
        registry::divide(&levels, self.seats.load(Ordering::Relaxed));
        let classifier = Classifier::new(&schemas, &known, &self.stats);
        self.current.store(Some(Arc::new(Config { classifier, levels })));
    }

    /// Whether requests can be limited: the objects were loaded, unless they are not needed.
    pub fn is_loaded(&self) -> bool {
        !self.is_enabled() || self.current.load().is_some()
    }

    /// Whether there are priority levels instead of two limits.
    pub fn is_enabled(&self) -> bool {
        self.enabled.load(Ordering::Relaxed)
    }

    /// The open watches.
    pub fn watches(&self) -> &Arc<WatchCounts> {
        &self.watches
    }

    /// The class of a request. Streams have none: they hold no seat.
    pub fn classify(&self, user: &User, target: &Target) -> Option<Arc<Class>> {
        if !self.is_enabled() || target.verb != "watch" && deadline::is_long_running(target) {
            return None;
        }
        self.current.load().as_ref()?.classifier.classify(user, target).cloned()
    }

    fn levels(&self) -> Vec<Arc<Level>> {
        self.current.load().as_ref().map(|config| config.levels.clone()).unwrap_or_default()
    }

    /// Lends seats again, and drops levels whose objects are gone and whose requests have finished.
    pub fn rebalance(&self, objects: &dyn ObjectReader) {
        let levels = self.levels();
        let is_done = |level: &Arc<Level>| level.read(|state| state.quiescing && state.set.is_idle());
        if levels.iter().any(is_done) {
            self.load(objects);
        } else {
            registry::rebalance(&levels);
        }
    }

    /// Lets a request wait until it may execute. `class` is that of the request; `timeout` is counted from `received`.
    pub async fn wait_for_seats(
        &self,
        class: Option<&Arc<Class>>,
        user: &Arc<User>,
        target: &Target,
        query: &Query,
        received: std::time::Instant,
        timeout: Option<Duration>,
    ) -> Result<Option<Permit>, Refused> {
        let Some(class) = class else {
            let limits = self.in_flight.load();
            let Some(limits) = limits.as_ref().filter(|_| !deadline::is_long_running(target)) else { return Ok(None) };
            let permit = limits.acquire(user, target).map_err(|in_flight::LimitReached| Refused { retry_after: 1 })?;
            return Ok(permit.map(Permit::InFlight));
        };
        let estimate = self.estimate(class, target, query);
        let flow = class.flow(user, target);
        let hash = if class.exempt { 0 } else { shuffle::hash_flow(&class.schema, &flow) };
        let wait = timeout.map_or(DEFAULT_WAIT, |timeout| timeout / 4).min(MAX_WAIT);
        let give_up = Instant::from_std(received) + wait;
        let description = Description {
            schema: class.schema.clone(),
            distinguisher: flow,
            user: user.clone(),
            target: target.clone(),
        };
        let permit = class.level.acquire(&class.stats, hash, estimate, description, give_up).await?;
        Ok(Some(Permit::Seats(permit)))
    }

    fn estimate(&self, class: &Class, target: &Target, query: &Query) -> Estimate {
        match target.verb.as_str() {
            "list" => self.estimate_list(class, target, query),
            "watch" => {
                let starts_with_state =
                    query.flag("sendInitialEvents") == Some(true) || matches!(query.text("resourceVersion"), "" | "0");
                if starts_with_state { self.estimate_list(class, target, query) } else { Estimate::seats(1) }
            }
            "create" | "update" | "patch" | "delete"
                if (&*target.resource, &*target.subresource) != ("serviceaccounts", "token") =>
            {
                Estimate::write(self.watches.interested(target), class.level.max_seats())
            }
            _ => Estimate::seats(1),
        }
    }

    fn estimate_list(&self, class: &Class, target: &Target, query: &Query) -> Estimate {
        let kinds = self.kinds.load();
        let resource = kinds.resource(&target.group, &target.version, &target.resource);
        let Some(resource) = resource.filter(|own| own.storage().is_some() && target.name.is_empty()) else {
            return Estimate::seats(1);
        };
        let limit = query.integer("limit").ok().flatten().and_then(|limit| usize::try_from(limit).ok()).unwrap_or(0);
        let selection = Selection::parse(resource, "", &target.field_selector).unwrap_or_default();
        let (prefix, topic) = (resource.range(&target.namespace), topic::of(resource, &selection));
        let range = Range { prefix: &prefix, limit, topic, ..Range::default() };
        Estimate::list(self.store.weigh(&range, MAX_LIST_BYTES), class.level.max_seats())
    }
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
