//! Builds profiles from a configuration file: merges plugin sets with the defaults, and reads plugin arguments.

use k8s_openapi::api::core::v1::TopologySpreadConstraint;

use super::file::{FileProfile, NamedPlugin, PluginConfig, PluginSet};
use super::{ConfigurationError, points};
use crate::plugins::{DEFAULTS, SpreadDefaults, StrategyKind};
use crate::profile::Profile;

const PREEMPTION: &str = "DefaultPreemption";

pub(super) fn read_profile(file: &FileProfile) -> Result<Profile, ConfigurationError> {
    let mut profile = Profile::named(file.scheduler_name.as_deref().unwrap_or("default-scheduler"));
    profile.percentage_of_nodes_to_score = percentage(file.percentage_of_nodes_to_score);
    if let Some(what) = points::profile_error(file, &profile.scheduler_name) {
        return Err(ConfigurationError::Profile { profile: profile.scheduler_name, what });
    }
    let plugins = &file.plugins;
    let everywhere: Vec<(String, i64)> = DEFAULTS
        .iter()
        .map(|(name, weight)| ((*name).to_owned(), *weight))
        .chain([(PREEMPTION.to_owned(), 0)])
        .collect();
    let everywhere = merge(everywhere, &plugins.multi_point, false);
    let names = |list: Vec<(String, i64)>| list.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
    let mut filters = names(merge(everywhere.clone(), &plugins.filter, true));
    filters.retain(|name| name != PREEMPTION && !plugins.pre_filter.disables(name));
    profile.filters = filters;
    profile.scores = merge(everywhere.clone(), &plugins.score, true);
    let makes_room = names(merge(everywhere, &plugins.post_filter, true));
    profile.preempts = makes_room.iter().any(|name| name == PREEMPTION);
    profile.frees_claims = makes_room.iter().any(|name| name == "DynamicResources");
    for config in &file.plugin_config {
        read_arguments(&mut profile, config)?;
    }
    Ok(profile)
}

fn read_arguments(profile: &mut Profile, config: &PluginConfig) -> Result<(), ConfigurationError> {
    let args = &config.args;
    let name = profile.scheduler_name.clone();
    let invalid = |what: String| ConfigurationError::Profile { profile: name.clone(), what };
    let parse_list = |value: &serde_json::Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(|item| item.as_str().map(str::to_owned)).collect()
    };
    match config.name.as_str() {
        "NodeResourcesFit" => {
            let strategy = &args["scoringStrategy"];
            profile.fit.kind = match strategy["type"].as_str().unwrap_or("LeastAllocated") {
                "LeastAllocated" => StrategyKind::LeastAllocated,
                "MostAllocated" => StrategyKind::MostAllocated,
                "RequestedToCapacityRatio" => {
                    let shape = strategy["requestedToCapacityRatio"]["shape"].as_array().cloned().unwrap_or_default();
                    let point = |at: &serde_json::Value| {
                        Some((at["utilization"].as_i64().unwrap_or(0), at["score"].as_i64().unwrap_or(0)))
                    };
                    StrategyKind::RequestedToCapacityRatio(shape.iter().filter_map(point).collect())
                }
                other => return Err(invalid(format!("there is no scoring strategy {other:?}"))),
            };
            if let Some(resources) = strategy["resources"].as_array() {
                profile.fit.resources = resources
                    .iter()
                    .map(|resource| {
                        let weight = resource["weight"].as_i64().filter(|weight| *weight > 0).unwrap_or(1);
                        (resource["name"].as_str().unwrap_or_default().to_owned(), weight)
                    })
                    .collect();
            }
            profile.fit.ignored = parse_list(&args["ignoredResources"]);
            profile.fit.ignored_groups = parse_list(&args["ignoredResourceGroups"]);
        }
        "NodeAffinity" if args["addedAffinity"].is_object() => {
            let added = serde_json::from_value(args["addedAffinity"].clone());
            profile.added_affinity = Some(added.map_err(|error| invalid(format!("addedAffinity: {error}")))?);
        }
        "PodTopologySpread" if args["defaultingType"].as_str() == Some("List") => {
            let list: Vec<TopologySpreadConstraint> = match &args["defaultConstraints"] {
                serde_json::Value::Null => Vec::new(),
                list => serde_json::from_value(list.clone())
                    .map_err(|error| invalid(format!("defaultConstraints: {error}")))?,
            };
            profile.spread_defaults = SpreadDefaults::List(list);
        }
        "NodeResourcesBalancedAllocation" if args["resources"].is_array() => {
            let resources = args["resources"].as_array().into_iter().flatten();
            profile.balanced_resources =
                resources.filter_map(|resource| Some(resource["name"].as_str()?.to_owned())).collect();
        }
        "DynamicResources" => {
            let duration = |field: &str| args[field].as_str().and_then(knarr_client::go_duration::parse_positive);
            profile.device_search_timeout = duration("filterTimeout").unwrap_or(profile.device_search_timeout);
            profile.device_binding_timeout = duration("bindingTimeout").unwrap_or(profile.device_binding_timeout);
        }
        "InterPodAffinity" => {
            profile.ignores_preferred_of_others = args["ignorePreferredTermsOfExistingPods"].as_bool().unwrap_or(false);
            if let Some(weight) = args["hardPodAffinityWeight"].as_i64() {
                profile.hard_pod_affinity_weight = weight;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Applies enabled and disabled plugins. Enabling one that is there already sets its weight, which is 1
/// where none is given; it keeps its position, unless `first` moves the named ones before the others.
fn merge(known: Vec<(String, i64)>, set: &PluginSet, first: bool) -> Vec<(String, i64)> {
    let weight = |plugin: &NamedPlugin| if plugin.weight == 0 { 1 } else { plugin.weight };
    let mut merged: Vec<(String, i64)> = known.into_iter().filter(|(name, _)| !set.disables(name)).collect();
    let mut place = 0;
    for plugin in &set.enabled {
        let own = (plugin.name.clone(), weight(plugin));
        let before = merged.iter().position(|(name, _)| *name == plugin.name);
        match before {
            Some(index) if !first => merged[index] = own,
            _ if first => {
                merged.retain(|(name, _)| *name != plugin.name);
                merged.insert(place, own);
                place += 1;
            }
            _ => merged.push(own),
        }
    }
    merged
}

pub(super) fn percentage(part: Option<i64>) -> Option<u32> {
    part.and_then(|part| u32::try_from(part).ok())
}
