//! Extended resources that devices satisfy: pods ask for "example.com/gpu: 1", and a class says which devices that are.
//!
//! A claim is made of the requests of all containers, on nodes that do not offer the resource themselves. Init
//! containers that end before others start reuse the devices of those others.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, ContainerExtendedResourceRequest};
use k8s_openapi::api::resource::v1::{
    DeviceClaim, DeviceRequest, ExactDeviceRequest, ResourceClaim, ResourceClaimSpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use knarr_client::pod_resources::is_sidecar;
use knarr_client::quantity;

use super::ResourceClaims;
use crate::cluster::node::NodeState;
use crate::cluster::pod::PodState;

/// The extended resources of a pod, of which some class satisfies at least one.
pub struct Extended {
    resources: Vec<String>,
    /// The claim that an earlier decision has left behind.
    pub left_over: Option<Arc<ResourceClaim>>,
}

/// The claim for one node.
pub struct NodeClaim {
    pub claim: ResourceClaim,
    pub mappings: Vec<ContainerExtendedResourceRequest>,
}

pub fn of_pod(pod: &PodState, claims: &ResourceClaims) -> Option<Extended> {
    let requested = pod.requests.others.iter().filter(|(name, amount)| **amount > 0 && is_extended(name));
    let resources: Vec<String> = requested.map(|(name, _)| name.clone()).collect();
    resources
        .iter()
        .any(|name| claims.class_for_resource(name).is_some())
        .then(|| Extended { left_over: claims.extended_claim(pod.uid()).cloned(), resources })
}

/// Whether a resource is not one of Kubernetes' own, or names a class.
fn is_extended(name: &str) -> bool {
    let Some((domain, _)) = name.split_once('/') else { return false };
    let is_native = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io");
    !is_native && !name.starts_with("requests.") || name.starts_with("deviceclass.resource.kubernetes.io/")
}

impl Extended {
    /// The claim for a node; none if the node offers all resources itself.
    pub fn on_node(
        &self,
        pod: &PodState,
        node: &NodeState,
        claims: &ResourceClaims,
    ) -> Result<Option<NodeClaim>, &'static str> {
        if self.left_over.is_some() {
            // It is deleted before the pod is tried again.
            return Err("cannot schedule extended resource claim");
        }
        let mut by_devices = BTreeMap::new();
        for resource in &self.resources {
            match claims.class_for_resource(resource) {
                Some(class) if node.allocatable.get(resource) == 0 => {
                    by_devices.insert(resource.as_str(), class.metadata.name.as_deref().unwrap_or_default());
                }
                _ if !node.allocatable.others.contains_key(resource) => return Err("cannot fit resource"),
                _ => {}
            }
        }
        if by_devices.is_empty() {
            return Ok(None);
        }
        let (requests, mappings) = requests(pod, &by_devices);
        Ok(Some(NodeClaim { claim: claim(pod, requests), mappings }))
    }
}

fn claim(pod: &PodState, requests: Vec<DeviceRequest>) -> ResourceClaim {
    let owner = OwnerReference {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        name: pod.name().to_owned(),
        uid: pod.uid().to_owned(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    ResourceClaim {
        metadata: ObjectMeta {
            namespace: Some(pod.namespace().to_owned()),
            generate_name: Some(format!("{}-extended-resources-", pod.name())),
            owner_references: Some(vec![owner]),
            annotations: Some(
                [("resource.kubernetes.io/extended-resource-claim".to_owned(), "true".to_owned())].into(),
            ),
            ..ObjectMeta::default()
        },
        spec: ResourceClaimSpec { devices: Some(DeviceClaim { requests: Some(requests), ..DeviceClaim::default() }) },
        status: None,
    }
}

type Requests = (Vec<DeviceRequest>, Vec<ContainerExtendedResourceRequest>);

/// The requests for the resources of all containers, and which container uses which.
fn requests(pod: &PodState, classes: &BTreeMap<&str, &str>) -> Requests {
    let Some(spec) = &pod.object.spec else { return Requests::default() };
    let init = spec.init_containers.as_deref().unwrap_or_default();
    let containers: Vec<&Container> = init.iter().chain(&spec.containers).collect();
    let is_short_lived = |index: usize| index < init.len() && !is_sidecar(containers[index]);
    let (mut all, mut mappings) = Requests::default();
    for (resource, class) in classes {
        let mut lasting: Vec<Option<DeviceRequest>> = vec![None; containers.len()];
        for index in (0..containers.len()).filter(|index| !is_short_lived(*index)) {
            let (request, own) = container_request(index, containers[index], resource, class, &[]);
            lasting[index] = request;
            mappings.extend(own);
        }
        let mut longest: Option<DeviceRequest> = None;
        let mut short_names = Vec::new();
        let mut short_mappings = Vec::new();
        for index in (0..containers.len()).filter(|index| is_short_lived(*index)) {
            let (request, own) = container_request(index, containers[index], resource, class, &lasting[index..]);
            short_mappings.extend(own);
            if let Some(request) = request {
                short_names.push(request.name.clone());
                if longest.as_ref().is_none_or(|known| count(known) < count(&request)) {
                    longest = Some(request);
                }
            }
        }
        // They run one after the other: the largest request is enough for all.
        if let Some(longest) = &longest {
            for mapping in short_mappings.iter_mut().filter(|mapping| short_names.contains(&mapping.request_name)) {
                mapping.request_name.clone_from(&longest.name);
            }
        }
        all.extend(longest.into_iter().chain(lasting.into_iter().flatten()));
        mappings.extend(short_mappings);
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    (all, mappings)
}

fn count(request: &DeviceRequest) -> i64 {
    request.exactly.as_ref().and_then(|exactly| exactly.count).unwrap_or(0)
}

/// The request of one container for one resource, beyond what it can reuse.
fn container_request(
    index: usize,
    container: &Container,
    resource: &str,
    class: &str,
    reusable: &[Option<DeviceRequest>],
) -> (Option<DeviceRequest>, Vec<ContainerExtendedResourceRequest>) {
    let requested = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    let Some(amount) = requested.and_then(|requests| requests.get(resource)).map(quantity::value).filter(|n| *n > 0)
    else {
        return (None, Vec::new());
    };
    let mapping = |request_name: &str| ContainerExtendedResourceRequest {
        container_name: container.name.clone(),
        resource_name: resource.to_owned(),
        request_name: request_name.to_owned(),
    };
    let mut mappings = Vec::new();
    let mut reused = 0;
    for request in reusable.iter().flatten() {
        reused += count(request);
        mappings.push(mapping(&request.name));
        if reused >= amount {
            return (None, mappings);
        }
    }
    let place = requested.into_iter().flat_map(|requests| requests.keys()).position(|name| name == resource);
    let name = format!("container-{index}-request-{}", place.unwrap_or(0));
    mappings.push(mapping(&name));
    let exactly = ExactDeviceRequest {
        device_class_name: class.to_owned(),
        allocation_mode: Some("ExactCount".to_owned()),
        count: Some(amount - reused),
        ..ExactDeviceRequest::default()
    };
    (Some(DeviceRequest { name, exactly: Some(exactly), first_available: None }), mappings)
}
