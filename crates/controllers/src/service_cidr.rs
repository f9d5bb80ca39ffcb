//! Sets the Ready condition of ServiceCIDRs, and protects those in use from deletion.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::networking::v1::{IPAddress, ServiceCIDR};
use k8s_openapi::jiff::Timestamp;
use knarr_client::semantics::cidr::Cidr;
use knarr_client::{Change, Informer, WorkQueue, run_workers, time};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::Context;
use crate::common::key::name;
use crate::error::{Result, ignore_not_found};

const COMPONENT: &str = "service-cidr-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// Allocators observe a deletion within this time and allocate no more addresses from the range.
const GRACE: Duration = Duration::from_secs(10);

pub async fn run(context: Context) {
    let networks = context.informers.of::<ServiceCIDR>();
    let addresses = context.informers.of::<IPAddress>();
    let queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let (on_network, known) = (queue.clone(), networks.clone());
    networks.on_change(move |change| {
        on_network.add(name(&**change.latest()).to_owned());
        queue_terminating(&known, &on_network);
    });
    let (on_address, known) = (queue.clone(), networks.clone());
    addresses.on_change(move |change| {
        if !matches!(change, Change::Updated { .. }) {
            queue_terminating(&known, &on_address);
        }
    });
    networks.synced().await;
    addresses.synced().await;
    let again = queue.clone();
    run_workers(queue, 1, move |key: String| {
        let (context, networks, addresses, again) =
            (context.clone(), networks.clone(), addresses.clone(), again.clone());
        async move {
            let Some(network) = networks.get("", &key) else { return Ok(()) };
            let step = plan(&network, &networks.list(), &addresses.list(), context.clock.now());
            carry_out(&context, &network, step, &again).await
        }
    })
    .await;
}

/// A ServiceCIDR may be deleted once another one covers it, or its last address is released.
fn queue_terminating(networks: &Informer<ServiceCIDR>, queue: &WorkQueue<String>) {
    networks.for_each(|network| {
        if network.metadata.deletion_timestamp.is_some() {
            queue.add(name(&**network).to_owned());
        }
    });
}

#[derive(Debug, PartialEq)]
enum Step {
    Ready,
    InUse,
    WaitFor(Duration),
    Release,
}

fn plan(network: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Arc<IPAddress>], now: Timestamp) -> Step {
    let Some(deleted) = &network.metadata.deletion_timestamp else { return Step::Ready };
    if !can_be_deleted(network, all, addresses) {
        return Step::InUse;
    }
    let left = time::until(now, time::after_seconds(deleted, GRACE.as_secs() as i64));
    if left.is_zero() { Step::Release } else { Step::WaitFor(left) }
}

fn parsed(network: &ServiceCIDR) -> Vec<Cidr> {
    let cidrs = network.spec.iter().flat_map(|spec| spec.cidrs.iter().flatten());
    cidrs.filter_map(|cidr| cidr.parse::<Cidr>().ok()).collect()
}

/// Whether every address would still have a ServiceCIDR.
fn can_be_deleted(network: &ServiceCIDR, all: &[Arc<ServiceCIDR>], addresses: &[Arc<IPAddress>]) -> bool {
    let own = parsed(network);
    let others: Vec<Cidr> =
        all.iter().filter(|other| name(&***other) != name(network)).flat_map(|other| parsed(other)).collect();
    let covered = |part: &Cidr| others.iter().any(|other| other.covers(part));
    if own.iter().all(covered) {
        return true;
    }
    let managed = addresses.iter().filter(|address| {
        let labels = address.metadata.labels.as_ref();
        labels.and_then(|labels| labels.get("ipaddress.kubernetes.io/managed-by")).map(String::as_str)
            == Some("ipallocator.k8s.io")
    });
    let mut parsed = managed.filter_map(|address| name(&**address).parse::<IpAddr>().ok()).map(Cidr::of_address);
    !parsed.any(|address| own.iter().any(|part| part.covers(&address)) && !covered(&address))
}

async fn carry_out(context: &Context, network: &ServiceCIDR, step: Step, queue: &WorkQueue<String>) -> Result<()> {
    match step {
        Step::Ready => {
            if !network.metadata.finalizers.iter().flatten().any(|present| present == FINALIZER) {
                patch_finalizers(context, network, json!({"finalizers": [FINALIZER]})).await?;
            }
            set_ready(context, network, "True", "", "Kubernetes Service CIDR is ready").await
        }
        Step::InUse => {
            let message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new \
                ServiceCIDR";
            set_ready(context, network, "False", "Terminating", message).await
        }
        Step::WaitFor(left) => {
            queue.add_after(name(network).to_owned(), left);
            Ok(())
        }
        Step::Release => {
            patch_finalizers(context, network, json!({"$deleteFromPrimitiveList/finalizers": [FINALIZER]})).await
        }
    }
}

async fn patch_finalizers(context: &Context, network: &ServiceCIDR, metadata: Value) -> Result<()> {
    let api: Api<ServiceCIDR> = Api::all(context.client.clone());
    let patch = Patch::Strategic(json!({"metadata": metadata}));
    ignore_not_found(api.patch(name(network), &PatchParams::default(), &patch).await)?;
    Ok(())
}

async fn set_ready(context: &Context, network: &ServiceCIDR, status: &str, reason: &str, message: &str) -> Result<()> {
    let mut conditions = network.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_current = conditions.any(|condition| {
        condition.type_ == "Ready"
            && condition.status == status
            && condition.reason == reason
            && condition.message == message
    });
    if is_current {
        return Ok(());
    }
    let condition = json!({"type": "Ready", "status": status, "reason": reason, "message": message,
        "lastTransitionTime": time::truncated(context.clock.now())});
    let patch = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": name(network)},
        "status": {"conditions": [condition]}});
    let api: Api<ServiceCIDR> = Api::all(context.client.clone());
    let params = PatchParams::apply(COMPONENT).force();
    ignore_not_found(api.patch_subresource("status", name(network), &params, &Patch::Apply(patch)).await)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_cidr_is_deleted_when_no_address_needs_it() {
        let network = |name: &str, cidr: &str, deleted: Option<&str>| -> Arc<ServiceCIDR> {
            Arc::new(
                serde_json::from_value(json!({"metadata": {"name": name, "deletionTimestamp": deleted},
                    "spec": {"cidrs": [cidr]}}))
                .unwrap(),
            )
        };
        let address = |name: &str| -> Arc<IPAddress> {
            let labels = json!({"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io"});
            Arc::new(serde_json::from_value(json!({"metadata": {"name": name, "labels": labels}})).unwrap())
        };
        let now: Timestamp = "2026-01-01T00:00:20Z".parse().unwrap();
        let leaving = network("old", "10.1.0.0/24", Some("2026-01-01T00:00:00Z"));
        let fresh = network("old", "10.1.0.0/24", Some("2026-01-01T00:00:15Z"));
        let wider = network("wide", "10.0.0.0/8", None);
        for (network, others, addresses, expected) in [
            (&wider, vec![], vec![], Step::Ready),
            (&leaving, vec![], vec![], Step::Release),
            (&fresh, vec![], vec![], Step::WaitFor(Duration::from_secs(5))),
            (&leaving, vec![], vec![address("10.1.0.7")], Step::InUse),
            (&leaving, vec![], vec![address("10.2.0.7")], Step::Release),
            (&leaving, vec![wider.clone()], vec![address("10.1.0.7")], Step::Release),
        ] {
            let all: Vec<_> = others.into_iter().chain([network.clone()]).collect();
            assert_eq!(plan(network, &all, &addresses, now), expected);
        }
    }
}
