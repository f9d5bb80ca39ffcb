//! The priority levels that exist, and the counters of their flows, across changes of their objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderValue;
use knarr_api::value::Read;
use parking_lot::Mutex;
use serde_json::Value;

use super::allocation::{SeatLimits, Shares, current_limits};
use super::built_in::{self, EXEMPT};
use super::level::{Level, LevelSpec};
use super::queue_set::Response;
use super::stats::FlowStats;

/// The levels that FlowSchemas can name, with the UIDs of their objects.
pub struct KnownLevels(BTreeMap<String, (Arc<Level>, HeaderValue)>);

impl KnownLevels {
    /// The levels of these objects and the mandatory ones. A level that existed before keeps its requests.
    pub fn new(objects: &[Arc<Value>], before: &[Arc<Level>]) -> KnownLevels {
        let mut known = BTreeMap::new();
        let mut add = |object: &Value| {
            let name = object.text(&["metadata", "name"]);
            let Some(spec) = read_spec(object) else {
                tracing::warn!(level = name, "ignoring a priority level whose spec is broken");
                return;
            };
            let uid = HeaderValue::from_str(object.text(&["metadata", "uid"])).unwrap_or(HeaderValue::from_static(""));
            let level = before.iter().find(|level| *level.name == *name).cloned();
            let level = level.unwrap_or_else(|| Arc::new(Level::new(name, spec)));
            level.configure(spec, false);
            known.insert(name.to_owned(), (level, uid));
        };
        objects.iter().for_each(|object| add(object));
        let names: Vec<&str> = objects.iter().map(|object| object.text(&["metadata", "name"])).collect();
        for desired in built_in::mandatory(super::LEVELS).filter(|desired| !names.contains(&desired.name())) {
            add(&desired.object);
        }
        KnownLevels(known)
    }

    pub fn get(&self, name: &str) -> Option<&(Arc<Level>, HeaderValue)> {
        self.0.get(name)
    }

    /// All levels: these, and those before whose last requests have not finished.
    pub fn with_quiescing(&self, before: &[Arc<Level>]) -> Vec<Arc<Level>> {
        let mut all: Vec<Arc<Level>> = self.0.values().map(|(level, _)| level.clone()).collect();
        for level in before.iter().filter(|level| !self.0.contains_key(&*level.name)) {
            let (spec, idle) = level.read(|state| (state.spec, state.set.is_idle()));
            if !idle {
                level.configure(spec, true);
                all.push(level.clone());
            }
        }
        all
    }
}

/// Divides the server's seats among the levels by their shares.
pub fn divide(levels: &[Arc<Level>], seats: u32) {
    let shares = |level: &Arc<Level>| level.read(|state| state.spec.shares);
    let sum = levels.iter().map(|level| shares(level).nominal).sum();
    for level in levels {
        level.set_limits(SeatLimits::new(shares(level), sum, seats));
    }
    rebalance(levels);
}

/// Lends seats that levels did not need since the last call to those that needed more.
pub fn rebalance(levels: &[Arc<Level>]) {
    let demands: Vec<_> = levels.iter().map(|level| level.take_demand()).collect();
    for (level, seats) in levels.iter().zip(current_limits(&demands)) {
        level.set_current_limit(seats);
    }
}

/// Reads the spec of a priority level; `None` if it contradicts itself.
fn read_spec(object: &Value) -> Option<LevelSpec> {
    let number = |path: &[&str]| object.integer(path).and_then(|number| u32::try_from(number).ok());
    let is_exempt = object.text(&["metadata", "name"]) == EXEMPT;
    let (field, response) = match object.text(&["spec", "type"]) {
        "Exempt" if is_exempt => ("exempt", Response::Exempt),
        "Limited" if !is_exempt => {
            let response = match object.text(&["spec", "limited", "limitResponse", "type"]) {
                "Reject" => Response::Reject,
                "Queue" => {
                    let at = |name: &str| number(&["spec", "limited", "limitResponse", "queuing", name]);
                    let (queues, hand_size, length) = (at("queues")?, at("handSize")?, at("queueLengthLimit")?);
                    if queues == 0 || hand_size == 0 || hand_size > queues || length == 0 {
                        return None;
                    }
                    Response::Queue {
                        queues: queues as usize,
                        hand_size: hand_size as usize,
                        length_limit: length as usize,
                    }
                }
                _ => return None,
            };
            ("limited", response)
        }
        _ => return None,
    };
    let shares = Shares {
        // The defaults of the API: an exempt level has none.
        nominal: number(&["spec", field, "nominalConcurrencyShares"]).unwrap_or(if is_exempt { 0 } else { 30 }),
        lendable_percent: number(&["spec", field, "lendablePercent"]).unwrap_or(0).min(100),
        borrowing_limit_percent: number(&["spec", field, "borrowingLimitPercent"]),
    };
    Some(LevelSpec { response, shares })
}

/// The counters of flows, by level and schema. They outlive changes of the objects.
#[derive(Default)]
pub struct StatsRegistry(Mutex<BTreeMap<(Arc<str>, Arc<str>), Arc<FlowStats>>>);

impl StatsRegistry {
    pub fn of(&self, level: &Arc<str>, schema: &str) -> Arc<FlowStats> {
        self.0.lock().entry((level.clone(), schema.into())).or_default().clone()
    }

    /// All counters, by level and schema.
    pub fn all(&self) -> Vec<((Arc<str>, Arc<str>), Arc<FlowStats>)> {
        self.0.lock().iter().map(|(key, stats)| (key.clone(), stats.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn limited(name: &str, shares: u32, response: Value) -> Arc<Value> {
        Arc::new(json!({
            "metadata": {"name": name, "uid": format!("uid-{name}")},
            "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": shares, "limitResponse": response}},
        }))
    }

    fn queue() -> Value {
        json!({"type": "Queue", "queuing": {"queues": 4, "handSize": 2, "queueLengthLimit": 5}})
    }

    #[test]
    fn broken_objects_are_ignored_and_mandatory_ones_always_exist() {
        let known = KnownLevels::new(
            &[
                limited("good", 10, queue()),
                limited("reject", 10, json!({"type": "Reject"})),
                limited("broken", 10, json!({"type": "Queue"})),
                limited(
                    "wide",
                    10,
                    json!({"type": "Queue", "queuing": {"queues": 1, "handSize": 2, "queueLengthLimit": 5}}),
                ),
            ],
            &[],
        );
        let names: Vec<&str> = known.0.keys().map(String::as_str).collect();
        assert_eq!(names, ["catch-all", "exempt", "good", "reject"]);
        assert!(known.get("exempt").unwrap().0.is_exempt());
    }

    #[tokio::test]
    async fn a_level_without_object_stays_until_its_requests_have_finished() {
        use crate::fairness::estimate::Estimate;
        use crate::fairness::level::Description;
        use crate::request::{Target, User};

        let first = KnownLevels::new(&[limited("busy", 10, queue())], &[]);
        let all = first.with_quiescing(&[]);
        divide(&all, 100);
        let busy = first.get("busy").unwrap().0.clone();
        let description = Description {
            schema: "s".into(),
            distinguisher: "".into(),
            user: Arc::new(User::anonymous()),
            target: Target::default(),
        };
        let give_up = tokio::time::Instant::now();
        let permit = busy.acquire(&Arc::default(), 0, Estimate::seats(1), description, give_up).await.unwrap();
        let gone = KnownLevels::new(&[], &all);
        assert!(gone.get("busy").is_none());
        assert_eq!(gone.with_quiescing(&all).len(), 3);
        assert!(busy.read(|state| state.quiescing));
        drop(permit);
        assert_eq!(gone.with_quiescing(&all).len(), 2);
    }
}
