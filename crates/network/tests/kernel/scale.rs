//! Ten thousand services with fifty thousand endpoints.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use knarr_network::proxy;
use serde_json::{Value, json};

use crate::api::{Api, SERVICES, SLICES};
use crate::machine::{Network, ask, outsider};

const SERVICES_COUNT: u32 = 10_000;
const ENDPOINTS: u32 = 5;

fn service_address(index: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + index + 1)
}

fn service(index: u32) -> Value {
    let address = service_address(index);
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": format!("s{index}"), "namespace": "n"},
        "spec": {"clusterIP": address, "clusterIPs": [address], "type": "ClusterIP", "ports": [{"port": 80, "protocol": "TCP"}]}})
}

fn slice(index: u32, addresses: &[IpAddr]) -> Value {
    let endpoints: Vec<Value> = addresses
        .iter()
        .map(|address| json!({"addresses": [address], "conditions": {"ready": true}, "nodeName": "there"}))
        .collect();
    json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": format!("s{index}-x"), "namespace": "n", "labels": {"kubernetes.io/service-name": format!("s{index}")}},
        "endpoints": endpoints, "ports": [{"port": 8080, "protocol": "TCP"}]})
}

fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or_default().to_owned()
}

pub fn many_services() {
    let _outside = outsider();
    let network = Network::new(&["10.244.1.0/24"]);
    let (pod, at) = network.add(json!({}));
    pod.serve(8080, "pod");
    let api = Api::default();
    for index in 0..SERVICES_COUNT {
        api.put(SERVICES, service(index));
        let addresses: Vec<IpAddr> = (0..ENDPOINTS)
            .map(|endpoint| IpAddr::V4(Ipv4Addr::from_bits(0x0af5_0000 + index * ENDPOINTS + endpoint)))
            .collect();
        api.put(SLICES, slice(index, &addresses));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!("  before: {}", memory());
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let told = api.clone();
    let started = Instant::now();
    runtime.spawn(async move {
        let settings = proxy::Settings {
            node_name: "here".into(),
            cluster_cidrs: vec!["10.244.0.0/16".into()],
            node_port_addresses: vec![],
            status: proxy::StatusSettings::default(),
        };
        proxy::run(told.informers(), settings, move || {
            let _ = sender.send(());
        })
        .await;
    });
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(120), receiver).await }).unwrap().unwrap();
    println!(
        "  {SERVICES_COUNT} services with {} endpoints: first sync {:?}",
        SERVICES_COUNT * ENDPOINTS,
        started.elapsed()
    );
    println!("  after: {}", memory());
    for index in [17, 5000, 9999] {
        let started = Instant::now();
        api.put(SLICES, slice(index, &at));
        // Packets to the endpoints of before go nowhere, so the first answer is the change's.
        while std::net::TcpStream::connect_timeout(&(service_address(index), 80).into(), Duration::from_millis(20))
            .is_err()
        {
            assert!(started.elapsed() < Duration::from_secs(20), "the change never comes");
        }
        println!("  one endpoint's change in force after {:?}", started.elapsed());
        assert_eq!(ask((IpAddr::V4(service_address(index)), 80)).unwrap().0, "pod");
    }
    let through = median_connect(service_address(9999), 80);
    println!("  a connection by a service among {SERVICES_COUNT}: {through:?}");
    println!("  a connection straight to the pod: {:?}", median_connect(at[0], 8080));
}

/// The middle one of many: now and then the kernel waits a second for a listener that has too many to accept.
fn median_connect(address: impl Into<IpAddr>, port: u16) -> Duration {
    let address = address.into();
    let connect = |_| {
        let started = Instant::now();
        std::net::TcpStream::connect((address, port)).unwrap();
        started.elapsed()
    };
    let mut took: Vec<Duration> = (0..500).map(connect).collect();
    took.sort_unstable();
    took[took.len() / 2]
}
