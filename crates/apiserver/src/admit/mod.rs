//! Admission plugins, which change or refuse authorized writes.
//!
//! Each plugin has a file of its own. All `admit` steps run in order and may change the object; then all `validate` steps
//! run and may only refuse it.

mod always_pull_images;
mod certificates;
#[cfg(test)]
mod compatibility_tests;
mod declared_features;
mod defaults;
mod durations;
mod dynamic;
mod enabled;
mod escalation;
mod event_rate_limit;
mod external_ips;
mod image_policy;
mod limit_ranger;
mod namespace_lifecycle;
mod namespaces;
mod node_restriction;
mod node_storage;
mod owner_references;
mod pod_node_selector;
mod pod_resize;
mod pod_security;
mod pod_tolerations;
pub mod policy;
mod policy_parameters;
mod priority;
mod resource_claims;
mod resource_quota;
mod runtime_class;
mod server_token;
mod service_account;
mod storage;
mod webhook;

use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use knarr_api::status::Status;

use self::durations::{Durations, Step};
use crate::authorize::{Authorizer, Rbac};
use crate::loopback::OwnServer;
use crate::object_reader::ObjectReader;
use crate::resource_request::Admission;

pub use crate::request::Operation;
pub use crate::resource_request::Write;
pub use defaults::DefaultTolerationSeconds;
pub use enabled::{EnabledPlugins, PluginsError};
pub use resource_quota::QuotaWriter;
pub use server_token::SERVER_JOIN_PATH;

/// An admission plugin.
#[async_trait]
pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;
    fn handles(&self, write: &Write<'_>) -> bool;
    async fn admit(&self, _write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        Ok(())
    }
    async fn validate(&self, _write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        Ok(())
    }
}

/// All enabled plugins, in the order of Kubernetes.
pub struct Chain {
    plugins: Vec<Timed>,
    durations: Durations,
}

/// A plugin with its duration metrics.
struct Timed {
    plugin: Box<dyn Plugin>,
    durations: Durations,
}

impl Chain {
    pub fn new(
        authorizer: Arc<dyn Authorizer>,
        rbac: Arc<Rbac>,
        quotas: Arc<dyn QuotaWriter>,
        server: OwnServer,
        enabled: EnabledPlugins,
    ) -> Self {
        let limited = enabled.limited_resources.clone();
        let mut all: Vec<Box<dyn Plugin>> = vec![
            Box::new(namespaces::AlwaysAdmit),
            Box::new(namespaces::NamespaceAutoProvision(server)),
            Box::new(namespace_lifecycle::NamespaceLifecycle),
            Box::new(namespaces::NamespaceExists),
            Box::new(always_pull_images::LimitPodHardAntiAffinityTopology),
            Box::new(limit_ranger::LimitRanger),
            Box::new(service_account::ServiceAccount),
            Box::new(node_restriction::NodeRestriction::new(Arc::clone(&authorizer))),
            Box::new(defaults::TaintNodesByCondition),
            Box::new(always_pull_images::AlwaysPullImages),
        ];
        if let Some(webhook) = &enabled.image_policy {
            all.push(Box::new(image_policy::ImagePolicy(webhook.clone())));
        }
        all.extend::<Vec<Box<dyn Plugin>>>(vec![
            Box::new(pod_security::PodSecurity(enabled.pod_security.clone())),
            Box::new(enabled.pod_node_selector.clone()),
            Box::new(priority::Priority),
            Box::new(enabled.default_tolerations),
            Box::new(enabled.pod_tolerations.clone()),
            Box::new(event_rate_limit::EventRateLimit::new(&enabled.event_rate_limit)),
            Box::new(pod_tolerations::ExtendedResourceToleration),
            Box::new(storage::DefaultStorageClass),
            Box::new(storage::StorageObjectInUseProtection),
            Box::new(owner_references::OwnerReferences(Arc::clone(&authorizer))),
            Box::new(storage::PersistentVolumeClaimResize),
            Box::new(runtime_class::RuntimeClass),
            Box::new(certificates::CertificateApproval(Arc::clone(&authorizer))),
            Box::new(certificates::CertificateSigning(Arc::clone(&authorizer))),
            Box::new(certificates::ClusterTrustBundleAttest(Arc::clone(&authorizer))),
            Box::new(certificates::CertificateSubjectRestriction),
            Box::new(defaults::DefaultIngressClass),
            Box::new(external_ips::DenyServiceExternalIps),
            Box::new(defaults::PodTopologyLabels),
            Box::new(declared_features::NodeDeclaredFeatureValidator),
            Box::new(pod_resize::PodResizeValidator),
            Box::new(server_token::ServerToken(Arc::clone(&authorizer))),
            Box::new(node_storage::NodeStorage),
            Box::new(resource_claims::ResourceClaimAuthorization(Arc::clone(&authorizer))),
            Box::new(policy_parameters::PolicyParameterAuthorization(Arc::clone(&authorizer))),
            Box::new(escalation::Escalation::new(authorizer, rbac)),
            Box::new(policy::MutatingPolicies::default()),
            Box::new(webhook::MutatingWebhooks::new(enabled.mutating_users.clone())),
            Box::new(policy::ValidatingPolicies::default()),
            Box::new(webhook::ValidatingWebhooks::new(enabled.validating_users.clone())),
            Box::new(resource_quota::ResourceQuota::new(quotas, limited)),
            Box::new(namespaces::AlwaysDeny),
        ]);
        // What grants rights is guarded whatever is enabled.
        let always =
            [escalation::NAME, server_token::NAME, node_storage::NAME, resource_claims::NAME, policy_parameters::NAME];
        all.retain(|plugin| enabled.has(plugin.name()) || always.contains(&plugin.name()));
        let timed = |plugin| Timed { plugin, durations: Durations::default() };
        Chain { plugins: all.into_iter().map(timed).collect(), durations: Durations::default() }
    }

    async fn admit_once(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        for Timed { plugin, durations } in &self.plugins {
            if plugin.handles(write) {
                let start = Instant::now();
                let admitted = plugin.admit(write, objects).await;
                durations.record(write.operation, Step::Admit, admitted.is_err(), start.elapsed());
                admitted?;
            }
        }
        Ok(())
    }

    async fn validate_all(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        for Timed { plugin, durations } in &self.plugins {
            if plugin.handles(write) {
                let start = Instant::now();
                let validated = plugin.validate(write, objects).await;
                durations.record(write.operation, Step::Validate, validated.is_err(), start.elapsed());
                validated?;
            }
        }
        Ok(())
    }
}

#[async_trait]
impl Admission for Chain {
    /// Runs the mutating step of all plugins. If policies or webhooks changed the object, runs all once more, so that each
    /// sees the result.
    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let start = Instant::now();
        let mut admitted = self.admit_once(write, objects).await;
        if admitted.is_ok() && write.reinvocation.is_required {
            write.reinvocation.is_second_round = true;
            admitted = self.admit_once(write, objects).await;
        }
        self.durations.record(write.operation, Step::Admit, admitted.is_err(), start.elapsed());
        admitted
    }

    /// Runs the validating step of all plugins.
    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let start = Instant::now();
        let validated = self.validate_all(write, objects).await;
        self.durations.record(write.operation, Step::Validate, validated.is_err(), start.elapsed());
        validated
    }

    /// Writes the duration metrics of all plugins.
    fn write_metrics(&self, out: &mut String) {
        let name = "apiserver_admission_controller_admission_duration_seconds";
        out.push_str(&format!(
            "# HELP {name} [STABLE] How long admission plugins took, by plugin.\n# TYPE {name} histogram\n"
        ));
        for Timed { plugin, durations } in &self.plugins {
            durations.write(out, name, &format!("name={:?},", plugin.name()));
        }
        let name = "apiserver_admission_step_admission_duration_seconds";
        out.push_str(&format!("# HELP {name} [STABLE] How long admission took as a whole.\n# TYPE {name} histogram\n"));
        self.durations.write(out, name, "");
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::object_reader::tests::Fixed;
    use crate::request::User;
    use knarr_api::value::Read as _;
    use serde_json::Value;

    /// An unreadable limit must not count as "no limit".
    #[tokio::test]
    async fn a_write_is_refused_if_an_object_that_decides_it_cannot_be_read() {
        use serde_json::json;
        let object =
            |kind: &str, spec: Value| json!({"kind": kind, "metadata": {"name": "o", "namespace": "n"}, "spec": spec});
        let pod = || {
            object("Pod", json!({"containers": [{"name": "c"}], "runtimeClassName": "r", "serviceAccountName": "a"}))
        };
        let plugins: [(&dyn Plugin, &str, &str, Value); 8] = [
            (&namespace_lifecycle::NamespaceLifecycle, "", "configmaps", object("ConfigMap", json!({}))),
            (&limit_ranger::LimitRanger, "", "pods", pod()),
            (&service_account::ServiceAccount, "", "pods", pod()),
            (&pod_security::PodSecurity::default(), "", "pods", pod()),
            (&priority::Priority, "", "pods", pod()),
            (&runtime_class::RuntimeClass, "", "pods", pod()),
            (&storage::DefaultStorageClass, "", "persistentvolumeclaims", object("PersistentVolumeClaim", json!({}))),
            (&defaults::DefaultIngressClass, "networking.k8s.io", "ingresses", object("Ingress", json!({}))),
        ];
        for (plugin, group, resource, object) in plugins {
            let user = User::named("ann", &[]);
            let objects = crate::object_reader::tests::Unreadable;
            let refused = run_as(&user, plugin, Operation::Create, (group, resource), object, None, &objects).await;
            assert!(
                refused.as_ref().is_err_and(|why| why.contains("cannot be read")),
                "{}: {refused:?}",
                plugin.name()
            );
        }
    }

    /// Runs one plugin on a write; returns the resulting object or the error message.
    pub async fn run(
        plugin: &dyn Plugin,
        operation: Operation,
        (group, resource): (&str, &str),
        object: Value,
        old: Option<Value>,
        objects: &Fixed,
    ) -> Result<Value, String> {
        run_as(&User::named("ann", &[]), plugin, operation, (group, resource), object, old, objects).await
    }

    pub async fn run_as(
        user: &User,
        plugin: &dyn Plugin,
        operation: Operation,
        (group, resource): (&str, &str),
        mut object: Value,
        old: Option<Value>,
        objects: &dyn ObjectReader,
    ) -> Result<Value, String> {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let named = if object.is_null() { old.clone().unwrap_or_default() } else { object.clone() };
        let mut warnings = Vec::new();
        let mut write = Write {
            operation,
            group,
            version: "v1",
            object_group: group,
            object_version: "v1",
            kind: named.text(&["kind"]),
            resource,
            subresource,
            namespace: named.text(&["metadata", "namespace"]),
            name: named.text(&["metadata", "name"]),
            object: &mut object,
            old: old.as_ref(),
            user,
            dry_run: false,
            warnings: &mut warnings,
            call: None,
            reinvocation: Default::default(),
        };
        if plugin.handles(&write) {
            plugin.admit(&mut write, objects).await.map_err(|status| status.message)?;
            plugin.validate(&mut write, objects).await.map_err(|status| status.message)?;
        }
        Ok(object)
    }
}
