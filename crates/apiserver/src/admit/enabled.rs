//! Which admission plugins run, and their configuration: `--enable-admission-plugins`, `--disable-admission-plugins` and
//! `--admission-control-config-file`.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use knarr_api::decode;
use knarr_api::value::Read;
use serde_json::Value;

use super::defaults::DefaultTolerationSeconds;
use super::event_rate_limit::EventRateLimitSettings;
use super::image_policy::ImagePolicyWebhook;
use super::pod_node_selector::PodNodeSelector;
use super::pod_security::PodSecuritySettings;
use super::pod_tolerations::PodTolerationRestriction;
use super::resource_quota::LimitedResources;
use super::webhook;
use crate::configuration_file::{FileError, Kind, Shape};
use crate::outbound::WebhookUsers;

/// Whether a plugin runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    ByDefault,
    IfEnabled,
    /// Its name is known, but what it is for does not exist here.
    Never,
}
use Runs::{ByDefault, IfEnabled, Never};

/// All plugins, in the order in which they run.
pub(super) const ORDERED: [(&str, Runs); 41] = [
    ("AlwaysAdmit", IfEnabled),
    ("NamespaceAutoProvision", IfEnabled),
    ("NamespaceLifecycle", ByDefault),
    ("NamespaceExists", IfEnabled),
    ("LimitPodHardAntiAffinityTopology", IfEnabled),
    ("LimitRanger", ByDefault),
    ("ServiceAccount", ByDefault),
    // Kubernetes leaves this one off, but every installer turns it on.
    ("NodeRestriction", ByDefault),
    ("TaintNodesByCondition", ByDefault),
    ("AlwaysPullImages", IfEnabled),
    ("ImagePolicyWebhook", IfEnabled),
    ("PodSecurity", ByDefault),
    ("PodNodeSelector", IfEnabled),
    ("Priority", ByDefault),
    ("DefaultTolerationSeconds", ByDefault),
    ("PodTolerationRestriction", IfEnabled),
    ("EventRateLimit", IfEnabled),
    ("ExtendedResourceToleration", IfEnabled),
    ("DefaultStorageClass", ByDefault),
    ("StorageObjectInUseProtection", ByDefault),
    ("PodGroupProtection", Never),
    ("OwnerReferencesPermissionEnforcement", IfEnabled),
    ("PersistentVolumeClaimResize", ByDefault),
    ("RuntimeClass", ByDefault),
    ("CertificateApproval", ByDefault),
    ("CertificateSigning", ByDefault),
    ("ClusterTrustBundleAttest", ByDefault),
    ("CertificateSubjectRestriction", ByDefault),
    ("DefaultIngressClass", ByDefault),
    ("DenyServiceExternalIPs", IfEnabled),
    ("PodTopologyLabels", ByDefault),
    ("PodGroupWorkloadExists", Never),
    ("NodeDeclaredFeatureValidator", ByDefault),
    ("JobValidation", Never),
    ("PodResizeValidator", ByDefault),
    ("MutatingAdmissionPolicy", ByDefault),
    ("MutatingAdmissionWebhook", ByDefault),
    ("ValidatingAdmissionPolicy", ByDefault),
    ("ValidatingAdmissionWebhook", ByDefault),
    ("ResourceQuota", ByDefault),
    ("AlwaysDeny", IfEnabled),
];

const FILE: Kind =
    Kind { group: "apiserver.config.k8s.io", versions: &["v1"], kind: "AdmissionConfiguration", fields: PLUGINS };

/// The older version of the same file.
const OLD_FILE: Kind =
    Kind { group: "apiserver.k8s.io", versions: &["v1alpha1"], kind: "AdmissionConfiguration", fields: PLUGINS };

const PLUGINS: &[(&str, Shape)] = &[(
    "plugins",
    Shape::List(&Shape::Object(&[("name", Shape::Text), ("path", Shape::Text), ("configuration", Shape::Any)])),
)];

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum PluginsError {
    #[error("{flag} plugin {name:?} is unknown")]
    Unknown { flag: &'static str, name: String },
    #[error("[{0}] in enable-admission-plugins and disable-admission-plugins overlapped")]
    Both(String),
    #[error(transparent)]
    File(#[from] FileError),
    #[error("failed to read plugin config: {0}")]
    Configuration(String),
    #[error("couldn't init admission plugin {name:?}: {why}")]
    Plugin { name: &'static str, why: String },
}

/// The plugins that run, with their configuration.
#[derive(Debug)]
pub struct EnabledPlugins {
    enabled: BTreeSet<&'static str>,
    /// How long pods stay by default on nodes that are not ready or unreachable.
    pub default_tolerations: DefaultTolerationSeconds,
    pub(super) pod_security: PodSecuritySettings,
    pub(super) event_rate_limit: EventRateLimitSettings,
    pub(super) pod_node_selector: PodNodeSelector,
    pub(super) pod_tolerations: PodTolerationRestriction,
    pub(super) image_policy: Option<Arc<ImagePolicyWebhook>>,
    pub(super) limited_resources: LimitedResources,
    /// Who webhooks are called as.
    pub(super) mutating_users: Arc<WebhookUsers>,
    pub(super) validating_users: Arc<WebhookUsers>,
}

impl Default for EnabledPlugins {
    fn default() -> Self {
        let default = ORDERED.iter().filter(|(_, runs)| *runs == ByDefault);
        EnabledPlugins {
            enabled: default.map(|(name, _)| *name).collect(),
            default_tolerations: DefaultTolerationSeconds::default(),
            pod_security: PodSecuritySettings::default(),
            event_rate_limit: EventRateLimitSettings::default(),
            pod_node_selector: PodNodeSelector::default(),
            pod_tolerations: PodTolerationRestriction::default(),
            image_policy: None,
            limited_resources: LimitedResources::default(),
            mutating_users: Arc::default(),
            validating_users: Arc::default(),
        }
    }
}

impl EnabledPlugins {
    /// The names of all plugins, in the order in which they run.
    pub fn names() -> impl Iterator<Item = &'static str> {
        ORDERED.iter().map(|(name, _)| *name)
    }

    /// Unknown plugins are an error, since the administrator relies on what they would refuse.
    pub fn new(enable: &[String], disable: &[String], file: Option<&Path>) -> Result<Self, PluginsError> {
        let known = |flag: &'static str, name: &String| {
            let found = ORDERED.iter().find(|(known, _)| known == name).map(|(known, _)| *known);
            found.ok_or_else(|| PluginsError::Unknown { flag, name: name.clone() })
        };
        let both: Vec<&str> = enable.iter().filter(|name| disable.contains(name)).map(String::as_str).collect();
        if !both.is_empty() {
            return Err(PluginsError::Both(both.join(" ")));
        }
        let mut plugins = EnabledPlugins::default();
        for name in enable {
            plugins.enabled.insert(known("enable-admission-plugins", name)?);
        }
        for name in disable {
            plugins.enabled.remove(known("disable-admission-plugins", name)?);
        }
        let configurations = match file {
            Some(path) => Configurations::read(path)?,
            None => Configurations::default(),
        };
        plugins.configure(&configurations)?;
        Ok(plugins)
    }

    pub fn has(&self, name: &str) -> bool {
        self.enabled.contains(name)
    }

    fn configure(&mut self, files: &Configurations) -> Result<(), PluginsError> {
        let failed = |name: &'static str| move |why: String| PluginsError::Plugin { name, why };
        if let Some(text) = files.text("PodSecurity") {
            self.pod_security = PodSecuritySettings::parse(text).map_err(failed("PodSecurity"))?;
        }
        if self.has("EventRateLimit") {
            let text = files.text("EventRateLimit").unwrap_or_default();
            self.event_rate_limit = EventRateLimitSettings::parse(text).map_err(failed("EventRateLimit"))?;
        }
        if let Some(text) = files.text("PodNodeSelector") {
            self.pod_node_selector = PodNodeSelector::parse(text).map_err(failed("PodNodeSelector"))?;
        }
        if let Some(text) = files.text("PodTolerationRestriction") {
            let parsed = PodTolerationRestriction::parse(text);
            self.pod_tolerations = parsed.map_err(failed("PodTolerationRestriction"))?;
        }
        if let Some(text) = files.text("ResourceQuota") {
            self.limited_resources = LimitedResources::parse(text).map_err(failed("ResourceQuota"))?;
        }
        for (name, users) in [
            ("MutatingAdmissionWebhook", &mut self.mutating_users),
            ("ValidatingAdmissionWebhook", &mut self.validating_users),
        ] {
            if let Some(text) = files.text(name) {
                *users = Arc::new(webhook::configured_users(text).map_err(failed(name))?);
            }
        }
        if self.has("ImagePolicyWebhook") {
            let name = "ImagePolicyWebhook";
            let text = files.text(name).ok_or("no config specified".to_owned()).map_err(failed(name))?;
            let webhook = ImagePolicyWebhook::parse(text, &files.directory).map_err(failed(name))?;
            self.image_policy = Some(Arc::new(webhook));
        }
        Ok(())
    }
}

/// The configurations of plugins, by name.
#[derive(Default)]
struct Configurations {
    texts: HashMap<String, String>,
    /// Relative paths start here.
    directory: PathBuf,
}

impl Configurations {
    fn read(path: &Path) -> Result<Self, PluginsError> {
        let text = crate::configuration_file::read(path)?;
        let document = OLD_FILE.decode(&text).or_else(|_| FILE.decode(&text))?;
        let directory = path.parent().map(Path::to_owned).unwrap_or_default();
        let mut texts = HashMap::new();
        for plugin in document.items(&["plugins"]) {
            let text = match plugin.text(&["path"]) {
                "" => match plugin.at(&["configuration"]) {
                    Value::Null => continue,
                    configuration => configuration.to_string(),
                },
                path => {
                    let path = directory.join(path);
                    let read = std::fs::read_to_string(&path);
                    read.map_err(|error| PluginsError::Configuration(format!("open {}: {error}", path.display())))?
                }
            };
            texts.insert(plugin.text(&["name"]).to_owned(), text);
        }
        Ok(Configurations { texts, directory })
    }

    fn text(&self, plugin: &str) -> Option<&str> {
        self.texts.get(plugin).map(String::as_str)
    }
}

/// Reads a plugin's configuration that has no version.
pub(super) fn unversioned(text: &str) -> Result<Value, String> {
    decode::untyped_yaml(text.as_bytes()).map(|decoded| decoded.value).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn plugins_are_enabled_and_disabled_by_name() {
        let of = |enable: &[&str], disable: &[&str]| EnabledPlugins::new(&names(enable), &names(disable), None);
        let default = of(&[], &[]).unwrap();
        assert!(default.has("NodeRestriction") && !default.has("AlwaysPullImages"));
        let changed = of(&["AlwaysPullImages"], &["PodSecurity"]).unwrap();
        assert!(changed.has("AlwaysPullImages") && !changed.has("PodSecurity"));
        for (refused, message) in [
            (of(&["SecurityContextDeny"], &[]), "enable-admission-plugins plugin \"SecurityContextDeny\" is unknown"),
            (of(&[], &["Foo"]), "disable-admission-plugins plugin \"Foo\" is unknown"),
            (
                of(&["PodSecurity"], &["PodSecurity"]),
                "[PodSecurity] in enable-admission-plugins and disable-admission-plugins overlapped",
            ),
            (
                of(&["ImagePolicyWebhook"], &[]),
                "couldn't init admission plugin \"ImagePolicyWebhook\": no config specified",
            ),
        ] {
            assert_eq!(refused.err().unwrap().to_string(), message);
        }
    }

    #[test]
    fn configurations_are_in_place_or_in_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("admission.yaml");
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n";
        let limit = "apiVersion: eventratelimit.admission.k8s.io/v1alpha1\nkind: Configuration\n\
                     limits: [{type: Server, qps: 1, burst: 2}]\n";
        std::fs::write(directory.path().join("limit.yaml"), limit).unwrap();
        let read = |plugins: &str| {
            std::fs::write(&path, format!("{head}{plugins}")).unwrap();
            EnabledPlugins::new(&names(&["EventRateLimit"]), &[], Some(&path)).map_err(|error| error.to_string())
        };
        let by_path = read("- {name: EventRateLimit, path: limit.yaml}\n").unwrap();
        let indented: String = limit.lines().map(|line| format!("    {line}\n")).collect();
        let in_place = read(&format!("- name: EventRateLimit\n  configuration:\n{indented}")).unwrap();
        assert_eq!(by_path.event_rate_limit, in_place.event_rate_limit);
        assert!(
            read("- {name: EventRateLimit, path: none.yaml}\n").unwrap_err().contains("failed to read plugin config")
        );
        assert!(read("- {nam: x}\n").unwrap_err().contains("unknown field \"plugins[0].nam\""));
    }
}
