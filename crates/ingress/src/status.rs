//! Publishes the addresses of Ingresses in their status, and creates our IngressClass.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use knarr_client::kube::api::{Api, Patch, PatchParams, PostParams};
use knarr_client::kube::{self, Client};
use knarr_client::{Informers, WorkQueue, run_workers};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

use crate::announce;
use crate::routes::{is_default, is_ours};
use crate::{CLASS, CONTROLLER};

const RETRY: Duration = Duration::from_secs(5);

/// Keeps Ingress statuses in sync until dropped.
pub async fn run(informers: Informers, client: Client) {
    let classes = informers.of::<IngressClass>();
    let ingresses = informers.of::<Ingress>();
    let nodes = informers.of::<Node>();
    classes.synced().await;
    while let Err(error) = ensure_class(&client, &classes.list()).await {
        tracing::warn!(%error, "cannot create the IngressClass");
        tokio::time::sleep(RETRY).await;
    }
    nodes.synced().await;
    let published = Arc::new(Mutex::new(announce::addresses(&nodes.list())));
    let queue = WorkQueue::<(String, String)>::new();
    let add = Arc::clone(&queue);
    ingresses.on_change(move |change| add.add(key(change.latest())));
    let (add, all) = (Arc::clone(&queue), Arc::downgrade(&ingresses));
    let add_all = Arc::new(move || {
        if let Some(all) = all.upgrade() {
            all.for_each(|ingress| add.add(key(ingress)));
        }
    });
    let again = Arc::clone(&add_all);
    classes.on_change(move |_| again());
    let changed = Arc::new(Notify::new());
    let notify = Arc::clone(&changed);
    nodes.on_change(move |_| notify.notify_one());
    let now = Arc::clone(&published);
    let publishing = async move {
        loop {
            changed.notified().await;
            let addresses = announce::addresses(&nodes.list());
            if std::mem::replace(&mut *now.lock(), addresses.clone()) != addresses {
                add_all();
            }
        }
    };
    let writing = run_workers(queue, 2, move |(namespace, name)| {
        let (client, desired) = (client.clone(), points(&published.lock()));
        let ingress = ingresses.get(&namespace, &name);
        let is_ours = ingress.as_ref().is_some_and(|ingress| is_ours(ingress, &classes.list()));
        async move {
            match ingress.filter(|ingress| is_ours && published_points(ingress) != desired) {
                Some(_) => update_status(client, &namespace, &name, &desired).await,
                None => Ok(()),
            }
        }
    });
    // Nodes change often, and together: they are read once for many changes.
    tokio::join!(publishing, writing);
}

async fn update_status(client: Client, namespace: &str, name: &str, desired: &Value) -> Result<(), kube::Error> {
    let patch = json!({"status": {"loadBalancer": {"ingress": desired}}});
    let api = Api::<Ingress>::namespaced(client, namespace);
    match api.patch_status(name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        result => result.map(drop),
    }
}

/// Creates our IngressClass, as the default class unless there is another default.
async fn ensure_class(client: &Client, classes: &[Arc<IngressClass>]) -> Result<(), kube::Error> {
    if classes.iter().any(|class| class.metadata.name.as_deref() == Some(CLASS)) {
        return Ok(());
    }
    let default = !classes.iter().any(|class| is_default(class));
    let class = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": CLASS, "annotations": {"ingressclass.kubernetes.io/is-default-class": default.to_string()}},
        "spec": {"controller": CONTROLLER},
    });
    let class: IngressClass = serde_json::from_value(class).map_err(kube::Error::SerdeError)?;
    match Api::<IngressClass>::all(client.clone()).create(&PostParams::default(), &class).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result.map(drop),
    }
}

fn key(ingress: &Ingress) -> (String, String) {
    let meta = &ingress.metadata;
    (meta.namespace.clone().unwrap_or_default(), meta.name.clone().unwrap_or_default())
}

fn points(addresses: &[IpAddr]) -> Value {
    addresses.iter().map(|address| json!({"ip": address})).collect()
}

fn published_points(ingress: &Ingress) -> Value {
    let balancer = ingress.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let points = balancer.and_then(|balancer| balancer.ingress.as_ref()).into_iter().flatten();
    let one = |point: &k8s_openapi::api::networking::v1::IngressLoadBalancerIngress| match (&point.ip, &point.hostname)
    {
        (Some(address), _) => json!({"ip": address}),
        (None, name) => json!({"hostname": name}),
    };
    points.map(one).collect()
}
