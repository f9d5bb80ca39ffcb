use std::sync::Arc;

use super::*;

fn directory() -> Directory {
    let directory = Directory::default();
    let port = |number| Port { name: "http".into(), protocol: "tcp", number };
    let endpoint = |label: &str, last: u8| Endpoint {
        label: label.into(),
        address: [10, 244, 0, last].into(),
        ports: Arc::from([port(8080)]),
    };
    let addresses = vec!["10.96.0.7".parse().unwrap(), "fd00::7".parse().unwrap()];
    directory.set(
        "shop",
        "web",
        Some(Service { kind: Kind::Addresses(addresses), ports: vec![port(80)], endpoints: vec![] }),
    );
    let endpoints = vec![endpoint("db-0", 2), endpoint("db-1", 3)];
    directory.set("shop", "db", Some(Service { kind: Kind::Headless, ports: vec![port(80)], endpoints }));
    directory.set("shop", "idle", Some(Service { kind: Kind::Headless, ports: vec![], endpoints: vec![] }));
    directory.set_namespace("empty", true);
    let external = Kind::External(Name::from_text("example.org").unwrap());
    directory.set("shop", "away", Some(Service { kind: external, ports: vec![], endpoints: vec![] }));
    directory
}

fn ask(name: &str, kind: u16) -> String {
    let zone = Zone::new("cluster.local", vec![[10, 96, 0, 10].into()]).unwrap();
    match zone.resolve(&directory(), &Name::from_text(name).unwrap(), kind, 0) {
        Outcome::Found(sections) => {
            let rendered = sections.answers.iter().map(|record| match &record.data {
                Data::A(address) => address.to_string(),
                Data::Aaaa(address) => address.to_string(),
                Data::Ptr(name) | Data::Ns(name) => name.to_string(),
                Data::Srv { port, target, .. } => format!("{port} {target}"),
                Data::Txt(text) => text.clone(),
                other => format!("{other:?}"),
            });
            rendered.collect::<Vec<_>>().join(", ")
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn names_are_answered_to_the_specification() {
    for (name, kind, expected) in [
        ("web.shop.svc.cluster.local", kind::A, "10.96.0.7"),
        ("web.shop.svc.cluster.local", kind::AAAA, "fd00::7"),
        ("web.shop.svc.cluster.local", kind::TXT, "NoData"),
        ("db.shop.svc.cluster.local", kind::A, "10.244.0.2, 10.244.0.3"),
        ("db.shop.svc.cluster.local", kind::AAAA, "NoData"),
        ("db-1.db.shop.svc.cluster.local", kind::A, "10.244.0.3"),
        ("db-2.db.shop.svc.cluster.local", kind::A, "NoSuchName"),
        ("idle.shop.svc.cluster.local", kind::A, "NoSuchName"),
        ("_http._tcp.web.shop.svc.cluster.local", kind::SRV, "80 web.shop.svc.cluster.local."),
        (
            "_http._tcp.db.shop.svc.cluster.local",
            kind::SRV,
            "8080 db-0.db.shop.svc.cluster.local., 8080 db-1.db.shop.svc.cluster.local.",
        ),
        ("_http._udp.web.shop.svc.cluster.local", kind::SRV, "NoSuchName"),
        ("_http._tcp.web.shop.svc.cluster.local", kind::A, "10.96.0.7"),
        ("_http._tcp.db.shop.svc.cluster.local", kind::A, "10.244.0.2, 10.244.0.3"),
        ("_http._tcp.web.shop.svc.cluster.local", kind::TXT, "NoData"),
        ("db-1.db.shop.svc.cluster.local", kind::SRV, "8080 db-1.db.shop.svc.cluster.local."),
        ("empty.svc.cluster.local", kind::A, "NoData"),
        ("10-244-0-9.empty.pod.cluster.local", kind::A, "10.244.0.9"),
        ("10-244-0-9.nowhere.pod.cluster.local", kind::A, "NoSuchName"),
        ("_tcp.web.shop.svc.cluster.local", kind::A, "NoData"),
        ("away.shop.svc.cluster.local", kind::A, "Alias(example.org.)"),
        ("nobody.shop.svc.cluster.local", kind::A, "NoSuchName"),
        ("shop.svc.cluster.local", kind::A, "NoData"),
        ("nowhere.svc.cluster.local", kind::A, "NoSuchName"),
        ("10-244-0-9.shop.pod.cluster.local", kind::A, "10.244.0.9"),
        ("10-244-0-9.shop.pod.cluster.local", kind::AAAA, "NoData"),
        ("x.shop.pod.cluster.local", kind::A, "NoSuchName"),
        ("dns-version.cluster.local", kind::TXT, "1.1.0"),
        ("cluster.local", kind::NS, "ns.dns.cluster.local."),
        ("ns.dns.cluster.local", kind::A, "10.96.0.10"),
        ("cluster.local", kind::A, "NoData"),
        ("7.0.96.10.in-addr.arpa", kind::PTR, "web.shop.svc.cluster.local."),
        ("2.0.244.10.in-addr.arpa", kind::PTR, "db-0.db.shop.svc.cluster.local."),
        ("9.9.9.9.in-addr.arpa", kind::PTR, "Elsewhere"),
        ("example.org", kind::A, "Elsewhere"),
    ] {
        assert_eq!(ask(name, kind), expected, "{name} {kind}");
    }
    let reversed = format!("7.{}0.0.d.f.ip6.arpa", "0.".repeat(27));
    assert_eq!(ask(&reversed, kind::PTR), "web.shop.svc.cluster.local.");
}

#[test]
fn answers_take_turns() {
    let zone = Zone::new("cluster.local", vec![]).unwrap();
    let name = Name::from_text("db.shop.svc.cluster.local").unwrap();
    let first = |turn| match zone.resolve(&directory(), &name, kind::A, turn) {
        Outcome::Found(sections) => sections.answers[0].data.clone(),
        other => panic!("{other:?}"),
    };
    assert_ne!(first(0), first(1));
}

/// Whoever may create pods chooses how many endpoints and ports a Service has; each query must stay cheap.
#[test]
fn services_with_many_endpoints_cost_no_more_than_a_message_holds() {
    let directory = Directory::default();
    let ports: Arc<[Port]> =
        (0..50u16).map(|number| Port { name: format!("p{number}"), protocol: "tcp", number }).collect();
    let endpoint = |number: u32| Endpoint {
        label: format!("e{number}"),
        address: Ipv4Addr::from_bits(0x0af4_0000 + number).into(),
        ports: Arc::clone(&ports),
    };
    let endpoints = (0..2000).map(endpoint).collect();
    directory.set("shop", "many", Some(Service { kind: Kind::Headless, ports: ports.to_vec(), endpoints }));
    let zone = Zone::new("cluster.local", vec![]).unwrap();
    let name = Name::from_text("many.shop.svc.cluster.local").unwrap();
    let Outcome::Found(sections) = zone.resolve(&directory, &name, kind::SRV, 0) else { panic!("not found") };
    assert_eq!(sections.answers.len(), MAX_RECORDS);
    let distinct: HashSet<&Record> = sections.answers.iter().collect();
    assert_eq!(distinct.len(), MAX_RECORDS);
    assert!(sections.additional.len() <= 2000);
}

/// Everybody may ask, again and again: a query for any name takes no longer than its Service has ports and endpoints.
#[test]
fn many_ports_and_endpoints_do_not_multiply_in_a_query() {
    let directory = Directory::default();
    let ports: Arc<[Port]> =
        (0..20_000u16).map(|number| Port { name: format!("p{number}"), protocol: "tcp", number }).collect();
    let endpoint = |number: u32| Endpoint {
        label: format!("e{number}"),
        address: Ipv4Addr::from_bits(0x0af4_0000 + number).into(),
        ports: Arc::clone(&ports),
    };
    let endpoints: Vec<Endpoint> = (0..20_000).map(endpoint).collect();
    let compared = std::cell::Cell::new(0);
    let mut having = Having::new(|port: &Port| {
        compared.set(compared.get() + 1);
        port.number == 19_999
    });
    assert!(endpoints.iter().all(|endpoint| having.has(endpoint)));
    assert_eq!(compared.get(), ports.len(), "the ports that endpoints share are compared once");
    directory.set("shop", "many", Some(Service { kind: Kind::Headless, ports: Vec::new(), endpoints }));
    let zone = Zone::new("cluster.local", vec![]).unwrap();
    let resolve = |name: &str, kind: u16| {
        let name = Name::from_text(&format!("{name}many.shop.svc.cluster.local")).unwrap();
        zone.resolve(&directory, &name, kind, 0)
    };
    let started = std::time::Instant::now();
    assert_eq!(resolve("_none._tcp.", kind::SRV), Outcome::NoSuchName);
    for name in ["", "_p19999._tcp."] {
        let Outcome::Found(sections) = resolve(name, kind::SRV) else { panic!("not found") };
        assert_eq!(sections.answers.len(), MAX_RECORDS);
    }
    assert!(matches!(resolve("_p19999._tcp.", kind::A), Outcome::Found(_)));
    // Pairs of both would take a minute and more.
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
}

/// The same for the name of an address, which thousands of Services may have as an endpoint, and for changes of these.
#[test]
fn many_services_of_one_endpoint_do_not_multiply() {
    let directory = Directory::default();
    let address = IpAddr::from([10, 244, 0, 2]);
    let endpoint = Endpoint { label: "e".into(), address, ports: Arc::from([]) };
    let service = Service { kind: Kind::Headless, ports: Vec::new(), endpoints: vec![endpoint] };
    let started = std::time::Instant::now();
    for number in 0..50_000 {
        directory.set("shop", &format!("s{number}"), Some(service.clone()));
    }
    let zone = Zone::new("cluster.local", vec![]).unwrap();
    let name = Name::from_text("2.0.244.10.in-addr.arpa").unwrap();
    let Outcome::Found(sections) = zone.resolve(&directory, &name, kind::PTR, 0) else { panic!("not found") };
    assert_eq!(sections.answers.len(), MAX_RECORDS);
    for number in 0..50_000 {
        directory.set("shop", &format!("s{number}"), None);
    }
    // Pairs of Services would take a minute and more.
    assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
}

/// They would otherwise be sent to servers outside, as names of other domains are.
#[test]
fn names_of_the_cluster_that_are_no_text_are_nobody_s() {
    let zone = Zone::new("cluster.local", vec![]).unwrap();
    let name =
        Name::from_wire([b"\x02\xff\xfe\x03svc".as_slice(), Name::from_text("cluster.local").unwrap().wire()].concat());
    assert_eq!(zone.resolve(&directory(), &name, kind::A, 0), Outcome::NoSuchName);
}
