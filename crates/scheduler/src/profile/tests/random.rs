//! Spreading and affinity against plain counting, on random clusters.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Pod};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::{object, plugin};
use crate::cluster::affinity::Term;
use crate::cluster::node::NodeState;
use crate::cluster::placed::PlacedPod;
use crate::cluster::pod::{PodState, Spread};
use crate::cluster::{Cluster, NodeIndex};
use crate::framework::{Prepared, View};
use crate::profile::Profile;

const KEYS: [&str; 2] = ["zone", "kubernetes.io/hostname"];

fn random_cluster(random: &mut StdRng) -> Cluster {
    let mut cluster = Cluster::default();
    for number in 0..6 {
        let name = format!("node-{number}");
        let mut labels = json!({"kubernetes.io/hostname": name, "disk": if random.random() { "ssd" } else { "hdd" }});
        if random.random_ratio(5, 6) {
            labels["zone"] = json!(format!("zone-{}", random.random_range(0..3)));
        }
        let taints = if random.random_ratio(1, 4) { json!([{"key": "t", "effect": "NoSchedule"}]) } else { json!([]) };
        cluster.set_node(object(json!({"metadata": {"name": name, "labels": labels}, "spec": {"taints": taints}})));
    }
    for name in ["n", "m"] {
        let labels = json!({"team": if random.random() { "blue" } else { "red" }});
        cluster.set_namespace(&object::<Namespace>(json!({"metadata": {"name": name, "labels": labels}})));
    }
    for number in 0..random.random_range(0..25) {
        let pod = random_pod(random, &format!("placed-{number}"));
        cluster.set_pod(&pod, &format!("node-{}", random.random_range(0..6)));
    }
    cluster
}

fn random_pod(random: &mut StdRng, name: &str) -> Arc<Pod> {
    let app = |random: &mut StdRng| json!({"app": format!("app-{}", random.random_range(0..3))});
    let term = |random: &mut StdRng| {
        let mut term =
            json!({"topologyKey": KEYS[random.random_range(0..2)], "labelSelector": {"matchLabels": app(random)}});
        if random.random_ratio(1, 4) {
            term["namespaceSelector"] = json!({"matchLabels": {"team": "blue"}});
        }
        term
    };
    let mut affinity = json!({});
    for kind in ["podAffinity", "podAntiAffinity"] {
        let required: Vec<Value> = (0..random.random_range(0..3)).map(|_| term(random)).collect();
        let preferred: Vec<Value> = (0..random.random_range(0..2))
            .map(|_| json!({"weight": random.random_range(1..10), "podAffinityTerm": term(random)}))
            .collect();
        if random.random_ratio(1, 3) {
            affinity[kind] = json!({"requiredDuringSchedulingIgnoredDuringExecution": required,
                "preferredDuringSchedulingIgnoredDuringExecution": preferred});
        }
    }
    let constraints: Vec<Value> = (0..random.random_range(0..3))
        .map(|_| {
            json!({"maxSkew": random.random_range(1..3), "topologyKey": KEYS[random.random_range(0..2)],
                "minDomains": random.random_range(1..4), "labelSelector": {"matchLabels": app(random)},
                "whenUnsatisfiable": if random.random() { "DoNotSchedule" } else { "ScheduleAnyway" },
                "nodeTaintsPolicy": if random.random_ratio(1, 4) { "Honor" } else { "Ignore" },
                "nodeAffinityPolicy": if random.random_ratio(1, 4) { "Ignore" } else { "Honor" }})
        })
        .collect();
    let selector = if random.random_ratio(1, 3) { json!({"disk": "ssd"}) } else { json!({}) };
    let mut metadata =
        json!({"name": name, "namespace": if random.random() { "n" } else { "m" }, "uid": name, "labels": app(random)});
    if random.random_ratio(1, 8) {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    object(json!({"metadata": metadata, "spec": {"containers": [], "affinity": affinity, "nodeSelector": selector,
        "topologySpreadConstraints": constraints}}))
}

/// The pods of a value's nodes that satisfy a test, by plain counting.
fn count(cluster: &Cluster, key: &str, value: &str, counts: impl Fn(&NodeState, &PlacedPod) -> bool) -> i64 {
    let nodes = cluster.nodes().filter(|(_, node)| node.labels().get(key).is_some_and(|own| own == value));
    let pods = nodes.flat_map(|(_, node)| node.pods.iter().filter(|pod| counts(node, pod)).collect::<Vec<_>>());
    i64::try_from(pods.count()).unwrap()
}

fn spread_fits(cluster: &Cluster, pod: &PodState, node: &NodeState) -> bool {
    let hard: Vec<&Spread> = pod.spread.iter().filter(|constraint| constraint.hard).collect();
    let has_keys = |node: &NodeState| hard.iter().all(|one| node.labels().contains_key(&one.topology_key));
    let included = |constraint: &Spread, node: &NodeState| {
        let tainted = constraint.honors_taints && !node.taints().is_empty();
        has_keys(node) && !tainted && (!constraint.honors_affinity || pod.node_requirement.matches(node))
    };
    hard.iter().all(|constraint| {
        let key = &constraint.topology_key;
        let Some(own) = node.labels().get(key) else { return false };
        let matching = |value: &str| {
            count(cluster, key, value, |node, placed| {
                included(constraint, node)
                    && placed.namespace() == pod.namespace()
                    && !placed.is_terminating()
                    && constraint.selector.matches(placed.labels())
            })
        };
        let domains: std::collections::BTreeSet<&String> = cluster
            .nodes()
            .filter(|(_, node)| included(constraint, node))
            .map(|(_, node)| &node.labels()[key])
            .collect();
        let lacks = i64::try_from(domains.len()).unwrap() < constraint.min_domains;
        let min = if lacks { 0 } else { domains.iter().map(|value| matching(value)).min().unwrap_or(0) };
        let counts_self = i64::from(constraint.selector.matches(pod.labels()));
        matching(own) + counts_self - min <= constraint.max_skew
    })
}

fn affinity_fits(cluster: &Cluster, pod: &PodState, node: &NodeState) -> bool {
    let meant = |term: &Term, other: &PlacedPod| term.matches(other.namespace(), other.labels(), &cluster.namespaces);
    let meets_all = |other: &PlacedPod| pod.required_affinity.iter().all(|term| meant(term, other));
    let no_pod_matches = !cluster.nodes().any(|(_, node)| {
        let matters = pod.required_affinity.iter().any(|term| node.labels().contains_key(&term.key.topology_key));
        matters && node.pods.iter().any(|placed| meets_all(placed))
    });
    let near = pod.required_affinity.iter().all(|term| {
        let own = node.labels().get(&term.key.topology_key);
        own.is_some_and(|value| {
            count(cluster, &term.key.topology_key, value, |_, placed| meets_all(placed)) > 0
                || no_pod_matches && meets_all(pod)
        })
    });
    let apart = pod.required_anti_affinity.iter().all(|term| {
        let own = node.labels().get(&term.key.topology_key);
        own.is_none_or(|value| count(cluster, &term.key.topology_key, value, |_, placed| meant(term, placed)) == 0)
    });
    let excluding = cluster.nodes().any(|(_, other)| {
        other.pods.iter().flat_map(|placed| placed.required_anti_affinity.iter()).any(|term| {
            let (there, here) = (other.labels().get(&term.key.topology_key), node.labels().get(&term.key.topology_key));
            there.is_some() && there == here && meant(term, pod)
        })
    });
    near && apart && !excluding
}

fn affinity_points(cluster: &Cluster, pod: &PodState, node: &NodeState) -> i64 {
    let meant = |term: &Term, other: &PlacedPod| term.matches(other.namespace(), other.labels(), &cluster.namespaces);
    let same = |one: &NodeState, other: &NodeState, key: &str| {
        one.labels().get(key).is_some() && one.labels().get(key) == other.labels().get(key)
    };
    let mut points = 0;
    for (_, other) in cluster.nodes() {
        for placed in &other.pods {
            for (terms, sign, own_weight) in [
                (&pod.preferred_affinity, 1, true),
                (&pod.preferred_anti_affinity, -1, true),
                (&placed.preferred_affinity, 1, false),
                (&placed.preferred_anti_affinity, -1, false),
            ] {
                for term in terms.iter() {
                    let met = if own_weight { meant(term, placed) } else { meant(term, pod) };
                    points += if met && same(other, node, &term.key.topology_key) { sign * term.weight } else { 0 };
                }
            }
            let hard = placed.required_affinity.iter();
            points += i64::try_from(
                hard.filter(|term| meant(term, pod) && same(other, node, &term.key.topology_key)).count(),
            )
            .unwrap();
        }
    }
    points
}

#[test]
fn spreading_and_affinity_agree_with_plain_counting() {
    let profile = Profile::named("default-scheduler");
    for seed in 0..300 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut cluster = random_cluster(&mut random);
        for number in 0..3 {
            let pod = Arc::new(PodState::new(random_pod(&mut random, &format!("new-{number}"))));
            for (name, fits) in [
                ("PodTopologySpread", spread_fits as fn(&Cluster, &PodState, &NodeState) -> bool),
                ("InterPodAffinity", affinity_fits),
            ] {
                let filter = match plugin(name, &profile).unwrap().filter(&pod, &mut cluster) {
                    Prepared::Filter(filter) => Some(filter),
                    _ => None,
                };
                for (index, node) in cluster.nodes() {
                    let view = View { cluster: &cluster, index, node, removed: &[], added: &[] };
                    let found = filter.as_ref().is_none_or(|filter| filter.check(&view).is_none());
                    assert_eq!(
                        found,
                        fits(&cluster, &pod, node),
                        "seed {seed}: {name} on {}: {:?}",
                        node.name(),
                        pod.object
                    );
                }
            }
            let mut feasible: Vec<NodeIndex> = cluster.nodes().map(|(index, _)| index).collect();
            feasible.sort_unstable();
            if let Some(scorer) = plugin("InterPodAffinity", &profile).unwrap().scorer(&pod, &mut cluster, &feasible) {
                for index in feasible {
                    let node = cluster.node(index);
                    assert_eq!(scorer.score(index, node), affinity_points(&cluster, &pod, node), "seed {seed}");
                }
            }
        }
    }
}
