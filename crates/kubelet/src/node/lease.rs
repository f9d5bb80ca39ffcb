//! Renews the node's lease, by default every ten seconds, which shows that the node is alive.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_client::is_unreachable;
use kube::Api;
use kube::api::PostParams;

use crate::context::Context;

const NAMESPACE: &str = "kube-node-lease";
/// A lease is renewed four times in its duration.
const RENEWALS: u32 = 4;
/// A renewal without a response by then is abandoned: the connection may be dead.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A failed renewal is retried soon: after three lost ones the node counts as dead.
const RETRY_INTERVAL: Duration = Duration::from_secs(2);

/// Runs for as long as the node does.
pub async fn keep_lease(context: Arc<Context>) {
    let leases: Api<Lease> = Api::namespaced(context.client.clone(), NAMESPACE);
    let mut known: Option<Lease> = None;
    loop {
        let renewed = with_timeout(TIMEOUT, renew(&context, &leases, known.take())).await;
        let pause = match renewed {
            Ok(lease) => {
                known = Some(lease);
                renew_interval(context.settings.tuning.lease_seconds)
            }
            // An unreachable server is already logged elsewhere, once.
            Err(error) if is_unreachable(&error) => RETRY_INTERVAL,
            Err(error) => {
                tracing::warn!(%error, "cannot renew the node's lease");
                RETRY_INTERVAL
            }
        };
        tokio::time::sleep(pause).await;
    }
}

fn renew_interval(lease_seconds: i32) -> Duration {
    Duration::from_secs(u64::try_from(lease_seconds).unwrap_or(1)) / RENEWALS
}

/// The result of an API call, or an error after the timeout.
pub(super) async fn with_timeout<T>(
    timeout: Duration,
    call: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, kube::Error> {
    let late = |_| kube::Error::Service(Box::new(std::io::Error::from(std::io::ErrorKind::TimedOut)));
    tokio::time::timeout(timeout, call).await.map_err(late)?
}

async fn renew(context: &Context, leases: &Api<Lease>, known: Option<Lease>) -> Result<Lease, kube::Error> {
    let name = &context.settings.node_name;
    let current = match known {
        Some(lease) => Some(lease),
        None => leases.get_opt(name).await?,
    };
    let parameters = PostParams::default();
    let Some(mut lease) = current else {
        return leases.create(&parameters, &fresh(context, name)).await;
    };
    let spec = lease.spec.get_or_insert_default();
    spec.renew_time = Some(knarr_client::time::now_micro());
    spec.holder_identity = Some(name.clone());
    spec.lease_duration_seconds = Some(context.settings.tuning.lease_seconds);
    if lease.metadata.owner_references.as_ref().is_none_or(Vec::is_empty) {
        lease.metadata.owner_references = owner(context.node.get("", name).as_deref());
    }
    lease.metadata.managed_fields = None;
    leases.replace(name, &parameters, &lease).await
}

fn fresh(context: &Context, name: &str) -> Lease {
    Lease {
        metadata: ObjectMeta {
            name: Some(name.to_string()),
            namespace: Some(NAMESPACE.to_string()),
            owner_references: owner(context.node.get("", name).as_deref()),
            ..Default::default()
        },
        spec: Some(LeaseSpec {
            holder_identity: Some(name.to_string()),
            lease_duration_seconds: Some(context.settings.tuning.lease_seconds),
            renew_time: Some(knarr_client::time::now_micro()),
            ..Default::default()
        }),
    }
}

/// Deletes the lease together with its node.
fn owner(node: Option<&Node>) -> Option<Vec<OwnerReference>> {
    let node = node?;
    Some(vec![OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone()?,
        uid: node.metadata.uid.clone()?,
        ..Default::default()
    }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_call_that_hangs_times_out() {
        let outcome = with_timeout(TIMEOUT, std::future::pending::<Result<(), kube::Error>>()).await;
        assert!(outcome.is_err_and(|error| is_unreachable(&error)));
        assert!(with_timeout(TIMEOUT, async { Ok(1) }).await.is_ok_and(|value| value == 1));
    }
}
