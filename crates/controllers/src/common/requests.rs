//! API requests that many controllers send.

use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::key::{name, namespace, uid};
use crate::error::Result;

/// A namespaced kind of the typed API.
pub trait Namespaced:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}
impl<K> Namespaced for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

pub async fn replace<K: Namespaced>(client: &Client, object: &K) -> kube::Result<K> {
    let api: Api<K> = Api::namespaced(client.clone(), namespace(object));
    api.replace(name(object), &PostParams::default(), object).await
}

pub async fn replace_status<K: Namespaced>(client: &Client, object: &K) -> kube::Result<K> {
    let api: Api<K> = Api::namespaced(client.clone(), namespace(object));
    api.replace_subresource("status", name(object), &PostParams::default(), object).await
}

pub async fn merge_patch<K: Namespaced>(client: &Client, object: &K, patch: Value) -> kube::Result<K> {
    let api: Api<K> = Api::namespaced(client.clone(), namespace(object));
    api.patch(name(object), &PatchParams::default(), &Patch::Merge(patch)).await
}

/// Deletes this object but none that reuses its name; success when it is gone already.
pub async fn delete<K: Namespaced>(client: &Client, object: &K, policy: Option<PropagationPolicy>) -> Result<()> {
    let api: Api<K> = Api::namespaced(client.clone(), namespace(object));
    let preconditions = Preconditions { uid: Some(uid(object).to_owned()), resource_version: None };
    let params =
        DeleteParams { propagation_policy: policy, preconditions: Some(preconditions), ..DeleteParams::default() };
    crate::error::ignore_not_found(api.delete(name(object), &params).await)?;
    Ok(())
}

/// Whether a patch that names an object's uid failed because that object is gone, or because another one has its name. A
/// server also responds with a conflict when others wrote the object too often in the meantime.
pub async fn is_gone<K>(api: &Api<K>, name: &str, uid: &str, error: &kube::Error) -> kube::Result<bool>
where
    K: Clone + DeserializeOwned + Debug,
{
    if crate::error::is_not_found(error) {
        return Ok(true);
    }
    if !crate::error::has_code(error, 409) && !crate::error::has_code(error, 422) {
        return Ok(false);
    }
    let found = api.get_metadata_opt(name).await?;
    Ok(found.is_none_or(|found| found.metadata.uid.as_deref() != Some(uid)))
}

/// `None` for zero, as the API writes optional counts.
pub fn unless_zero(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}
