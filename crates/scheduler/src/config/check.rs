//! Validation of a configuration.

use std::collections::BTreeSet;

use knarr_client::go_duration;
use serde_json::json;

use super::arguments;
use super::field_errors::FieldErrors;
use super::file::{File, FileProfile, NamedPlugin, PluginSet};
use crate::extender::ExtenderSettings;

/// The errors in the file, if any.
pub(super) fn errors(file: &File) -> Option<String> {
    let mut errors = FieldErrors::default();
    check_lease(file, &mut errors);
    if let Some(count) = file.parallelism.filter(|count| *count <= 0) {
        errors.invalid("parallelism", json!(count), "should be an integer value greater than zero");
    }
    let mut names = BTreeSet::new();
    for (index, profile) in file.profiles.iter().enumerate() {
        let path = format!("profiles[{index}]");
        check_profile(&path, profile, file.profiles.len() == 1, &mut errors);
        if !names.insert(profile.scheduler_name.as_deref().unwrap_or_default()) {
            errors.duplicate(&format!("{path}.schedulerName"), json!({}));
        }
    }
    check_queue_sort(&file.profiles, &mut errors);
    check_percentage("percentageOfNodesToScore", file.percentage_of_nodes_to_score, &mut errors);
    let initial = file.pod_initial_backoff_seconds.unwrap_or(1);
    if initial <= 0 {
        errors.invalid("podInitialBackoffSeconds", json!(initial), "must be greater than 0");
    }
    let max = file.pod_max_backoff_seconds.unwrap_or(10);
    if max < initial {
        let why = "must be greater than or equal to PodInitialBackoffSeconds";
        errors.invalid("podMaxBackoffSeconds", json!(max), why);
    }
    check_extenders(&file.extenders, &mut errors);
    errors.text()
}

fn check_lease(file: &File, errors: &mut FieldErrors) {
    let lease = &file.leader_election;
    if lease.leader_elect == Some(false) {
        return;
    }
    let seconds = |value: &Option<String>, usual: &'static str| {
        let text = value.as_deref().unwrap_or(usual).to_owned();
        let negative = text.starts_with('-');
        let length =
            go_duration::parse_positive(text.trim_start_matches('-')).map_or(0.0, |length| length.as_secs_f64());
        (if negative { -length } else { length }, text)
    };
    let lasts = seconds(&lease.lease_duration, "15s");
    let renewed = seconds(&lease.renew_deadline, "10s");
    let retried = seconds(&lease.retry_period, "2s");
    for (field, (length, text)) in [("leaseDuration", &lasts), ("renewDeadline", &renewed), ("retryPeriod", &retried)] {
        if *length <= 0.0 {
            errors.invalid(&format!("leaderElection.{field}"), json!(text), "must be greater than zero");
        }
    }
    if lasts.0 <= renewed.0 {
        let why = "must be greater than `RenewDeadline`";
        errors.invalid("leaderElection.leaseDuration", json!(renewed.1), why);
    }
    let lock = lease.resource_lock.as_deref().filter(|lock| !lock.is_empty()).unwrap_or("leases");
    if lock != "leases" {
        errors.invalid("leaderElection.resourceLock", json!(lock), "resourceLock value must be \"leases\"");
    }
}

fn check_profile(path: &str, profile: &FileProfile, is_only_one: bool, errors: &mut FieldErrors) {
    let name = profile.scheduler_name.as_deref();
    if name.is_some_and(str::is_empty) || name.is_none() && !is_only_one {
        errors.required(&format!("{path}.schedulerName"), "");
    }
    check_percentage(&format!("{path}.percentageOfNodesToScore"), profile.percentage_of_nodes_to_score, errors);
    let mut configured = BTreeSet::new();
    for (index, config) in profile.plugin_config.iter().enumerate() {
        let path = format!("{path}.pluginConfig[{index}]");
        if !configured.insert(config.name.as_str()) {
            errors.duplicate(&path, json!(config.name));
        }
        arguments::check(&format!("{path}.args"), &config.name, &config.args, errors);
    }
}

fn check_percentage(path: &str, part: Option<i64>, errors: &mut FieldErrors) {
    if let Some(part) = part.filter(|part| !(0..=100).contains(part)) {
        errors.invalid(path, json!(part), "not in valid range [0-100]");
    }
}

/// All profiles share one queue.
fn check_queue_sort(profiles: &[FileProfile], errors: &mut FieldErrors) {
    let Some(first) = profiles.first().map(|profile| &profile.plugins.queue_sort) else { return };
    if first.enabled.len() > 1 {
        let why = "only one queue sort plugin can be enabled";
        errors.invalid("profiles[0].plugins.queueSort.Enabled", json!(first.enabled.len()), why);
    }
    let rendered = |plugins: &[NamedPlugin]| {
        let one = |plugin: &NamedPlugin| format!("{{\"Name\":{:?},\"Weight\":{}}}", plugin.name, plugin.weight);
        let all: Vec<String> = plugins.iter().map(one).collect();
        if all.is_empty() { "null".to_owned() } else { format!("[{}]", all.join(",")) }
    };
    let whole = |set: &PluginSet| {
        format!("{{\"Enabled\":{},\"Disabled\":{}}}", rendered(&set.enabled), rendered(&set.disabled))
    };
    for (index, profile) in profiles.iter().enumerate().skip(1) {
        let own = &profile.plugins.queue_sort;
        if whole(own) != whole(first) {
            let why = "must be the same for all profiles";
            errors.invalid(&format!("profiles[{index}].plugins.queueSort"), whole(own), why);
        }
    }
}

fn check_extenders(extenders: &[ExtenderSettings], errors: &mut FieldErrors) {
    let mut managed = BTreeSet::new();
    for (index, extender) in extenders.iter().enumerate() {
        if !extender.prioritize_verb.is_empty() && extender.weight <= 0 {
            let why = "must have a positive weight applied to it";
            errors.invalid(&format!("extenders[{index}].weight"), json!(extender.weight), why);
        }
        for (at, resource) in extender.managed_resources.iter().enumerate() {
            let path = format!("extenders[{index}].managedResources[{at}].name");
            if errors.unless_qualified(&path, &resource.name) && !is_extended(&resource.name) {
                errors.invalid(&path, json!(resource.name), "is an invalid extended resource name");
            }
            if !managed.insert(resource.name.as_str()) {
                errors.invalid(&path, json!(resource.name), "duplicate extender managed resource name");
            }
        }
    }
    let binders = extenders.iter().filter(|extender| !extender.bind_verb.is_empty()).count();
    if binders > 1 {
        let found = format!("found {binders} extenders implementing bind");
        errors.invalid("extenders", json!(found), "only one extender can implement bind");
    }
}

/// Whether a resource is an extended resource.
fn is_extended(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/") && !name.starts_with("requests.")
}
