//! Limits the messages in a status: a status that is too large is refused by the API server, again and again, and the pod
//! would never be reported.

use k8s_openapi::api::core::v1::{ContainerState, Pod, PodStatus};

use crate::pod;
use crate::shortened::shorten;

/// Bytes of the termination messages of all containers together.
const MAX_TERMINATION_MESSAGES: usize = 12 << 10;
/// Bytes of the reason why one container waits, and of the pod's own message.
const MAX_MESSAGE: usize = 4 << 10;
/// Bytes of all messages of waiting containers together.
const MAX_WAITING_MESSAGES: usize = 64 << 10;

pub fn limit_messages(pod: &Pod, status: &mut PodStatus) {
    let containers = pod::roles(pod).count().max(1);
    let terminated = MAX_TERMINATION_MESSAGES / containers;
    let waiting = MAX_MESSAGE.min(MAX_WAITING_MESSAGES / containers);
    if let Some(message) = &mut status.message {
        shorten(message, MAX_MESSAGE);
    }
    let lists =
        [&mut status.init_container_statuses, &mut status.container_statuses, &mut status.ephemeral_container_statuses];
    for one in lists.into_iter().flatten().flatten() {
        for state in [&mut one.state, &mut one.last_state].into_iter().flatten() {
            limit_state(state, terminated, waiting);
        }
    }
}

fn limit_state(state: &mut ContainerState, terminated: usize, waiting: usize) {
    let ended = state.terminated.as_mut().and_then(|state| state.message.as_mut());
    let waits = state.waiting.as_mut().and_then(|state| state.message.as_mut());
    for (message, limit) in [(ended, terminated), (waits, waiting)] {
        if let Some(message) = message {
            shorten(message, limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn messages_of_many_containers_fit_into_a_status() {
        let long = "x".repeat(1 << 20);
        for count in [1, 3, 500] {
            let names: Vec<String> = (0..count).map(|number| format!("c{number}")).collect();
            let containers: Vec<_> = names.iter().map(|name| json!({ "name": name })).collect();
            let one = |name: &String| {
                json!({ "name": name, "image": "i", "imageID": "", "ready": false, "restartCount": 1,
                    "state": { "waiting": { "reason": "PostStartHookError", "message": long } },
                    "lastState": { "terminated": { "exitCode": 1, "message": long } } })
            };
            let statuses: Vec<_> = names.iter().map(one).collect();
            let pod: Pod = serde_json::from_value(json!({ "spec": { "containers": containers } })).expect("a pod");
            let status = json!({ "message": long, "containerStatuses": statuses });
            let mut status: PodStatus = serde_json::from_value(status).expect("a status");
            limit_messages(&pod, &mut status);
            let first = &status.container_statuses.as_ref().expect("statuses")[0];
            let terminated = first.last_state.as_ref().and_then(|state| state.terminated.as_ref());
            let message = terminated.and_then(|state| state.message.as_ref()).expect("a message");
            assert_eq!(message.len(), (12 << 10) / count, "as in Kubernetes");
            assert!(serde_json::to_vec(&status).expect("written").len() < 256 << 10);
        }
    }
}
