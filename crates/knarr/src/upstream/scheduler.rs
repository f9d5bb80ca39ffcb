//! `kube-scheduler`.

use knarr_component_flags::Given;

use super::controller_manager::LEADER_DEFAULTS;
use super::translate::Translation;

/// Where the configuration file sets what the flags of leader election set.
const LEADER_FIELDS: [&str; 4] = ["leaderElect", "leaseDuration", "renewDeadline", "retryPeriod"];

pub fn translate(given: &Given) -> anyhow::Result<Translation> {
    let file = given.value("config");
    // A file that cannot be read is reported when the scheduler reads it.
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let document: serde_yaml_ng::Value = serde_yaml_ng::from_str(&text).unwrap_or_default();
    let configured = &document["leaderElection"];
    let pairs = LEADER_DEFAULTS.into_iter().zip(LEADER_FIELDS);
    let defaults: Vec<&str> = pairs.filter(|(_, field)| configured[*field].is_null()).map(|(flag, _)| flag).collect();
    Ok(Translation::passing(given).with_defaults(given, &defaults))
}
