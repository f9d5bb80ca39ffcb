//! Flags of how a node registers, and of what its pods may do.

use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::{ArgAction, Args};
use knarr_client::k8s_openapi::api::core::v1::Taint;
use knarr_kubelet::Settings;

#[derive(Args, Clone, Debug, Default)]
pub struct RegistrationArguments {
    /// Labels of the node when it registers, such as zone=a.
    #[arg(long, value_delimiter = ',')]
    pub node_labels: Vec<String>,
    /// Taints of the node when it registers, such as dedicated=gpu:NoSchedule.
    #[arg(long, value_delimiter = ',')]
    pub register_with_taints: Vec<String>,
    /// Register the node with the API server.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub register_node: Option<bool>,
    /// Resolver configuration that pods with dnsPolicy Default inherit [default: /etc/resolv.conf].
    #[arg(long)]
    pub resolv_conf: Option<PathBuf>,
    /// Give pods without a seccomp profile the runtime's.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub seccomp_default: bool,
    /// Namespaced sysctls that pods may set besides the safe ones; a trailing * matches any rest.
    #[arg(long, value_delimiter = ',')]
    pub allowed_unsafe_sysctls: Vec<String>,
}

impl RegistrationArguments {
    pub fn apply(&self, settings: &mut Settings) -> anyhow::Result<()> {
        for label in &self.node_labels {
            let (key, value) = label.split_once('=').unwrap_or((label, ""));
            settings.labels.insert(key.to_owned(), value.to_owned());
        }
        for text in &self.register_with_taints {
            settings.taints.push(taint(text)?);
        }
        settings.register = self.register_node.unwrap_or(settings.register);
        if let Some(path) = &self.resolv_conf {
            settings.resolv_conf = Some(path.clone());
        }
        settings.seccomp_default = self.seccomp_default;
        settings.allowed_unsafe_sysctls.clone_from(&self.allowed_unsafe_sysctls);
        Ok(())
    }
}

fn taint(text: &str) -> anyhow::Result<Taint> {
    let (pair, effect) = text.split_once(':').with_context(|| format!("invalid taint spec: {text}"))?;
    if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
        bail!("invalid taint effect: {effect}, unsupported taint effect");
    }
    let (key, value) = pair.split_once('=').map_or((pair, None), |(key, value)| (key, Some(value.to_owned())));
    Ok(Taint { key: key.to_owned(), value, effect: effect.to_owned(), ..Taint::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_taints_are_those_of_the_flags() {
        let arguments = RegistrationArguments {
            node_labels: vec!["zone=a".to_owned(), "gpu".to_owned()],
            register_with_taints: vec!["dedicated=gpu:NoSchedule".to_owned(), "slow:NoExecute".to_owned()],
            register_node: Some(false),
            ..RegistrationArguments::default()
        };
        let mut settings = Settings::new("one", "/data", "/run/x.sock".to_owned());
        arguments.apply(&mut settings).unwrap();
        let labels: Vec<_> = settings.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(labels, ["gpu=", "zone=a"]);
        let taints: Vec<_> =
            settings.taints.iter().map(|taint| (&*taint.key, taint.value.as_deref(), &*taint.effect)).collect();
        assert_eq!(taints, [("dedicated", Some("gpu"), "NoSchedule"), ("slow", None, "NoExecute")]);
        assert!(!settings.register);
        assert!(taint("a").is_err() && taint("a=b:Never").is_err());
    }
}
