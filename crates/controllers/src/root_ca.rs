//! Publishes the certificate authority of the API server to every namespace, so that pods can verify it.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::{Change, Informer, WorkQueue, run_workers};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::Context;
use crate::common::key::name;
use crate::common::requests::replace;
use crate::error::{Result, is_not_found, namespace_terminating};

const NAME: &str = "kube-root-ca.crt";
const ANNOTATION: &str = "kubernetes.io/description";
const DESCRIPTION: &str = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal \
    endpoints such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
    distributions of Kubernetes clusters.";

pub async fn run(context: Context) {
    let Some(authority) = context.settings.root_ca.clone() else {
        tracing::info!("no root certificate authority is set; none is published");
        return;
    };
    let namespaces = context.informers.of::<Namespace>();
    let published = context.informers.selected::<ConfigMap>(&format!("metadata.name={NAME}"), "");
    let queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let on_namespace = queue.clone();
    namespaces.on_change(move |change| {
        let is_active = |namespace: &Namespace| {
            namespace.status.as_ref().and_then(|status| status.phase.as_deref()) != Some("Terminating")
        };
        if !matches!(change, Change::Deleted(_)) && is_active(change.latest()) {
            on_namespace.add(name(&**change.latest()).to_owned());
        }
    });
    let on_map = queue.clone();
    published.on_change(move |change| {
        if !matches!(change, Change::Added(_)) {
            on_map.add(change.latest().metadata.namespace.clone().unwrap_or_default());
        }
    });
    published.synced().await;
    let data = BTreeMap::from([("ca.crt".to_owned(), authority)]);
    run_workers(queue, 2, move |namespace| {
        let (client, published, data) = (context.client.clone(), published.clone(), data.clone());
        async move { publish(&client, &published, &namespace, data).await }
    })
    .await;
}

async fn publish(
    client: &Client,
    published: &Informer<ConfigMap>,
    namespace: &str,
    data: BTreeMap<String, String>,
) -> Result<()> {
    let Some(present) = published.get(namespace, NAME) else {
        let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
        return match api.create(&PostParams::default(), &desired(data)).await {
            Err(error) if is_not_found(&error) || namespace_terminating(&error) => Ok(()),
            Err(error) if crate::error::is_already_there(&error) => Ok(()),
            result => Ok(result.map(drop)?),
        };
    };
    if let Some(changed) = corrected(&present, data) {
        replace(client, &changed).await?;
    }
    Ok(())
}

fn desired(data: BTreeMap<String, String>) -> ConfigMap {
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(NAME.to_owned()),
            annotations: Some([(ANNOTATION.to_owned(), DESCRIPTION.to_owned())].into()),
            ..ObjectMeta::default()
        },
        data: Some(data),
        ..ConfigMap::default()
    }
}

/// The desired ConfigMap, when the existing one differs.
fn corrected(present: &ConfigMap, data: BTreeMap<String, String>) -> Option<ConfigMap> {
    let annotations = present.metadata.annotations.as_ref();
    let described = annotations.and_then(|all| all.get(ANNOTATION)).is_some_and(|text| !text.is_empty());
    if described && present.data.as_ref() == Some(&data) {
        return None;
    }
    let mut changed = present.clone();
    changed.data = Some(data);
    changed.metadata.annotations.get_or_insert_default().insert(ANNOTATION.to_owned(), DESCRIPTION.to_owned());
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_config_map_is_corrected() {
        let data = |pem: &str| BTreeMap::from([("ca.crt".to_owned(), pem.to_owned())]);
        let right = desired(data("pem"));
        assert!(corrected(&right, data("pem")).is_none());
        assert_eq!(corrected(&right, data("new")).unwrap().data, Some(data("new")));
        let bare = ConfigMap { data: Some(data("pem")), ..ConfigMap::default() };
        assert_eq!(corrected(&bare, data("pem")).unwrap().metadata.annotations, right.metadata.annotations);
    }
}
