//! What a configuration may not say.

use std::collections::BTreeSet;

use serde_json::Value;

use super::file::{File, FileProfile};

/// What is wrong with the file as a whole, if anything.
pub(super) fn mistake(file: &File) -> Option<String> {
    if file.parallelism.is_some_and(|count| count <= 0) {
        return Some("parallelism must be greater than zero".to_owned());
    }
    let initial = file.pod_initial_backoff_seconds.unwrap_or(1);
    if initial <= 0 {
        return Some("podInitialBackoffSeconds must be greater than zero".to_owned());
    }
    if file.pod_max_backoff_seconds.is_some_and(|most| most < initial) {
        return Some("podMaxBackoffSeconds must not be less than podInitialBackoffSeconds".to_owned());
    }
    if file.leader_election.resource_lock.as_deref().is_some_and(|lock| lock != "leases") {
        return Some("leaderElection.resourceLock must be \"leases\"".to_owned());
    }
    let profiles = file.profiles.iter().map(|profile| profile.percentage_of_nodes_to_score);
    if std::iter::once(file.percentage_of_nodes_to_score)
        .chain(profiles)
        .flatten()
        .any(|part| !(0..=100).contains(&part))
    {
        return Some("percentageOfNodesToScore must be between 0 and 100".to_owned());
    }
    let scores = |extender: &&crate::extender::ExtenderSettings| !extender.prioritize_verb.is_empty();
    if file.extenders.iter().filter(scores).any(|extender| extender.weight <= 0) {
        return Some("an extender that scores must have a positive weight".to_owned());
    }
    if file.extenders.iter().filter(|extender| !extender.bind_verb.is_empty()).count() > 1 {
        return Some("only one extender can bind".to_owned());
    }
    None
}

/// What is wrong with a profile, if anything.
pub(super) fn profile_mistake(profile: &FileProfile) -> Option<String> {
    let mut configured = BTreeSet::new();
    for config in &profile.plugin_config {
        if !configured.insert(config.name.as_str()) {
            return Some(format!("the arguments of {} are given twice", config.name));
        }
        if let Some(what) = arguments_mistake(&config.name, &config.args) {
            return Some(format!("{}: {what}", config.name));
        }
    }
    None
}

fn arguments_mistake(plugin: &str, args: &Value) -> Option<String> {
    let number = |value: &Value| value.as_i64();
    match plugin {
        "NodeResourcesFit" => scoring_mistake(&args["scoringStrategy"]),
        "NodeResourcesBalancedAllocation" => {
            let resources = args["resources"].as_array().into_iter().flatten();
            let weighs = |resource: &Value| number(&resource["weight"]).is_some_and(|weight| weight > 1);
            resources.into_iter().any(weighs).then(|| "the weight of each resource must be 1".to_owned())
        }
        "InterPodAffinity" => number(&args["hardPodAffinityWeight"])
            .is_some_and(|weight| !(0..=100).contains(&weight))
            .then(|| "hardPodAffinityWeight must be between 0 and 100".to_owned()),
        "PodTopologySpread" => {
            let listed = args["defaultConstraints"].as_array().is_some_and(|list| !list.is_empty());
            match args["defaultingType"].as_str() {
                Some("List") => None,
                None | Some("System") if !listed => None,
                None | Some("System") => Some("defaultConstraints need the defaultingType \"List\"".to_owned()),
                Some(other) => Some(format!("there is no defaultingType {other:?}")),
            }
        }
        "DefaultPreemption" => {
            let part = number(&args["minCandidateNodesPercentage"]).unwrap_or(10);
            let count = number(&args["minCandidateNodesAbsolute"]).unwrap_or(100);
            let wrong = !(0..=100).contains(&part) || count < 0 || (part == 0 && count == 0);
            wrong.then(|| "so few candidate nodes cannot be".to_owned())
        }
        _ => None,
    }
}

fn scoring_mistake(strategy: &Value) -> Option<String> {
    let resources = strategy["resources"].as_array().into_iter().flatten();
    let out_of_range =
        |resource: &Value| resource["weight"].as_i64().is_some_and(|weight| !(0..=100).contains(&weight));
    if resources.into_iter().any(out_of_range) {
        return Some("the weight of a resource must be between 1 and 100".to_owned());
    }
    let shape = strategy["requestedToCapacityRatio"]["shape"].as_array();
    if strategy["type"].as_str() != Some("RequestedToCapacityRatio") {
        return shape.map(|_| "requestedToCapacityRatio is for the strategy of this name".to_owned());
    }
    let points: Vec<(i64, i64)> = shape
        .into_iter()
        .flatten()
        .map(|point| (point["utilization"].as_i64().unwrap_or(0), point["score"].as_i64().unwrap_or(0)))
        .collect();
    if points.is_empty() {
        return Some("requestedToCapacityRatio needs at least one point".to_owned());
    }
    if points.iter().any(|(used, score)| !(0..=100).contains(used) || !(0..=10).contains(score)) {
        return Some("utilization lies between 0 and 100, a score between 0 and 10".to_owned());
    }
    points
        .windows(2)
        .any(|pair| pair[0].0 >= pair[1].0)
        .then(|| "utilization must increase from point to point".to_owned())
}
