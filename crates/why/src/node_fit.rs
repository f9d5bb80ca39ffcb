//! Why a pending pod fits none of the nodes, node by node.

use std::collections::{BTreeMap, HashMap};

use knarr_api::node_selector::{self, Requirement};
use knarr_api::quantity::Quantity;
use knarr_api::selector::LabelSelector;
use knarr_api::taint::{Taint, Toleration};
use knarr_api::value::{Read, condition};
use knarr_rules::common::resources::{self, Side};
use serde_json::{Value, json};

use crate::Finding;
use crate::evidence::Evidence;

/// The maximum number of nodes listed.
const MAX_LISTED_NODES: usize = 10;
/// How many volumes, terms of affinity and terms of anti-affinity of a pod are examined.
const MAX_EXAMINED: usize = 20;

/// Diagnoses why a pod fits no node; `None` if it fits one or the nodes are unknown.
pub fn explain(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    if !evidence.lists.contains_key("nodes") {
        return None;
    }
    let nodes = evidence.all("nodes");
    if nodes.is_empty() && evidence.incomplete.contains("nodes") {
        return None;
    }
    if nodes.is_empty() {
        return Some(Finding::new(
            "the cluster has no nodes",
            vec!["no Node exists".to_owned()],
            "add a node: `knarr token create --print-join-command` prints the command",
        ));
    }
    let candidate = Candidate::new(evidence, pod);
    let mut misfits: Vec<(&str, Misfit)> = Vec::new();
    for node in nodes {
        misfits.push((node.text(&["metadata", "name"]), candidate.misfit(node)?));
    }
    let mut kinds: BTreeMap<&'static str, usize> = BTreeMap::new();
    misfits.iter().for_each(|(_, misfit)| *kinds.entry(misfit.kind).or_default() += 1);
    // The most frequent obstacle is the one to fix.
    let main_kind = kinds.iter().max_by_key(|(_, count)| **count).map(|(kind, _)| *kind)?;
    let main = misfits.iter().find(|(_, misfit)| misfit.kind == main_kind).map(|(_, misfit)| misfit)?;
    let (cause, fix) = (cause(main_kind, nodes.len()), main.fix.clone());
    let mut evidence: Vec<String> =
        misfits.iter().take(MAX_LISTED_NODES).map(|(name, misfit)| format!("node {name}: {}", misfit.why)).collect();
    if misfits.len() > MAX_LISTED_NODES {
        evidence.push(format!("and {} more nodes", misfits.len() - MAX_LISTED_NODES));
    }
    Some(Finding::new(cause, evidence, fix))
}

fn cause(kind: &str, nodes: usize) -> String {
    let all = if nodes == 1 { "the only node".to_owned() } else { format!("the {nodes} nodes") };
    let matches_no = if nodes == 1 { "does not match" } else { "matches none of" };
    match kind {
        "resources" => format!("{all} cannot satisfy its resource requests"),
        "taint" => format!("it does not tolerate the taints of {all}"),
        "selector" => format!("its nodeSelector {matches_no} {all}"),
        "affinity" => format!("its node affinity {matches_no} {all}"),
        "cordoned" => format!("no new pods are scheduled to {all}"),
        "ports" => format!("its host port is in use on {all}"),
        "name" => "it may only run on a node that does not exist".to_owned(),
        "pods" => format!("its pod affinity, anti-affinity or topology spread excludes {all}"),
        "volume" => format!("its volume is not accessible from {all}"),
        _ => format!("it cannot be scheduled to {all}"),
    }
}

struct Misfit {
    kind: &'static str,
    why: String,
    fix: String,
}

impl Misfit {
    fn new(kind: &'static str, why: String, fix: impl Into<String>) -> Misfit {
        Misfit { kind, why, fix: fix.into() }
    }
}

/// A pod, and what of the cluster decides on which nodes it fits, found once for all nodes.
struct Candidate<'a> {
    pod: &'a Value,
    /// The pods that run on each node, or are about to.
    on_node: HashMap<&'a str, Vec<&'a Value>>,
    /// The bound volumes of its claims, by the names of these.
    volumes: Vec<(&'a str, &'a Value)>,
    /// What it requires of nodes, as text.
    required: String,
    anti_affinity: Vec<Neighbours<'a>>,
    affinity: Vec<Neighbours<'a>>,
}

/// The pods that a term of affinity is about.
struct Neighbours<'a> {
    topology: &'a str,
    /// One of each domain.
    by_domain: HashMap<&'a str, &'a Value>,
}

impl<'a> Candidate<'a> {
    fn new(evidence: &'a Evidence, pod: &'a Value) -> Self {
        const TERMS: &str = "requiredDuringSchedulingIgnoredDuringExecution";
        let mut on_node: HashMap<&str, Vec<&Value>> = HashMap::new();
        let is_there = |pod: &&Value| !matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed");
        for other in evidence.all("pods").iter().filter(is_there) {
            on_node.entry(other.text(&["spec", "nodeName"])).or_default().push(other);
        }
        let nodes: HashMap<&str, &Value> =
            evidence.all("nodes").iter().map(|node| (node.text(&["metadata", "name"]), node)).collect();
        let within = evidence.within("pods", pod.text(&["metadata", "namespace"]));
        let placed: Vec<(&Value, &Value)> =
            within.filter_map(|other| Some((other, *nodes.get(other.text(&["spec", "nodeName"]))?))).collect();
        let neighbours = |kind: &str| {
            let terms = pod.at(&["spec", "affinity", kind]).items(&[TERMS]).iter().take(MAX_EXAMINED);
            terms.map(|term| Neighbours::new(term, &placed)).collect::<Vec<_>>()
        };
        let (anti_affinity, affinity) = (neighbours("podAntiAffinity"), neighbours("podAffinity"));
        let terms = node_terms(pod).iter().take(MAX_EXAMINED).map(requirements);
        let required = crate::shortened(terms.collect::<Vec<_>>().join(" or "));
        Candidate { pod, on_node, volumes: volumes(evidence, pod), required, anti_affinity, affinity }
    }

    /// Why the pod does not fit a node; `None` if it fits, as far as the evidence shows.
    fn misfit(&self, node: &Value) -> Option<Misfit> {
        let pod = self.pod;
        let own = [cordoned, tainted, selector_mismatch].iter().find_map(|check| check(pod, node));
        own.or_else(|| self.affinity_mismatch(node))
            .or_else(|| self.port_in_use(node))
            .or_else(|| self.volume_elsewhere(node))
            .or_else(|| self.insufficient_resources(node))
            .or_else(|| self.inter_pod_rules(node))
    }

    fn on_node(&self, node: &Value) -> &[&'a Value] {
        self.on_node.get(node.text(&["metadata", "name"])).map_or(&[], Vec::as_slice)
    }

    fn affinity_mismatch(&self, node: &Value) -> Option<Misfit> {
        let terms = node_terms(self.pod);
        if terms.is_empty() || terms.iter().any(|term| term_matches(term, node)) {
            return None;
        }
        let by_name = terms.iter().all(|term| term.has(&["matchFields"]));
        let kind = if by_name { "name" } else { "affinity" };
        let why = format!("it does not match the pod's node affinity: {}", self.required);
        Some(Misfit::new(kind, why, "change the pod's node affinity, or add a node that matches it"))
    }

    fn port_in_use(&self, node: &Value) -> Option<Misfit> {
        let requested = host_ports(self.pod);
        let (port, holder) = self
            .on_node(node)
            .iter()
            .flat_map(|other| host_ports(other).into_iter().map(move |port| (port, *other)))
            .find(|(port, _)| requested.contains(port))?;
        let why = format!("{}/{} is in use there by the pod {}", port.0, port.1, crate::full_name(holder));
        Some(Misfit::new("ports", why, "use another hostPort, or a Service instead"))
    }

    fn volume_elsewhere(&self, node: &Value) -> Option<Misfit> {
        let (claim, bound) = self.volumes.iter().find(|(_, bound)| {
            let terms = volume_terms(bound);
            !terms.is_empty() && !terms.iter().any(|term| term_matches(term, node))
        })?;
        let required: Vec<String> = volume_terms(bound).iter().take(MAX_EXAMINED).map(requirements).collect();
        let why = format!(
            "the volume {} of the claim {claim} is only accessible where {}",
            bound.text(&["metadata", "name"]),
            crate::shortened(required.join(" or "))
        );
        Some(Misfit::new(
            "volume",
            why,
            "remove the constraint that keeps the pod away from its volume's node, or use another claim",
        ))
    }

    /// The first resource that a node has too little of.
    fn insufficient_resources(&self, node: &Value) -> Option<Misfit> {
        let allocatable = node.fields(&["status", "allocatable"])?;
        let limit = node.text(&["status", "allocatable", "pods"]).parse::<usize>().ok();
        let count = self.on_node(node).len();
        if limit.is_some_and(|limit| count >= limit) {
            let why = format!("it runs {count} pods, its maximum");
            return Some(Misfit::new("resources", why, "add a node, or scale down workloads that are not needed"));
        }
        for (resource, requested) in resources::of_pod(self.pod, Side::Requests) {
            let Some(all) =
                allocatable.get(&resource).and_then(Value::as_str).and_then(|text| Quantity::parse(text).ok())
            else {
                let why = format!("it has no {resource}, the pod requests {requested}");
                let fix = format!("run the device plugin for {resource} on a node, or remove the request from the pod");
                return Some(Misfit::new("resources", why, fix));
            };
            let mut used = Quantity::new(0, all.format());
            for other in self.on_node(node) {
                if let Some(amount) = resources::of_pod(other, Side::Requests).get(&resource) {
                    used.add(amount);
                }
            }
            let mut free = all.clone();
            free.subtract(&used);
            if free < requested {
                let why = format!(
                    "{resource}: {all} allocatable, {used} requested by its pods, {free} free; the pod requests {requested}"
                );
                let fix = if all < requested {
                    format!("no node is large enough: request less {resource}, or add a larger node")
                } else {
                    format!("request less {resource}, scale down workloads that are not needed, or add a node")
                };
                return Some(Misfit::new("resources", why, fix));
            }
        }
        None
    }

    /// Inter-pod affinity, anti-affinity and topology spread.
    fn inter_pod_rules(&self, node: &Value) -> Option<Misfit> {
        if let Some(other) = self.anti_affinity.iter().find_map(|term| term.near(node)) {
            let why = format!("the pod {} runs there, which its anti-affinity excludes", crate::full_name(other));
            return Some(Misfit::new("pods", why, "add nodes, run fewer replicas, or make the rule a preference"));
        }
        if self.affinity.iter().any(|term| term.near(node).is_none()) {
            let why = "no pod there matches its pod affinity".to_owned();
            return Some(Misfit::new(
                "pods",
                why,
                "start the pods that its affinity refers to first, or change its affinity",
            ));
        }
        spread(self.pod)
            .map(|why| Misfit::new("pods", why, "add nodes in the domains with fewer pods, or raise maxSkew"))
    }
}

fn cordoned(pod: &Value, node: &Value) -> Option<Misfit> {
    let name = node.text(&["metadata", "name"]);
    let tolerated = tolerates(pod, &json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}));
    (node.flag(&["spec", "unschedulable"]) == Some(true) && !tolerated).then(|| {
        let fix = format!("when the node's maintenance is finished: `kubectl uncordon {name}`");
        Misfit::new("cordoned", "it is cordoned (spec.unschedulable)".to_owned(), fix)
    })
}

fn tainted(pod: &Value, node: &Value) -> Option<Misfit> {
    let taints = node.items(&["spec", "taints"]).iter();
    let taint =
        taints.filter(|taint| taint.text(&["effect"]) != "PreferNoSchedule").find(|taint| !tolerates(pod, taint))?;
    let (key, value, effect) = (taint.text(&["key"]), taint.text(&["value"]), taint.text(&["effect"]));
    let written = if value.is_empty() { format!("{key}:{effect}") } else { format!("{key}={value}:{effect}") };
    let fix = match key {
        "node.kubernetes.io/not-ready" | "node.kubernetes.io/unreachable" => {
            format!("see why the node is not ready: `kubectl describe node {}`", node.text(&["metadata", "name"]))
        }
        "node.kubernetes.io/disk-pressure" => "free disk space on the node".to_owned(),
        "node.kubernetes.io/memory-pressure" => "lower the memory use of the node's pods, or add a node".to_owned(),
        "node.kubernetes.io/pid-pressure" => {
            "find the pods that start too many processes on the node, and limit or fix them".to_owned()
        }
        _ if is_reserved(key) => format!(
            "the taint goes when the node's condition is fixed: `kubectl describe node {}`",
            node.text(&["metadata", "name"])
        ),
        _ => format!("add a toleration for {written} to the pod if it may run there, or add a node without the taint"),
    };
    Some(Misfit::new("taint", format!("it has the taint {written}"), fix))
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    let taint = Taint { key: taint.text(&["key"]), value: taint.text(&["value"]), effect: taint.text(&["effect"]) };
    pod.items(&["spec", "tolerations"]).iter().any(|toleration| {
        let text = |field: &str| toleration.text(&[field]);
        let (key, operator, value, effect) = (text("key"), text("operator"), text("value"), text("effect"));
        Toleration { key, operator, value, effect }.tolerates(taint)
    })
}

fn selector_mismatch(pod: &Value, node: &Value) -> Option<Misfit> {
    let selector = pod.fields(&["spec", "nodeSelector"])?;
    let (key, value) =
        selector.iter().find(|(key, value)| node.at(&["metadata", "labels"]).get(*key) != Some(*value))?;
    let value = value.as_str().unwrap_or_default();
    let has = node.text(&["metadata", "labels", key]);
    let why = if has.is_empty() {
        format!("it has no label {key}, the pod requires {value}")
    } else {
        format!("its label {key} is {has}, the pod requires {value}")
    };
    // Labels that describe the node must stay true, and other pods may rely on a label that has a value.
    let fix = if is_reserved(key) || !has.is_empty() {
        format!("change the pod's nodeSelector, or add a node whose {key} is {value}")
    } else {
        format!(
            "change the pod's nodeSelector, or, if {key}={value} is true of a node, `kubectl label node NAME {key}={value}`"
        )
    };
    Some(Misfit::new("selector", why, fix))
}

/// Whether Kubernetes components set a label or taint with this key. Such a label describes the node, as
/// `kubernetes.io/arch` does, so the advice must not be to change it.
fn is_reserved(key: &str) -> bool {
    let domain = key.split_once('/').map_or("", |(domain, _)| domain);
    ["kubernetes.io", "k8s.io"]
        .iter()
        .any(|reserved| domain == *reserved || domain.strip_suffix(reserved).is_some_and(|rest| rest.ends_with('.')))
}

fn term_matches(term: &Value, node: &Value) -> bool {
    fn requirement(object: &Value) -> Requirement<'_, impl Iterator<Item = &str> + Clone> {
        let values = object.items(&["values"]).iter().filter_map(Value::as_str);
        Requirement { key: object.text(&["key"]), operator: object.text(&["operator"]), values }
    }
    let expressions = term.items(&["matchExpressions"]).iter().map(requirement);
    let fields = term.items(&["matchFields"]).iter().map(requirement);
    let labels = node.at(&["metadata", "labels"]);
    let label = |key: &str| labels.get(key).and_then(Value::as_str);
    node_selector::term_matches(expressions, fields, node.text(&["metadata", "name"]), label)
}

fn requirements(term: &Value) -> String {
    let all = term.items(&["matchExpressions"]).iter().chain(term.items(&["matchFields"]));
    let terms: Vec<String> = all
        .map(|one| {
            let values: Vec<&str> = one.items(&["values"]).iter().filter_map(Value::as_str).collect();
            format!("{} {} {}", one.text(&["key"]), one.text(&["operator"]), values.join(",")).trim_end().to_owned()
        })
        .collect();
    terms.join(" and ")
}

fn host_ports(pod: &Value) -> Vec<(i64, String)> {
    let containers = pod.items(&["spec", "containers"]).iter();
    let ports = containers.flat_map(|container| container.items(&["ports"]));
    ports
        .filter_map(|port| {
            let protocol = port.text(&["protocol"]);
            let protocol = if protocol.is_empty() { "TCP" } else { protocol };
            Some((port.integer(&["hostPort"]).filter(|number| *number > 0)?, protocol.to_owned()))
        })
        .collect()
}

impl<'a> Neighbours<'a> {
    /// `placed` are the pods of the namespace with their nodes.
    fn new(term: &'a Value, placed: &[(&'a Value, &'a Value)]) -> Self {
        let topology = term.text(&["topologyKey"]);
        let selector =
            LabelSelector::from_object(term.at(&["labelSelector"])).unwrap_or_else(|_| LabelSelector::nothing());
        let matching = placed.iter().filter(|(other, _)| selector.matches(other.fields(&["metadata", "labels"])));
        let by_domain = matching.filter_map(|(other, node)| Some((domain(node, topology)?, *other)));
        // The first of each domain is named.
        let mut first: HashMap<&str, &Value> = HashMap::new();
        for (domain, other) in by_domain {
            first.entry(domain).or_insert(other);
        }
        Neighbours { topology, by_domain: first }
    }

    /// One of the pods in the domain of a node.
    fn near(&self, node: &Value) -> Option<&'a Value> {
        self.by_domain.get(domain(node, self.topology)?).copied()
    }
}

fn domain<'a>(node: &'a Value, topology: &str) -> Option<&'a str> {
    node.at(&["metadata", "labels"]).get(topology)?.as_str()
}

fn node_terms(pod: &Value) -> &[Value] {
    let required = &["spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    pod.at(required).items(&["nodeSelectorTerms"])
}

fn volume_terms(volume: &Value) -> &[Value] {
    volume.items(&["spec", "nodeAffinity", "required", "nodeSelectorTerms"])
}

/// The bound volumes of a pod's claims, by the names of these.
fn volumes<'a>(evidence: &'a Evidence, pod: &'a Value) -> Vec<(&'a str, &'a Value)> {
    let namespace = pod.text(&["metadata", "namespace"]);
    let names =
        pod.items(&["spec", "volumes"]).iter().map(|volume| volume.text(&["persistentVolumeClaim", "claimName"]));
    let bound = names.filter(|name| !name.is_empty()).take(MAX_EXAMINED).filter_map(|name| {
        let claim = evidence.find("persistentvolumeclaims", namespace, name)?;
        Some((name, evidence.find("persistentvolumes", "", claim.text(&["spec", "volumeName"]))?))
    });
    bound.collect()
}

fn spread(pod: &Value) -> Option<String> {
    let observed = condition(pod, "PodScheduled")?.text(&["message"]);
    observed.contains("topology spread").then(|| "it would violate the pod's topology spread constraints".to_owned())
}
