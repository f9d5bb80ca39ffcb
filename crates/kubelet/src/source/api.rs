//! Pods bound to this node in the API.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use knarr_client::{Change, Informer};

use crate::pod;
use crate::pods::Pods;

/// Passes every change of this node's pods to their workers, from the informer's task.
pub fn watch_api(informer: &Informer<Pod>, pods: &Arc<Pods>) {
    let pods = pods.clone();
    informer.on_change(move |change| {
        let latest = change.latest();
        let present = !matches!(change, Change::Deleted(_));
        if pod::is_mirror(latest) {
            pods.mirror(latest, present);
        } else if present {
            pods.desire(latest.clone());
        } else {
            pods.remove(pod::uid(latest));
        }
    });
}
