//! Adoption: a controller adopts objects that its selector matches and no one controls, and releases those that it no
//! longer matches.

use std::future::Future;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::owner;
use knarr_client::selector::Selector;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde_json::json;

use super::key::{name, namespace, uid};
use super::requests::Namespaced;
use crate::error::{Error, Result, has_code, is_not_found};

/// What to do about an object that may belong to a controller.
#[derive(Debug, PartialEq)]
pub enum Claim {
    /// It is ours and stays so.
    Keep,
    Adopt,
    Release,
    Ignore,
}

/// Decides for one object. Nothing is adopted or released once the controller is being deleted.
pub fn claim(object: &ObjectMeta, controller: &ObjectMeta, selector: &Selector) -> Claim {
    let matches = selector.matches(object.labels.as_ref());
    let leaving = controller.deletion_timestamp.is_some();
    match owner::controller_uid(object) {
        Some(uid) if Some(uid) != controller.uid.as_deref() => Claim::Ignore,
        Some(_) if matches => Claim::Keep,
        Some(_) if leaving => Claim::Ignore,
        Some(_) => Claim::Release,
        None if !matches || leaving || object.deletion_timestamp.is_some() => Claim::Ignore,
        None if object.namespace != controller.namespace => Claim::Ignore,
        None => Claim::Adopt,
    }
}

/// Carries the claims out and returns what the controller owns now. `is_alive` checks with the server that the controller
/// still exists and is not being deleted; it is called once, before the first adoption. Adopted objects get
/// the `finalizers`.
pub async fn claim_all<C, K, F>(
    client: &Client,
    controller: &C,
    selector: &Selector,
    objects: Vec<Arc<K>>,
    finalizers: &[&str],
    is_alive: impl Fn() -> F,
) -> Result<Vec<Arc<K>>>
where
    C: Resource<DynamicType = ()>,
    K: Namespaced,
    F: Future<Output = Result<bool>>,
{
    let mut ours = Vec::with_capacity(objects.len());
    let mut alive = None;
    for object in objects {
        match claim(object.meta(), controller.meta(), selector) {
            Claim::Keep => ours.push(object),
            Claim::Ignore => {}
            Claim::Release => release(client, controller.meta(), &*object).await?,
            Claim::Adopt => {
                if alive.is_none() {
                    alive = Some(is_alive().await?);
                }
                if alive == Some(true) && adopt(client, controller, &*object, finalizers).await? {
                    ours.push(object);
                }
            }
        }
    }
    Ok(ours)
}

/// Whether the controller exists on the server as the same object and is not being deleted.
pub async fn is_alive<C: Namespaced>(client: &Client, controller: &C) -> Result<bool> {
    let api: Api<C> = Api::namespaced(client.clone(), namespace(controller));
    let fresh = api.get_opt(name(controller)).await?;
    Ok(fresh.is_some_and(|fresh| uid(&fresh) == uid(controller) && fresh.meta().deletion_timestamp.is_none()))
}

async fn adopt<C, K>(client: &Client, controller: &C, object: &K, finalizers: &[&str]) -> Result<bool>
where
    C: Resource<DynamicType = ()>,
    K: Namespaced,
{
    let reference = owner::controller_reference(controller);
    let mut patch = json!({"metadata": {"uid": uid(object), "ownerReferences": [reference]}});
    if !finalizers.is_empty() {
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    let api: Api<K> = Api::namespaced(client.clone(), namespace(object));
    match api.patch(name(object), &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(_) => Ok(true),
        Err(error) if is_not_found(&error) => Ok(false),
        Err(error) => Err(Error::Api(error)),
    }
}

async fn release<K: Namespaced>(client: &Client, controller: &ObjectMeta, object: &K) -> Result<()> {
    let patch = json!({
        "metadata": {"uid": uid(object), "ownerReferences": [{"$patch": "delete", "uid": controller.uid}]}
    });
    let api: Api<K> = Api::namespaced(client.clone(), namespace(object));
    match api.patch(name(object), &PatchParams::default(), &Patch::Strategic(patch)).await {
        Ok(_) => Ok(()),
        // Gone, or another object of the same name: nothing to release.
        Err(error) if is_not_found(&error) || has_code(&error, 422) => Ok(()),
        Err(error) => Err(Error::Api(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

    fn meta(value: Value) -> ObjectMeta {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn claims() {
        let selector = Selector::from_labels([("app", "web")]);
        let owned = |uid: &str| json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": uid, "controller": true}]);
        let controller = meta(json!({"name": "r", "namespace": "ns", "uid": "me"}));
        let leaving =
            meta(json!({"name": "r", "namespace": "ns", "uid": "me", "deletionTimestamp": "2026-01-01T00:00:00Z"}));
        for (object, by, expected) in [
            (
                json!({"namespace": "ns", "labels": {"app": "web"}, "ownerReferences": owned("me")}),
                &controller,
                Claim::Keep,
            ),
            (
                json!({"namespace": "ns", "labels": {"app": "api"}, "ownerReferences": owned("me")}),
                &controller,
                Claim::Release,
            ),
            (
                json!({"namespace": "ns", "labels": {"app": "web"}, "ownerReferences": owned("you")}),
                &controller,
                Claim::Ignore,
            ),
            (json!({"namespace": "ns", "labels": {"app": "web"}}), &controller, Claim::Adopt),
            (json!({"namespace": "ns", "labels": {"app": "api"}}), &controller, Claim::Ignore),
            (json!({"namespace": "ns", "labels": {"app": "web"}}), &leaving, Claim::Ignore),
            (
                json!({"namespace": "ns", "labels": {"app": "web"}, "ownerReferences": owned("me")}),
                &leaving,
                Claim::Keep,
            ),
            (
                json!({"namespace": "ns", "labels": {"app": "web"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}),
                &controller,
                Claim::Ignore,
            ),
        ] {
            assert_eq!(claim(&meta(object.clone()), by, &selector), expected, "{object}");
        }
    }
}
