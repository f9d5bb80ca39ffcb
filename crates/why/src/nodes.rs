//! Why each node does not take a pod, with numbers.

use std::collections::BTreeMap;

use knarr_api::quantity::Quantity;
use knarr_api::selector::LabelSelector;
use knarr_api::value::Read;
use knarr_rules::common::resources::{self, ResourceList, Side};
use serde_json::{Value, json};

use crate::Finding;
use crate::evidence::Evidence;

/// How many nodes are named one by one.
const NAMED: usize = 10;

pub fn explain(evidence: &Evidence, pod: &Value) -> Option<Finding> {
    if !evidence.lists.contains_key("nodes") {
        return None;
    }
    let nodes = evidence.all("nodes");
    if nodes.is_empty() {
        return Some(Finding::new(
            "the cluster has no nodes",
            vec!["no Node exists".to_owned()],
            "add a node: `knarr token create --print-join-command` prints how",
        ));
    }
    let mut misfits: Vec<(&str, Misfit)> = Vec::new();
    for node in nodes {
        misfits.push((node.text(&["metadata", "name"]), misfit(evidence, pod, node)?));
    }
    let mut kinds: BTreeMap<&'static str, usize> = BTreeMap::new();
    misfits.iter().for_each(|(_, misfit)| *kinds.entry(misfit.kind).or_default() += 1);
    // What stands in the way on most nodes is what to change.
    let most = kinds.iter().max_by_key(|(_, count)| **count).map(|(kind, _)| *kind)?;
    let main = misfits.iter().find(|(_, misfit)| misfit.kind == most).map(|(_, misfit)| misfit)?;
    let (cause, fix) = (cause(most, nodes.len()), main.fix.clone());
    let mut evidence: Vec<String> =
        misfits.iter().take(NAMED).map(|(name, misfit)| format!("node {name}: {}", misfit.why)).collect();
    if misfits.len() > NAMED {
        evidence.push(format!("and {} more nodes", misfits.len() - NAMED));
    }
    Some(Finding::new(cause, evidence, fix))
}

fn cause(kind: &str, nodes: usize) -> String {
    let all = if nodes == 1 { "the only node".to_owned() } else { format!("the {nodes} nodes") };
    match kind {
        "resources" => format!("{all} cannot hold what it asks for"),
        "taint" => format!("it does not tolerate the taints of {all}"),
        "selector" => format!("{all} cannot be chosen by its nodeSelector"),
        "affinity" => format!("{all} cannot be chosen by its node affinity"),
        "cordoned" => format!("{all} takes no new pods"),
        "ports" => format!("its host port is taken on {all}"),
        "name" => "it may only run on a node that does not exist".to_owned(),
        "pods" => format!("its rules about other pods exclude {all}"),
        "volume" => format!("its volume cannot be reached from {all}"),
        _ => format!("{all} cannot take it"),
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

/// Why a node does not take a pod; nothing if it would, as far as can be seen from here.
fn misfit(evidence: &Evidence, pod: &Value, node: &Value) -> Option<Misfit> {
    let checks = [cordoned, tainted, unselected, unwanted, port_taken, volume_elsewhere];
    checks
        .iter()
        .find_map(|check| check(evidence, pod, node))
        .or_else(|| lacking(evidence, pod, node))
        .or_else(|| near_others(evidence, pod, node))
}

fn cordoned(_: &Evidence, pod: &Value, node: &Value) -> Option<Misfit> {
    let name = node.text(&["metadata", "name"]);
    let tolerated = tolerates(pod, &json!({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}));
    (node.flag(&["spec", "unschedulable"]) == Some(true) && !tolerated).then(|| {
        Misfit::new("cordoned", "it is cordoned (spec.unschedulable)".to_owned(), format!("`kubectl uncordon {name}`"))
    })
}

fn tainted(_: &Evidence, pod: &Value, node: &Value) -> Option<Misfit> {
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
        "node.kubernetes.io/memory-pressure" => "free memory on the node".to_owned(),
        "node.kubernetes.io/pid-pressure" => "end processes on the node".to_owned(),
        _ => format!("add a toleration for {written} to the pod, or take the taint off a node"),
    };
    Some(Misfit::new("taint", format!("it has the taint {written}"), fix))
}

fn tolerates(pod: &Value, taint: &Value) -> bool {
    pod.items(&["spec", "tolerations"]).iter().any(|toleration| {
        let (key, operator) = (toleration.text(&["key"]), toleration.text(&["operator"]));
        let effect = toleration.text(&["effect"]);
        let same_key = key == taint.text(&["key"]) || key.is_empty() && operator == "Exists";
        let same_value = operator == "Exists" || toleration.text(&["value"]) == taint.text(&["value"]);
        same_key && same_value && (effect.is_empty() || effect == taint.text(&["effect"]))
    })
}

fn unselected(_: &Evidence, pod: &Value, node: &Value) -> Option<Misfit> {
    let wanted = pod.fields(&["spec", "nodeSelector"])?;
    let (key, value) = wanted.iter().find(|(key, value)| node.at(&["metadata", "labels"]).get(*key) != Some(*value))?;
    let value = value.as_str().unwrap_or_default();
    let has = node.text(&["metadata", "labels", key]);
    let why = if has.is_empty() {
        format!("it has no label {key}, the pod wants {value}")
    } else {
        format!("its label {key} is {has}, the pod wants {value}")
    };
    let fix = format!("label a node with `kubectl label node NAME {key}={value}`, or change the pod's nodeSelector");
    Some(Misfit::new("selector", why, fix))
}

fn unwanted(_: &Evidence, pod: &Value, node: &Value) -> Option<Misfit> {
    let required = &["spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
    let terms = pod.at(required).items(&["nodeSelectorTerms"]);
    if terms.is_empty() {
        return None;
    }
    let fits = |term: &Value| {
        let labels = LabelSelector::from_object(&json!({"matchExpressions": plain(term)}));
        let name = node.text(&["metadata", "name"]);
        let named = term.items(&["matchFields"]).iter().all(|field| {
            let values = field.items(&["values"]).iter().any(|value| value.as_str() == Some(name));
            (field.text(&["operator"]) == "In") == values
        });
        named && labels.is_ok_and(|labels| labels.matches(node.fields(&["metadata", "labels"])))
    };
    if terms.iter().any(fits) {
        return None;
    }
    let by_name = terms.iter().all(|term| term.has(&["matchFields"]));
    let kind = if by_name { "name" } else { "affinity" };
    let asked: Vec<String> = terms.iter().map(requirements).collect();
    let why = format!("it is not what the pod's node affinity requires: {}", asked.join(" or "));
    Some(Misfit::new(kind, why, "label a node so that it fits, or change the pod's node affinity"))
}

/// Expressions a label selector knows; comparisons of numbers are left to the scheduler's own words.
fn plain(term: &Value) -> Vec<Value> {
    let all = term.items(&["matchExpressions"]).iter();
    all.filter(|expression| !matches!(expression.text(&["operator"]), "Gt" | "Lt")).cloned().collect()
}

fn requirements(term: &Value) -> String {
    let all = term.items(&["matchExpressions"]).iter().chain(term.items(&["matchFields"]));
    let parts: Vec<String> = all
        .map(|one| {
            let values: Vec<&str> = one.items(&["values"]).iter().filter_map(Value::as_str).collect();
            format!("{} {} {}", one.text(&["key"]), one.text(&["operator"]), values.join(",")).trim_end().to_owned()
        })
        .collect();
    parts.join(" and ")
}

fn port_taken(evidence: &Evidence, pod: &Value, node: &Value) -> Option<Misfit> {
    let wanted = host_ports(pod);
    let (port, holder) = on_node(evidence, node)
        .flat_map(|other| host_ports(other).into_iter().map(move |port| (port, other)))
        .find(|(port, _)| wanted.contains(port))?;
    let why = format!("{}/{} is taken there by the pod {}", port.0, port.1, crate::full_name(holder));
    Some(Misfit::new("ports", why, "use another hostPort, or none and a Service instead"))
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

/// Pods that run on a node, or are about to.
fn on_node<'a>(evidence: &'a Evidence, node: &'a Value) -> impl Iterator<Item = &'a Value> {
    let name = node.text(&["metadata", "name"]);
    evidence.all("pods").iter().filter(move |pod| {
        pod.text(&["spec", "nodeName"]) == name && !matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed")
    })
}

fn volume_elsewhere(evidence: &Evidence, pod: &Value, node: &Value) -> Option<Misfit> {
    let namespace = pod.text(&["metadata", "namespace"]);
    for volume in pod.items(&["spec", "volumes"]) {
        let name = volume.text(&["persistentVolumeClaim", "claimName"]);
        let Some(claim) = evidence.find("persistentvolumeclaims", namespace, name) else { continue };
        let Some(bound) = evidence.find("persistentvolumes", "", claim.text(&["spec", "volumeName"])) else { continue };
        let terms = bound.items(&["spec", "nodeAffinity", "required", "nodeSelectorTerms"]);
        let reachable = |term: &Value| {
            let labels = LabelSelector::from_object(&json!({"matchExpressions": plain(term)}));
            labels.is_ok_and(|labels| labels.matches(node.fields(&["metadata", "labels"])))
        };
        if !terms.is_empty() && !terms.iter().any(reachable) {
            let asked: Vec<String> = terms.iter().map(requirements).collect();
            let why = format!(
                "the volume {} of the claim {name} can only be used where {}",
                bound.text(&["metadata", "name"]),
                asked.join(" or ")
            );
            return Some(Misfit::new("volume", why, "let the pod run where its volume is, or use another claim"));
        }
    }
    None
}

/// What a node has too little of.
fn lacking(evidence: &Evidence, pod: &Value, node: &Value) -> Option<Misfit> {
    let allocatable = node.fields(&["status", "allocatable"])?;
    let limit = node.text(&["status", "allocatable", "pods"]).parse::<usize>().ok();
    let count = on_node(evidence, node).count();
    if limit.is_some_and(|limit| count >= limit) {
        let why = format!("it runs {count} pods, as many as it may");
        return Some(Misfit::new("resources", why, "add a node, or end pods that are not needed"));
    }
    for (resource, asked) in requests(pod) {
        let Some(all) = allocatable.get(&resource).and_then(Value::as_str).and_then(|text| Quantity::parse(text).ok())
        else {
            let why = format!("it has no {resource}, the pod asks for {asked}");
            let fix = format!("run the device plugin for {resource} on a node, or ask for something else");
            return Some(Misfit::new("resources", why, fix));
        };
        let mut taken = Quantity::new(0, all.format());
        for other in on_node(evidence, node) {
            if let Some(amount) = requests(other).get(&resource) {
                taken.add(amount);
            }
        }
        let mut left = all.clone();
        left.subtract(&taken);
        if left < asked {
            let why = format!(
                "{resource}: {all} in all, {taken} asked for by its pods, {left} left; the pod asks for {asked}"
            );
            let fix = if all < asked {
                format!("no node is large enough: ask for less {resource}, or add a larger node")
            } else {
                format!("ask for less {resource}, end other pods, or add a node")
            };
            return Some(Misfit::new("resources", why, fix));
        }
    }
    None
}

/// What a pod asks for: its containers together or what is given for it as a whole, and what its runtime needs.
fn requests(pod: &Value) -> ResourceList {
    let mut sums = resources::of_containers(pod.at(&["spec"]), Side::Requests);
    sums.extend(resources::list(pod.at(&["spec", "resources", "requests"])));
    resources::add(&mut sums, &resources::list(pod.at(&["spec", "overhead"])));
    sums
}

/// Rules about other pods: where an affinity finds nobody, or an anti-affinity somebody.
fn near_others(evidence: &Evidence, pod: &Value, node: &Value) -> Option<Misfit> {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    for term in pod.items(&["spec", "affinity", "podAntiAffinity", REQUIRED]) {
        if let Some(other) = neighbours(evidence, pod, node, term).next() {
            let why = format!("the pod {} is there, which its anti-affinity keeps away from", crate::full_name(other));
            return Some(Misfit::new("pods", why, "add nodes, run fewer replicas, or make the rule a preference"));
        }
    }
    for term in pod.items(&["spec", "affinity", "podAffinity", REQUIRED]) {
        if neighbours(evidence, pod, node, term).next().is_none() {
            let why = "no pod is there that its affinity asks for".to_owned();
            return Some(Misfit::new("pods", why, "start the pods it wants to be near first, or change its affinity"));
        }
    }
    spread(pod).map(|why| Misfit::new("pods", why, "add nodes in the emptier domains, or raise maxSkew"))
}

/// Other pods in the node's domain that a term is about.
fn neighbours<'a>(
    evidence: &'a Evidence,
    pod: &'a Value,
    node: &'a Value,
    term: &'a Value,
) -> impl Iterator<Item = &'a Value> {
    let key = term.text(&["topologyKey"]);
    let domain = node.at(&["metadata", "labels"]).get(key);
    let selector = LabelSelector::from_object(term.at(&["labelSelector"])).unwrap_or_else(|_| LabelSelector::nothing());
    evidence.within("pods", pod.text(&["metadata", "namespace"])).filter(move |other| {
        let placed = evidence.find("nodes", "", other.text(&["spec", "nodeName"]));
        let same =
            placed.is_some_and(|placed| domain.is_some() && placed.at(&["metadata", "labels"]).get(key) == domain);
        same && selector.matches(other.fields(&["metadata", "labels"]))
    })
}

fn spread(pod: &Value) -> Option<String> {
    let told = crate::condition(pod, "PodScheduled")?.text(&["message"]);
    told.contains("topology spread").then(|| "its topology spread constraints would be broken there".to_owned())
}
