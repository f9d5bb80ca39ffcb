use super::*;
use serde_json::json;

#[test]
fn variables_keep_the_order_in_which_they_were_last_set() {
    let mut ordered = Ordered::default();
    for (name, value) in [("a", "1"), ("b", "2"), ("a", "3")] {
        ordered.set(name.into(), value.into());
    }
    ordered.set_if_missing("b".into(), "4".into());
    ordered.set_if_missing("c".into(), "5".into());
    let list: Vec<String> = ordered.list().into_iter().map(|(name, value)| name + &value).collect();
    assert_eq!(list, ["b2", "a3", "c5"]);
}

#[test]
fn services_show_in_the_old_form() {
    let service: Service = serde_json::from_value(json!({ "metadata": { "name": "my-db", "namespace": "n" },
        "spec": { "clusterIP": "10.0.0.9", "ports": [{ "name": "sql", "port": 5432 }] } }))
    .expect("a service");
    let pod: Pod = serde_json::from_value(json!({ "metadata": { "namespace": "n" } })).expect("a pod");
    let found = service_variables(&pod, &[Arc::new(service)], &mut Budget::of_program()).unwrap();
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

#[test]
fn variables_of_many_services_do_not_fill_memory() {
    let ports: Vec<_> = (1..=10_000).map(|port| json!({ "name": format!("p{port}"), "port": port })).collect();
    let service = |number: usize| {
        let service = json!({ "metadata": { "name": format!("s{number}"), "namespace": "n" },
            "spec": { "clusterIP": "10.0.0.9", "ports": ports } });
        Arc::new(serde_json::from_value::<Service>(service).expect("a service"))
    };
    let services: Vec<Arc<Service>> = (0..10).map(service).collect();
    let pod: Pod = serde_json::from_value(json!({ "metadata": { "namespace": "n" } })).expect("a pod");
    let variables = |services: &[Arc<Service>]| service_variables(&pod, services, &mut Budget::of_program());
    assert!(variables(&services[..1]).is_ok());
    assert!(variables(&services).is_err());
    let without: Pod = serde_json::from_value(
        json!({ "metadata": { "namespace": "n" }, "spec": { "containers": [], "enableServiceLinks": false } }),
    )
    .expect("a pod");
    assert_eq!(service_variables(&without, &services, &mut Budget::of_program()), Ok(Vec::new()));
}
