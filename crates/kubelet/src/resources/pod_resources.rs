//! The PodResources API (`v1.PodResourcesLister`): reports to monitoring agents which pod has which CPUs, memory and
//! devices.

use std::path::Path;
use std::sync::Arc;

use prost::Message;

use super::cpu_set::NumberSet;
use super::devices::plugin::{NumaNode, TopologyInfo};
use super::unary::{self, Failure};
use super::{Grant, Resources};
use crate::pod;
use k8s_openapi::api::core::v1::Pod;

#[derive(Clone, PartialEq, Message)]
struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
struct GetRequest {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
}

#[derive(Clone, PartialEq, Message)]
struct GetResponse {
    #[prost(message, optional, tag = "1")]
    pod: Option<PodResources>,
}

#[derive(Clone, PartialEq, Message)]
struct PodResources {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(message, repeated, tag = "3")]
    containers: Vec<ContainerResources>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerResources {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, repeated, tag = "2")]
    devices: Vec<ContainerDevices>,
    #[prost(int64, repeated, tag = "3")]
    cpus: Vec<i64>,
    #[prost(message, repeated, tag = "4")]
    memory: Vec<ContainerMemory>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerDevices {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(string, repeated, tag = "2")]
    ids: Vec<String>,
    #[prost(message, optional, tag = "3")]
    topology: Option<TopologyInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct ContainerMemory {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(uint64, tag = "2")]
    size: u64,
    #[prost(message, optional, tag = "3")]
    topology: Option<TopologyInfo>,
}

#[derive(Clone, PartialEq, Message)]
struct AllocatableResponse {
    #[prost(message, repeated, tag = "1")]
    devices: Vec<ContainerDevices>,
    #[prost(int64, repeated, tag = "2")]
    cpus: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    memory: Vec<ContainerMemory>,
}

/// The pods of the node, which know more than their resources.
pub trait ListedPods: Send + Sync {
    /// Those that have not finished.
    fn active(&self) -> Vec<Arc<Pod>>;
    /// The one of a name.
    fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>>;
}

/// Serves for as long as the node does.
pub async fn serve(directory: &Path, resources: Arc<Resources>, pods: Arc<dyn ListedPods>) {
    let socket = directory.join("kubelet.sock");
    if let Err(error) = std::fs::create_dir_all(directory) {
        tracing::warn!(%error, directory = %directory.display(), "cannot serve the PodResources API");
        return;
    }
    let handler = move |path: String, message: bytes::Bytes| {
        let (resources, pods) = (resources.clone(), pods.clone());
        async move {
            let version = [("server_api_version", "v1")];
            resources.metrics.count("kubelet_pod_resources_endpoint_requests_total", &version);
            let counted = match path.rsplit('/').next() {
                Some("List") => Some("kubelet_pod_resources_endpoint_requests_list"),
                Some("Get") => Some("kubelet_pod_resources_endpoint_requests_get"),
                Some("GetAllocatableResources") => Some("kubelet_pod_resources_endpoint_requests_get_allocatable"),
                _ => None,
            };
            if let Some(name) = counted {
                resources.metrics.count(name, &version);
            }
            match path.as_str() {
                "/v1.PodResourcesLister/List" => Ok(list(&resources, &*pods).encode_to_vec()),
                "/v1.PodResourcesLister/Get" => {
                    get(&resources, &*pods, &message).map(|response| response.encode_to_vec())
                }
                "/v1.PodResourcesLister/GetAllocatableResources" => Ok(allocatable(&resources).encode_to_vec()),
                _ => Err(Failure::unknown(&path)),
            }
        }
    };
    if let Err(error) = unary::serve(&socket, handler).await {
        tracing::warn!(%error, socket = %socket.display(), "cannot serve the PodResources API");
    }
}

fn list(resources: &Resources, pods: &dyn ListedPods) -> ListResponse {
    ListResponse { pods: pods.active().iter().map(|pod| of_pod(resources, pod)).collect() }
}

fn get(resources: &Resources, pods: &dyn ListedPods, message: &[u8]) -> Result<GetResponse, Failure> {
    let request = GetRequest::decode(message).map_err(|error| Failure::invalid(error.to_string()))?;
    let Some(pod) = pods.find(&request.namespace, &request.name) else {
        return Err(Failure::not_found(format!("pod {} in namespace {} not found", request.name, request.namespace)));
    };
    Ok(GetResponse { pod: Some(of_pod(resources, &pod)) })
}

/// Finished init containers hold no resources; sidecars are listed with the main containers.
fn of_pod(resources: &Resources, pod: &Pod) -> PodResources {
    let sidecars = pod::init_containers(pod).filter(|(role, _)| *role == pod::Role::Sidecar).map(|(_, c)| c);
    let one = |container: &k8s_openapi::api::core::v1::Container| {
        of_container(resources, &container.name, &resources.grant(pod::uid(pod), &container.name))
    };
    PodResources {
        name: pod::name(pod).to_string(),
        namespace: pod::namespace(pod).to_string(),
        containers: sidecars.chain(pod::main_containers(pod)).map(one).collect(),
    }
}

fn of_container(resources: &Resources, name: &str, grant: &Grant) -> ContainerResources {
    let devices = grant.devices.iter().flat_map(|(resource, own)| {
        let known = resources.devices.kind(resource).unwrap_or_default();
        // One entry per device, as each has its own topology.
        own.ids.iter().map(move |id| ContainerDevices {
            resource: resource.clone(),
            ids: vec![id.clone()],
            topology: known.devices.get(id).and_then(|device| topology(&device.nodes)),
        })
    });
    let memory = grant.memory.iter().flat_map(|share| {
        share.bytes.iter().map(|(kind, size)| ContainerMemory {
            kind: kind.clone(),
            size: *size,
            topology: topology(&share.nodes),
        })
    });
    ContainerResources {
        name: name.to_string(),
        devices: devices.collect(),
        cpus: numbers(grant.cpus.as_ref()),
        memory: memory.collect(),
    }
}

fn allocatable(resources: &Resources) -> AllocatableResponse {
    let devices = resources.devices.all_healthy().into_iter().flat_map(|(resource, devices)| {
        devices.into_iter().map(move |(id, device)| ContainerDevices {
            resource: resource.clone(),
            ids: vec![id],
            topology: topology(&device.nodes),
        })
    });
    let memory = resources.layout.memory.iter().flat_map(|(node, amounts)| {
        let reserved = resources.policies.reserved_memory.get(node);
        amounts.iter().map(move |(kind, bytes)| ContainerMemory {
            kind: kind.clone(),
            size: bytes.saturating_sub(reserved.and_then(|own| own.get(kind)).copied().unwrap_or(0)),
            topology: topology(&NumberSet::from_iter([*node])),
        })
    });
    AllocatableResponse {
        devices: devices.collect(),
        cpus: numbers(Some(&resources.layout.all().without(&resources.reserved_cpus))),
        memory: if resources.policies.static_memory { memory.collect() } else { Vec::new() },
    }
}

fn numbers(set: Option<&NumberSet>) -> Vec<i64> {
    set.iter().flat_map(|set| set.iter()).map(i64::from).collect()
}

fn topology(nodes: &NumberSet) -> Option<TopologyInfo> {
    let nodes: Vec<NumaNode> = nodes.iter().map(|id| NumaNode { id: i64::from(id) }).collect();
    (!nodes.is_empty()).then_some(TopologyInfo { nodes })
}
