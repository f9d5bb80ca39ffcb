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
