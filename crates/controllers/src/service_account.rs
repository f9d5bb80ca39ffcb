//! Gives every namespace its `default` service account.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use knarr_client::{Change, WorkQueue, run_workers};
use kube::Api;
use kube::api::PostParams;

use crate::Context;
use crate::common::key::name;
use crate::error::{Error, is_already_there, is_not_found, namespace_terminating};

const NAME: &str = "default";

pub async fn run(context: Context) {
    let namespaces = context.informers.of::<Namespace>();
    let accounts = context.informers.of::<ServiceAccount>();
    let queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let on_namespace = queue.clone();
    namespaces.on_change(move |change| on_namespace.add(name(&**change.latest()).to_owned()));
    let on_account = queue.clone();
    accounts.on_change(move |change| {
        if let Change::Deleted(account) = change
            && name(&**account) == NAME
        {
            on_account.add(account.metadata.namespace.clone().unwrap_or_default());
        }
    });
    namespaces.synced().await;
    accounts.synced().await;
    run_workers(queue, 2, move |key: String| {
        let (context, namespaces, accounts) = (context.clone(), namespaces.clone(), accounts.clone());
        async move {
            let Some(namespace) = namespaces.get("", &key) else { return Ok(()) };
            if !is_active(&namespace) || accounts.get(&key, NAME).is_some() {
                return Ok(());
            }
            let metadata = ObjectMeta { name: Some(NAME.to_owned()), ..ObjectMeta::default() };
            let account = ServiceAccount { metadata, ..ServiceAccount::default() };
            let api: Api<ServiceAccount> = Api::namespaced(context.client.clone(), &key);
            match api.create(&PostParams::default(), &account).await {
                Err(error) if is_already_there(&error) || is_not_found(&error) || namespace_terminating(&error) => {
                    Ok(())
                }
                result => result.map(drop).map_err(Error::from),
            }
        }
    })
    .await;
}

fn is_active(namespace: &Namespace) -> bool {
    namespace.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Active")
}
