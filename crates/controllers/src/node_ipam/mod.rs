//! Gives each node a network for its pods.

mod networks;

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use knarr_client::node::pod_cidrs;
use knarr_client::semantics::cidr::Cidr;
use knarr_client::{Change, EventRecorder, Informer, WorkQueue, run_workers};
use kube::Api;
use kube::api::{Patch, PatchParams};
use parking_lot::Mutex;
use serde_json::json;

use crate::Context;
use crate::common::key::name;
use crate::error::{Error, Result, ignore_not_found};

use networks::Pool;

pub async fn run(context: Context) {
    let settings = &context.settings;
    if !settings.allocate_node_cidrs {
        return;
    }
    let mut pools = Vec::new();
    for cidr in &settings.cluster_cidrs {
        let Ok(network) = cidr.parse::<Cidr>() else {
            tracing::error!(%cidr, "invalid cluster CIDR; nodes get no pod CIDRs");
            return;
        };
        let size =
            if network.is_ipv4() { settings.node_cidr_mask_sizes.ipv4 } else { settings.node_cidr_mask_sizes.ipv6 };
        let Some(mut pool) = Pool::new(network, size) else {
            tracing::error!(%cidr, size, "the cluster CIDR is too small for node CIDRs of this size");
            return;
        };
        for service in settings.service_cidrs.iter().filter_map(|cidr| cidr.parse::<Cidr>().ok()) {
            pool.occupy(&service);
        }
        pools.push(pool);
    }
    if pools.is_empty() {
        tracing::error!("node CIDRs are to be allocated, but no cluster CIDR is set");
        return;
    }
    let nodes = context.informers.of::<Node>();
    nodes.synced().await;
    for network in nodes.list().iter().flat_map(|node| pod_cidrs(node)) {
        pools.iter_mut().for_each(|pool| pool.occupy(&network));
    }
    let queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let pools = Arc::new(Mutex::new(pools));
    let (on_node, returned) = (queue.clone(), pools.clone());
    nodes.on_change(move |change| match change {
        Change::Deleted(node) => {
            for network in pod_cidrs(node) {
                returned.lock().iter_mut().for_each(|pool| pool.release(&network));
            }
        }
        _ => on_node.add(name(&**change.latest()).to_owned()),
    });
    let recorder = context.recorder("cidrAllocator");
    run_workers(queue, 4, move |key: String| {
        let (context, nodes, pools, recorder) = (context.clone(), nodes.clone(), pools.clone(), recorder.clone());
        async move { assign(&context, &nodes, &pools, &recorder, &key).await }
    })
    .await;
}

fn occupy(pools: &Mutex<Vec<Pool>>, networks: &[Cidr]) {
    for network in networks {
        pools.lock().iter_mut().for_each(|pool| pool.occupy(network));
    }
}

async fn assign(
    context: &Context,
    nodes: &Informer<Node>,
    pools: &Mutex<Vec<Pool>>,
    recorder: &EventRecorder,
    key: &str,
) -> Result<()> {
    let Some(node) = nodes.get("", key) else { return Ok(()) };
    let present = pod_cidrs(&node);
    if !present.is_empty() {
        occupy(pools, &present);
        return Ok(());
    }
    let api: Api<Node> = Api::all(context.client.clone());
    // A network assigned just now may not be in the cache yet.
    let Some(live) = api.get_opt(key).await? else { return Ok(()) };
    let present = pod_cidrs(&live);
    if !present.is_empty() {
        occupy(pools, &present);
        return Ok(());
    }
    let allocated: Option<Vec<Cidr>> = {
        let mut pools = pools.lock();
        let allocated: Vec<Option<Cidr>> = pools.iter_mut().map(Pool::allocate).collect();
        if allocated.iter().any(Option::is_none) {
            for network in allocated.iter().flatten() {
                pools.iter_mut().for_each(|pool| pool.release(network));
            }
        }
        allocated.into_iter().collect()
    };
    let Some(allocated) = allocated else {
        recorder.normal(&*node, "CIDRNotAvailable", format!("Node {key} status is now: CIDRNotAvailable"));
        return Err(Error::Later("no pod network is left".to_owned()));
    };
    let cidrs: Vec<String> = allocated.iter().map(ToString::to_string).collect();
    let patch = Patch::Strategic(json!({"spec": {"podCIDR": cidrs.first(), "podCIDRs": cidrs}}));
    let result = ignore_not_found(api.patch(key, &PatchParams::default(), &patch).await);
    // Without a response it is unknown whether the node has the networks: they stay occupied, so that no other gets them.
    let is_refused = match &result {
        Ok(written) => written.is_none(),
        Err(error) => matches!(error, kube::Error::Api(status) if (400..500).contains(&status.code)),
    };
    if is_refused {
        for network in &allocated {
            pools.lock().iter_mut().for_each(|pool| pool.release(network));
        }
    }
    if result.is_err() {
        recorder.normal(&*node, "CIDRAssignmentFailed", format!("Node {key} status is now: CIDRAssignmentFailed"));
    }
    result?;
    Ok(())
}
