//! Registry of all controllers, by the names that operators select them with.

use futures::future::BoxFuture;
use knarr_supervisor::{Supervisor, current_run};

use crate::{Context, metrics};

/// One controller of the registry.
pub struct Controller {
    /// As in kube-controller-manager's `--controllers`.
    pub name: &'static str,
    /// Whether `*` includes it.
    pub by_default: bool,
    /// The service account in kube-system that it acts as; without one, it acts as the controller manager.
    pub account: Option<&'static str>,
    start: fn(Context) -> BoxFuture<'static, ()>,
}

macro_rules! controllers {
    ($($name:literal $(($when:ident))? $(as $account:literal)? => $($path:ident)::+),* $(,)?) => {
        &[$(Controller {
            name: $name,
            by_default: controllers!(@by_default $($when)?),
            account: controllers!(@account $($account)?),
            start: |context| Box::pin(crate::$($path)::+(context)),
        }),*]
    };
    (@by_default) => { true };
    (@by_default on_request) => { false };
    (@account) => { None };
    (@account $account:literal) => { Some($account) };
}

/// All controllers, in the order they start.
pub const CONTROLLERS: &[Controller] = controllers![
    "daemonset-controller" as "daemon-set-controller" => daemon_set::run,
    "deployment-controller" as "deployment-controller" => deployment::run,
    "replicaset-controller" as "replicaset-controller" => replica_set::run,
    "endpoints-controller" as "endpoint-controller" => endpoints::run,
    "endpointslice-controller" as "endpointslice-controller" => endpoint_slice::run,
    "endpointslice-mirroring-controller" as "endpointslicemirroring-controller" => endpoint_slice::mirroring::run,
    "garbage-collector-controller" as "generic-garbage-collector" => garbage_collector::run,
    "job-controller" as "job-controller" => job::run,
    "cronjob-controller" as "cronjob-controller" => cron_job::run,
    "ttl-after-finished-controller" as "ttl-after-finished-controller" => ttl_after_finished::run,
    "clusterrole-aggregation-controller" as "clusterrole-aggregation-controller" => cluster_role_aggregation::run,
    "disruption-controller" as "disruption-controller" => disruption_budget::run,
    "certificatesigningrequest-approving-controller" as "certificate-controller" => certificates::run_approver,
    "certificatesigningrequest-signing-controller" as "certificate-controller" => certificates::run_signer,
    "certificatesigningrequest-cleaner-controller" as "certificate-controller" => certificates::run_cleaner,
    "horizontal-pod-autoscaler-controller" as "horizontal-pod-autoscaler" => autoscaler::run,
    "serviceaccount-token-controller" => service_account_token::run,
    "legacy-serviceaccount-token-cleaner-controller" as "legacy-service-account-token-cleaner" => token_cleaner::run_legacy,
    "bootstrap-signer-controller" (on_request) as "bootstrap-signer" => bootstrap_signer::run,
    "token-cleaner-controller" (on_request) as "token-cleaner" => token_cleaner::run_bootstrap,
    "ephemeral-volume-controller" as "ephemeral-volume-controller" => ephemeral_volume::run,
    "ttl-controller" as "ttl-controller" => node_ttl::run,
    "namespace-controller" as "namespace-controller" => namespace::run,
    "serviceaccount-controller" as "service-account-controller" => service_account::run,
    "root-ca-certificate-publisher-controller" as "root-ca-cert-publisher" => root_ca::run,
    "persistentvolume-attach-detach-controller" as "attachdetach-controller" => attach_detach::run,
    "persistentvolume-binder-controller" as "persistent-volume-binder" => volume_binder::run,
    "persistentvolumeclaim-protection-controller" as "pvc-protection-controller" => volume_protection::run_claims,
    "persistentvolume-protection-controller" as "pv-protection-controller" => volume_protection::run_volumes,
    "persistentvolume-expander-controller" as "expand-controller" => volume_expander::run,
    "volumeattributesclass-protection-controller" as "volumeattributesclass-protection-controller" => volume_protection::run_attributes_classes,
    "resourceclaim-controller" as "resource-claim-controller" => resource_claim::run,
    "service-cidr-controller" as "service-cidrs-controller" => service_cidr::run,
    "resourcequota-controller" as "resourcequota-controller" => resource_quota::run,
    "statefulset-controller" as "statefulset-controller" => stateful_set::run,
    "node-ipam-controller" as "node-controller" => node_ipam::run,
    "node-lifecycle-controller" as "node-controller" => node_lifecycle::run,
    "device-taint-eviction-controller" as "device-taint-eviction-controller" => device_taint_eviction::run,
    "taint-eviction-controller" as "node-controller" => taint_eviction::run,
    "pod-garbage-collector-controller" as "pod-garbage-collector" => pod_gc::run,
    "replicationcontroller-controller" as "replication-controller" => replica_set::run_replication_controllers,
];

/// Controllers that return when their settings leave them nothing to do.
const MAY_RETURN: &[&str] = &[
    "certificatesigningrequest-signing-controller",
    "node-ipam-controller",
    "root-ca-certificate-publisher-controller",
];

/// Runs the enabled controllers until the future is dropped, which stops them all at once. Each is restarted by itself.
pub async fn run(context: Context) {
    let components = current_run().map(|run| run.registry().clone()).unwrap_or_default();
    let supervisor = Supervisor::new(&components);
    knarr_metrics::register(metrics::FAMILIES);
    knarr_metrics::register(crate::endpoint_slice::METRICS);
    for controller in CONTROLLERS {
        if context.settings.enables(controller.name, controller.by_default) {
            let context = controller.account.map_or_else(|| context.clone(), |account| context.acting_as(account));
            let run = move || {
                let (running, run) = (metrics::Running::start(controller.name), (controller.start)(context.clone()));
                async move {
                    let _running = running;
                    run.await;
                }
            };
            match MAY_RETURN.contains(&controller.name) {
                true => supervisor.complete(controller.name, run),
                false => supervisor.restart(controller.name, run),
            }
        }
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_controller_has_an_account() {
        let without: Vec<&str> = CONTROLLERS
            .iter()
            .filter(|controller| controller.account.is_none())
            .map(|controller| controller.name)
            .collect();
        // The accounts need it for their tokens: it acts as the controller manager, as in Kubernetes.
        assert_eq!(without, ["serviceaccount-token-controller"]);
    }
}
