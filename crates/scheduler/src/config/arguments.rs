//! Validation of plugin arguments.

use std::collections::BTreeSet;

use knarr_api::value::json_type;
use serde_json::{Map, Value, json};

use super::decode_errors::no_head;
use super::field_errors::FieldErrors;

/// The fields of each plugin's arguments, and the names of their types in Kubernetes.
const FIELDS: &[(&str, &[(&str, &str)])] = &[
    ("DefaultPreemption", &[("minCandidateNodesPercentage", "int32"), ("minCandidateNodesAbsolute", "int32")]),
    ("DynamicResources", &[("filterTimeout", "string"), ("bindingTimeout", "string")]),
    ("InterPodAffinity", &[("hardPodAffinityWeight", "int32"), ("ignorePreferredTermsOfExistingPods", "bool")]),
    ("NodeAffinity", &[("addedAffinity", "v1.NodeAffinity")]),
    ("NodeResourcesBalancedAllocation", &[("resources", "[]v1.ResourceSpec")]),
    (
        "NodeResourcesFit",
        &[
            ("ignoredResources", "[]string"),
            ("ignoredResourceGroups", "[]string"),
            ("scoringStrategy", "v1.ScoringStrategy"),
        ],
    ),
    (
        "PodTopologySpread",
        &[
            ("defaultConstraints", "[]v1.TopologySpreadConstraint"),
            ("defaultingType", "v1.PodTopologySpreadConstraintsDefaulting"),
        ],
    ),
    ("VolumeBinding", &[("bindTimeoutSeconds", "int64"), ("shape", "[]v1.UtilizationShapePoint")]),
];

/// Why arguments cannot be decoded as those of the plugin.
pub(super) fn decode_error(plugin: &str, args: &Value) -> Option<String> {
    let (_, fields) = FIELDS.iter().find(|(name, _)| *name == plugin)?;
    let none = Map::new();
    let given = match args {
        Value::Object(given) => given,
        Value::Null => &none,
        other => return Some(format!("decoding args for plugin {plugin}: {}", no_head(json_type(other)))),
    };
    if let Some(kind) = args["kind"].as_str().filter(|kind| *kind != format!("{plugin}Args")) {
        let group =
            args["apiVersion"].as_str().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
        return Some(format!(
            "args for plugin {plugin} were not of type {plugin}Args.kubescheduler.config.k8s.io, got {kind}.{group}"
        ));
    }
    for (field, expected) in *fields {
        let value = given.get(*field).unwrap_or(&Value::Null);
        if !value.is_null() && json_type(value) != kind_of_type(expected) {
            return Some(format!(
                "decoding args for plugin {plugin}: json: cannot unmarshal {} into Go struct field {plugin}Args.{field} \
                 of type {expected}",
                json_type(value)
            ));
        }
    }
    let is_known =
        |field: &str| ["apiVersion", "kind"].contains(&field) || fields.iter().any(|(known, _)| *known == field);
    let unknown = given.keys().find(|field| !is_known(field))?;
    Some(format!(
        "strict decoding error: decoding args for plugin {plugin}: strict decoding error: unknown field {unknown:?}"
    ))
}

fn kind_of_type(name: &str) -> &'static str {
    match name {
        "int32" | "int64" => "number",
        "bool" => "bool",
        "string" | "v1.PodTopologySpreadConstraintsDefaulting" => "string",
        list if list.starts_with("[]") => "array",
        _ => "object",
    }
}

pub(super) fn check(path: &str, plugin: &str, args: &Value, errors: &mut FieldErrors) {
    match plugin {
        "DefaultPreemption" => check_preemption(path, args, errors),
        "InterPodAffinity" => {
            let weight = args["hardPodAffinityWeight"].as_i64().unwrap_or(1);
            if !(0..=100).contains(&weight) {
                errors.invalid(&format!("{path}.hardPodAffinityWeight"), json!(weight), "not in valid range [0, 100]");
            }
        }
        "NodeAffinity" => check_affinity(&format!("{path}.addedAffinity"), &args["addedAffinity"], errors),
        "NodeResourcesBalancedAllocation" => check_balanced(path, args, errors),
        "PodTopologySpread" => check_spread(path, args, errors),
        "VolumeBinding" => {
            if let Some(seconds) = args["bindTimeoutSeconds"].as_i64().filter(|seconds| *seconds < 0) {
                let why = "invalid BindTimeoutSeconds, should not be a negative value";
                errors.invalid(&format!("{path}.bindTimeoutSeconds"), json!(seconds), why);
            }
            if let Some(shape) = args["shape"].as_array() {
                let why = "unexpected field `shape`, remove it or turn on the feature gate StorageCapacityScoring";
                let point = |point: &Value| {
                    format!("{{\"Utilization\":{},\"Score\":{}}}", number(point, "utilization"), number(point, "score"))
                };
                let points: Vec<String> = shape.iter().map(point).collect();
                errors.invalid(&format!("{path}.shape"), format!("[{}]", points.join(",")), why);
            }
        }
        _ => {}
    }
}

/// A number that defaults to 0.
fn number(value: &Value, field: &str) -> i64 {
    value[field].as_i64().unwrap_or(0)
}

fn items<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

fn check_preemption(path: &str, args: &Value, errors: &mut FieldErrors) {
    let (of_all, min_count) = ("minCandidateNodesPercentage", "minCandidateNodesAbsolute");
    let part = args[of_all].as_i64().unwrap_or(10);
    let count = args[min_count].as_i64().unwrap_or(100);
    if !(0..=100).contains(&part) {
        errors.invalid(&format!("{path}.{of_all}"), json!(part), "not in valid range [0, 100]");
    }
    if count < 0 {
        errors.invalid(&format!("{path}.{min_count}"), json!(count), "not in valid range [0, inf)");
    }
    if part == 0 && count == 0 {
        for (field, other) in [(of_all, min_count), (min_count, of_all)] {
            let why = format!("cannot be zero at the same time as {other}");
            errors.invalid(&format!("{path}.{field}"), json!(0), &why);
        }
    }
}

fn check_balanced(path: &str, args: &Value, errors: &mut FieldErrors) {
    let mut known = BTreeSet::new();
    for (index, resource) in items(args, "resources").iter().enumerate() {
        let name = resource["name"].as_str().unwrap_or_default();
        if !known.insert(name) {
            errors.duplicate(&format!("{path}.resources[{index}].name"), json!(name));
        }
        let weight = number(resource, "weight");
        if weight != 0 && weight != 1 {
            errors.invalid(&format!("{path}.resources[{index}].weight"), json!(weight), "must be 1");
        }
    }
}

fn check_spread(path: &str, args: &Value, errors: &mut FieldErrors) {
    let constraints = items(args, "defaultConstraints");
    let field = format!("{path}.defaultingType");
    match args["defaultingType"].as_str().unwrap_or("System") {
        "List" => {}
        "System" if constraints.is_empty() => {}
        "System" => errors.invalid(&field, json!("System"), "when .defaultConstraints are not empty"),
        other => errors.unsupported(&field, other, &["System", "List"]),
    }
    let mut known = BTreeSet::new();
    for (index, constraint) in constraints.iter().enumerate() {
        let path = format!("{path}.defaultConstraints[{index}]");
        let skew = number(constraint, "maxSkew");
        if skew <= 0 {
            errors.invalid(&format!("{path}.maxSkew"), json!(skew), "not in valid range (0, inf)");
        }
        let text = |field: &str| constraint[field].as_str().unwrap_or_default();
        let (key, otherwise) = (text("topologyKey"), text("whenUnsatisfiable"));
        let field = format!("{path}.topologyKey");
        if key.is_empty() {
            errors.required(&field, "can not be empty");
        } else {
            errors.unless_qualified(&field, key);
        }
        let field = format!("{path}.whenUnsatisfiable");
        match otherwise {
            "" => errors.required(&field, "can not be empty"),
            "DoNotSchedule" | "ScheduleAnyway" => {}
            other => errors.unsupported(&field, other, &["DoNotSchedule", "ScheduleAnyway"]),
        }
        if !constraint["labelSelector"].is_null() {
            let why = "constraint must not define a selector, as they deduced for each pod";
            errors.forbidden(&format!("{path}.labelSelector"), why);
        }
        if !known.insert((key, otherwise)) {
            errors.duplicate(&path, json!(format!("{{{key}, {otherwise}}}")));
        }
    }
}

fn check_affinity(path: &str, added: &Value, errors: &mut FieldErrors) {
    let (required, preferred) =
        ("requiredDuringSchedulingIgnoredDuringExecution", "preferredDuringSchedulingIgnoredDuringExecution");
    for (index, term) in items(&added[required], "nodeSelectorTerms").iter().enumerate() {
        check_term(&format!("{path}.{required}.nodeSelectorTerms[{index}]"), term, errors);
    }
    for (index, term) in items(added, preferred).iter().enumerate() {
        if number(term, "weight") != 0 {
            check_term(&format!("{path}.{preferred}[{index}]"), &term["preference"], errors);
        }
    }
}

fn check_term(path: &str, term: &Value, errors: &mut FieldErrors) {
    const OPERATORS: [&str; 6] = ["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"];
    for (index, expression) in items(term, "matchExpressions").iter().enumerate() {
        let path = format!("{path}.matchExpressions[{index}]");
        let operator = expression["operator"].as_str().unwrap_or_default();
        if OPERATORS.contains(&operator) {
            errors.unless_key(&format!("{path}.key"), expression["key"].as_str().unwrap_or_default());
        } else {
            errors.unsupported(&format!("{path}.operator"), operator, &OPERATORS);
        }
    }
    for (index, field) in items(term, "matchFields").iter().enumerate() {
        let path = format!("{path}.matchFields[{index}]");
        let operator = field["operator"].as_str().unwrap_or_default();
        if !["In", "NotIn"].contains(&operator) {
            errors.unsupported(&format!("{path}.operator"), operator, &["In", "NotIn"]);
        } else if items(field, "values").len() != 1 {
            errors.invalid(&format!("{path}.values"), json!(items(field, "values")), "must have one element");
        }
    }
}

/// Errors in the arguments of NodeResourcesFit that are found when the plugin is built.
pub(super) fn fit_errors(args: &Value) -> Option<String> {
    let mut errors = FieldErrors::default();
    let names = |field: &str| items(args, field).iter().map(|name| name.as_str().unwrap_or_default()).enumerate();
    for (index, name) in names("ignoredResources") {
        errors.unless_qualified(&format!("ignoredResources[{index}]"), name);
    }
    for (index, name) in names("ignoredResourceGroups") {
        let path = format!("ignoredResourceGroups[{index}]");
        if name.contains('/') {
            errors.invalid(&path, json!(name), "resource group name can't contain '/'");
        }
        errors.unless_qualified(&path, name);
    }
    let strategy = &args["scoringStrategy"];
    if strategy.is_object() {
        check_strategy(strategy, &mut errors);
    }
    errors.text()
}

fn check_strategy(strategy: &Value, errors: &mut FieldErrors) {
    const RATIO: &str = "RequestedToCapacityRatio";
    const PATH: &str = "scoringStrategy";
    let kind = strategy["type"].as_str().unwrap_or("LeastAllocated");
    let kinds = ["LeastAllocated", "MostAllocated", RATIO];
    if !kinds.contains(&kind) {
        errors.unsupported(&format!("{PATH}.type"), kind, &kinds);
    }
    for (index, resource) in items(strategy, "resources").iter().enumerate() {
        let weight = number(resource, "weight");
        if !(0..=100).contains(&weight) {
            let name = resource["name"].as_str().unwrap_or_default();
            let why = format!("resource weight of {name} not in valid range (0, 100]");
            errors.invalid(&format!("{PATH}.resources[{index}].weight"), json!(weight), &why);
        }
    }
    let path = format!("{PATH}.requestedToCapacityRatio");
    let ratio = &strategy["requestedToCapacityRatio"];
    match (kind == RATIO, ratio.is_null()) {
        (true, true) => errors.required(&path, "must be specified when type is RequestedToCapacityRatio"),
        (true, false) => check_shape(&format!("{path}.shape"), items(ratio, "shape"), errors),
        (false, false) => errors.forbidden(&path, "must be nil when type is not RequestedToCapacityRatio"),
        (false, true) => {}
    }
}

fn check_shape(path: &str, shape: &[Value], errors: &mut FieldErrors) {
    if shape.is_empty() {
        return errors.required(path, "at least one point must be specified");
    }
    let used = |at: usize| number(&shape[at], "utilization");
    if let Some(at) = (1..shape.len()).find(|at| used(at - 1) >= used(*at)) {
        let why = "values must be sorted in increasing order";
        errors.invalid(&format!("{path}[{at}].utilization"), json!(used(at)), why);
    }
    for (index, point) in shape.iter().enumerate() {
        for (field, max) in [("utilization", 100), ("score", 10)] {
            let value = number(point, field);
            if !(0..=max).contains(&value) {
                let why = format!("not in valid range [0, {max}]");
                errors.invalid(&format!("{path}[{index}].{field}"), json!(value), &why);
            }
        }
    }
}
