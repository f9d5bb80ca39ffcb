//! The parameter objects that a binding selects for its policy.

use std::sync::Arc;

use knarr_api::selector::LabelSelector;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::Value;

use super::binding::Binding;
use crate::convert;
use crate::kinds::Resource;
use crate::resource_request::ResourceRequest;

/// Why there are no parameters.
#[derive(Debug, PartialEq, Eq)]
pub enum Missing {
    /// The policy's parameter kind is not served.
    Kind(String),
    /// The binding selects no parameters.
    Reference(String),
}

/// The resource of a policy's parameter kind.
pub fn resource_of(call: &ResourceRequest<'_>, kind: &(String, String)) -> Result<Arc<Resource>, Missing> {
    let (api_version, name) = kind;
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let kinds = call.backend.kinds.load();
    let found = kinds.catalogue.kind(group, version, name);
    let found = found.and_then(|kind| kinds.resource(group, version, &kind.plural).cloned());
    found.ok_or_else(|| {
        let kind_name = format!("{api_version}, Kind={name}");
        Missing::Kind(format!("failed to find resource referenced by paramKind: '{kind_name}'"))
    })
}

/// The parameters for a write in a namespace. The policy is evaluated once per parameter, or once without any if it has no
/// parameter kind.
pub async fn of(
    call: &ResourceRequest<'_>,
    resource: Option<&Arc<Resource>>,
    binding: &Binding,
    namespace: &str,
) -> Result<Vec<Option<Value>>, Missing> {
    let (Some(resource), Some(reference)) = (resource, &binding.reference) else { return Ok(vec![None]) };
    let within = namespace_of(resource, reference, namespace)?;
    let kind = &resource.kind;
    let objects = &call.backend.objects;
    let unreadable = |status: Status| Missing::Reference(status.message);
    let found: Vec<Arc<Value>> = match reference.text(&["name"]) {
        "" => {
            let selector = LabelSelector::from_object(reference.at(&["selector"]))
                .map_err(|error| Missing::Reference(error.to_string()))?;
            let all = objects.read_all(&kind.group, &kind.plural, &within).map_err(unreadable)?;
            all.into_iter().filter(|object| selector.matches(object.fields(&["metadata", "labels"]))).collect()
        }
        name => {
            let one = objects.read(&kind.group, &kind.plural, &within, name).map_err(unreadable)?;
            one.into_iter().collect()
        }
    };
    if found.is_empty() && reference.text(&["parameterNotFoundAction"]) == "Deny" {
        let why = "no params found for policy binding with `Deny` parameterNotFoundAction";
        return Err(Missing::Reference(why.to_owned()));
    }
    let found = found.iter().map(|object| (**object).clone()).collect();
    let converted = convert::to_version(call.backend, resource, found, &kind.api_version()).await;
    let converted = converted.map_err(|status| Missing::Reference(status.message))?;
    Ok(converted.into_iter().map(Some).collect())
}

fn namespace_of(resource: &Resource, reference: &Value, namespace: &str) -> Result<String, Missing> {
    let given = reference.text(&["namespace"]);
    let refuse = |why: &str| Err(Missing::Reference(why.to_owned()));
    match (resource.kind.namespaced, given, namespace) {
        (false, "", _) => Ok(String::new()),
        (false, _, _) => refuse("paramRef.namespace must not be provided for a cluster-scoped `paramKind`"),
        (true, "", "") => {
            refuse("cannot use namespaced paramRef in policy binding that matches cluster-scoped resources")
        }
        (true, "", own) => Ok(own.to_owned()),
        (true, given, _) => Ok(given.to_owned()),
    }
}
