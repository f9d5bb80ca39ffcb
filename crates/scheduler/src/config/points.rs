//! The plugins, their extension points, and how profiles may combine them.

use super::arguments;
use super::file::{FilePlugins, FileProfile, NamedPlugin, PluginSet};

/// The extension points, in the order in which a profile's plugin sets are checked.
const POINTS: [&str; 14] = [
    "PreFilter",
    "Filter",
    "PostFilter",
    "Reserve",
    "PreScore",
    "Score",
    "PreBind",
    "Bind",
    "PostBind",
    "Permit",
    "PreEnqueue",
    "QueueSort",
    "PlacementGenerate",
    "PlacementScore",
];

/// All plugins in default order, with their extension points.
const PLUGINS: &[(&str, &[&str])] = &[
    ("SchedulingGates", &["PreEnqueue"]),
    ("PrioritySort", &["QueueSort"]),
    ("NodeUnschedulable", &["Filter"]),
    ("NodeName", &["Filter"]),
    ("TaintToleration", &["Filter", "PreScore", "Score"]),
    ("NodeAffinity", &["PreFilter", "Filter", "PreScore", "Score"]),
    ("NodePorts", &["PreFilter", "Filter"]),
    ("NodeResourcesFit", &["PreFilter", "Filter", "PreScore", "Score", "PlacementScore"]),
    ("VolumeRestrictions", &["PreFilter", "Filter"]),
    ("NodeVolumeLimits", &["PreFilter", "Filter"]),
    ("VolumeBinding", &["PreFilter", "Filter", "Reserve", "PreScore", "Score", "PreBind"]),
    ("VolumeZone", &["PreFilter", "Filter"]),
    ("PodTopologySpread", &["PreFilter", "Filter", "PreScore", "Score"]),
    ("InterPodAffinity", &["PreFilter", "Filter", "PreScore", "Score"]),
    ("DynamicResources", &["PreFilter", "Filter", "PostFilter", "Reserve", "Score", "PreBind", "PreEnqueue"]),
    ("DefaultPreemption", &["PostFilter", "PreEnqueue"]),
    ("NodeResourcesBalancedAllocation", &["PreScore", "Score"]),
    ("ImageLocality", &["Score"]),
    ("DefaultBinder", &["Bind"]),
    ("NodeDeclaredFeatures", &["PreFilter", "Filter"]),
];

fn points_of(plugin: &str) -> Option<&'static [&'static str]> {
    PLUGINS.iter().find(|(name, _)| *name == plugin).map(|(_, points)| *points)
}

fn set_at<'a>(plugins: &'a FilePlugins, point: &str) -> &'a PluginSet {
    match point {
        "PreFilter" => &plugins.pre_filter,
        "Filter" => &plugins.filter,
        "PostFilter" => &plugins.post_filter,
        "Reserve" => &plugins.reserve,
        "PreScore" => &plugins.pre_score,
        "Score" => &plugins.score,
        "PreBind" => &plugins.pre_bind,
        "Bind" => &plugins.bind,
        "PostBind" => &plugins.post_bind,
        "Permit" => &plugins.permit,
        "PreEnqueue" => &plugins.pre_enqueue,
        "QueueSort" => &plugins.queue_sort,
        "PlacementGenerate" => &plugins.placement_generate,
        _ => &plugins.placement_score,
    }
}

/// Why the profile of that name cannot be built, if it cannot.
pub(super) fn profile_error(profile: &FileProfile, name: &str) -> Option<String> {
    let plugins = &profile.plugins;
    let everywhere = everywhere(&plugins.multi_point);
    let is_used = |name_of_plugin: &str| {
        let named = |set: &PluginSet| set.enabled.iter().any(|plugin| plugin.name == name_of_plugin);
        everywhere.contains(&name_of_plugin) || POINTS.iter().any(|point| named(set_at(plugins, point)))
    };
    if is_used("NodeResourcesFit")
        && let Some(config) = profile.plugin_config.iter().find(|config| config.name == "NodeResourcesFit")
        && let Some(what) = arguments::fit_errors(&config.args)
    {
        return Some(format!("initializing plugin \"NodeResourcesFit\": {what}"));
    }
    named_error(plugins)
        .or_else(|| repeated(plugins, &everywhere))
        .or_else(|| lacking(plugins, &everywhere, name))
        .or_else(|| {
            let scores = plugins.score.enabled.iter().chain(&plugins.multi_point.enabled);
            let weighs_less = |plugin: &NamedPlugin| plugin.weight < 0 && works_at(&plugin.name, "Score");
            let overflows = scores.into_iter().any(weighs_less);
            overflows.then(|| "score plugins: total score of Score plugins could overflow".to_owned())
        })
}

fn works_at(plugin: &str, point: &str) -> bool {
    points_of(plugin).is_some_and(|points| points.contains(&point))
}

/// The plugins enabled at all their points (`multiPoint`): the remaining default ones and those that are named.
fn everywhere(set: &PluginSet) -> Vec<&str> {
    let left = PLUGINS.iter().map(|(name, _)| *name).filter(|name| !set.disables(name));
    let mut all: Vec<&str> = left.collect();
    let mut replaced: Vec<&str> = Vec::new();
    for plugin in &set.enabled {
        let name = plugin.name.as_str();
        // The first named one replaces the default one.
        if all.contains(&name) && !replaced.contains(&name) {
            replaced.push(name);
        } else {
            all.push(name);
        }
    }
    all
}

/// A plugin named at a point that it does not implement, or twice.
fn named_error(plugins: &FilePlugins) -> Option<String> {
    for point in POINTS {
        let enabled = &set_at(plugins, point).enabled;
        for (at, NamedPlugin { name, .. }) in enabled.iter().enumerate() {
            if points_of(name).is_none() {
                return Some(format!("{point}Plugin {name:?} does not exist"));
            }
            if !works_at(name, point) {
                return Some(format!("plugin {name:?} does not extend {point}Plugin plugin"));
            }
            if enabled[..at].iter().any(|before| before.name == *name) {
                return Some(format!("plugin {name:?} already registered as \"{point}Plugin\""));
            }
        }
    }
    None
}

/// An unknown or duplicate `multiPoint` plugin.
fn repeated(plugins: &FilePlugins, everywhere: &[&str]) -> Option<String> {
    for point in POINTS {
        let set = set_at(plugins, point);
        if set.disabled.iter().any(|plugin| plugin.name == "*") {
            continue;
        }
        for (at, name) in everywhere.iter().enumerate() {
            if points_of(name).is_none() {
                return Some(format!("{point}Plugin {name:?} does not exist"));
            }
            let is_own = set.disables(name) || set.enabled.iter().any(|plugin| plugin.name == *name);
            if works_at(name, point) && !is_own && everywhere[..at].contains(name) {
                return Some(format!("plugin {name:?} already registered as \"{point}Plugin\""));
            }
        }
    }
    None
}

/// A point without its required plugin.
fn lacking(plugins: &FilePlugins, everywhere: &[&str], profile: &str) -> Option<String> {
    let count = |point: &str| {
        let set = set_at(plugins, point);
        let spread = everywhere.iter().filter(|name| {
            works_at(name, point) && !set.disables(name) && !set.enabled.iter().any(|plugin| plugin.name == **name)
        });
        set.enabled.len() + spread.count()
    };
    let sorting = count("QueueSort");
    if sorting != 1 {
        return Some(format!(
            "only one queue sort plugin required for profile with scheduler name {profile:?}, but got {sorting}"
        ));
    }
    (count("Bind") == 0)
        .then(|| format!("at least one bind plugin is needed for profile with scheduler name {profile:?}"))
}
