//! PodSecurityConfiguration: the policy of namespaces without labels, and what is exempt.

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use super::level::{Level, LevelVersion, Policy, parse_version};
use crate::admit::Write;
use crate::configuration_file::{Kind, Shape};

const FILE: Kind = Kind {
    group: "pod-security.admission.config.k8s.io",
    versions: &["v1", "v1beta1", "v1alpha1"],
    kind: "PodSecurityConfiguration",
    fields: &[
        (
            "defaults",
            Shape::Object(&[
                ("enforce", Shape::Text),
                ("enforce-version", Shape::Text),
                ("audit", Shape::Text),
                ("audit-version", Shape::Text),
                ("warn", Shape::Text),
                ("warn-version", Shape::Text),
            ]),
        ),
        (
            "exemptions",
            Shape::Object(&[
                ("usernames", Shape::List(&Shape::Text)),
                ("runtimeClasses", Shape::List(&Shape::Text)),
                ("namespaces", Shape::List(&Shape::Text)),
            ]),
        ),
    ],
};

#[derive(Clone, Debug, Default)]
pub struct PodSecuritySettings {
    pub(super) defaults: Policy,
    usernames: Vec<String>,
    runtime_classes: Vec<String>,
    namespaces: Vec<String>,
}

impl PodSecuritySettings {
    pub fn parse(text: &str) -> Result<Self, String> {
        let document = FILE.decode(text).map_err(|error| error.to_string())?;
        let mut errors = Errors::new();
        let root = Path::root("defaults");
        let level = |mode: &'static str, errors: &mut Errors| {
            let version_field = format!("{mode}-version");
            let text = document.text(&["defaults", mode]);
            let version = document.text(&["defaults", &version_field]);
            let level = if text.is_empty() { Some(Level::Privileged) } else { Level::parse(text) };
            let parsed = if version.is_empty() { Some(None) } else { parse_version(version) };
            if level.is_none() {
                let why = "must be one of privileged, baseline, restricted";
                errors.invalid(&root.child(mode), text, why);
            }
            if parsed.is_none() {
                errors.invalid(&root.child(&version_field), version, "must be \"latest\" or \"v1.x\"");
            }
            LevelVersion { level: level.unwrap_or(Level::Restricted), version: parsed.flatten() }
        };
        let defaults = Policy {
            enforce: level("enforce", &mut errors),
            audit: level("audit", &mut errors),
            warn: level("warn", &mut errors),
        };
        let list = |field: &'static str, errors: &mut Errors| -> Vec<String> {
            let exemptions = Path::root("exemptions");
            let mut found: Vec<String> = Vec::new();
            for (index, item) in document.items(&["exemptions", field]).iter().enumerate() {
                let text = item.as_str().unwrap_or_default();
                let path = exemptions.item(field, index);
                let is_name = field == "usernames" || knarr_api::names::is_subdomain(text);
                if text.is_empty() || !is_name {
                    errors.invalid(&path, text, "must not be empty and must be a valid name");
                } else if found.iter().any(|known| known == text) {
                    errors.duplicate(&path, text);
                }
                found.push(text.to_owned());
            }
            found
        };
        let settings = PodSecuritySettings {
            defaults,
            usernames: list("usernames", &mut errors),
            runtime_classes: list("runtimeClasses", &mut errors),
            namespaces: list("namespaces", &mut errors),
        };
        if errors.is_empty() { Ok(settings) } else { Err(super::aggregated(&errors)) }
    }

    pub fn exempts_namespace(&self, name: &str) -> bool {
        self.namespaces.iter().any(|own| own == name)
    }

    /// Why a write is exempt, if it is.
    pub fn exemption(&self, write: &Write<'_>, template: Option<&Value>) -> Option<&'static str> {
        if self.exempts_namespace(write.namespace) {
            return Some("namespace");
        }
        if self.usernames.contains(&write.user.name) {
            return Some("user");
        }
        let class = template.unwrap_or(write.object).text(&["spec", "runtimeClassName"]);
        self.runtime_classes.iter().any(|own| own == class).then_some("runtimeClass")
    }
}

#[cfg(test)]
mod tests {
    use super::super::PodSecurity;
    use super::*;
    use crate::admit::Operation;
    use crate::admit::tests::run_as;
    use crate::object_reader::tests::Fixed;
    use crate::request::User;
    use serde_json::json;

    fn parse(text: &str) -> Result<PodSecuritySettings, String> {
        let head = "apiVersion: pod-security.admission.config.k8s.io/v1\nkind: PodSecurityConfiguration\n";
        PodSecuritySettings::parse(&format!("{head}{text}"))
    }

    #[tokio::test]
    async fn the_default_applies_unless_exempt() {
        let settings = parse(
            "defaults: {enforce: baseline}\nexemptions: {usernames: [root], runtimeClasses: [vm], namespaces: [system]}\n",
        )
        .unwrap();
        let plugin = PodSecurity(settings);
        let labels = json!({"pod-security.kubernetes.io/enforce": "privileged"});
        let objects = Fixed::new(vec![
            ("", "namespaces", json!({"metadata": {"name": "plain"}})),
            ("", "namespaces", json!({"metadata": {"name": "system"}})),
            ("", "namespaces", json!({"metadata": {"name": "open", "labels": labels}})),
        ]);
        for (user, namespace, class, allowed) in [
            ("ann", "plain", "", false),
            ("root", "plain", "", true),
            ("ann", "system", "", true),
            ("ann", "open", "", true),
            ("ann", "plain", "vm", true),
            ("ann", "plain", "other", false),
        ] {
            let pod = json!({"kind": "Pod", "metadata": {"name": "p", "namespace": namespace},
                             "spec": {"hostNetwork": true, "runtimeClassName": class, "containers": [{"name": "c"}]}});
            let user = User::named(user, &[]);
            let outcome = run_as(&user, &plugin, Operation::Create, ("", "pods"), pod, None, &objects).await;
            assert_eq!(outcome.is_ok(), allowed, "{} {namespace} {class}: {outcome:?}", user.name);
        }
    }

    #[test]
    fn invalid_levels_are_refused() {
        assert_eq!(
            parse("defaults: {enforce: strict}\n").unwrap_err(),
            "defaults.enforce: Invalid value: \"strict\": must be one of privileged, baseline, restricted"
        );
        assert!(parse("defaults: {warn-version: '1.2'}\n").is_err());
        assert!(parse("default: {}\n").unwrap_err().contains("unknown field"));
        assert!(parse("exemptions: {namespaces: [a, a]}\n").unwrap_err().contains("Duplicate value"));
    }
}
