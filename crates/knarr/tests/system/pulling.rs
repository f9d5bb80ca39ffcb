//! An image of a registry that requires authentication.

use super::harness::{Cluster, PASSWORD, Registry, USER};

/// One pod has the right password in its secret, the other a wrong one.
pub fn a_secret_opens_a_registry(cluster: &Cluster) {
    let node = &cluster.nodes[0];
    let registry = Registry::serve(&node.host, 5000);
    let image = registry.image.as_str();
    for (name, password) in [("right", PASSWORD), ("wrong", "barley")] {
        cluster.kubectl(&[
            "create",
            "secret",
            "docker-registry",
            name,
            "--docker-server=127.0.0.1:5000",
            &format!("--docker-username={USER}"),
            &format!("--docker-password={password}"),
        ]);
        cluster.apply(&format!(
            r#"
apiVersion: v1
kind: Pod
metadata: {{name: pulls-{name}, labels: {{app: pulls-{name}}}}}
spec:
  nodeName: {}
  restartPolicy: Never
  terminationGracePeriodSeconds: 0
  imagePullSecrets: [{{name: {name}}}]
  containers: [{{name: main, image: "{image}", imagePullPolicy: Always, command: ["cat", "/etc/private"]}}]
"#,
            node.name
        ));
    }
    let field = |pod: &str, path: &str| {
        cluster.try_kubectl(&["get", "pod", pod, "-o", &format!("jsonpath={{.status.{path}}}")]).unwrap_or_default()
    };
    cluster.wait_for("the end of who knows the word", || field("pulls-right", "phase") == "Succeeded");
    assert_eq!(cluster.kubectl(&["logs", "pulls-right"]), image);

    let waiting = |what: &str| field("pulls-wrong", &format!("containerStatuses[0].state.waiting.{what}"));
    cluster.wait_for("the other to be left waiting", || waiting("reason") == "ImagePullBackOff");
    let message = waiting("message");
    let prefix =
        format!("Back-off pulling image \"{image}\": ErrImagePull: failed to pull and unpack image \"{image}\": ");
    assert!(message.starts_with(&prefix) && message.contains("401 Unauthorized"), "{message}");
    let event = |pod: &str, reason: &str| {
        let selector = format!("involvedObject.name={pod},reason={reason}");
        cluster
            .try_kubectl(&["get", "events", "--field-selector", &selector, "-o", "jsonpath={..message}"])
            .unwrap_or_default()
    };
    // Events are written asynchronously.
    for (pod, reason, expected) in [
        ("pulls-right", "Pulled", format!("Successfully pulled image \"{image}\" in ")),
        ("pulls-wrong", "Failed", format!("Failed to pull image \"{image}\": failed to pull and unpack image")),
        ("pulls-wrong", "Failed", "Error: ErrImagePull".to_owned()),
        ("pulls-wrong", "BackOff", format!("Back-off pulling image \"{image}\"")),
    ] {
        cluster.wait_for(&format!("{pod}: {reason}: {expected}"), || event(pod, reason).contains(&expected));
    }
    cluster.kubectl(&["delete", "pod", "pulls-right", "pulls-wrong", "--wait=false"]);
}
