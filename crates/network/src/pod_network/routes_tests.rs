//! Tests of the routes to other nodes.

use super::*;

fn place(name: &str, address: &str, pods: &[&str]) -> NodeNetwork {
    NodeNetwork {
        name: name.into(),
        addresses: vec![address.parse().unwrap()],
        pods: pods.iter().map(|text| text.parse().unwrap()).collect(),
        created: None,
    }
}

#[test]
fn service_networks_without_a_route_get_one() {
    let own = place("one", "192.168.1.1", &["10.244.0.0/24"]);
    let route =
        |to: &str| Route { to: to.parse().unwrap(), gateway: None, link: Some(2), on_link: false, source: None };
    let services = ["10.96.0.0/12", "fd96::/108"].map(|text| text.parse().unwrap()).into();
    for (others, expected) in [
        (vec!["192.168.1.0/24"], 1),
        (vec!["192.168.1.0/24", "0.0.0.0/0"], 0),
        (vec!["10.0.0.0/8"], 0),
        (vec!["10.96.0.0/24", "::/0"], 1),
    ] {
        let routes: Vec<Route> = others.iter().map(|to| route(to)).collect();
        let found = unreachable(&services, &routes, &own);
        // No address of the other family, no route for it.
        assert_eq!(found.len(), expected, "{others:?}");
        assert!(found.iter().all(|(_, source)| *source == own.addresses[0]));
    }
}

#[test]
fn nodes_cannot_claim_networks_of_others() {
    let settings = Settings {
        node_name: "one".into(),
        cluster_cidrs: vec!["10.0.0.0/8".parse().unwrap()],
        bridge: "knarr0".into(),
    };
    let services = ["10.96.0.0/12".parse().unwrap()].into();
    let own = place("one", "10.0.0.1", &["10.244.0.0/24"]);
    let old = place("two", "192.168.1.2", &["10.244.1.0/24"]);
    for (claimed, is_accepted) in [
        ("10.244.2.0/24", true),
        ("fd00:2::/64", true),
        ("0.0.0.0/0", false),
        ("8.8.8.0/24", false),
        ("10.0.0.0/8", false),
        ("10.244.0.0/24", false),
        ("10.244.0.128/25", false),
        ("10.244.0.0/16", false),
        ("10.244.1.0/24", false),
        ("10.96.0.0/24", false),
        ("10.0.0.0/24", false),
    ] {
        let mut new = place("a-new-one", "192.168.1.3", &[claimed]);
        new.created = Some(Timestamp::from_second(1_000_000_000).unwrap());
        let (places, refused) = accept_networks(vec![new, old.clone(), own.clone()], &settings, &services);
        let networks = |name: &str| places.iter().find(|place| place.name == name).unwrap().pods.len();
        assert_eq!((networks("one"), networks("two")), (1, 1), "{claimed} takes nothing away");
        assert_eq!(networks("a-new-one") == 1, is_accepted, "{claimed}");
        assert_eq!(refused.len(), usize::from(!is_accepted), "{claimed}: {refused:?}");
    }
}

#[test]
fn an_address_that_a_node_claims_cuts_nobody_off() {
    let settings = |networks: &[&str]| Settings {
        node_name: "one".into(),
        cluster_cidrs: networks.iter().map(|text| text.parse().unwrap()).collect(),
        bridge: "knarr0".into(),
    };
    let own = place("one", "192.168.1.1", &["10.244.0.0/24"]);
    let mut victim = place("victim", "192.168.1.2", &["10.244.1.0/24"]);
    victim.created = Some(Timestamp::from_second(1_000_000_000).unwrap());
    for (created, networks) in
        [(900_000_000, &["10.244.0.0/16"][..]), (1_100_000_000, &["10.244.0.0/16"]), (1_100_000_000, &[])]
    {
        let mut hostile = place("hostile", "10.244.1.5", &["10.244.2.0/24"]);
        hostile.created = Some(Timestamp::from_second(created).unwrap());
        let places = vec![hostile, victim.clone(), own.clone()];
        let (places, refused) = accept_networks(places, &settings(networks), &BTreeSet::new());
        assert!(refused.is_empty() && places.iter().all(|place| place.pods.len() == 1), "{created}: {refused:?}");
    }
}

#[test]
fn neighbours_are_reached_directly_and_others_by_tunnel() {
    let own = place("one", "192.168.1.1", &["10.244.0.0/24", "fd00::/64"]);
    let near = place("two", "192.168.1.2", &["10.244.1.0/24", "fd00:1::/64"]);
    let far = place("three", "172.16.0.2", &["10.244.2.0/24"]);
    let other_family = place("four", "fd99::4", &["10.244.3.0/24"]);
    let networks = ["192.168.1.0/24".parse().unwrap()];
    // These are at addresses of this node, by their own account.
    let liars = ["192.168.1.1", "192.168.1.9"].map(|address| place("liar", address, &["10.244.4.0/24"]));
    let local = ["192.168.1.1", "192.168.1.9"].map(|text| text.parse().unwrap()).into();
    let places = [&[own.clone(), near, far, other_family][..], &liars].concat();
    let routes = plan(&places, &own, &local, &networks);
    let node = "192.168.1.2".parse().unwrap();
    let mac = [0x0a, 0x58, 10, 244, 1, 0];
    assert_eq!(
        routes,
        [
            PeerRoute::Direct { to: "10.244.1.0/24".parse().unwrap(), gateway: node },
            PeerRoute::Tunnel { to: "fd00:1::/64".parse().unwrap(), inner: "fd00:1::".parse().unwrap(), mac, node },
            PeerRoute::Tunnel {
                to: "10.244.2.0/24".parse().unwrap(),
                inner: "10.244.2.0".parse().unwrap(),
                mac: [0x0a, 0x58, 10, 244, 2, 0],
                node: "172.16.0.2".parse().unwrap(),
            },
        ]
    );
}
