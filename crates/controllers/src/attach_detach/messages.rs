//! Texts of events, word for word those of Kubernetes.

use super::names::VolumeId;

pub(super) fn attach_succeeded(volume: &str) -> String {
    format!("AttachVolume.Attach succeeded for volume \"{volume}\" ")
}

pub(super) fn attach_failed(volume: &str, error: &str) -> String {
    format!("AttachVolume.Attach failed for volume \"{volume}\" : {error}")
}

pub(super) fn attach_timeout(id: &VolumeId) -> String {
    format!("timed out waiting for external-attacher of {} CSI driver to attach volume {}", id.driver, id.handle)
}

/// No pod uses the volume on the node that it is attached to.
const UNUSED: &str = "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another \
                      node";

/// The message for a pod in `namespace` whose volume is attached to another node, where the pods `holders` (namespace, name)
/// use it. Names of pods in other namespaces are not disclosed.
pub(super) fn multi_attach(volume: &str, namespace: &str, holders: &[(String, String)]) -> String {
    let local: Vec<&str> = holders.iter().filter(|(own, _)| own == namespace).map(|(_, name)| name.as_str()).collect();
    let others = holders.len() - local.len();
    let reason = match (local.is_empty(), others) {
        (true, 0) => UNUSED.to_owned(),
        (true, _) => format!("Volume is already used by {others} pod(s) in different namespaces"),
        (false, 0) => format!("Volume is already used by pod(s) {}", local.join(", ")),
        (false, _) => {
            format!("Volume is already used by pod(s) {} and {others} pod(s) in different namespaces", local.join(", "))
        }
    };
    format!("Waiting for detach for volume \"{volume}\" {reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_multi_attach_error_names_pods_of_the_own_namespace_only() {
        let pod = |namespace: &str, name: &str| (namespace.to_owned(), name.to_owned());
        for (holders, expected) in [
            (
                vec![],
                "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node",
            ),
            (vec![pod("a", "p"), pod("a", "q")], "Volume is already used by pod(s) p, q"),
            (vec![pod("b", "p")], "Volume is already used by 1 pod(s) in different namespaces"),
            (
                vec![pod("a", "p"), pod("b", "q"), pod("c", "r")],
                "Volume is already used by pod(s) p and 2 pod(s) in different namespaces",
            ),
        ] {
            assert_eq!(multi_attach("v", "a", &holders), format!("Waiting for detach for volume \"v\" {expected}"));
        }
    }
}
