//! Random histories: after each step, the indexes equal a full recount.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use knarr_client::selector;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::affinity::Term;
use super::pod::PodState;
use super::resources::Resources;
use super::topology::Kind;
use super::*;

const KEYS: [&str; 3] = ["zone", "rack", labels::HOSTNAME];
const NODES: usize = 8;
const PODS: usize = 30;

fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn random_node(random: &mut StdRng, number: usize) -> Arc<Node> {
    let name = format!("node-{number}");
    let mut labels = json!({labels::HOSTNAME: name});
    for key in ["zone", "rack"] {
        if random.random_ratio(3, 4) {
            labels[key] = json!(format!("{key}-{}", random.random_range(0..3)));
        }
    }
    object(json!({"metadata": {"name": name, "labels": labels}, "status": {"allocatable": {"cpu": "8"},
        "images": [{"names": [format!("image-{}", random.random_range(0..3))], "sizeBytes": 1}]}}))
}

fn random_term(random: &mut StdRng) -> Value {
    let key = KEYS[random.random_range(0..KEYS.len())];
    let mut term = json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": format!("app-{}", random.random_range(0..3))}}});
    if random.random_ratio(1, 3) {
        term["namespaceSelector"] = json!({"matchLabels": {"team": "blue"}});
    }
    term
}

fn random_pod(random: &mut StdRng, number: usize) -> Arc<Pod> {
    let mut affinity = json!({});
    for kind in ["podAffinity", "podAntiAffinity"] {
        if random.random_ratio(1, 3) {
            affinity[kind] = json!({"requiredDuringSchedulingIgnoredDuringExecution": [random_term(random)],
                "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": random_term(random)}]});
        }
    }
    let cpu = format!("{}m", random.random_range(0..500));
    let mut metadata = json!({"name": format!("pod-{number}"), "uid": format!("{}", random.random_range(0..3)),
        "namespace": format!("space-{}", number % 2), "labels": {"app": format!("app-{}", random.random_range(0..3))}});
    if random.random_ratio(1, 5) {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    object(json!({"metadata": metadata, "spec": {"affinity": affinity,
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": format!("claim-{}", random.random_range(0..3))}}],
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}))
}

fn random_step(random: &mut StdRng, cluster: &mut Cluster) {
    let number = random.random_range(0..NODES);
    match random.random_range(0..10) {
        0 | 1 => cluster.set_node(random_node(random, number)),
        2 => cluster.remove_node(&format!("node-{number}")),
        3 => {
            let team = if random.random_ratio(1, 2) { "blue" } else { "red" };
            let name = format!("space-{}", random.random_range(0..2));
            cluster.set_namespace(&object::<Namespace>(json!({"metadata": {"name": name, "labels": {"team": team}}})));
        }
        4 | 5 => {
            let pod = random.random_range(0..PODS);
            cluster.remove_pod(&format!("space-{}/pod-{pod}", pod % 2));
        }
        6 => {
            let pod = random.random_range(0..PODS);
            let pod = Arc::new(PodState::new(random_pod(random, pod)));
            if !cluster.is_placed(&pod.key) {
                cluster.assume(Arc::clone(&pod.placed), &format!("node-{number}"));
                if random.random_ratio(1, 2) {
                    cluster.unassume(&pod.key, pod.uid());
                }
            }
        }
        _ => {
            let pod = random.random_range(0..PODS);
            cluster.set_pod(&random_pod(random, pod), &format!("node-{number}"));
        }
    }
}

fn tally<'a>(cluster: &'a Cluster, key: &str, count: impl Fn(&PlacedPod) -> i64) -> BTreeMap<&'a str, i64> {
    let mut counts = BTreeMap::new();
    for (_, node) in cluster.nodes() {
        if let Some(value) = node.labels().get(key) {
            *counts.entry(value.as_str()).or_default() += node.pods.iter().map(|pod| count(pod)).sum::<i64>();
        }
    }
    counts.retain(|_, count| *count > 0);
    counts
}

fn check_counts(cluster: &mut Cluster, terms: &[Term]) {
    for app in ["app-0", "app-1"] {
        let selector = json!({"matchLabels": {"app": app}});
        let text: Arc<str> = selector.to_string().into();
        let selector = Arc::new(selector::of(&serde_json::from_value(selector).unwrap()).unwrap());
        for key in KEYS {
            let counts = cluster.spread_counts("space-0", &selector, &text, key);
            let matches = |pod: &PlacedPod| {
                let counted = pod.namespace() == "space-0" && !pod.is_terminating() && selector.matches(pod.labels());
                i64::from(counted)
            };
            let expected = tally(cluster, key, matches);
            assert_eq!(counts.iter().collect::<BTreeMap<_, _>>(), expected, "{app} by {key}");
            let domains: HashSet<&String> = cluster.nodes().filter_map(|(_, node)| node.labels().get(key)).collect();
            let domains = domains.len();
            let min = if domains > expected.len() { 0 } else { expected.values().copied().min().unwrap_or(0) };
            assert_eq!(counts.min(domains), min, "{app} by {key}");
            assert_eq!(cluster.domains(key).len(), domains, "{key}");
        }
    }
    for term in terms {
        let counts = cluster.term_counts(term);
        let matches = |pod: &PlacedPod| i64::from(term.matches(pod.namespace(), pod.labels(), &cluster.namespaces));
        let expected = tally(cluster, &term.key.topology_key, matches);
        assert_eq!(counts.iter().collect::<BTreeMap<_, _>>(), expected, "{:?}", term.key);
    }
}

fn check_existing_terms(cluster: &Cluster) {
    let terms_of = |kind: Kind, pod: &PlacedPod| match kind {
        Kind::RequiredAnti => pod.required_anti_affinity.clone(),
        Kind::RequiredAffinity => pod.required_affinity.clone(),
        Kind::PreferredAffinity => pod.preferred_affinity.clone(),
        Kind::PreferredAnti => pod.preferred_anti_affinity.clone(),
    };
    for kind in [Kind::RequiredAnti, Kind::RequiredAffinity, Kind::PreferredAffinity, Kind::PreferredAnti] {
        let mut carried_keys = HashSet::new();
        for carried in cluster.existing_terms.of(kind) {
            carried_keys.insert(Arc::clone(&carried.term.key));
            let carries = |pod: &PlacedPod| {
                let own = terms_of(kind, pod);
                i64::try_from(own.iter().filter(|term| term.key == carried.term.key).count()).unwrap()
            };
            let expected = tally(cluster, &carried.term.key.topology_key, carries);
            assert_eq!(carried.counts.iter().collect::<BTreeMap<_, _>>(), expected);
        }
        for (_, node) in cluster.nodes() {
            let terms = node.pods.iter().flat_map(|pod| terms_of(kind, pod));
            for term in terms.filter(|term| node.labels().contains_key(&term.key.topology_key)) {
                assert!(carried_keys.contains(&term.key), "{:?}", term.key);
            }
        }
    }
}

fn check_sums(cluster: &Cluster) {
    let mut users: BTreeMap<&str, usize> = BTreeMap::new();
    for placed in cluster.pods.values() {
        for claim in placed.pod.claims.iter() {
            *users.entry(&claim.key).or_default() += 1;
        }
        let node = cluster.index_of(&placed.node).map(|index| cluster.node(index));
        let on_node = node.is_none_or(|node| node.pods.iter().any(|pod| Arc::ptr_eq(pod, &placed.pod)));
        assert!(on_node, "{} is on {}", placed.pod.key, placed.node);
    }
    let known: BTreeMap<&str, usize> = cluster.claim_users.iter().map(|(key, count)| (key.as_str(), *count)).collect();
    assert_eq!(known, users);
    let homeless: usize = cluster.homeless.values().map(HashSet::len).sum();
    let placed: usize = cluster.nodes().map(|(_, node)| node.pods.len()).sum();
    assert_eq!(homeless + placed, cluster.pods.len());
    for (_, node) in cluster.nodes() {
        let mut requested = Resources::default();
        for pod in &node.pods {
            requested.add(&pod.requests);
            requested.pods += 1;
        }
        assert_eq!(node.requested, requested, "{}", node.name());
    }
    for image in ["image-0", "image-1", "image-2"] {
        let with = cluster.nodes().filter(|(_, node)| node.images().contains(image)).count();
        assert_eq!(cluster.images.get(image).map_or(0, |known| known.nodes), with);
    }
}

#[test]
fn indexes_agree_with_a_full_recount() {
    for seed in 0..40 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut cluster = Cluster::default();
        let asking = random_pod(&mut random, 99);
        let terms: Vec<Term> = (0..4)
            .map(|_| Term::compile(&serde_json::from_value(random_term(&mut random)).unwrap(), &asking, 0))
            .collect();
        for _ in 0..80 {
            random_step(&mut random, &mut cluster);
            check_counts(&mut cluster, &terms);
            check_existing_terms(&cluster);
            check_sums(&cluster);
        }
        cluster.update_order();
        let order: HashSet<NodeIndex> = cluster.order().iter().copied().collect();
        assert_eq!(order.len(), cluster.node_count());
    }
}
