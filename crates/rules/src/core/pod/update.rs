//! Validation of updates of pods.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path, quoted};
use knarr_api::value::{Read, Write};
use serde_json::Value;

use super::annotations::{self, MIRROR};
use super::options::Options;
use super::qos;
use super::validation::containers::untrimmed_image;
use super::validation::scheduling;
use crate::common::checks::between;
use crate::common::equality::same;
use crate::common::{diff, internal_types};
use crate::kind::keep_field;

const UPDATABLE: &str = "`spec.containers[*].image`,`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,\
                         `spec.tolerations` (only additions to existing tolerations),\
                         `spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)";

/// Validates an update of the pod itself.
pub fn pod(errors: &mut Errors, pod: &Value, old: &Value, options: &Options) {
    let metadata = Path::root("metadata");
    annotations::validate_update(errors, pod, old, &metadata.child("annotations"), options);
    let path = Path::root("spec");
    let (spec, old_spec) = (pod.at(&["spec"]), old.at(&["spec"]));
    for list in ["containers", "initContainers"] {
        if !containers(errors, spec, old_spec, list, &path) {
            return;
        }
    }
    if !active_deadline(errors, spec, old_spec, &path.child("activeDeadlineSeconds")) {
        return;
    }
    added_tolerations(errors, spec, old_spec, &path.child("tolerations"), options);
    removed_gates(errors, spec, old_spec, &path);
    if same(spec, old_spec) {
        return;
    }
    let allowed = with_allowed_changes_undone(errors, spec, old_spec, &path);
    if !same(&allowed, old_spec) {
        let diff = diff::of_pod_specs(old_spec, &allowed);
        let detail = format!("pod updates may not change fields other than {UPDATABLE}\n{diff}");
        errors.forbidden(&path, detail);
    }
}

/// Returns whether further validation makes sense.
fn containers(errors: &mut Errors, spec: &Value, old: &Value, list: &str, path: &Path<'_>) -> bool {
    let containers = spec.items(&[list]);
    if containers.len() != old.items(&[list]).len() {
        errors.forbidden(&path.child(list), "pod updates may not add or remove containers");
        return false;
    }
    for (i, container) in containers.iter().enumerate() {
        let path = path.item(list, i);
        if container.text(&["image"]).is_empty() {
            errors.required(&path.child("image"), "");
        }
        untrimmed_image(errors, container, &path);
    }
    true
}

fn active_deadline(errors: &mut Errors, spec: &Value, old: &Value, path: &Path<'_>) -> bool {
    let limit = i64::from(i32::MAX);
    match (spec.integer(&["activeDeadlineSeconds"]), old.integer(&["activeDeadlineSeconds"])) {
        (Some(new), _) if !(0..=limit).contains(&new) => {
            errors.invalid(path, new, between(0, limit));
            return false;
        }
        (Some(new), Some(old)) if old < new => {
            errors.invalid(path, new, "must be less than or equal to previous value");
            return false;
        }
        (None, Some(_)) => {
            errors.invalid(path, Value::Null, "must not update from a positive integer to nil value");
        }
        _ => {}
    }
    true
}

fn added_tolerations(errors: &mut Errors, spec: &Value, old: &Value, path: &Path<'_>, options: &Options) {
    let new = spec.items(&["tolerations"]);
    fn but_for_seconds(toleration: &Value) -> [&str; 4] {
        ["key", "operator", "value", "effect"].map(|field| toleration.text(&[field]))
    }
    let kept: BTreeSet<_> = new.iter().map(but_for_seconds).collect();
    let all_kept = old.items(&["tolerations"]).iter().all(|old| kept.contains(&but_for_seconds(old)));
    if !all_kept {
        return errors.forbidden(path, "existing toleration can not be modified except its tolerationSeconds");
    }
    scheduling::tolerations(errors, new, path, options);
}

fn removed_gates(errors: &mut Errors, spec: &Value, old: &Value, path: &Path<'_>) {
    let before: BTreeSet<&str> = old.items(&["schedulingGates"]).iter().map(|gate| gate.text(&["name"])).collect();
    for (i, gate) in spec.items(&["schedulingGates"]).iter().enumerate() {
        let name = gate.text(&["name"]);
        if !before.contains(name) {
            let detail = format!("only deletion is allowed, but found new scheduling gate '{name}'");
            errors.forbidden(&path.item("schedulingGates", i).child("name"), detail);
        }
    }
}

/// Returns the new spec with the fields that may change reverted to the old ones.
fn with_allowed_changes_undone(errors: &mut Errors, spec: &Value, old: &Value, path: &Path<'_>) -> Value {
    let mut undone = spec.clone();
    for list in ["containers", "initContainers"] {
        for (container, before) in undone.items_mut(&[list]).iter_mut().zip(old.items(&[list])) {
            keep_field(container, before, "image");
        }
    }
    for field in ["activeDeadlineSeconds", "schedulingGates", "tolerations"] {
        keep_field(&mut undone, old, field);
    }
    if old.integer(&["terminationGracePeriodSeconds"]).is_some_and(|seconds| seconds < 0)
        && undone.integer(&["terminationGracePeriodSeconds"]) == Some(1)
    {
        keep_field(&mut undone, old, "terminationGracePeriodSeconds");
    }
    if old.items(&["schedulingGates"]).is_empty() {
        return undone;
    }
    if !same(undone.at(&["nodeSelector"]), old.at(&["nodeSelector"])) {
        node_selector_grows(errors, spec, old, &path.child("nodeSelector"));
        keep_field(&mut undone, old, "nodeSelector");
    }
    let before = old.at(&["affinity", "nodeAffinity"]);
    if !same(undone.at(&["affinity", "nodeAffinity"]), before) {
        node_affinity_grows(
            errors,
            undone.at(&["affinity", "nodeAffinity"]),
            before,
            &path.child("affinity.nodeAffinity"),
        );
        let has_other_terms = undone.has(&["affinity", "podAffinity"]) || undone.has(&["affinity", "podAntiAffinity"]);
        if undone.has(&["affinity"]) && !old.has(&["affinity"]) && !has_other_terms {
            undone.remove(&["affinity"]);
        } else if before.is_null() {
            undone.remove(&["affinity", "nodeAffinity"]);
        } else {
            undone.set(&["affinity", "nodeAffinity"], before.clone());
        }
    }
    undone
}

fn node_selector_grows(errors: &mut Errors, spec: &Value, old: &Value, path: &Path<'_>) {
    let new = spec.at(&["nodeSelector"]);
    let lost = old.fields(&["nodeSelector"]).into_iter().flatten().any(|(key, value)| new.get(key) != Some(value));
    if lost {
        let detail = "only additions to spec.nodeSelector are allowed (no mutations or deletions)";
        errors.invalid(path, new.clone(), detail);
    }
}

fn node_affinity_grows(errors: &mut Errors, new: &Value, old: &Value, path: &Path<'_>) {
    const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
    let before = old.items(&[REQUIRED, "nodeSelectorTerms"]);
    let after = new.items(&[REQUIRED, "nodeSelectorTerms"]);
    let path = path.child(REQUIRED);
    if !before.is_empty() && before.len() != after.len() {
        let rendered: Vec<String> = after.iter().map(term_json).collect();
        let rendered = if after.is_empty() { "null".to_owned() } else { format!("[{}]", rendered.join(",")) };
        let detail = "no additions/deletions to non-empty NodeSelectorTerms list are allowed";
        return errors.invalid_verbatim(&path.child("nodeSelectorTerms"), rendered, detail);
    }
    for (i, (old, new)) in before.iter().zip(after).enumerate() {
        if !term_grows(new, old) {
            let detail = "only additions are allowed (no mutations or deletions)";
            errors.invalid_verbatim(&path.item("nodeSelectorTerms", i), term_json(new), detail);
        }
    }
}

fn term_grows(new: &Value, old: &Value) -> bool {
    let lists = ["matchExpressions", "matchFields"];
    let is_empty = |term: &Value| lists.iter().all(|list| term.items(&[list]).is_empty());
    if is_empty(old) && !is_empty(new) {
        return false;
    }
    lists.iter().all(|list| {
        let (new, old) = (new.items(&[list]), old.items(&[list]));
        new.len() >= old.len() && new.iter().zip(old).all(|(new, old)| same(new, old))
    })
}

fn term_json(term: &Value) -> String {
    internal_types::to_json("NodeSelectorTerm", term)
}

/// Validates a write to `ephemeralcontainers`: they may be added, but not changed or removed.
pub fn ephemeral_containers(errors: &mut Errors, pod: &Value, old: &Value, options: &Options) {
    let metadata = Path::root("metadata");
    annotations::validate_update(errors, pod, old, &metadata.child("annotations"), options);
    if old.has(&["metadata", "annotations", MIRROR]) {
        errors.0.clear();
        return errors.forbidden(&Path::root("[]"), "static pods do not support ephemeral containers");
    }
    let path = Path::root("spec");
    let path = path.child("ephemeralContainers");
    let after = pod.items(&["spec", "ephemeralContainers"]);
    for before in old.items(&["spec", "ephemeralContainers"]) {
        let name = before.text(&["name"]);
        match after.iter().rev().find(|container| container.text(&["name"]) == name) {
            None => {
                let detail = format!("existing ephemeral containers {} may not be removed\n", quoted(name));
                errors.forbidden(&path, detail);
            }
            Some(container) if !same(container, before) => {
                let diff = diff::of_ephemeral_containers(before, container);
                let detail = format!("existing ephemeral containers {} may not be changed\n{diff}", quoted(name));
                errors.forbidden(&path, detail);
            }
            Some(_) => {}
        }
    }
}

/// Validates a write to `resize`: only CPU and memory may change, and the QoS class may not.
pub fn resize(errors: &mut Errors, pod: &Value, old: &Value) {
    if old.has(&["metadata", "annotations", MIRROR]) {
        errors.0.clear();
        return errors.forbidden(&Path::root("[]"), "static pods cannot be resized");
    }
    let (spec, old_spec) = (pod.at(&["spec"]), old.at(&["spec"]));
    if old_spec.text(&["os", "name"]) == "windows" {
        errors.0.clear();
        return errors.forbidden(&Path::root("[]"), "windows pods cannot be resized");
    }
    let path = Path::root("spec");
    let class = match old.text(&["status", "qosClass"]) {
        "" => qos::class(old_spec),
        class => class,
    };
    if class != qos::class(spec) {
        let rendered = pod.text(&["status", "qosClass"]);
        errors.invalid(&path, rendered, "Pod QOS Class may not change as a result of resizing");
    }
    let running = old.items(&["status", "containerStatuses"]).iter().find(|status| status.has(&["state", "running"]));
    if running.is_some_and(|status| !status.has(&["resources"])) {
        errors.forbidden(&path, "Pod running on node without support for resize");
    }
    let mut undone = spec.clone();
    resize_pod_level(errors, &mut undone, old_spec, &path);
    if !same_containers(errors, spec, old_spec, &path) {
        return;
    }
    for list in ["initContainers", "containers"] {
        for (i, (new, old)) in spec.items(&[list]).iter().zip(old_spec.items(&[list])).enumerate() {
            let path = path.item(list, i);
            for (side, what) in [("requests", "requests"), ("limits", "limits")] {
                if loses_resources(new.at(&["resources", side]), old.at(&["resources", side])) {
                    let detail = format!("resource {what} cannot be removed");
                    errors.forbidden(&path.child("resources").child(side), detail);
                }
            }
        }
    }
    resize_containers(errors, &mut undone, spec, old_spec, &path);
    if errors.is_empty() && !same(&undone, old_spec) {
        errors.forbidden(&path, "only cpu and memory resources are mutable");
    }
}

fn resize_pod_level(errors: &mut Errors, undone: &mut Value, old: &Value, path: &Path<'_>) {
    let is_set = |spec: &Value| {
        ["requests", "limits"].iter().any(|side| spec.fields(&["resources", side]).is_some_and(|list| !list.is_empty()))
    };
    if !is_set(old) && !is_set(undone) {
        return;
    }
    let path_of_resources = path.child("resources");
    if old.has(&["resources"]) {
        if !undone.has(&["resources"]) {
            return errors.forbidden(&path_of_resources, "pod-level resources cannot be removed");
        }
        for side in ["requests", "limits"] {
            if loses_resources(undone.at(&["resources", side]), old.at(&["resources", side])) {
                let detail = format!("pod-level resource {side} cannot be removed");
                errors.forbidden(&path_of_resources.child(side), detail);
            }
        }
    }
    undo_resources(undone, old);
    let level = undone.at(&["resources"]);
    let is_nothing = ["requests", "limits", "claims"].iter().all(|field| match level.at(&[field]) {
        Value::Object(list) => list.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => true,
    });
    if is_nothing && !old.has(&["resources"]) {
        undone.remove(&["resources"]);
    }
    if !same(undone.at(&["resources"]), old.at(&["resources"])) {
        errors.forbidden(path, "only cpu and memory resources are mutable at pod-level");
    }
}

fn same_containers(errors: &mut Errors, spec: &Value, old: &Value, path: &Path<'_>) -> bool {
    let before = errors.0.len();
    for list in ["containers", "initContainers"] {
        let (new, old) = (spec.items(&[list]), old.items(&[list]));
        if new.len() != old.len() {
            errors.forbidden(&path.child(list), format!("{list} may not be added or removed on resize"));
            continue;
        }
        for (i, (new, old)) in new.iter().zip(old).enumerate() {
            if new.text(&["name"]) != old.text(&["name"]) {
                let detail = format!("{list} may not be renamed or reordered on resize");
                errors.forbidden(&path.item(list, i).child("name"), detail);
            }
        }
    }
    errors.0.len() == before
}

fn resize_containers(errors: &mut Errors, undone: &mut Value, spec: &Value, old: &Value, path: &Path<'_>) {
    for (container, before) in undone.items_mut(&["containers"]).iter_mut().zip(old.items(&["containers"])) {
        undo_resources(container, before);
        if !same(container, before) {
            errors.forbidden(path, "only cpu and memory resources are mutable");
        }
    }
    let before = old.items(&["initContainers"]);
    for (i, container) in undone.items_mut(&["initContainers"]).iter_mut().enumerate() {
        let path = path.item("initContainers", i);
        undo_resources(container, &before[i]);
        if !same(container, &before[i]) {
            let detail = "only cpu and memory resources for init or sidecar containers are mutable";
            errors.forbidden(&path, detail);
        }
        let is_changed = !same(&spec.items(&["initContainers"])[i], &before[i]);
        let is_sidecar = container.text(&["restartPolicy"]) == "Always";
        let restarts = container
            .items(&["resizePolicy"])
            .iter()
            .filter(|policy| policy.text(&["restartPolicy"]) == "RestartContainer")
            .count();
        for _ in 0..if is_changed && !is_sidecar { restarts } else { 0 } {
            let detail = "non-sidecar init containers with a resize policy of RestartContainer cannot be resized";
            errors.forbidden(&path, detail);
        }
    }
}

/// Reverts CPU and memory.
fn undo_resources(holder: &mut Value, old: &Value) {
    for side in ["limits", "requests"] {
        let before = old.at(&["resources", side]);
        if !holder.has(&["resources", side]) && before.is_null() {
            continue;
        }
        let list = holder.object(&["resources", side]);
        for name in ["cpu", "memory"] {
            match before.get(name) {
                Some(amount) => list.insert(name.to_owned(), amount.clone()),
                None => list.remove(name),
            };
        }
    }
}

fn loses_resources(new: &Value, old: &Value) -> bool {
    old.as_object().into_iter().flatten().any(|(name, _)| new.get(name).is_none())
}

/// Validates a Binding.
pub fn binding(errors: &mut Errors, binding: &Value) {
    let path = Path::root("target");
    let kind = binding.text(&["target", "kind"]);
    if !kind.is_empty() && kind != "Node" {
        errors.not_supported(&path.child("kind"), kind, &["Node", "<empty>"]);
    }
    if binding.text(&["target", "name"]).is_empty() {
        errors.required(&path.child("name"), "");
    }
}
