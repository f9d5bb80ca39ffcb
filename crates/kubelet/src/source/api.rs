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
            pods.desire(of_api(latest));
        } else {
            pods.remove(pod::uid(latest));
        }
    });
}

/// The pod, marked as one from the API: its author may have written the annotation that makes it a static one.
fn of_api(pod: &Arc<Pod>) -> Arc<Pod> {
    let mut pod = pod.clone();
    if pod::is_static(&pod) {
        let annotations = Arc::make_mut(&mut pod).metadata.annotations.get_or_insert_default();
        annotations.insert(pod::CONFIG_SOURCE.into(), "api".into());
    }
    pod
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn no_annotation_makes_a_pod_of_the_api_a_static_one() {
        for source in ["file", "http", "", "api"] {
            let metadata = json!({ "name": "p", "annotations": { pod::CONFIG_SOURCE: source, "other": "kept" } });
            let given: Arc<Pod> = Arc::new(serde_json::from_value(json!({ "metadata": metadata })).expect("a pod"));
            let pod = of_api(&given);
            assert!(!pod::is_static(&pod) && !pod::is_critical(&pod), "{source}");
            assert_eq!(pod::annotation(&pod, "other"), Some("kept"));
            assert_eq!(Arc::ptr_eq(&pod, &given), source == "api");
        }
        let plain = Arc::new(Pod::default());
        assert!(Arc::ptr_eq(&of_api(&plain), &plain));
    }
}
