//! Mirrors manual Endpoints of services without a selector into EndpointSlices.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{EndpointAddress, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use knarr_client::{EventRecorder, Informer, WorkQueue, owner};

use super::plan::{Desired, Parent, plan};
use super::{MANAGED_BY, SERVICE_NAME, Writes, carry_out, index_slices, slice_changed, slices_of};
use crate::Context;
use crate::common::Key;
use crate::common::key::{name, namespace};
use crate::common::port_order;
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::delete;
use crate::common::service_pods::TRIGGER_TIME;
use crate::endpoints::repack;
use crate::error::Result;

const CONTROLLER: &str = "endpointslicemirroring-controller.k8s.io";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

pub async fn run(context: Context) {
    let services = context.informers.of::<Service>();
    let endpoints = context.informers.of::<Endpoints>();
    let slices = context.informers.of::<EndpointSlice>();
    index_slices(&slices);
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let written = Arc::new(Writes::default());
    let on_service = queue.clone();
    services.on_change(move |change| on_service.add(Key::of(&**change.latest())));
    let on_endpoints = queue.clone();
    endpoints.on_change(move |change| on_endpoints.add(Key::of(&**change.latest())));
    let (on_slice, expected) = (queue.clone(), written.clone());
    slices.on_change(move |change| slice_changed(change, CONTROLLER, &expected, &on_slice));
    services.synced().await;
    endpoints.synced().await;
    slices.synced().await;
    let workers = context.settings.concurrent_syncs.of("mirroring-concurrent-service-endpoint-syncs");
    let recorder = context.recorder("endpoint-slice-mirroring-controller");
    let controller = Arc::new(Controller { context, services, endpoints, slices, written, recorder });
    run_controller(&controller, &queue, workers).await;
}

struct Controller {
    context: Context,
    services: Arc<Informer<Service>>,
    endpoints: Arc<Informer<Endpoints>>,
    slices: Arc<Informer<EndpointSlice>>,
    written: Arc<Writes>,
    recorder: EventRecorder,
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let existing = slices_of(&self.slices, &key, CONTROLLER);
        let client = &self.context.client;
        let endpoints = self.endpoints.get(&key.namespace, &key.name).filter(|endpoints| is_mirrored(endpoints));
        let by_hand = self.services.get(&key.namespace, &key.name).is_some_and(|service| {
            service.spec.as_ref().is_some_and(|spec| spec.selector.as_ref().is_none_or(BTreeMap::is_empty))
        });
        let Some(endpoints) = endpoints.filter(|_| by_hand) else {
            for slice in existing {
                delete(client, &*slice, None).await?;
            }
            self.written.expected.forget(&key);
            return Ok(());
        };
        self.written.are_observed(&key, &existing)?;
        let settings = &self.context.settings;
        let mirrored = mirrored(&endpoints, settings.endpoints.mirroring_max_per_subset);
        if mirrored.invalid > 0 {
            let message = format!("Skipped {} invalid IP addresses when mirroring to EndpointSlices", mirrored.invalid);
            self.recorder.warning(&*endpoints, "InvalidIPAddress", message);
        }
        if mirrored.skipped > 0 {
            let message = format!(
                "A max of {} addresses can be mirrored to EndpointSlices per Endpoints subset. {} addresses were skipped",
                settings.endpoints.mirroring_max_per_subset, mirrored.skipped
            );
            self.recorder.warning(&*endpoints, "TooManyAddressesToMirror", message);
        }
        let changes = plan(
            &parent_of(&endpoints),
            &["IPv4", "IPv6"],
            mirrored.endpoints,
            &existing,
            settings.endpoints.mirroring_max_per_subset,
            false,
        );
        carry_out(client, &key, &self.written, changes).await
    }
}

fn is_mirrored(endpoints: &Endpoints) -> bool {
    let labels = endpoints.metadata.labels.as_ref();
    let annotations = endpoints.metadata.annotations.as_ref();
    let skip =
        labels.and_then(|labels| labels.get("endpointslice.kubernetes.io/skip-mirror")).is_some_and(|v| v == "true");
    let election = annotations.is_some_and(|all| all.contains_key("control-plane.alpha.kubernetes.io/leader"));
    !skip && !election
}

fn parent_of(endpoints: &Endpoints) -> Parent {
    let mut labels = endpoints.metadata.labels.clone().unwrap_or_default();
    labels.insert(SERVICE_NAME.to_owned(), name(endpoints).to_owned());
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    let mut annotations = endpoints.metadata.annotations.clone().unwrap_or_default();
    annotations.retain(|key, _| key != TRIGGER_TIME && key != LAST_APPLIED);
    Parent {
        namespace: namespace(endpoints).to_owned(),
        name: name(endpoints).to_owned(),
        owner: owner::controller_reference(endpoints),
        labels,
        annotations: Some(annotations),
        written_annotations: BTreeMap::new(),
        is_leaving: endpoints.metadata.deletion_timestamp.is_some(),
    }
}

#[derive(Default)]
struct Mirrored {
    endpoints: Vec<Desired>,
    invalid: usize,
    skipped: usize,
}

fn mirrored(endpoints: &Endpoints, max: usize) -> Mirrored {
    let mut mirrored = Mirrored::default();
    for subset in repack(endpoints.subsets.clone().unwrap_or_default()) {
        let mut ports: Vec<EndpointPort> = subset
            .ports
            .iter()
            .flatten()
            .map(|port| EndpointPort {
                name: Some(port.name.clone().unwrap_or_default()),
                port: Some(port.port),
                protocol: port.protocol.clone().or_else(|| Some("TCP".to_owned())),
                app_protocol: port.app_protocol.clone(),
            })
            .collect();
        ports.sort_by_cached_key(port_order::in_slice);
        let ports: Arc<[EndpointPort]> = ports.into();
        let ready = subset.addresses.iter().flatten().map(|address| (address, true));
        let not_ready = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
        let mut added = 0;
        for (address, ready) in ready.chain(not_ready) {
            if added >= max {
                mirrored.skipped += 1;
                continue;
            }
            match endpoint(address, ready) {
                Some((family, endpoint)) => {
                    mirrored.endpoints.push(Desired { family, ports: ports.clone(), endpoint });
                    added += 1;
                }
                None => mirrored.invalid += 1,
            }
        }
    }
    mirrored
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Option<(&'static str, Endpoint)> {
    let ip: IpAddr = address.ip.parse().ok()?;
    let endpoint = Endpoint {
        addresses: vec![ip.to_string()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        target_ref: address.target_ref.clone(),
        node_name: address.node_name.clone(),
        hostname: address.hostname.clone().filter(|hostname| !hostname.is_empty()),
        ..Endpoint::default()
    };
    Some((if ip.is_ipv6() { "IPv6" } else { "IPv4" }, endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn addresses_are_mirrored_up_to_the_limit() {
        let endpoints: Endpoints = serde_json::from_value(json!({
            "metadata": {"name": "s", "namespace": "ns", "annotations": {(LAST_APPLIED): "x", "keep": "y"}},
            "subsets": [{
                "addresses": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}, {"ip": "no"}],
                "notReadyAddresses": [{"ip": "10.0.0.2"}, {"ip": "10.0.0.3"}],
                "ports": [{"port": 80}]
            }]
        }))
        .unwrap();
        let all = mirrored(&endpoints, 3);
        assert_eq!((all.endpoints.len(), all.invalid, all.skipped), (3, 1, 1));
        let parent = parent_of(&endpoints);
        assert_eq!(parent.annotations.unwrap().into_keys().collect::<Vec<_>>(), ["keep"]);
        assert!(is_mirrored(&endpoints));
    }
}
