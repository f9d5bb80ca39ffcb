//! Defaults and validation of static pods, which the kubelet runs without an API server.

use jiff::Timestamp;
use serde_json::Value;

use super::Pod;
use crate::features::Features;
use crate::kind::{Context, KindRules};
use crate::metadata;

/// Sets the defaults of a static pod and validates it. The error contains all messages.
pub fn admit(pod: &mut Value) -> Result<(), Vec<String>> {
    // No rule for new pods depends on the user or the time.
    let now = Timestamp::UNIX_EPOCH;
    let features = Features::defaults();
    let context =
        Context { version: "v1", subresource: "", user: "", groups: &[], uid: "", extra: None, now, features };
    Pod.set_defaults(pod, context.version);
    let mut errors = metadata::validate_create(pod, true, &Pod);
    errors.extend(Pod.validate(pod, None, &context));
    if errors.0.is_empty() { Ok(()) } else { Err(errors.0.iter().map(ToString::to_string).collect()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(container: Value, more: Value) -> Value {
        let mut spec = json!({ "nodeName": "n", "containers": [container] });
        spec.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
        json!({ "apiVersion": "v1", "kind": "Pod", "spec": spec,
            "metadata": { "name": "p-n", "namespace": "default", "uid": "u" } })
    }

    #[test]
    fn static_pods_are_validated_like_others() {
        let plain = json!({ "name": "c", "image": "i" });
        let mut good = pod(
            plain.clone(),
            json!({ "hostNetwork": true, "terminationGracePeriodSeconds": 30,
            "tolerations": [{ "operator": "Exists", "effect": "NoExecute" }],
            "volumes": [{ "name": "v", "hostPath": { "path": "/x" } }] }),
        );
        assert_eq!(admit(&mut good), Ok(()));
        assert_eq!(good["spec"]["restartPolicy"], "Always");
        let localhost = json!({ "securityContext": { "seccompProfile": { "type": "Localhost" } } });
        let app_armor = json!({ "securityContext": { "appArmorProfile": { "type": "Localhost" } } });
        let file = json!({ "name": "c", "image": "i", "env": [{ "name": "A", "valueFrom": { "fileKeyRef":
            { "volumeName": "v", "path": "../x", "key": "A" } } }] });
        let cases = [
            (pod(plain.clone(), localhost), "spec.securityContext.seccompProfile.localhostProfile: Required value"),
            (pod(plain.clone(), app_armor), "spec.securityContext.appArmorProfile.localhostProfile: Required value"),
            (pod(json!({ "name": "../x", "image": "i" }), json!({})), "spec.containers[0].name: Invalid value"),
            (
                pod(file, json!({ "volumes": [{ "name": "v", "emptyDir": {} }] })),
                "spec.containers[0].env[0].valueFrom.fileKeyRef.path: Invalid value: \"../x\": must not contain '..'",
            ),
            (
                pod(plain, json!({ "volumes": [{ "name": "../v", "emptyDir": {} }] })),
                "spec.volumes[0].name: Invalid value",
            ),
        ];
        for (mut pod, expected) in cases {
            let errors = admit(&mut pod).expect_err(expected);
            assert!(errors.iter().any(|error| error.starts_with(expected)), "{expected}: {errors:?}");
        }
    }
}
