//! Defaults and validation of static pods, which the kubelet runs without an API server.

use jiff::Timestamp;
use serde_json::Value;

use super::{Pod, references};
use crate::features::Features;
use crate::kind::{Context, KindRules};
use crate::metadata;

/// Sets the defaults of a static pod and validates it. It must not refer to objects of the API: it runs without the API server,
/// and no authorizer has checked that the node may read them.
pub fn admit(pod: &mut Value) -> Result<(), String> {
    // No rule for new pods depends on the user or the time.
    let now = Timestamp::UNIX_EPOCH;
    let features = Features::defaults();
    let context =
        Context { version: "v1", subresource: "", user: "", groups: &[], uid: "", extra: None, now, features };
    Pod.set_defaults(pod, context.version);
    let mut errors = metadata::validate_create(pod, true, &Pod);
    errors.extend(Pod.validate(pod, None, &context));
    if !errors.0.is_empty() {
        let messages: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        return Err(format!("invalid pod: [{}]", messages.join(", ")));
    }
    match references::api_reference(pod)? {
        Some(resource) => Err(format!("static pods may not reference {resource}")),
        None => Ok(()),
    }
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
            let error = admit(&mut pod).expect_err(expected);
            assert!(error.starts_with("invalid pod: [") && error.contains(expected), "{expected}: {error}");
        }
    }

    #[test]
    fn static_pods_refer_to_nothing_of_the_api() {
        let plain = json!({ "name": "c", "image": "i" });
        for field in ["serviceAccountName", "serviceAccount"] {
            let error = admit(&mut pod(plain.clone(), json!({ field: "a" })));
            assert_eq!(error, Err("static pods may not reference serviceaccounts".to_owned()));
        }
        let volume = json!({ "volumes": [{ "name": "v", "secret": { "secretName": "s" } }] });
        assert_eq!(admit(&mut pod(plain, volume)), Err("static pods may not reference secrets".to_owned()));
    }
}
