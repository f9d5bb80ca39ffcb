//! The configuration of the webhook plugins: the kubeconfig whose users webhooks are called as.

use std::path::Path;

use knarr_api::field::{self, Errors};
use knarr_api::value::Read;

use crate::configuration_file::{Kind, Shape};
use crate::outbound::WebhookUsers;

const KIND: Kind = Kind {
    group: "apiserver.config.k8s.io",
    versions: &["v1"],
    kind: "WebhookAdmissionConfiguration",
    fields: &[("kubeConfigFile", Shape::Text), ("staticManifestsDir", Shape::Text)],
};

/// Reads the users of the kubeconfig that the configuration names.
pub fn configured_users(text: &str) -> Result<WebhookUsers, String> {
    let configuration = KIND.decode(text).map_err(|error| error.to_string())?;
    if !configuration.text(&["staticManifestsDir"]).is_empty() {
        return Err(
            "staticManifestsDir requires the feature gate ManifestBasedAdmissionControlConfig, which Knarr does not \
                    have"
                .to_owned(),
        );
    }
    match configuration.text(&["kubeConfigFile"]) {
        "" => Ok(WebhookUsers::default()),
        path if !Path::new(path).is_absolute() => {
            let mut errors = Errors::new();
            errors.invalid(&field::Path::root("kubeConfigFile"), path, "must be an absolute file path");
            Err(errors.0.iter().map(ToString::to_string).collect())
        }
        path => WebhookUsers::read(Path::new(path)).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_name_a_kubeconfig() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kubeconfig");
        std::fs::write(&path, "users: [{name: '*', user: {token: t}}]").unwrap();
        let of = |kind: &str, rest: &str| {
            configured_users(&format!("apiVersion: apiserver.config.k8s.io/v1\nkind: {kind}\n{rest}"))
        };
        let kind = "WebhookAdmissionConfiguration";
        let users = of(kind, &format!("kubeConfigFile: {}", path.display())).unwrap();
        assert!(users.of("a", 1).is_some());
        assert!(of(kind, "").unwrap().of("a", 1).is_none());
        for (kind, rest, message) in [
            (kind, "kubeConfigFile: here", "kubeConfigFile: Invalid value: \"here\": must be an absolute file path"),
            (kind, "kubeConfigFile: /none/here", "/none/here: No such file"),
            (kind, "staticManifestsDir: /a", "staticManifestsDir requires"),
            (kind, "other: 1", "strict decoding error: unknown field \"other\""),
            ("WebhookAdmission", "", "no kind \"WebhookAdmission\" is registered"),
        ] {
            let refused = of(kind, rest).err().unwrap();
            assert!(refused.starts_with(message), "{refused}");
        }
    }
}
