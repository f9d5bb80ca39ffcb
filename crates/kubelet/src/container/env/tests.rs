use super::*;
use serde_json::json;

#[test]
fn references_expand_once() {
    let known = BTreeMap::from([("A".to_string(), "1".to_string()), ("B".to_string(), "$(A)".to_string())]);
    for (text, expected) in [
        ("x$(A)y", "x1y"),
        ("$(B)", "$(A)"),
        ("$$(A)", "$(A)"),
        ("$(missing)", "$(missing)"),
        ("$", "$"),
        ("$A", "$A"),
        ("$(A", "$(A"),
        ("$$$(A)", "$1"),
    ] {
        assert_eq!(expand(text, &known), expected, "{text}");
    }
}

#[test]
fn fields_and_resources_are_read() {
    let pod: Pod = serde_json::from_value(json!({ "metadata": { "name": "p", "labels": { "b": "x\"y", "a": "1" } },
        "spec": { "containers": [{ "name": "c", "resources": { "limits": { "cpu": "1250m", "memory": "64Mi" } } }] } }))
    .expect("a pod");
    let downward = DownwardContext {
        node_name: "node".into(),
        node_addresses: vec!["1.2.3.4".into()],
        pod_addresses: vec!["10.0.0.1".into(), "fd00::1".into()],
        allocatable: BTreeMap::from([("ephemeral-storage".to_string(), Quantity("10Gi".into()))]),
    };
    for (path, expected) in [
        ("metadata.labels", "a=\"1\"\nb=\"x\\\"y\""),
        ("metadata.labels['a']", "1"),
        ("metadata.annotations['a']", ""),
        ("status.podIPs", "10.0.0.1,fd00::1"),
        ("status.hostIP", "1.2.3.4"),
    ] {
        assert_eq!(field_value(&pod, path, &downward).expect("a field"), expected, "{path}");
    }
    assert!(field_value(&pod, "spec.containers", &downward).is_err());
    for (resource, divisor, expected) in [
        ("limits.cpu", "1", "2"),
        ("limits.cpu", "1m", "1250"),
        ("limits.memory", "1Mi", "64"),
        ("limits.memory", "0", "67108864"),
        ("requests.memory", "1Ki", "65536"),
        ("limits.ephemeral-storage", "1Gi", "10"),
        ("requests.ephemeral-storage", "1", "0"),
    ] {
        let selector = ResourceFieldSelector {
            container_name: Some("c".into()),
            divisor: Some(Quantity(divisor.into())),
            resource: resource.into(),
        };
        assert_eq!(resource_value(&pod, None, &selector, &downward).expect("an amount"), expected, "{resource}");
    }
}

#[test]
fn limits_default_to_the_pod_and_then_to_the_node() {
    let downward = DownwardContext {
        node_name: String::new(),
        node_addresses: Vec::new(),
        pod_addresses: Vec::new(),
        allocatable: BTreeMap::from([("cpu", "8"), ("memory", "1Gi")].map(|(k, v)| (k.into(), Quantity(v.into())))),
    };
    let cases = [
        (json!({ "cpu": "1" }), json!({ "cpu": "2", "memory": "64Mi" }), ["1", "67108864"]),
        (json!({}), json!({ "cpu": "2" }), ["2", "1073741824"]),
        (json!({ "cpu": "0" }), json!({ "cpu": "0" }), ["8", "1073741824"]),
    ];
    for (own, whole, expected) in cases {
        let pod: Pod = serde_json::from_value(json!({ "spec": { "resources": { "limits": whole },
            "containers": [{ "name": "c", "resources": { "limits": own } }] } }))
        .expect("a pod");
        let found = ["limits.cpu", "limits.memory"].map(|resource| {
            let container_name = Some("c".into());
            let selector = ResourceFieldSelector { container_name, divisor: None, resource: resource.into() };
            resource_value(&pod, None, &selector, &downward).expect("an amount")
        });
        assert_eq!(found, expected, "{own} {whole}");
    }
}

#[test]
fn services_show_in_the_old_form() {
    let service: Service = serde_json::from_value(json!({ "metadata": { "name": "my-db", "namespace": "n" },
        "spec": { "clusterIP": "10.0.0.9", "ports": [{ "name": "sql", "port": 5432 }] } }))
    .expect("a service");
    let pod: Pod = serde_json::from_value(json!({ "metadata": { "namespace": "n" } })).expect("a pod");
    let found = service_variables(&pod, &[Arc::new(service)]);
    let shown: Vec<_> = found.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(
        shown,
        [
            "MY_DB_SERVICE_HOST=10.0.0.9",
            "MY_DB_SERVICE_PORT=5432",
            "MY_DB_SERVICE_PORT_SQL=5432",
            "MY_DB_PORT=tcp://10.0.0.9:5432",
            "MY_DB_PORT_5432_TCP=tcp://10.0.0.9:5432",
            "MY_DB_PORT_5432_TCP_PROTO=tcp",
            "MY_DB_PORT_5432_TCP_PORT=5432",
            "MY_DB_PORT_5432_TCP_ADDR=10.0.0.9",
        ]
    );
}
