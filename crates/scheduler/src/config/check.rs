//! What a configuration may not say.

use std::collections::BTreeSet;

use serde_json::json;

use super::arguments;
use super::file::{File, FileProfile, NamedPlugin, PluginSet};
use super::mistakes::Mistakes;
use crate::extender::{ExtenderSettings, duration};

/// What is wrong with the file, if anything.
pub(super) fn mistakes(file: &File) -> Option<String> {
    let mut mistakes = Mistakes::default();
    check_lease(file, &mut mistakes);
    if let Some(count) = file.parallelism.filter(|count| *count <= 0) {
        mistakes.invalid("parallelism", json!(count), "should be an integer value greater than zero");
    }
    let mut names = BTreeSet::new();
    for (index, profile) in file.profiles.iter().enumerate() {
        let path = format!("profiles[{index}]");
        check_profile(&path, profile, file.profiles.len() == 1, &mut mistakes);
        if !names.insert(profile.scheduler_name.as_deref().unwrap_or_default()) {
            mistakes.duplicate(&format!("{path}.schedulerName"), json!({}));
        }
    }
    check_queue_sort(&file.profiles, &mut mistakes);
    check_percentage("percentageOfNodesToScore", file.percentage_of_nodes_to_score, &mut mistakes);
    let initial = file.pod_initial_backoff_seconds.unwrap_or(1);
    if initial <= 0 {
        mistakes.invalid("podInitialBackoffSeconds", json!(initial), "must be greater than 0");
    }
    let most = file.pod_max_backoff_seconds.unwrap_or(10);
    if most < initial {
        let why = "must be greater than or equal to PodInitialBackoffSeconds";
        mistakes.invalid("podMaxBackoffSeconds", json!(most), why);
    }
    check_extenders(&file.extenders, &mut mistakes);
    mistakes.text()
}

fn check_lease(file: &File, mistakes: &mut Mistakes) {
    let lease = &file.leader_election;
    if lease.leader_elect == Some(false) {
        return;
    }
    let seconds = |said: &Option<String>, usual: &'static str| {
        let text = said.as_deref().unwrap_or(usual).to_owned();
        let negative = text.starts_with('-');
        let length = duration(text.trim_start_matches('-')).map_or(0.0, |length| length.as_secs_f64());
        (if negative { -length } else { length }, text)
    };
    let lasts = seconds(&lease.lease_duration, "15s");
    let renewed = seconds(&lease.renew_deadline, "10s");
    let retried = seconds(&lease.retry_period, "2s");
    for (field, (length, text)) in [("leaseDuration", &lasts), ("renewDeadline", &renewed), ("retryPeriod", &retried)] {
        if *length <= 0.0 {
            mistakes.invalid(&format!("leaderElection.{field}"), json!(text), "must be greater than zero");
        }
    }
    if lasts.0 <= renewed.0 {
        let why = "must be greater than `RenewDeadline`";
        mistakes.invalid("leaderElection.leaseDuration", json!(renewed.1), why);
    }
    let lock = lease.resource_lock.as_deref().filter(|lock| !lock.is_empty()).unwrap_or("leases");
    if lock != "leases" {
        mistakes.invalid("leaderElection.resourceLock", json!(lock), "resourceLock value must be \"leases\"");
    }
}

fn check_profile(path: &str, profile: &FileProfile, is_alone: bool, mistakes: &mut Mistakes) {
    let name = profile.scheduler_name.as_deref();
    if name.is_some_and(str::is_empty) || name.is_none() && !is_alone {
        mistakes.required(&format!("{path}.schedulerName"), "");
    }
    check_percentage(&format!("{path}.percentageOfNodesToScore"), profile.percentage_of_nodes_to_score, mistakes);
    let mut configured = BTreeSet::new();
    for (index, config) in profile.plugin_config.iter().enumerate() {
        let path = format!("{path}.pluginConfig[{index}]");
        if !configured.insert(config.name.as_str()) {
            mistakes.duplicate(&path, json!(config.name));
        }
        arguments::check(&format!("{path}.args"), &config.name, &config.args, mistakes);
    }
}

fn check_percentage(path: &str, part: Option<i64>, mistakes: &mut Mistakes) {
    if let Some(part) = part.filter(|part| !(0..=100).contains(part)) {
        mistakes.invalid(path, json!(part), "not in valid range [0-100]");
    }
}

/// All profiles share one queue.
fn check_queue_sort(profiles: &[FileProfile], mistakes: &mut Mistakes) {
    let Some(first) = profiles.first().map(|profile| &profile.plugins.queue_sort) else { return };
    if first.enabled.len() > 1 {
        let why = "only one queue sort plugin can be enabled";
        mistakes.invalid("profiles[0].plugins.queueSort.Enabled", json!(first.enabled.len()), why);
    }
    let shown = |plugins: &[NamedPlugin]| {
        let one = |plugin: &NamedPlugin| format!("{{\"Name\":{:?},\"Weight\":{}}}", plugin.name, plugin.weight);
        let all: Vec<String> = plugins.iter().map(one).collect();
        if all.is_empty() { "null".to_owned() } else { format!("[{}]", all.join(",")) }
    };
    let whole =
        |set: &PluginSet| format!("{{\"Enabled\":{},\"Disabled\":{}}}", shown(&set.enabled), shown(&set.disabled));
    for (index, profile) in profiles.iter().enumerate().skip(1) {
        let own = &profile.plugins.queue_sort;
        if whole(own) != whole(first) {
            let why = "must be the same for all profiles";
            mistakes.invalid(&format!("profiles[{index}].plugins.queueSort"), whole(own), why);
        }
    }
}

fn check_extenders(extenders: &[ExtenderSettings], mistakes: &mut Mistakes) {
    let mut managed = BTreeSet::new();
    for (index, extender) in extenders.iter().enumerate() {
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            let why = "must have a positive weight applied to it";
            mistakes.invalid(&format!("extenders[{index}].weight"), json!(extender.weight), why);
        }
        for (at, resource) in extender.managed_resources.iter().enumerate() {
            let path = format!("extenders[{index}].managedResources[{at}].name");
            if mistakes.unless_qualified(&path, &resource.name) && !is_extended(&resource.name) {
                mistakes.invalid(&path, json!(resource.name), "is an invalid extended resource name");
            }
            if !managed.insert(resource.name.as_str()) {
                mistakes.invalid(&path, json!(resource.name), "duplicate extender managed resource name");
            }
        }
    }
    let binders = extenders.iter().filter(|extender| !extender.bind_verb.is_empty()).count();
    if binders > 1 {
        let found = format!("found {binders} extenders implementing bind");
        mistakes.invalid("extenders", json!(found), "only one extender can implement bind");
    }
}

/// Whether a resource is one that Kubernetes itself knows nothing of.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}
