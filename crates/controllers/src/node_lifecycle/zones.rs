//! Rate limits for tainting the nodes of a zone, by how many of them are unhealthy.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use tokio::time::Instant;

use crate::common::key::name;
use crate::metrics::NODE_EVICTIONS;
use crate::settings::Settings;

const EXCLUDED: &str = "node.kubernetes.io/exclude-disruption";

pub(super) struct Zones {
    rate: f64,
    secondary_rate: f64,
    threshold: f64,
    large: usize,
    ready: HashMap<String, bool>,
    allowances: HashMap<String, RateLimit>,
    was_all_away: bool,
}

struct RateLimit {
    rate: f64,
    tokens: f64,
    at: Instant,
}

pub(super) struct Decisions {
    /// No node of any zone is ready.
    pub all_away: bool,
}

impl Zones {
    pub fn new(settings: &Settings) -> Self {
        Self {
            rate: settings.node_health.eviction_rate,
            secondary_rate: settings.node_health.secondary_eviction_rate,
            threshold: settings.node_health.unhealthy_zone_threshold,
            large: settings.node_health.large_cluster_size_threshold,
            ready: HashMap::new(),
            allowances: HashMap::new(),
            was_all_away: true,
        }
    }

    pub fn note(&mut self, node: &Node, ready: bool) {
        self.ready.insert(name(node).to_owned(), ready);
    }

    /// Sets the rate of each zone by its current state.
    pub fn decide(&mut self, nodes: &[Arc<Node>], now: Instant) -> Decisions {
        let names: HashSet<&str> = nodes.iter().map(|node| name(&**node)).collect();
        self.ready.retain(|known, _| names.contains(known.as_str()));
        let mut counts: HashMap<String, (usize, usize)> = HashMap::new();
        for node in nodes.iter().filter(|node| !is_excluded(node)) {
            // A zone has its series before anything is evicted.
            NODE_EVICTIONS.add(&[&label(node)], 0);
            let (ready, away) = counts.entry(zone(node)).or_default();
            match self.ready.get(name(&**node)) {
                Some(true) => *ready += 1,
                _ => *away += 1,
            }
        }
        self.allowances.retain(|zone, _| counts.contains_key(zone));
        let all_away = !counts.is_empty() && counts.values().all(|(ready, _)| *ready == 0);
        for (zone, (ready, away)) in counts {
            let rate = self.pace(ready, away, all_away);
            let allowance = self.allowances.entry(zone).or_insert(RateLimit { rate, tokens: 1.0, at: now });
            allowance.rate = rate;
        }
        // Right after a start nothing is known yet; that is no reason to remove taints.
        let entered = all_away && !self.was_all_away;
        self.was_all_away = all_away;
        Decisions { all_away: entered }
    }

    fn pace(&self, ready: usize, away: usize, all_away: bool) -> f64 {
        let size = ready + away;
        if all_away {
            0.0
        } else if ready == 0 {
            // A whole zone is down while others are healthy: its pods are needed elsewhere.
            self.rate
        } else if away > 2 && away as f64 / size as f64 >= self.threshold {
            if size > self.large { self.secondary_rate } else { 0.0 }
        } else {
            self.rate
        }
    }

    /// Whether a node may be tainted now; if so, the rate limit of its zone is charged.
    pub fn may_taint(&mut self, node: &Node, now: Instant) -> bool {
        let Some(allowance) = self.allowances.get_mut(&zone(node)) else { return false };
        if allowance.rate == 0.0 {
            return false;
        }
        let gained = now.duration_since(allowance.at).as_secs_f64() * allowance.rate;
        allowance.tokens = (allowance.tokens + gained).min(1.0);
        allowance.at = now;
        let may = allowance.tokens >= 1.0;
        if may {
            allowance.tokens -= 1.0;
        }
        may
    }
}

fn is_excluded(node: &Node) -> bool {
    node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(EXCLUDED))
}

/// The zone of a node as metrics name it: region and zone, or nothing without both.
pub(super) fn label(node: &Node) -> String {
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map_or("", String::as_str);
    match (label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone")) {
        ("", "") => String::new(),
        (region, zone) => format!("{region}:\0:{zone}"),
    }
}

fn zone(node: &Node) -> String {
    let label = |key: &str| node.metadata.labels.as_ref().and_then(|labels| labels.get(key)).map_or("", String::as_str);
    format!("{}:{}", label("topology.kubernetes.io/region"), label("topology.kubernetes.io/zone"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::time::Duration;

    fn node(n: usize, zone: &str) -> Arc<Node> {
        let labels = json!({"topology.kubernetes.io/zone": zone});
        Arc::new(serde_json::from_value(json!({"metadata": {"name": format!("{zone}{n}"), "labels": labels}})).unwrap())
    }

    /// Zones with this many ready and unhealthy nodes.
    fn zones(sizes: &[(&str, usize, usize)]) -> (Zones, Vec<Arc<Node>>) {
        let mut zones = Zones::new(&Settings::default());
        let mut nodes = Vec::new();
        for (zone, ready, away) in sizes {
            for n in 0..ready + away {
                let node = node(n, zone);
                zones.note(&node, n < *ready);
                nodes.push(node);
            }
        }
        (zones, nodes)
    }

    #[test]
    fn the_rate_depends_on_the_state_of_the_zone() {
        for (case, sizes, expected) in [
            ("a few away", vec![("a", 8, 2)], [true, false, true]),
            ("most of a small zone away", vec![("a", 2, 8)], [false, false, false]),
            ("most of a large zone away", vec![("a", 20, 40)], [true, false, false]),
            ("a whole zone away", vec![("a", 0, 3), ("b", 3, 0)], [true, false, true]),
            ("everything away", vec![("a", 0, 3)], [false, false, false]),
        ] {
            let (mut zones, nodes) = zones(&sizes);
            let start = Instant::now();
            zones.decide(&nodes, start);
            let target = node(9, "a");
            let may = [0, 5, 15].map(|second| zones.may_taint(&target, start + Duration::from_secs(second)));
            assert_eq!(may, expected, "{case}");
        }
    }

    #[test]
    fn losing_everything_at_once_is_noticed_once() {
        let (mut zones, nodes) = zones(&[("a", 2, 0)]);
        let now = Instant::now();
        assert!(!zones.decide(&nodes, now).all_away);
        nodes.iter().for_each(|node| zones.note(node, false));
        assert!(zones.decide(&nodes, now).all_away);
        assert!(!zones.decide(&nodes, now).all_away);
    }
}
