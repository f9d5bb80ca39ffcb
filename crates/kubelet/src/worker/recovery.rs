//! Recovers a worker's state after a restart of the kubelet.

use std::collections::{HashMap, HashSet};

use k8s_openapi::api::core::v1::PodStatus;

use super::state::ProbeResults;
use crate::runtime::RuntimePod;

/// The probe results of running containers from a previous process, so that they don't look unready until they are
/// probed again.
pub fn known_results(runtime: &RuntimePod, status: &PodStatus, runtime_name: &str) -> HashMap<String, ProbeResults> {
    let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
    let mut found = HashMap::new();
    for reported in all {
        let view = runtime.running().find(|view| reported.container_id.as_ref() == Some(&view.api_id(runtime_name)));
        if let Some(view) = view {
            let results = ProbeResults {
                ready: Some(reported.ready),
                started: reported.started.filter(|started| *started),
                ..Default::default()
            };
            found.insert(view.id.clone(), results);
        }
    }
    found
}

/// Containers that were started according to the runtime or the API.
pub fn known_starts(runtime: &RuntimePod, status: &PodStatus) -> HashSet<String> {
    let reported = status.container_statuses.iter().flatten();
    let reported = reported.filter(|known| known.container_id.is_some() || known.last_state.is_some());
    runtime.containers.iter().map(|view| &view.name).chain(reported.map(|known| &known.name)).cloned().collect()
}
