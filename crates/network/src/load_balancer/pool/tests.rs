use super::*;
use serde_json::Value;

fn service(name: &str, port: i32, extra: Value, held: &[&str]) -> Arc<Service> {
    let points: Vec<Value> = held.iter().map(|address| json!({"ip": address})).collect();
    let mut object = json!({"metadata": {"name": name, "namespace": "n"},
        "spec": {"type": "LoadBalancer", "ports": [{"port": port}]}, "status": {"loadBalancer": {"ingress": points}}});
    for (key, value) in extra.as_object().unwrap() {
        object["spec"][key] = value.clone();
    }
    Arc::new(serde_json::from_value(object).unwrap())
}

fn planned(services: &[Arc<Service>], settings: &Settings) -> (Vec<String>, usize) {
    let plan = plan(services, settings, &settings.host_ports());
    let rendered = plan.changes.iter().map(|(service, given)| {
        let given: Vec<String> = given.iter().map(IpAddr::to_string).collect();
        format!("{}={}", service.metadata.name.as_deref().unwrap(), given.join("+"))
    });
    (rendered.collect(), plan.without.len())
}

#[test]
fn a_pool_gives_each_service_its_own() {
    let pool = Settings {
        pool: vec!["192.168.7.0/30".parse().unwrap(), "fd07::/126".parse().unwrap()],
        node_ports: vec![80],
        ..Settings::default()
    };
    let none = json!({});
    let both = json!({"ipFamilies": ["IPv4", "IPv6"]});
    for (services, expected, without) in [
        (
            vec![service("a", 80, none.clone(), &[]), service("b", 80, none.clone(), &["192.168.7.1"])],
            vec!["a=192.168.7.2"],
            0,
        ),
        (vec![service("a", 80, both, &[])], vec!["a=192.168.7.1+fd07::"], 0),
        (vec![service("a", 80, json!({"loadBalancerIP": "192.168.7.2"}), &[])], vec!["a=192.168.7.2"], 0),
        (vec![service("a", 80, json!({"loadBalancerIP": "10.0.0.1"}), &[])], vec![], 1),
        (vec![service("a", 80, json!({"loadBalancerClass": "example.org/x"}), &[])], vec![], 0),
        (vec![service("a", 80, json!({"type": "ClusterIP"}), &["192.168.7.1"])], vec!["a="], 0),
        (vec![service("a", 80, none.clone(), &["10.9.9.9"])], vec!["a=192.168.7.1"], 0),
        (
            vec![
                service("a", 80, none.clone(), &["192.168.7.1"]),
                service("b", 80, none.clone(), &["192.168.7.2"]),
                service("c", 80, none, &[]),
            ],
            vec![],
            1,
        ),
    ] {
        assert_eq!(planned(&services, &pool), (expected.into_iter().map(str::to_owned).collect(), without));
    }
}

#[test]
fn events_explain_why_there_is_no_address() {
    let pool = vec!["192.168.7.0/30".parse().unwrap()];
    let node_addresses = vec!["192.168.1.1".parse().unwrap()];
    let with = Settings { pool, ..Settings::default() };
    let without = Settings { node_addresses, node_ports: vec![80], ..Settings::default() };
    let held = || vec![service("a", 80, json!({}), &["192.168.7.1"]), service("b", 80, json!({}), &["192.168.7.2"])];
    for (settings, before, spec, said) in [
        (&with, held(), json!({}), "no address is free in the pool 192.168.7.0/30, where 2 are in use;"),
        (&with, held(), json!({"loadBalancerIP": "192.168.7.2"}), "192.168.7.2 belongs to another service"),
        (&with, vec![], json!({"loadBalancerIP": "10.0.0.1"}), "10.0.0.1 is not in the pool 192.168.7.0/30"),
        (&without, vec![], json!({}), "port 80/TCP is used by the node itself on 192.168.1.1"),
    ] {
        let mut services = before;
        services.push(service("c", 80, spec, &[]));
        let plan = plan(&services, settings, &settings.host_ports());
        let reasons: Vec<&str> = plan.without.iter().map(|(_, without)| without.message.as_str()).collect();
        assert!(reasons.len() == 1 && reasons[0].contains(said), "{reasons:?} should say {said}");
    }
}

#[test]
fn a_node_s_own_ports_are_never_allocated() {
    let node = "192.168.1.1";
    let settings = Settings { node_addresses: vec![node.parse().unwrap()], ..Settings::default() };
    let listening: Ports = [(Protocol::Tcp, 9100), (Protocol::Udp, 161)].into();
    let udp = json!({"ports": [{"port": 161, "protocol": "UDP"}]});
    for (service, is_given) in [
        (service("a", 80, json!({}), &[]), true),
        (service("a", 161, json!({}), &[]), true),
        (service("a", 161, udp, &[]), false),
        (service("a", 22, json!({}), &[]), false),
        (service("a", 22, json!({}), &[node]), false),
        (service("a", 6443, json!({}), &[]), false),
        (service("a", 10_250, json!({}), &[]), false),
        (service("a", 10_256, json!({}), &[]), false),
        (service("a", 2379, json!({}), &[]), false),
        (service("a", 31_000, json!({}), &[]), false),
        (service("a", 9100, json!({}), &[]), false),
    ] {
        let plan = plan(std::slice::from_ref(&service), &settings, &listening);
        let given = plan.changes.iter().any(|(_, given)| !given.is_empty());
        assert_eq!(given, is_given, "{:?}", service.spec);
        let reasons: Vec<&str> = plan.without.iter().map(|(_, without)| without.reason).collect();
        assert_eq!(reasons, if is_given { vec![] } else { vec!["HostPortInUse"] });
    }
    // An address from a pool may have any port, but is never the node's own.
    let pool = Settings { pool: vec!["192.168.1.0/30".parse().unwrap()], ..settings };
    let services = [service("a", 22, json!({}), &[]), service("b", 22, json!({"loadBalancerIP": node}), &[])];
    assert_eq!(planned(&services, &pool), (vec!["a=192.168.1.2".to_owned()], 1));
}

#[test]
fn a_node_s_address_is_shared_by_port() {
    let node = "192.168.1.1";
    let mut settings = Settings { node_addresses: vec![node.parse().unwrap()], ..Settings::default() };
    let services =
        [service("a", 80, json!({}), &[]), service("b", 443, json!({}), &[]), service("c", 80, json!({}), &[])];
    assert_eq!(planned(&services, &settings), (vec![format!("a={node}"), format!("b={node}")], 1));
    // Ports of the node itself are not available, not even to a Service that had one.
    settings.node_ports = vec![80];
    let services = [service("a", 80, json!({}), &[node]), service("b", 443, json!({}), &[])];
    assert_eq!(planned(&services, &settings), (vec!["a=".to_owned(), format!("b={node}")], 1));
}

#[test]
fn services_that_are_gone_leave_no_messages_behind() {
    let unassigned = |message: &str| Unassigned { reason: "NoAddress", message: message.to_owned() };
    let service = |uid: &str| {
        let mut service = (*service("a", 80, json!({}), &[])).clone();
        service.metadata.uid = Some(uid.to_owned());
        Arc::new(service)
    };
    let mut reported = Reported::default();
    let mut count = |without: Vec<(Arc<Service>, Unassigned)>| {
        let new = reported.unreported(without).len();
        (new, reported.messages.len())
    };
    assert_eq!(count(vec![(service("1"), unassigned("none"))]), (1, 1));
    assert_eq!(count(vec![(service("1"), unassigned("none"))]), (0, 1));
    assert_eq!(count(vec![(service("1"), unassigned("another reason"))]), (1, 1));
    for uid in 2..100 {
        assert_eq!(count(vec![(service(&uid.to_string()), unassigned(&"x".repeat(1000)))]), (1, 1));
    }
    assert_eq!(count(Vec::new()), (0, 0));
}
