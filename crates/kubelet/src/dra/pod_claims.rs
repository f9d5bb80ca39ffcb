//! Which claims a pod and its containers use.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, Pod, PodResourceClaim};
use k8s_openapi::api::resource::v1::ResourceClaim;
use knarr_client::quantity;

use crate::pod;

/// A claim of a pod.
#[derive(Debug, PartialEq)]
pub struct PodClaim {
    pub name: String,
    /// It was created for the pod, which must be its owner.
    pub is_generated: bool,
}

/// The claims of a pod, with that of its extended resources.
pub fn of_pod(pod: &Pod) -> Result<Vec<PodClaim>, String> {
    let mut claims = Vec::new();
    for entry in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
        claims.extend(named(pod, entry)?);
    }
    let extended = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    claims.extend(extended.map(|status| PodClaim { name: status.resource_claim_name.clone(), is_generated: false }));
    Ok(claims)
}

/// The name of the claim of one entry of the pod.
pub fn of_pod_entry(pod: &Pod, entry: &str) -> Option<String> {
    let mut entries = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
    let entry = entries.find(|own| own.name == entry)?;
    named(pod, entry).ok().flatten().map(|claim| claim.name)
}

/// None if the entry's template needed no claim.
fn named(pod: &Pod, entry: &PodResourceClaim) -> Result<Option<PodClaim>, String> {
    if let Some(name) = &entry.resource_claim_name {
        return Ok(Some(PodClaim { name: name.clone(), is_generated: false }));
    }
    let title = format!("{}/{}", pod::namespace(pod), pod::name(pod));
    if entry.resource_claim_template_name.is_none() {
        return Err(format!(
            "pod \"{title}\", spec.resourceClaim \"{}\": none of the supported fields are set",
            entry.name
        ));
    }
    let mut statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    match statuses.find(|status| status.name == entry.name) {
        Some(status) => Ok(status.resource_claim_name.clone().map(|name| PodClaim { name, is_generated: true })),
        None => Err(format!("pod \"{title}\": ResourceClaim not created yet")),
    }
}

/// The claims of a container, and which of their requests; none is all of them.
pub fn of_container(pod: &Pod, container: &Container) -> Result<BTreeMap<String, Vec<Option<String>>>, String> {
    let mut requests: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
    let used = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
    for used in used {
        let mut entries = pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten());
        let Some(entry) = entries.find(|entry| entry.name == used.name) else { continue };
        if let Some(claim) = named(pod, entry)? {
            let request = used.request.clone().filter(|request| !request.is_empty());
            requests.entry(claim.name).or_default().push(request);
        }
    }
    let Some(extended) = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref()) else {
        return Ok(requests);
    };
    let requested = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
    for mapping in extended.request_mappings.iter().filter(|mapping| mapping.container_name == container.name) {
        let amount = requested.and_then(|requested| requested.get(&mapping.resource_name)).map_or(0, quantity::value);
        if amount > 0 {
            let own = requests.entry(extended.resource_claim_name.clone()).or_default();
            own.push(Some(mapping.request_name.clone()));
        }
    }
    Ok(requests)
}

/// Why a pod may not use a claim.
pub fn refusal(pod: &Pod, entry: &PodClaim, claim: &ResourceClaim) -> Option<String> {
    let (uid, name) = (pod::uid(pod), pod::name(pod));
    let mut owners = claim.metadata.owner_references.iter().flatten();
    if entry.is_generated && !owners.any(|owner| owner.controller == Some(true) && owner.uid == uid) {
        let (namespace, claim) = (pod::namespace(pod), &entry.name);
        return Some(format!(
            "ResourceClaim {namespace}/{claim} was not created for Pod {namespace}/{name} (Pod is not owner)"
        ));
    }
    let mut users = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    if !users.any(|user| user.uid == uid) {
        let claim_uid = claim.metadata.uid.as_deref().unwrap_or_default();
        let claim = &entry.name;
        return Some(format!("pod {name} ({uid}) is not allowed to use ResourceClaim {claim} ({claim_uid})"));
    }
    None
}
