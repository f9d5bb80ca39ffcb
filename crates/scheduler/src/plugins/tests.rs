//! Each plugin's verdicts and scores as tables, and spreading and affinity against plain counting on random clusters.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::plugin;
use crate::cluster::affinity::Term;
use crate::cluster::node::NodeState;
use crate::cluster::pod::{PodState, Spread};
use crate::cluster::{Cluster, NodeIndex};
use crate::config::Profile;
use crate::framework::{Prepared, View};

fn object<K: serde::de::DeserializeOwned>(value: Value) -> Arc<K> {
    Arc::new(serde_json::from_value(value).unwrap())
}

fn pod_of(name: &str, labels: Value, spec: Value) -> Arc<Pod> {
    let mut full = json!({"containers": [{"name": "c", "image": "app"}]});
    full.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    object(json!({"metadata": {"name": name, "namespace": "n", "uid": name, "labels": labels}, "spec": full}))
}

fn requests(resources: Value) -> Value {
    json!({"containers": [{"name": "c", "image": "app", "resources": {"requests": resources}}]})
}

/// Node `a`: tainted, in zone 1. Node `b`: cordoned, in zone 2, with a pod. Node `c`: small, without a zone.
fn cluster() -> Cluster {
    let mut cluster = Cluster::default();
    let node = |name: &str, labels: Value, spec: Value, cpu: &str, images: Value| -> Arc<Node> {
        object(json!({"metadata": {"name": name, "labels": labels}, "spec": spec,
            "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "2", "example.com/gpu": "1"}, "images": images}}))
    };
    let host = "kubernetes.io/hostname";
    let taints = json!([{"key": "team", "value": "x", "effect": "NoSchedule"},
        {"key": "slow", "effect": "PreferNoSchedule"}]);
    let image = json!([{"names": ["app:latest"], "sizeBytes": 600 * 1024 * 1024}]);
    cluster.set_node(node("a", json!({"zone": "1", host: "a"}), json!({"taints": taints}), "4", json!([])));
    cluster.set_node(node("b", json!({"zone": "2", host: "b"}), json!({"unschedulable": true}), "4", image));
    cluster.set_node(node("c", json!({host: "c"}), json!({}), "1", json!([])));
    let anti = json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution":
        [{"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "loud"}}}]}});
    let placed = json!({"affinity": anti, "containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}],
        "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}}]});
    cluster.set_pod(&pod_of("placed", json!({"app": "web"}), placed), "b");
    cluster
}

fn verdicts(cluster: &mut Cluster, name: &str, pod: &Arc<PodState>) -> String {
    let plugin = plugin(name, &Profile::named("default-scheduler")).unwrap();
    let filter = match plugin.filter(pod, cluster) {
        Prepared::Nothing => return "all fit".into(),
        Prepared::Reject(rejection) => return format!("rejected: {}", rejection.reasons.join(", ")),
        Prepared::Filter(filter) => filter,
        Prepared::Only(names, _) => return format!("only {}", names.into_iter().collect::<Vec<_>>().join(" ")),
    };
    let mut found = BTreeMap::new();
    for (index, node) in cluster.nodes() {
        let verdict = match filter.check(&View { cluster, index, node, removed: &[], added: &[] }) {
            None => "fits".to_owned(),
            Some(rejection) => {
                let mark = if rejection.unresolvable { "!" } else { "" };
                format!("{}{mark}", rejection.reasons.join("+"))
            }
        };
        found.insert(node.name().to_owned(), verdict);
    }
    found.into_iter().map(|(name, verdict)| format!("{name}: {verdict}")).collect::<Vec<_>>().join("; ")
}

fn scores(cluster: &mut Cluster, profile: &Profile, name: &str, pod: &Arc<PodState>) -> Option<Vec<i64>> {
    let mut feasible: Vec<NodeIndex> = cluster.nodes().map(|(index, _)| index).collect();
    feasible.sort_by_key(|index| cluster.node(*index).name().to_owned());
    let scorer = plugin(name, profile).unwrap().scorer(pod, cluster, &feasible)?;
    let mut scores: Vec<i64> = feasible.iter().map(|index| scorer.score(*index, cluster.node(*index))).collect();
    scorer.normalize(&mut scores);
    Some(scores)
}

#[test]
fn filters_say_what_kubernetes_says() {
    let near = |kind: &str, key: &str, app: &str| {
        json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution":
            [{"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}}]}}})
    };
    let fields = |values: Value| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms":
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": values}]}]}}}})
    };
    let spread = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone",
        "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"app": "web"}}}]});
    let web = json!({"app": "web"});
    let none = json!({});
    let taint = "node(s) had untolerated taint(s)!";
    let selector = "node(s) didn't match Pod's node affinity/selector!";
    for (name, labels, spec, expected) in [
        ("TaintToleration", &none, json!({}), format!("a: {taint}; b: fits; c: fits")),
        (
            "TaintToleration",
            &none,
            json!({"tolerations": [{"key": "team", "operator": "Exists"}]}),
            "a: fits; b: fits; c: fits".into(),
        ),
        ("NodeUnschedulable", &none, json!({}), "a: fits; b: node(s) were unschedulable!; c: fits".into()),
        ("NodeUnschedulable", &none, json!({"tolerations": [{"operator": "Exists"}]}), "all fit".into()),
        ("NodeAffinity", &none, json!({}), "all fit".into()),
        (
            "NodeAffinity",
            &none,
            json!({"nodeSelector": {"zone": "1"}}),
            format!("a: fits; b: {selector}; c: {selector}"),
        ),
        ("NodeAffinity", &none, fields(json!(["b", "x"])), "only b x".into()),
        ("NodeAffinity", &none, fields(json!([])), "rejected: pod affinity terms conflict".into()),
        (
            "NodePorts",
            &none,
            json!({"containers": [{"name": "c", "ports": [{"containerPort": 1, "hostPort": 80}]}]}),
            "a: fits; b: node(s) didn't have free ports for the requested pod ports; c: fits".into(),
        ),
        (
            "NodeResourcesFit",
            &none,
            requests(json!({"cpu": "2"})),
            "a: fits; b: Insufficient cpu; c: Insufficient cpu!".into(),
        ),
        (
            "NodeResourcesFit",
            &none,
            requests(json!({"cpu": "5", "memory": "5Gi"})),
            "a: Insufficient cpu+Insufficient memory!; b: Insufficient cpu+Insufficient memory!; \
             c: Insufficient cpu+Insufficient memory!"
                .into(),
        ),
        (
            "NodeResourcesFit",
            &none,
            requests(json!({"example.com/gpu": "2"})),
            "a: Insufficient example.com/gpu!; b: Insufficient example.com/gpu!; c: Insufficient example.com/gpu!"
                .into(),
        ),
        (
            "PodTopologySpread",
            &web,
            spread.clone(),
            "a: fits; b: node(s) didn't match pod topology spread constraints; \
             c: node(s) didn't match pod topology spread constraints (missing required label)!"
                .into(),
        ),
        (
            "PodTopologySpread",
            &none,
            spread,
            "a: fits; b: fits; \
             c: node(s) didn't match pod topology spread constraints (missing required label)!"
                .into(),
        ),
        (
            "InterPodAffinity",
            &none,
            near("podAffinity", "zone", "web"),
            "a: node(s) didn't match pod affinity rules!; b: fits; c: node(s) didn't match pod affinity rules!".into(),
        ),
        (
            "InterPodAffinity",
            &json!({"app": "own"}),
            near("podAffinity", "zone", "own"),
            "a: fits; b: fits; c: node(s) didn't match pod affinity rules!".into(),
        ),
        (
            "InterPodAffinity",
            &none,
            near("podAntiAffinity", "zone", "web"),
            "a: fits; b: node(s) didn't match pod anti-affinity rules; c: fits".into(),
        ),
        (
            "InterPodAffinity",
            &json!({"app": "loud"}),
            json!({}),
            "a: fits; b: node(s) didn't satisfy existing pods anti-affinity rules; c: fits".into(),
        ),
        (
            "VolumeRestrictions",
            &none,
            json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "x"}}]}),
            "rejected: persistentvolumeclaim \"x\" not found".into(),
        ),
        (
            "DynamicResources",
            &none,
            json!({"resourceClaims": [{"name": "d", "resourceClaimName": "x"}]}),
            "rejected: resourceclaim.resource.k8s.io \"x\" not found".into(),
        ),
    ] {
        let pod = Arc::new(PodState::new(pod_of("new", labels.clone(), spec.clone())));
        assert_eq!(verdicts(&mut cluster(), name, &pod), expected, "{name}: {spec}");
    }
}

#[test]
fn scores_follow_the_published_formulas() {
    let default = Profile::named("default-scheduler");
    let prefers_zone = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 10, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}},
        {"weight": 30, "preference": {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["2"]}]}}]}}});
    let prefers_web = |kind: &str| {
        json!({"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 7, "podAffinityTerm":
            {"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "web"}}}}]}}})
    };
    let soft = json!({"topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {"matchLabels": {"app": "web"}}}]});
    for (name, spec, expected) in [
        // One mild taint on a, none on the others.
        ("TaintToleration", json!({}), Some(vec![0, 100, 100])),
        ("NodeAffinity", prefers_zone, Some(vec![25, 100, 0])),
        ("NodeAffinity", json!({}), None),
        // (4000-1000)/4000 and (4096-1024)/4096; (4000-4000) and (4096-2048)/4096; 0 and 75.
        ("NodeResourcesFit", requests(json!({"cpu": "1", "memory": "1Gi"})), Some(vec![75, 25, 37])),
        // a: from balance 100 to 100. b: from |0.75-0.25|/2 to |1-0.5|/2, the same. c: to |1-0.25|/2.
        ("NodeResourcesBalancedAllocation", requests(json!({"cpu": "1", "memory": "1Gi"})), Some(vec![75, 75, 56])),
        ("NodeResourcesBalancedAllocation", json!({}), None),
        // 600 MiB on one of three nodes: (200 MiB - 23 MiB) of (1000 MiB - 23 MiB).
        ("ImageLocality", json!({}), Some(vec![0, 18, 0])),
        ("InterPodAffinity", prefers_web("podAffinity"), Some(vec![0, 100, 0])),
        ("InterPodAffinity", prefers_web("podAntiAffinity"), Some(vec![100, 0, 100])),
        // One pod on b: its raw score is round(ln 5) = 2, the others' 0.
        ("PodTopologySpread", soft, Some(vec![100, 0, 100])),
        ("PodTopologySpread", json!({}), None),
    ] {
        let pod = Arc::new(PodState::new(pod_of("new", json!({"app": "web"}), spec.clone())));
        assert_eq!(scores(&mut cluster(), &default, name, &pod), expected, "{name}: {spec}");
    }
}

#[test]
fn pods_of_a_service_are_spread_by_default() {
    let mut cluster = cluster();
    let pod = Arc::new(PodState::new(pod_of("new", json!({"app": "web"}), json!({}))));
    let default = Profile::named("default-scheduler");
    assert_eq!(scores(&mut cluster, &default, "PodTopologySpread", &pod), None);
    let service = json!({"metadata": {"namespace": "n", "name": "s"}, "spec": {"selector": {"app": "web"}}});
    cluster.workloads.set_service(None, Some(&object(service)));
    // Skews 3 and 5; only b has a pod, and all three nodes count though none has the real zone label.
    // b: 1 * ln 5 + 2 = 3.6 → 4, the others 2: 100 * (4 + 2 - 4) / 4 = 50.
    assert_eq!(scores(&mut cluster, &default, "PodTopologySpread", &pod), Some(vec![100, 50, 100]));
    let mut listed = Profile::named("default-scheduler");
    listed.spread_defaults = super::SpreadDefaults::List(vec![
        serde_json::from_value(json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}))
            .unwrap(),
    ]);
    let instance = plugin("PodTopologySpread", &listed).unwrap();
    assert!(matches!(instance.filter(&pod, &mut cluster), Prepared::Filter(_)));
}

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
fn count(cluster: &Cluster, key: &str, value: &str, counts: impl Fn(&NodeState, &PodState) -> bool) -> i64 {
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
    let meant = |term: &Term, other: &PodState| term.matches(other.namespace(), other.labels(), &cluster.namespaces);
    let meets_all = |other: &PodState| pod.required_affinity.iter().all(|term| meant(term, other));
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
        other.pods.iter().flat_map(|placed| &placed.required_anti_affinity).any(|term| {
            let (there, here) = (other.labels().get(&term.key.topology_key), node.labels().get(&term.key.topology_key));
            there.is_some() && there == here && meant(term, pod)
        })
    });
    near && apart && !excluding
}

fn affinity_points(cluster: &Cluster, pod: &PodState, node: &NodeState) -> i64 {
    let meant = |term: &Term, other: &PodState| term.matches(other.namespace(), other.labels(), &cluster.namespaces);
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
                for term in terms {
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
