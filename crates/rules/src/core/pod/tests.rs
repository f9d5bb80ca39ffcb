//! Tests of the rules of pods, with pods as clients send them.

use serde_json::{Value, json};

use super::Pod;
use crate::testing::{defaulted, messages, messages_of};

fn pod(spec: Value) -> Value {
    defaulted(
        &Pod,
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": spec}),
    )
}

fn with_container(fields: Value) -> Value {
    let mut container = json!({"name": "c", "image": "nginx"});
    for (name, value) in fields.as_object().into_iter().flatten() {
        container[name] = value.clone();
    }
    json!({"containers": [container]})
}

fn with(fields: Value) -> Value {
    let mut spec = with_container(json!({}));
    for (name, value) in fields.as_object().into_iter().flatten() {
        spec[name] = value.clone();
    }
    spec
}

#[test]
fn specs_are_checked() {
    for (spec, expected) in [
        (with(json!({})), vec![]),
        (json!({}), vec!["spec.containers: Required value"]),
        (json!({"containers": [{"name": "c"}]}), vec!["spec.containers[0].image: Required value"]),
        (
            json!({"containers": [{"name": "c", "image": "a"}, {"name": "c", "image": "b"}]}),
            vec!["spec.containers[1].name: Duplicate value: \"c\""],
        ),
        (
            with_container(json!({"volumeMounts": [{"name": "none", "mountPath": "/x"}]})),
            vec!["spec.containers[0].volumeMounts[0].name: Not found: \"none\""],
        ),
        (
            with(json!({"restartPolicy": "Sometimes"})),
            vec![
                "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
            ],
        ),
        (
            with_container(json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})),
            vec![
                "spec.containers[0].resources.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
            ],
        ),
        (
            with_container(json!({"ports": [{"containerPort": 99999}]})),
            vec![
                "spec.containers[0].ports[0].containerPort: Invalid value: 99999: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            with_container(json!({"livenessProbe": {"httpGet": {"port": 80}, "successThreshold": 2}})),
            vec!["spec.containers[0].livenessProbe.successThreshold: Invalid value: 2: must be 1"],
        ),
        (
            with_container(json!({"livenessProbe": {}})),
            vec!["spec.containers[0].livenessProbe: Required value: must specify a handler type"],
        ),
        (
            with_container(json!({"env": [{"name": "A", "valueFrom": {}}]})),
            vec![
                "spec.containers[0].env[0].valueFrom: Invalid value: \"\": must specify one of: `fieldRef`, \
                 `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
            ],
        ),
        (
            with_container(json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false}})),
            vec![
                "spec.containers[0].securityContext: Invalid value: {\"Capabilities\":null,\"Privileged\":true,\
                 \"SELinuxOptions\":null,\"WindowsOptions\":null,\"RunAsUser\":null,\"RunAsGroup\":null,\
                 \"RunAsNonRoot\":null,\"ReadOnlyRootFilesystem\":null,\"AllowPrivilegeEscalation\":false,\
                 \"ProcMount\":null,\"SeccompProfile\":null,\"AppArmorProfile\":null}: cannot set \
                 `allowPrivilegeEscalation` to false and `privileged` to true",
            ],
        ),
        (
            with_container(json!({"resources": {"limits": {"hugepages-2Mi": "3Mi", "cpu": "1"}}})),
            vec![
                "spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer \
                 multiple of hugepages-2Mi",
                "spec.containers[0].resources.requests[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive \
                 integer multiple of hugepages-2Mi",
            ],
        ),
        (
            with(json!({"volumes": [{"name": "v", "hostPath": {"path": "/a"}, "emptyDir": {}}]})),
            vec!["spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type"],
        ),
        (
            with(json!({"tolerations": [{"operator": "Equal"}]})),
            vec![
                "spec.tolerations[0].operator: Invalid value: \"Equal\": operator must be Exists when `key` is empty, \
                 which means \"match all values and all keys\"",
            ],
        ),
        (
            with(json!({"topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "X",
                "labelSelector": {}}]})),
            vec![
                "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero",
                "spec.topologySpreadConstraints[0].whenUnsatisfiable: Unsupported value: \"X\": supported values: \
                 \"DoNotSchedule\", \"ScheduleAnyway\"",
            ],
        ),
        (
            with(json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}})),
            vec![
                "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: Required \
                 value: must have at least one node selector term",
            ],
        ),
        (
            with(json!({"dnsPolicy": "None"})),
            vec!["spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None"],
        ),
        (
            with(
                json!({"initContainers": [{"name": "i", "image": "x", "livenessProbe": {"exec": {"command": ["a"]}}}]}),
            ),
            vec![
                "spec.initContainers[0].livenessProbe: Forbidden: may not be set for init containers without \
                 restartPolicy=Always",
            ],
        ),
        (
            with(json!({"os": {"name": "windows"}, "hostPID": true})),
            vec!["spec.hostPID: Forbidden: cannot be set for a windows pod"],
        ),
        (
            with(json!({"os": {"name": "plan9"}})),
            vec!["spec.os: Unsupported value: \"plan9\": supported values: \"linux\", \"windows\""],
        ),
        (
            with(json!({"schedulingGates": [{"name": "a"}, {"name": "a"}]})),
            vec!["spec.schedulingGates[1]: Duplicate value: \"a\""],
        ),
        (
            with(json!({"ephemeralContainers": [{"name": "e", "image": "x"}]})),
            vec!["spec.ephemeralContainers: Forbidden: cannot be set on create"],
        ),
        (
            with(json!({"hostNetwork": true, "hostUsers": false})),
            vec!["spec.hostNetwork: Forbidden: when `hostUsers` is false"],
        ),
        (
            with(json!({"resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "500m"}}})),
            vec!["spec.resources.requests: Invalid value: \"1\": must be less than or equal to cpu limit of 500m"],
        ),
        (
            with(json!({"activeDeadlineSeconds": 0})),
            vec!["spec.activeDeadlineSeconds: Invalid value: 0: must be between 1 and 2147483647, inclusive"],
        ),
    ] {
        assert_eq!(messages(&Pod, &pod(spec.clone()), None), expected, "{spec}");
    }
}

#[test]
fn updates_change_little() {
    let old = pod(with(json!({"activeDeadlineSeconds": 10})));
    for (change, expected) in [
        (json!({"/spec/containers/0/image": "nginx:2"}), None),
        (json!({"/spec/activeDeadlineSeconds": 5}), None),
        (json!({"/metadata/labels": {"a": "b"}}), None),
        (
            json!({"/spec/activeDeadlineSeconds": 20}),
            Some("spec.activeDeadlineSeconds: Invalid value: 20: must be less than or equal to previous value"),
        ),
        (
            json!({"/spec/nodeName": "n1"}),
            Some(
                "spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`,\
                 `spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to \
                 existing tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was \
                 previously negative)\n@@ -63,7 +63,7 @@\n \"NodeSelector\": null,\n \"ServiceAccountName\": \"\",\n \
                 \"AutomountServiceAccountToken\": null,\n- \"NodeName\": \"\",\n+ \"NodeName\": \"n1\",\n \
                 \"SecurityContext\": {\n  \"HostNetwork\": false,\n  \"HostPID\": false,\n",
            ),
        ),
    ] {
        let mut new = old.clone();
        for (pointer, value) in change.as_object().unwrap() {
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            new.pointer_mut(parent).unwrap()[field] = value.clone();
        }
        let found = messages(&Pod, &new, Some(&old));
        match expected {
            None => assert!(found.is_empty(), "{found:?}"),
            Some(expected) => {
                // Lines of context keep their leading space.
                let squeeze = |text: &str| text.replace("\n ", "\n").replace("  ", " ");
                assert_eq!(found.len(), 1, "{found:?}");
                assert_eq!(squeeze(&found[0]).lines().next(), squeeze(expected).lines().next());
            }
        }
    }
}

#[test]
fn ended_containers_stay_so() {
    let mut old = pod(with(json!({"restartPolicy": "Never"})));
    old["status"] = json!({"containerStatuses": [{"name": "c", "state": {"terminated": {"exitCode": 0}}}]});
    let mut new = old.clone();
    new["status"]["containerStatuses"][0]["state"] = json!({"running": {}});
    assert_eq!(
        messages_of(&Pod, &new, Some(&old), "status"),
        ["status.containerStatuses[0].state: Forbidden: may not be transitioned to non-terminated state"]
    );
}

#[test]
fn resizing_keeps_the_class() {
    let old = pod(with_container(json!({"resources": {"requests": {"cpu": "1"}}})));
    let mut new = old.clone();
    new["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("2");
    assert!(messages_of(&Pod, &new, Some(&old), "resize").is_empty());
    new["spec"]["containers"][0]["resources"] = json!({});
    assert_eq!(
        messages_of(&Pod, &new, Some(&old), "resize"),
        [
            "spec: Invalid value: \"\": Pod QOS Class may not change as a result of resizing",
            "spec.containers[0].resources.requests: Forbidden: resource requests cannot be removed",
        ]
    );
}
