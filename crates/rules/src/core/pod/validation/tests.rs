//! What is wrong with the parts of a pod: scheduling, containers, mounts, probes and variables.

use serde_json::{Value, json};

use crate::core::pod::Pod;
use crate::testing::{defaulted, messages};

fn pod(spec: Value) -> Value {
    defaulted(&Pod, json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec}))
}

/// The errors of a pod, without `spec.`.
fn of_spec(fields: &Value) -> Vec<String> {
    let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
    merge(&mut spec, fields);
    relative("spec.", &messages(&Pod, &pod(spec), None))
}

/// The errors of a pod's only container, without its path. The pod has the volumes `dir` and `claim`.
fn of_container(fields: &Value) -> Vec<String> {
    let mut container = json!({"name": "c", "image": "i"});
    merge(&mut container, fields);
    let volumes =
        json!([{"name": "dir", "emptyDir": {}}, {"name": "claim", "persistentVolumeClaim": {"claimName": "x"}}]);
    let found = messages(&Pod, &pod(json!({"containers": [container], "volumes": volumes})), None);
    relative("spec.containers[0].", &found)
}

fn merge(object: &mut Value, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        object[name] = value.clone();
    }
}

fn relative(path: &str, found: &[String]) -> Vec<String> {
    found.iter().map(|message| message.strip_prefix(path).unwrap_or(message).to_owned()).collect()
}

const KEY: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                   alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                   '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must \
                     start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used \
                     for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const VARIABLE: &str =
    "a valid environment variable name must consist only of printable ASCII characters other than '='";

#[test]
fn node_affinity_is_checked() {
    let required = |term: Value| {
        json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [term]}}}})
    };
    let expression = |key: &str, operator: &str, values: Value| {
        required(json!({"matchExpressions": [{"key": key, "operator": operator, "values": values}]}))
    };
    let at = "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[0]";
    for (spec, expected) in [
        (expression("a", "In", json!(["b"])), vec![]),
        (expression("a", "Gt", json!(["1"])), vec![]),
        (
            expression("a", "In", json!([])),
            vec!["matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'".into()],
        ),
        (
            expression("a", "Exists", json!(["b"])),
            vec![
                "matchExpressions[0].values: Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
                    .into(),
            ],
        ),
        (
            expression("a", "Lt", json!(["1", "2"])),
            vec![
                "matchExpressions[0].values: Required value: must be specified single value when `operator` is 'Lt' or 'Gt'"
                    .into(),
            ],
        ),
        (
            expression("a b", "Near", json!(["-"])),
            vec![
                "matchExpressions[0].operator: Invalid value: \"Near\": not a valid selector operator".into(),
                format!("matchExpressions[0].key: Invalid value: \"a b\": {KEY}"),
                format!("matchExpressions[0].values[0]: Invalid value: \"-\": {VALUE}"),
            ],
        ),
        (required(json!({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]})), vec![]),
        (
            required(json!({"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["a", "b"]}]})),
            vec![
                "matchFields[0].values: Required value: must be only one value when `operator` is 'In' or 'NotIn' for node \
                 field selector"
                    .into(),
            ],
        ),
        (
            required(json!({"matchFields": [{"key": "metadata.uid", "operator": "Exists"}]})),
            vec![
                "matchFields[0].operator: Invalid value: \"Exists\": not a valid selector operator".into(),
                "matchFields[0].key: Invalid value: \"metadata.uid\": not a valid field selector key".into(),
            ],
        ),
    ] {
        let expected: Vec<String> = expected.iter().map(|message: &String| format!("{at}.{message}")).collect();
        assert_eq!(of_spec(&spec), expected, "{spec}");
    }
    let preferred = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
        {"weight": 0, "preference": {}}, {"weight": 101, "preference": {}}, {"weight": 100, "preference": {}}]}}});
    let at = "affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution";
    assert_eq!(
        of_spec(&preferred),
        [
            format!("{at}[0].weight: Invalid value: 0: must be in the range 1-100"),
            format!("{at}[1].weight: Invalid value: 101: must be in the range 1-100"),
        ]
    );
}

#[test]
fn pod_affinity_is_checked() {
    let term = |kind: &str, term: Value| json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}});
    for kind in ["podAffinity", "podAntiAffinity"] {
        let at = format!("affinity.{kind}.requiredDuringSchedulingIgnoredDuringExecution[0]");
        for (fields, expected) in [
            (json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"a": "b"}}}), vec![]),
            (
                json!({"labelSelector": {}}),
                vec![
                    "topologyKey: Required value: can not be empty".to_owned(),
                    "topologyKey: Invalid value: \"\": name part must be non-empty".to_owned(),
                    format!("topologyKey: Invalid value: \"\": {KEY}"),
                ],
            ),
            (
                json!({"topologyKey": "zone", "matchLabelKeys": ["a"]}),
                vec!["matchLabelKeys: Forbidden: must not be specified when labelSelector is not set".to_owned()],
            ),
            (
                json!({"topologyKey": "zone", "labelSelector": {}, "matchLabelKeys": ["a"], "mismatchLabelKeys": ["a"]}),
                vec![
                    "matchLabelKeys[0]: Invalid value: \"a\": exists in both matchLabelKeys and mismatchLabelKeys"
                        .to_owned(),
                ],
            ),
        ] {
            let expected: Vec<String> = expected.iter().map(|message| format!("{at}.{message}")).collect();
            assert_eq!(of_spec(&term(kind, fields.clone())), expected, "{kind} {fields}");
        }
    }
}

#[test]
fn spread_constraints_are_checked() {
    let constraint = |fields: Value| {
        let mut constraint =
            json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}});
        merge(&mut constraint, &fields);
        constraint
    };
    for (constraints, expected) in [
        (vec![json!({"minDomains": 2, "nodeAffinityPolicy": "Honor", "nodeTaintsPolicy": "Ignore"})], vec![]),
        (
            vec![json!({"topologyKey": ""})],
            vec!["topologySpreadConstraints[0].topologyKey: Required value: can not be empty"],
        ),
        (
            vec![json!({"minDomains": 0})],
            vec!["topologySpreadConstraints[0].minDomains: Invalid value: 0: must be greater than zero"],
        ),
        (
            vec![json!({"minDomains": 3, "whenUnsatisfiable": "ScheduleAnyway"})],
            vec![
                "topologySpreadConstraints[0].minDomains: Invalid value: 3: can only use minDomains if \
                 whenUnsatisfiable=DoNotSchedule, not ScheduleAnyway",
            ],
        ),
        (
            vec![json!({"nodeAffinityPolicy": "Obey"})],
            vec![
                "topologySpreadConstraints[0].nodeAffinityPolicy: Unsupported value: \"Obey\": supported values: \"Honor\", \
                 \"Ignore\"",
            ],
        ),
        (
            vec![json!({}), json!({"maxSkew": 2})],
            vec![
                "topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}: Duplicate value: \"{zone, DoNotSchedule}\"",
            ],
        ),
        (
            vec![json!({"labelSelector": null, "matchLabelKeys": ["a"]})],
            vec![
                "topologySpreadConstraints[0].matchLabelKeys: Forbidden: must not be specified when labelSelector is not set",
            ],
        ),
    ] {
        let spec =
            json!({"topologySpreadConstraints": constraints.iter().cloned().map(constraint).collect::<Vec<_>>()});
        assert_eq!(of_spec(&spec), expected, "{spec}");
    }
}

#[test]
fn tolerations_are_checked() {
    for (toleration, expected) in [
        (json!({"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}), vec![]),
        (json!({"operator": "Exists"}), vec![]),
        (json!({"key": "k b", "operator": "Exists"}), vec![format!("key: Invalid value: \"k b\": {KEY}")]),
        (json!({"key": "k", "value": "-"}), vec![format!("operator: Invalid value: \"-\": {VALUE}")]),
        (
            json!({"key": "k", "operator": "Exists", "value": "v"}),
            vec!["operator: Invalid value: \"v\": value must be empty when `operator` is 'Exists'".into()],
        ),
        (
            json!({"key": "k", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5}),
            vec![
                "effect: Invalid value: \"NoSchedule\": effect must be 'NoExecute' when `tolerationSeconds` is set"
                    .into(),
            ],
        ),
        (
            json!({"key": "k", "operator": "Near"}),
            vec!["operator: Unsupported value: \"Near\": supported values: \"Equal\", \"Exists\"".into()],
        ),
        (
            json!({"key": "k", "operator": "Gt", "value": "5"}),
            vec!["operator: Unsupported value: \"Gt\": supported values: \"Equal\", \"Exists\", \"Lt\", \"Gt\"".into()],
        ),
        (
            json!({"key": "k", "operator": "Exists", "effect": "NoSleep"}),
            vec![
                "effect: Unsupported value: \"NoSleep\": supported values: \"NoSchedule\", \"PreferNoSchedule\", \
                 \"NoExecute\""
                    .into(),
            ],
        ),
    ] {
        let expected: Vec<String> =
            expected.iter().map(|message: &String| format!("tolerations[0].{message}")).collect();
        assert_eq!(of_spec(&json!({"tolerations": [toleration.clone()]})), expected, "{toleration}");
    }
}

#[test]
fn compared_values_are_numbers() {
    let with = |value: &str| {
        pod(json!({"containers": [{"name": "c", "image": "i"}],
        "tolerations": [{"key": "k", "operator": "Lt", "value": value}]}))
    };
    for (value, expected) in [
        ("5", vec![]),
        ("-5", vec![]),
        ("0", vec![]),
        ("05", vec!["must be a valid decimal integer in canonical form"]),
        ("+5", vec!["must be a valid decimal integer in canonical form"]),
        ("", vec!["must be non-empty", "strconv.ParseInt: parsing \"\": invalid syntax"]),
        (
            "x",
            vec![
                "must be a valid decimal integer in canonical form",
                "strconv.ParseInt: parsing \"x\": invalid syntax",
            ],
        ),
        ("99999999999999999999", vec!["strconv.ParseInt: parsing \"99999999999999999999\": value out of range"]),
    ] {
        // Pods that have such a toleration keep the operator; new ones may not have it yet.
        let found = messages(&Pod, &with(value), Some(&with(value)));
        let expected: Vec<String> = expected
            .iter()
            .map(|why| format!("spec.tolerations[0].value: Invalid value: \"{value}\": {why}"))
            .collect();
        // An update checks tolerations as part of the spec, and once more as those that were added.
        assert_eq!(found, [expected.clone(), expected].concat(), "{value}");
    }
}

#[test]
fn mounts_are_checked() {
    let mount = |fields: Value| {
        let mut mount = json!({"name": "dir", "mountPath": "/a"});
        merge(&mut mount, &fields);
        json!({"volumeMounts": [mount]})
    };
    for (container, expected) in [
        (mount(json!({"subPath": "a/b", "readOnly": true, "recursiveReadOnly": "Enabled"})), vec![]),
        (
            mount(json!({"name": "", "mountPath": ""})),
            vec![
                "volumeMounts[0].name: Required value",
                "volumeMounts[0].name: Not found: \"\"",
                "volumeMounts[0].mountPath: Required value",
            ],
        ),
        (
            json!({"volumeMounts": [{"name": "dir", "mountPath": "/a"}, {"name": "claim", "mountPath": "/a"}]}),
            vec!["volumeMounts[1].mountPath: Invalid value: \"/a\": must be unique"],
        ),
        (mount(json!({"subPath": "/a"})), vec!["volumeMounts.subPath: Invalid value: \"/a\": must be a relative path"]),
        (
            mount(json!({"subPath": "a", "subPathExpr": "../b"})),
            vec![
                "volumeMounts[0].subPathExpr: Invalid value: \"../b\": subPathExpr and subPath are mutually exclusive",
                "volumeMounts.subPathExpr: Invalid value: \"../b\": must not contain '..'",
            ],
        ),
        (
            mount(json!({"mountPropagation": "Bidirectional"})),
            vec![
                "volumeMounts.mountPropagation: Forbidden: Bidirectional mount propagation is available only to privileged \
                 containers",
            ],
        ),
        (
            mount(json!({"mountPropagation": "Sideways"})),
            vec![
                "volumeMounts.mountPropagation: Unsupported value: \"Sideways\": supported values: \"Bidirectional\", \
                 \"HostToContainer\", \"None\"",
            ],
        ),
        (
            mount(json!({"recursiveReadOnly": "IfPossible", "mountPropagation": "HostToContainer"})),
            vec![
                "volumeMounts.recursiveReadOnly: Forbidden: may only be specified when readOnly is true",
                "volumeMounts.recursiveReadOnly: Forbidden: may only be specified when mountPropagation is None or not \
                 specified",
            ],
        ),
        (
            mount(json!({"recursiveReadOnly": "Maybe"})),
            vec![
                "volumeMounts.recursiveReadOnly: Unsupported value: \"Maybe\": supported values: \"Disabled\", \"Enabled\", \
                 \"IfPossible\"",
            ],
        ),
        (json!({"volumeDevices": [{"name": "claim", "devicePath": "/dev/x"}]}), vec![]),
        (
            json!({"volumeDevices": [{"name": "dir", "devicePath": "/dev/../x"}]}),
            vec![
                "volumeDevices[0].name: Invalid value: \"dir\": can only use volume source type of PersistentVolumeClaim or \
                 Ephemeral for block mode",
                "volumeDevices[0].devicePath: Invalid value: \"/dev/../x\": can not contain backsteps ('..')",
            ],
        ),
        (
            json!({"volumeDevices": [{"name": "claim", "devicePath": "/x"}, {"name": "claim", "devicePath": "/x"}]}),
            vec![
                "volumeDevices[1].name: Invalid value: \"claim\": must be unique",
                "volumeDevices[1].devicePath: Invalid value: \"/x\": must be unique",
            ],
        ),
        (
            json!({"volumeMounts": [{"name": "claim", "mountPath": "/x"}],
                "volumeDevices": [{"name": "claim", "devicePath": "/x"}]}),
            vec![
                "volumeMounts[0].name: Invalid value: \"claim\": must not already exist in volumeDevices",
                "volumeMounts[0].mountPath: Invalid value: \"/x\": must not already exist as a path in volumeDevices",
                "volumeDevices[0].name: Invalid value: \"claim\": must not already exist in volumeMounts",
                "volumeDevices[0].devicePath: Invalid value: \"/x\": must not already exist as a path in volumeMounts",
            ],
        ),
    ] {
        assert_eq!(of_container(&container), expected, "{container}");
    }
}

#[test]
fn probes_and_hooks_are_checked() {
    let probe = |fields: Value| json!({"livenessProbe": fields});
    for (container, expected) in [
        (probe(json!({"exec": {"command": ["a"]}, "terminationGracePeriodSeconds": 1})), vec![]),
        (probe(json!({"grpc": {"port": 80}})), vec![]),
        (probe(json!({"exec": {}})), vec!["livenessProbe.exec.command: Required value"]),
        (
            probe(json!({"exec": {"command": ["a"]}, "tcpSocket": {"port": 80}})),
            vec!["livenessProbe.tcpSocket: Forbidden: may not specify more than 1 handler type"],
        ),
        (
            probe(json!({"tcpSocket": {"port": 65536}})),
            vec!["livenessProbe.tcpSocket.port: Invalid value: 65536: must be between 1 and 65535, inclusive"],
        ),
        (
            probe(json!({"httpGet": {"port": 80, "scheme": "FTP"}})),
            vec!["livenessProbe.httpGet.scheme: Unsupported value: \"FTP\": supported values: \"HTTP\", \"HTTPS\""],
        ),
        (
            probe(json!({"httpGet": {"port": 80, "httpHeaders": [{"name": "a b", "value": ""}]}})),
            vec![
                "livenessProbe.httpGet.httpHeaders: Invalid value: \"a b\": a valid HTTP header must consist of \
                 alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')",
            ],
        ),
        (
            probe(json!({"exec": {"command": ["a"]}, "initialDelaySeconds": -1, "terminationGracePeriodSeconds": 0})),
            vec![
                "livenessProbe.initialDelaySeconds: Invalid value: -1: must be greater than or equal to 0",
                "livenessProbe.terminationGracePeriodSeconds: Invalid value: 0: must be greater than 0",
            ],
        ),
        (
            json!({"readinessProbe": {"exec": {"command": ["a"]}, "terminationGracePeriodSeconds": 5, "successThreshold": 3}}),
            vec!["readinessProbe.terminationGracePeriodSeconds: Invalid value: 5: must not be set for readinessProbes"],
        ),
        (
            json!({"lifecycle": {"postStart": {}}}),
            vec!["lifecycle.postStart: Required value: must specify a handler type"],
        ),
        (json!({"lifecycle": {"preStop": {"sleep": {"seconds": 30}}}}), vec![]),
        (
            json!({"lifecycle": {"preStop": {"sleep": {"seconds": 31}}}}),
            vec![
                "lifecycle.preStop.sleep: Invalid value: 31: must be non-negative and less than \
                 terminationGracePeriodSeconds (30)",
            ],
        ),
    ] {
        assert_eq!(of_container(&container), expected, "{container}");
    }
}

#[test]
fn variables_are_checked() {
    let from = |source: Value| json!({"env": [{"name": "A", "valueFrom": source}]});
    for (container, expected) in [
        (json!({"env": [{"name": "a.b-c", "value": "x"}]}), vec![]),
        (json!({"env": [{"name": ""}]}), vec!["env[0].name: Required value".to_owned()]),
        (json!({"env": [{"name": "a=b"}]}), vec![format!("env[0].name: Invalid value: \"a=b\": {VARIABLE}")]),
        (
            json!({"env": [{"name": "A", "value": "x", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}),
            vec!["env[0].valueFrom: Invalid value: \"\": may not be specified when `value` is not empty".to_owned()],
        ),
        (
            from(json!({"secretKeyRef": {"name": "s", "key": "k"}, "configMapKeyRef": {"name": "m", "key": "k"}})),
            vec!["env[0].valueFrom: Invalid value: \"\": may not have more than one field specified at a time".to_owned()],
        ),
        (
            from(json!({"secretKeyRef": {"name": "s", "key": ""}})),
            vec!["env[0].valueFrom.secretKeyRef.key: Required value".to_owned()],
        ),
        (from(json!({"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.nodeName"}})), vec![]),
        (
            from(json!({"fieldRef": {"apiVersion": "v1", "fieldPath": "spec.hostname"}})),
            vec![
                "env[0].valueFrom.fieldRef.fieldPath: Invalid value: \"spec.hostname\": error converting fieldPath: field \
                 label not supported: spec.hostname"
                    .to_owned(),
            ],
        ),
        (
            json!({"envFrom": [{}]}),
            vec!["envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`".to_owned()],
        ),
        (
            json!({"envFrom": [{"configMapRef": {"name": "m"}, "secretRef": {"name": ""}}]}),
            vec![
                "envFrom[0].secretRef.name: Required value".to_owned(),
                "envFrom: Invalid value: \"\": may not have more than one field specified at a time".to_owned(),
            ],
        ),
        (
            json!({"envFrom": [{"prefix": "a=", "configMapRef": {"name": "m"}}]}),
            vec![format!("envFrom[0].prefix: Invalid value: \"a=\": {VARIABLE}")],
        ),
    ] {
        assert_eq!(of_container(&container), expected, "{container}");
    }
}

#[test]
fn containers_are_checked() {
    for (container, expected) in [
        (json!({"ports": [{"containerPort": 80, "name": "http", "hostPort": 80}]}), vec![]),
        (
            json!({"ports": [{"hostPort": 70000}]}),
            vec![
                "ports[0].containerPort: Required value",
                "ports[0].hostPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
            ],
        ),
        (
            json!({"ports": [{"containerPort": 80, "name": "a"}, {"containerPort": 81, "name": "a"}]}),
            vec!["ports[1].name: Duplicate value: \"a\""],
        ),
        (
            json!({"ports": [{"containerPort": 80, "protocol": "ICMP"}]}),
            vec!["ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"SCTP\", \"TCP\", \"UDP\""],
        ),
        (
            json!({"ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81, "hostPort": 80}]}),
            vec!["ports[1].hostPort: Duplicate value: \"TCP//80\""],
        ),
        (
            json!({"terminationMessagePolicy": "Loud"}),
            vec![
                "terminationMessagePolicy: Unsupported value: \"Loud\": supported values: \"File\", \
                 \"FallbackToLogsOnError\"",
            ],
        ),
        (
            json!({"imagePullPolicy": "Maybe"}),
            vec![
                "imagePullPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
            ],
        ),
        (
            json!({"resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"},
                {"resourceName": "cpu", "restartPolicy": "Sometimes"}]}),
            vec![
                "resizePolicy[1]: Duplicate value: \"cpu\"",
                "resizePolicy: Unsupported value: \"Sometimes\": supported values: \"NotRequired\", \"RestartContainer\"",
            ],
        ),
        (
            json!({"resizePolicy": [{"resourceName": "disk", "restartPolicy": ""}]}),
            vec![
                "resizePolicy: Unsupported value: \"disk\": supported values: \"cpu\", \"memory\"",
                "resizePolicy: Required value",
            ],
        ),
    ] {
        assert_eq!(of_container(&container), expected, "{container}");
    }
    let others = json!({"initContainers": [{"name": "c", "image": "i"}, {"name": "i", "image": "i", "lifecycle": {}}]});
    assert_eq!(
        of_spec(&others),
        [
            "initContainers[0].name: Duplicate value: \"c\"",
            "initContainers[1].lifecycle: Forbidden: may not be set for init containers without restartPolicy=Always",
        ]
    );
}
