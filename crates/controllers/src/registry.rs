//! Registry of all controllers, by the names that operators select them with.

use futures::future::BoxFuture;
use tokio::task::JoinSet;

use crate::Context;

/// One controller of the registry.
pub struct Controller {
    /// As in kube-controller-manager's `--controllers`.
    pub name: &'static str,
    /// Whether `*` includes it.
    pub by_default: bool,
    start: fn(Context) -> BoxFuture<'static, ()>,
}

macro_rules! controllers {
    ($($name:literal $(($when:ident))? => $($path:ident)::+),* $(,)?) => {
        &[$(Controller {
            name: $name,
            by_default: controllers!(@by_default $($when)?),
            start: |context| Box::pin(crate::$($path)::+(context)),
        }),*]
    };
    (@by_default) => { true };
    (@by_default on_request) => { false };
}

/// All controllers, in the order they start.
pub const CONTROLLERS: &[Controller] = controllers![
    "daemonset-controller" => daemon_set::run,
    "deployment-controller" => deployment::run,
    "replicaset-controller" => replica_set::run,
    "endpoints-controller" => endpoints::run,
    "endpointslice-controller" => endpoint_slice::run,
    "endpointslice-mirroring-controller" => endpoint_slice::mirroring::run,
    "garbage-collector-controller" => garbage_collector::run,
    "job-controller" => job::run,
    "cronjob-controller" => cron_job::run,
    "ttl-after-finished-controller" => ttl_after_finished::run,
    "clusterrole-aggregation-controller" => cluster_role_aggregation::run,
    "disruption-controller" => disruption_budget::run,
    "certificatesigningrequest-approving-controller" => certificates::run_approver,
    "certificatesigningrequest-signing-controller" => certificates::run_signer,
    "certificatesigningrequest-cleaner-controller" => certificates::run_cleaner,
    "horizontal-pod-autoscaler-controller" => autoscaler::run,
    "serviceaccount-token-controller" => service_account_token::run,
    "legacy-serviceaccount-token-cleaner-controller" => token_cleaner::run_legacy,
    "bootstrap-signer-controller" (on_request) => bootstrap_signer::run,
    "token-cleaner-controller" (on_request) => token_cleaner::run_bootstrap,
    "ephemeral-volume-controller" => ephemeral_volume::run,
    "ttl-controller" => node_ttl::run,
    "namespace-controller" => namespace::run,
    "serviceaccount-controller" => service_account::run,
    "root-ca-certificate-publisher-controller" => root_ca::run,
    "persistentvolume-binder-controller" => volume_binder::run,
    "persistentvolumeclaim-protection-controller" => volume_protection::run_claims,
    "persistentvolume-protection-controller" => volume_protection::run_volumes,
    "persistentvolume-expander-controller" => volume_expander::run,
    "volumeattributesclass-protection-controller" => volume_protection::run_attributes_classes,
    "resourceclaim-controller" => resource_claim::run,
    "service-cidr-controller" => service_cidr::run,
    "resourcequota-controller" => resource_quota::run,
    "statefulset-controller" => stateful_set::run,
    "node-ipam-controller" => node_ipam::run,
    "node-lifecycle-controller" => node_lifecycle::run,
    "device-taint-eviction-controller" => device_taint_eviction::run,
    "taint-eviction-controller" => taint_eviction::run,
    "pod-garbage-collector-controller" => pod_gc::run,
    "replicationcontroller-controller" => replica_set::run_replication_controllers,
];

/// Runs the enabled controllers until the future is dropped, which stops them all at once.
pub async fn run(context: Context) {
    let mut running = JoinSet::new();
    for controller in CONTROLLERS {
        if context.settings.enables(controller.name, controller.by_default) {
            running.spawn((controller.start)(context.clone()));
        }
    }
    while let Some(finished) = running.join_next().await {
        if let Err(error) = finished
            && error.is_panic()
        {
            tracing::error!(%error, "a controller stopped unexpectedly");
        }
    }
}
