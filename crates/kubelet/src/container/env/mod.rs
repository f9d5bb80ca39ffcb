//! The environment of a container: services, config maps, secrets, and the pod's own fields.

mod expand;

pub use expand::{Budget, TooLong, expand};

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, EnvVar, Pod, Service};

use super::env_file::{self, EnvFileError};
use crate::downward_api::{DownwardContext, DownwardError, field_value, resource_value};
use crate::objects::{Kind, ObjectError, Subscription};
use crate::pod;
use crate::volumes::MountedVolumes;

#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    #[error("{kind} \"{name}\" not found")]
    Missing { kind: &'static str, name: String },
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    MissingKey { kind: &'static str, namespace: String, name: String, key: String },
    #[error(transparent)]
    Field(#[from] DownwardError),
    #[error(transparent)]
    File(#[from] EnvFileError),
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// The environment of a container, in order.
pub async fn environment(
    pod: &Pod,
    container: &Container,
    downward: &DownwardContext,
    objects: &Subscription,
    services: &[Arc<Service>],
    volumes: &MountedVolumes,
) -> Result<Vec<(String, String)>, EnvError> {
    let mut result = Ordered::default();
    let mut budget = Budget::of_program();
    let of_services = service_variables(pod, services, &mut budget)?;
    let mut lookup: BTreeMap<String, String> = of_services.iter().cloned().collect();
    let namespace = pod::namespace(pod);
    for from in container.env_from.iter().flatten() {
        let prefix = from.prefix.as_deref().unwrap_or_default();
        let (kind, name, optional) = match (&from.config_map_ref, &from.secret_ref) {
            (Some(map), _) => (Kind::ConfigMap, map.name.as_str(), map.optional),
            (None, Some(secret)) => (Kind::Secret, secret.name.as_str(), secret.optional),
            (None, None) => continue,
        };
        let Some(object) = objects.get(kind, namespace, name).await? else {
            if optional == Some(true) {
                continue;
            }
            return Err(EnvError::Missing { kind: kind.lower(), name: name.to_string() });
        };
        for (key, value) in &object.data {
            let value = String::from_utf8_lossy(value).into_owned();
            let name = format!("{prefix}{key}");
            budget.spend(name.len() + value.len())?;
            lookup.insert(name.clone(), value.clone());
            result.set(name, value);
        }
    }
    for variable in container.env.iter().flatten() {
        let found = match &variable.value_from {
            Some(_) => {
                let found = from_source(pod, container, variable, downward, objects, volumes).await?;
                budget.spend(found.as_deref().unwrap_or_default().len())?;
                found
            }
            None => Some(expand(variable.value.as_deref().unwrap_or_default(), &lookup, &mut budget)?),
        };
        let Some(found) = found else { continue };
        lookup.insert(variable.name.clone(), found.clone());
        result.set(variable.name.clone(), found);
    }
    for (name, value) in of_services {
        result.set_if_missing(name, value);
    }
    Ok(result.list())
}

/// None when an optional source does not exist.
async fn from_source(
    pod: &Pod,
    container: &Container,
    variable: &EnvVar,
    downward: &DownwardContext,
    objects: &Subscription,
    volumes: &MountedVolumes,
) -> Result<Option<String>, EnvError> {
    let Some(source) = &variable.value_from else { return Ok(None) };
    if let Some(field) = &source.field_ref {
        return Ok(Some(field_value(pod, &field.field_path, downward)?));
    }
    if let Some(resource) = &source.resource_field_ref {
        return Ok(Some(resource_value(pod, Some(container), resource, downward)?));
    }
    if let Some(file) = &source.file_key_ref {
        return Ok(env_file::variable(volumes, file).await.inspect_err(|error| report(pod, error))?);
    }
    let (kind, name, key, optional) = match (&source.config_map_key_ref, &source.secret_key_ref) {
        (Some(map), _) => (Kind::ConfigMap, &map.name, &map.key, map.optional),
        (None, Some(secret)) => (Kind::Secret, &secret.name, &secret.key, secret.optional),
        (None, None) => return Ok(None),
    };
    let optional = optional == Some(true);
    let namespace = pod::namespace(pod);
    let Some(object) = objects.get(kind, namespace, name).await? else {
        return if optional { Ok(None) } else { Err(EnvError::Missing { kind: kind.lower(), name: name.clone() }) };
    };
    match object.data.get(key) {
        Some(value) => Ok(Some(String::from_utf8_lossy(value).into_owned())),
        None if optional => Ok(None),
        None => Err(EnvError::MissingKey {
            kind: kind.title(),
            namespace: namespace.to_string(),
            name: name.clone(),
            key: key.clone(),
        }),
    }
}

/// Logs details that the pod's author must not see.
fn report(pod: &Pod, error: &EnvFileError) {
    if let EnvFileError::Unusable(reason) = error {
        tracing::warn!(%reason, pod = pod::title(pod), "Failed to parse env file");
    }
}

/// Variables in the order in which they were last set.
#[derive(Default)]
struct Ordered {
    by_name: HashMap<String, (usize, String)>,
    next: usize,
}

impl Ordered {
    fn set(&mut self, name: String, value: String) {
        self.by_name.insert(name, (self.next, value));
        self.next += 1;
    }

    fn set_if_missing(&mut self, name: String, value: String) {
        if !self.by_name.contains_key(&name) {
            self.set(name, value);
        }
    }

    fn list(self) -> Vec<(String, String)> {
        let mut all: Vec<_> = self.by_name.into_iter().collect();
        all.sort_unstable_by_key(|(_, (position, _))| *position);
        all.into_iter().map(|(name, (_, value))| (name, value)).collect()
    }
}

/// Service variables (`NAME_SERVICE_HOST` and the like) of the pod's namespace, and always of the API's own service. Each port has
/// several, and a namespace may have any number of Services with thousands of ports.
fn service_variables(
    pod: &Pod,
    services: &[Arc<Service>],
    budget: &mut Budget,
) -> Result<Vec<(String, String)>, TooLong> {
    let links = pod::spec(pod).enable_service_links.unwrap_or(true);
    let mut variables = Vec::new();
    let mut add = |name: String, value: String| -> Result<(), TooLong> {
        budget.spend(name.len() + value.len())?;
        variables.push((name, value));
        Ok(())
    };
    let mut chosen: BTreeMap<&str, &Service> = BTreeMap::new();
    for service in services {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let is_api = namespace == "default" && name == "kubernetes";
        let is_near = links && namespace == pod::namespace(pod);
        if is_near || (is_api && !chosen.contains_key(name)) {
            chosen.insert(name, service);
        }
    }
    for (name, service) in chosen {
        let Some(spec) = &service.spec else { continue };
        let Some(address) = spec.cluster_ip.as_deref().filter(|ip| !ip.is_empty() && *ip != "None") else { continue };
        let Some(first) = spec.ports.iter().flatten().next() else { continue };
        let prefix = name.to_uppercase().replace('-', "_");
        let joined = if address.contains(':') { format!("[{address}]") } else { address.to_string() };
        add(format!("{prefix}_SERVICE_HOST"), address.to_string())?;
        add(format!("{prefix}_SERVICE_PORT"), first.port.to_string())?;
        for port in spec.ports.iter().flatten() {
            if let Some(port_name) = port.name.as_deref().filter(|name| !name.is_empty()) {
                let suffix = port_name.to_uppercase().replace('-', "_");
                add(format!("{prefix}_SERVICE_PORT_{suffix}"), port.port.to_string())?;
            }
        }
        for (position, port) in spec.ports.iter().flatten().enumerate() {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let url = format!("{}://{joined}:{}", protocol.to_lowercase(), port.port);
            if position == 0 {
                add(format!("{prefix}_PORT"), url.clone())?;
            }
            let base = format!("{prefix}_PORT_{}_{}", port.port, protocol.to_uppercase());
            add(base.clone(), url)?;
            add(format!("{base}_PROTO"), protocol.to_lowercase())?;
            add(format!("{base}_PORT"), port.port.to_string())?;
            add(format!("{base}_ADDR"), address.to_string())?;
        }
    }
    Ok(variables)
}

#[cfg(test)]
mod tests;
