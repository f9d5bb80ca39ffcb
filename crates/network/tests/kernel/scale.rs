//! The cost of many Services with five times as many endpoints, as a test and as a benchmark.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use knarr_network::proxy;
use serde_json::{Value, json};

use crate::api::{Api, SERVICES, SLICES};
use crate::host::{Network, ask, outsider};

const ENDPOINTS: u32 = 5;
const CHANGES: u32 = 20;
const CONNECTIONS: usize = 1000;

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

/// Resident memory, without what the allocator retains.
fn memory() -> u64 {
    // SAFETY: it only returns unused memory.
    unsafe { libc::malloc_trim(0) };
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

pub fn many_services() {
    measure(10_000);
}

/// Starts the proxy with this many Services, changes some, and connects through one of them.
pub fn measure(count: u32) {
    let _outside = outsider();
    let network = Network::new(&["10.244.1.0/24"]);
    let (pod, at) = network.add(json!({}));
    pod.serve(8080, "pod");
    let api = Api::default();
    for index in 0..count {
        api.put(SERVICES, service(index));
        let addresses: Vec<IpAddr> = (0..ENDPOINTS)
            .map(|endpoint| IpAddr::V4(Ipv4Addr::from_bits(0x0af5_0000 + index * ENDPOINTS + endpoint)))
            .collect();
        api.put(SLICES, slice(index, &addresses));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let before = memory();
    let started = Instant::now();
    start(&runtime, &api);
    println!("  {count} services with {} endpoints: first sync {:?}", count * ENDPOINTS, started.elapsed());
    println!("  memory of the proxy with its informers: {} KiB", memory().saturating_sub(before));
    // Spread over all of them, so that none is near the last one.
    let changed: Vec<u32> = (0..CHANGES.min(count)).map(|change| change * count / CHANGES.min(count)).collect();
    let change = median(changed.iter().map(|index| until_in_force(&api, *index, &at)));
    println!("  one endpoint's change in force after {change:?}, the middle one of {}", changed.len());
    forget_attempts();
    for index in &changed {
        assert_eq!(ask((IpAddr::V4(service_address(*index)), 80)).unwrap().0, "pod");
    }
    let (mut through, mut straight) = (Vec::new(), Vec::new());
    // Alternating, so that both see the same load.
    for turn in 0..CONNECTIONS {
        through.push(connect(service_address(changed[turn % changed.len()]), 80));
        straight.push(connect(at[0], 8080));
    }
    println!("  a connection by one of {count} services: {:?}", median(through));
    println!("  a connection straight to the pod: {:?}", median(straight));
}

/// Runs the proxy until its rules are in force.
fn start(runtime: &tokio::runtime::Runtime, api: &Api) {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let shared = api.clone();
    runtime.spawn(async move {
        let settings = proxy::Settings {
            node_name: "here".into(),
            cluster_cidrs: vec!["10.244.0.0/16".into()],
            node_port_addresses: vec![],
            balancer_pool: None,
            status: proxy::StatusSettings::default(),
        };
        proxy::run(shared.informers(), settings, move || {
            let _ = sender.send(());
        })
        .await;
    });
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(120), receiver).await }).unwrap().unwrap();
}

fn until_in_force(api: &Api, index: u32, at: &[IpAddr]) -> Duration {
    let address = (service_address(index), 80).into();
    let started = Instant::now();
    api.put(SLICES, slice(index, at));
    // Packets to the previous endpoints go nowhere, so the first response is due to the change.
    while std::net::TcpStream::connect_timeout(&address, Duration::from_millis(5)).is_err() {
        assert!(started.elapsed() < Duration::from_secs(20), "the change never comes");
    }
    started.elapsed()
}

/// The kernel sends a connection from the port of an unanswered attempt to the attempt's endpoint.
fn forget_attempts() {
    let flush = std::process::Command::new("conntrack").arg("--flush").output().expect("conntrack runs");
    assert!(flush.status.success(), "{}", String::from_utf8_lossy(&flush.stderr));
}

fn connect(address: impl Into<IpAddr>, port: u16) -> Duration {
    let started = Instant::now();
    std::net::TcpStream::connect((address.into(), port)).unwrap();
    started.elapsed()
}

/// The median: now and then the kernel waits a second for a listener with a full backlog.
fn median(took: impl IntoIterator<Item = Duration>) -> Duration {
    let mut took: Vec<Duration> = took.into_iter().collect();
    took.sort_unstable();
    took[took.len() / 2]
}
