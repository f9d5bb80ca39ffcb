//! The scheduler's configuration: profiles, their plugins and weights. Read from a KubeSchedulerConfiguration file.

mod arguments;
mod check;
mod decode_errors;
mod field_errors;
mod file;
mod points;
mod profiles;

use std::path::PathBuf;
use std::time::Duration;

use knarr_client::go_duration;

use crate::extender::{ExtenderError, ExtenderSettings};
use crate::profile::Profile;

use decode_errors::Head;
use file::File;
use profiles::{percentage, read_profile};

pub use file::LeaderSettings;

/// A validated configuration.
#[derive(Clone, Debug)]
pub struct Configuration {
    pub profiles: Vec<Profile>,
    /// 0 means that it adapts to the number of nodes.
    pub percentage_of_nodes_to_score: u32,
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
    pub extenders: Vec<ExtenderSettings>,
    /// The kubeconfig, where none is given on the command line.
    pub kubeconfig: Option<PathBuf>,
    pub leader: LeaderSettings,
}

/// Why a configuration is rejected, in the messages of kube-scheduler.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    #[error("{0}")]
    Unreadable(String),
    #[error("Object 'Kind' is missing in '{0}'")]
    NoKind(String),
    #[error(
        "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/scheduler/apis/config/scheme/scheme.go:29\""
    )]
    Kind { kind: String, version: String },
    #[error("time: invalid duration {0:?}")]
    Duration(String),
    #[error("{0}")]
    Wrong(String),
    #[error("couldn't build extenders: {0}")]
    Extender(ExtenderError),
    #[error("initializing profiles: creating profile for scheduler name {profile}: {what}")]
    Profile { profile: String, what: String },
}

impl Default for Configuration {
    fn default() -> Self {
        Configuration {
            profiles: vec![Profile::named("default-scheduler")],
            percentage_of_nodes_to_score: 0,
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            extenders: Vec::new(),
            kubeconfig: None,
            leader: LeaderSettings::default(),
        }
    }
}

impl Configuration {
    /// Parses the file's text, YAML or JSON.
    pub fn parse(text: &str) -> Result<Self, ConfigurationError> {
        let Head { kind, api_version } = decode_errors::head(text).map_err(ConfigurationError::Unreadable)?;
        if kind.is_empty() {
            return Err(ConfigurationError::NoKind(text.to_owned()));
        }
        if kind != "KubeSchedulerConfiguration" || api_version != "kubescheduler.config.k8s.io/v1" {
            return Err(ConfigurationError::Kind { kind, version: api_version });
        }
        let file: File = serde_yaml_ng::from_str(text)
            .map_err(|error| ConfigurationError::Unreadable(decode_errors::reason(text, &error)))?;
        check_readable(&file)?;
        if let Some(what) = check::errors(&file) {
            return Err(ConfigurationError::Wrong(what));
        }
        let default = Configuration::default();
        let mut profiles = file.profiles.iter().map(read_profile).collect::<Result<Vec<_>, _>>()?;
        if profiles.is_empty() {
            profiles = default.profiles;
        }
        let managed = file.extenders.iter().flat_map(|extender| &extender.managed_resources);
        for resource in managed.filter(|resource| resource.ignored_by_scheduler) {
            profiles.iter_mut().for_each(|profile| profile.fit.ignored.push(resource.name.clone()));
        }
        Ok(Configuration {
            profiles,
            percentage_of_nodes_to_score: percentage(file.percentage_of_nodes_to_score).unwrap_or(0),
            initial_backoff: seconds(file.pod_initial_backoff_seconds).unwrap_or(default.initial_backoff),
            max_backoff: seconds(file.pod_max_backoff_seconds).unwrap_or(default.max_backoff),
            extenders: file.extenders,
            kubeconfig: Some(file.client_connection.kubeconfig).filter(|path| !path.as_os_str().is_empty()),
            leader: file.leader_election,
        })
    }
}

impl Configuration {
    /// Checks the files that the extenders' configuration names.
    pub fn check_files(&self) -> Result<(), ConfigurationError> {
        for extender in &self.extenders {
            extender.tls_config.authorities().map_err(ConfigurationError::Extender)?;
        }
        Ok(())
    }
}

fn seconds(count: Option<i64>) -> Option<Duration> {
    count.and_then(|count| u64::try_from(count).ok()).map(Duration::from_secs)
}

/// The prefix of errors about unknown fields.
const STRICT: &str = "strict decoding error: ";

/// Rejects arguments that do not belong to their plugin, and invalid durations.
fn check_readable(file: &File) -> Result<(), ConfigurationError> {
    for (profile, given) in file.profiles.iter().enumerate() {
        for (config, plugin) in given.plugin_config.iter().enumerate() {
            if let Some(what) = arguments::decode_error(&plugin.name, &plugin.args) {
                let strict = if what.starts_with(STRICT) { STRICT } else { "" };
                let what = format!("{strict}decoding .profiles[{profile}].pluginConfig[{config}]: {what}");
                return Err(ConfigurationError::Wrong(what));
            }
        }
    }
    let timeouts = file.extenders.iter().filter_map(|extender| extender.timeout.as_deref());
    match timeouts.into_iter().find(|timeout| go_duration::parse_positive(timeout).is_none()) {
        Some(timeout) => Err(ConfigurationError::Duration(timeout.to_owned())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugins::StrategyKind;

    const HEAD: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";

    #[test]
    fn profiles_switch_plugins_and_weights() {
        let text = format!(
            "{HEAD}profiles:\n- schedulerName: packer\n  plugins:\n    score:\n      disabled:\n      - name: ImageLocality\n      \
             enabled:\n      - name: NodeResourcesFit\n        weight: 5\n  pluginConfig:\n  - name: NodeResourcesFit\n    args:\n      \
             scoringStrategy:\n        type: MostAllocated\n        resources:\n        - name: cpu\n          weight: 2\n"
        );
        let configuration = Configuration::parse(&text).unwrap();
        let profile = &configuration.profiles[0];
        let weight = |name: &str| profile.scores.iter().find(|(own, _)| own == name).map(|(_, weight)| *weight);
        assert_eq!(weight("ImageLocality"), None);
        assert_eq!(weight("NodeResourcesFit"), Some(5));
        assert_eq!(weight("TaintToleration"), Some(3));
        assert!(profile.filters.iter().any(|name| name == "NodeResourcesFit"));
        assert_eq!(profile.fit.kind, StrategyKind::MostAllocated);
        assert_eq!(profile.fit.resources, [("cpu".to_owned(), 2)]);
    }

    #[test]
    fn plugins_are_disabled_and_reordered() {
        let text = format!(
            "{HEAD}profiles:\n- plugins:\n    multiPoint:\n      disabled:\n      - name: NodePorts\n    filter:\n      \
             disabled:\n      - name: '*'\n      enabled:\n      - name: NodeAffinity\n      - name: NodeName\n    \
             postFilter:\n      disabled:\n      - name: DefaultPreemption\n"
        );
        let configuration = Configuration::parse(&text).unwrap();
        let profile = &configuration.profiles[0];
        assert_eq!(profile.filters, ["NodeAffinity", "NodeName"]);
        assert!(!profile.preempts && profile.frees_claims);
        assert!(profile.scores.iter().all(|(name, _)| name != "NodePorts"));
        let default = Profile::named("default-scheduler");
        assert_eq!(default.filters.first().map(String::as_str), Some("NodeUnschedulable"));
        assert!(default.preempts);
    }

    fn arguments(plugin: &str, args: &str) -> String {
        format!("{HEAD}profiles:\n- pluginConfig:\n  - {{name: {plugin}, args: {{{args}}}}}\n")
    }

    #[test]
    fn a_plugin_named_without_a_weight_weighs_one() {
        let text = format!("{HEAD}profiles: [{{plugins: {{score: {{enabled: [{{name: TaintToleration}}]}}}}}}]\n");
        let profile = &Configuration::parse(&text).unwrap().profiles[0];
        assert_eq!(
            profile.scores.iter().find(|(name, _)| name == "TaintToleration").map(|(_, weight)| *weight),
            Some(1)
        );
    }

    #[test]
    fn the_lease_is_configured() {
        let text = format!("{HEAD}leaderElection: {{leaderElect: true, leaseDuration: 15s, resourceName: mine}}\n");
        let leader = Configuration::parse(&text).unwrap().leader;
        assert_eq!((leader.leader_elect, leader.lease_duration.as_deref()), (Some(true), Some("15s")));
        assert_eq!((leader.resource_name.as_deref(), leader.retry_period), (Some("mine"), None));
    }

    #[test]
    fn wrong_files_are_refused_with_the_reason() {
        let plugins = |sets: &str| format!("{HEAD}profiles: [{{schedulerName: a, plugins: {{{sets}}}}}]\n");
        let creating = |what: &str| format!("initializing profiles: creating profile for scheduler name a: {what}");
        let name_form = "name part must consist of";
        for (text, part) in [
            ("kind: Pod".to_owned(), "no kind \"Pod\" is registered for version \"\"".to_owned()),
            (format!("{HEAD}profile: []\n"), "strict decoding error: unknown field \"profile\"".into()),
            (format!("{HEAD}profiles: [{{plugin: []}}]\n"), "unknown field \"profiles[0].plugin\"".into()),
            (
                arguments("NodeAffinity", "foo: 1"),
                "decoding .profiles[0].pluginConfig[0]: strict decoding error: decoding args for plugin NodeAffinity: strict \
                 decoding error: unknown field \"foo\""
                    .into(),
            ),
            (
                format!("{HEAD}percentageOfNodesToScore: 101\nparallelism: 0\n"),
                "[parallelism: Invalid value: 0: should be an integer value greater than zero, percentageOfNodesToScore: \
                 Invalid value: 101: not in valid range [0-100]]"
                    .into(),
            ),
            (
                format!("{HEAD}podInitialBackoffSeconds: 5\npodMaxBackoffSeconds: 4\n"),
                "podMaxBackoffSeconds: Invalid value: 4: must be greater than or equal to PodInitialBackoffSeconds".into(),
            ),
            (format!("{HEAD}profiles: [{{schedulerName: a}}, {{}}]\n"), "profiles[1].schedulerName: Required value".into()),
            (
                format!("{HEAD}profiles: [{{schedulerName: a}}, {{schedulerName: a}}]\n"),
                "profiles[1].schedulerName: Duplicate value: {}".into(),
            ),
            (
                format!("{HEAD}extenders: [{{prioritizeVerb: p}}]\n"),
                "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it".into(),
            ),
            (
                format!("{HEAD}extenders: [{{managedResources: [{{name: cpu}}]}}]\n"),
                "extenders[0].managedResources[0].name: Invalid value: \"cpu\": is an invalid extended resource name".into(),
            ),
            (format!("{HEAD}extenders: [{{httpTimeout: long}}]\n"), "time: invalid duration \"long\"".into()),
            (
                format!("{HEAD}leaderElection: {{leaseDuration: 5s}}\n"),
                "leaderElection.leaseDuration: Invalid value: \"10s\": must be greater than `RenewDeadline`".into(),
            ),
            (plugins("filter: {enabled: [{name: No}]}"), creating("FilterPlugin \"No\" does not exist")),
            (plugins("score: {enabled: [{name: NodePorts}]}"), creating("plugin \"NodePorts\" does not extend ScorePlugin plugin")),
            (
                plugins("score: {enabled: [{name: ImageLocality}, {name: ImageLocality}]}"),
                creating("plugin \"ImageLocality\" already registered as \"ScorePlugin\""),
            ),
            (
                plugins("multiPoint: {enabled: [{name: NodeName}, {name: NodeName}]}"),
                creating("plugin \"NodeName\" already registered as \"FilterPlugin\""),
            ),
            (
                plugins("multiPoint: {disabled: [{name: PrioritySort}]}"),
                creating("only one queue sort plugin required for profile with scheduler name \"a\", but got 0"),
            ),
            (
                plugins("bind: {disabled: [{name: '*'}]}"),
                creating("at least one bind plugin is needed for profile with scheduler name \"a\""),
            ),
            (
                plugins("score: {enabled: [{name: ImageLocality, weight: -2}]}"),
                creating("score plugins: total score of Score plugins could overflow"),
            ),
            (
                arguments("NodeResourcesFit", "scoringStrategy: {type: RequestedToCapacityRatio}"),
                "initializing plugin \"NodeResourcesFit\": scoringStrategy.requestedToCapacityRatio: Required value: must be \
                 specified when type is RequestedToCapacityRatio"
                    .into(),
            ),
            (
                arguments(
                    "NodeResourcesFit",
                    "scoringStrategy: {type: RequestedToCapacityRatio, requestedToCapacityRatio: {shape: [{utilization: 5}, \
                     {utilization: 5}]}}",
                ),
                "shape[1].utilization: Invalid value: 5: values must be sorted in increasing order".into(),
            ),
            (
                arguments("InterPodAffinity", "hardPodAffinityWeight: 101"),
                "args.hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]".into(),
            ),
            (
                arguments("PodTopologySpread", "defaultConstraints: [{maxSkew: 1, topologyKey: 'a b', whenUnsatisfiable: X}]"),
                format!(
                    "[profiles[0].pluginConfig[0].args.defaultingType: Invalid value: \"System\": when .defaultConstraints are \
                     not empty, profiles[0].pluginConfig[0].args.defaultConstraints[0].topologyKey: Invalid value: \"a b\": \
                     {name_form}"
                ),
            ),
        ] {
            let error = Configuration::parse(&text).unwrap_err().to_string();
            assert!(error.contains(&part), "{error}");
        }
    }
}
