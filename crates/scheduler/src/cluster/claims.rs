//! Resource claims (devices) that pods wait for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::storage::object_key;

#[derive(Default)]
pub struct ResourceClaims {
    claims: HashMap<String, Arc<ResourceClaim>>,
    /// Names of the existing device classes.
    classes: HashSet<String>,
}

impl ResourceClaims {
    pub fn set(&mut self, old: Option<&Arc<ResourceClaim>>, new: Option<&Arc<ResourceClaim>>) {
        match (old, new) {
            (_, Some(new)) => {
                self.claims.insert(object_key(&new.metadata), Arc::clone(new));
            }
            (Some(old), None) => {
                self.claims.remove(&object_key(&old.metadata));
            }
            (None, None) => {}
        }
    }

    pub fn set_class(&mut self, name: &str, exists: bool) {
        if exists {
            self.classes.insert(name.to_owned());
        } else {
            self.classes.remove(name);
        }
    }

    /// Why a claim cannot be allocated on any node.
    pub fn obstacle(&self, claim: &ResourceClaim) -> Option<String> {
        let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
        let required = requests.flat_map(|request| {
            let exact = request.exactly.iter().map(|exact| (request.name.clone(), &exact.device_class_name));
            let choices = request.first_available.iter().flatten();
            let choices =
                choices.map(|choice| (format!("{}/{}", request.name, choice.name), &choice.device_class_name));
            exact.chain(choices).collect::<Vec<_>>()
        });
        let mut missing = required.filter(|(_, class)| !self.classes.contains(*class));
        missing.next().map(|(request, class)| format!("request {request}: device class {class} does not exist"))
    }

    /// The claims of a pod, or why it must wait for them.
    pub fn of_pod(&self, pod: &Pod) -> Result<Vec<Arc<ResourceClaim>>, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let pod_name = pod.metadata.name.as_deref().unwrap_or_default();
        let mut claims = Vec::new();
        for required in pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten()) {
            let (name, is_made_for_pod) = match &required.resource_claim_name {
                Some(name) => (name.clone(), false),
                None => {
                    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
                    let Some(generated) = statuses.into_iter().find(|status| status.name == required.name) else {
                        return Err(format!("pod \"{namespace}/{pod_name}\": ResourceClaim not created yet"));
                    };
                    // The template needed no claim.
                    let Some(name) = generated.resource_claim_name.clone() else { continue };
                    (name, true)
                }
            };
            let Some(claim) = self.claims.get(&format!("{namespace}/{name}")) else {
                return Err(format!("resourceclaim.resource.k8s.io \"{name}\" not found"));
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("resourceclaim \"{name}\" is being deleted"));
            }
            let owners = claim.metadata.owner_references.iter().flatten();
            if is_made_for_pod && !owners.into_iter().any(|owner| Some(&owner.uid) == pod.metadata.uid.as_ref()) {
                return Err(format!(
                    "ResourceClaim {namespace}/{name} was not created for Pod {namespace}/{pod_name} (Pod is not owner)"
                ));
            }
            claims.push(Arc::clone(claim));
        }
        Ok(claims)
    }
}
