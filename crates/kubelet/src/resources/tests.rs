use super::topology::tests::two_sockets;
use super::*;
use serde_json::json;

fn pod(uid: &str, init: Option<&str>, cpus: &[&str]) -> Pod {
    let container = |name: String, cpu: &str| {
        let amounts = json!({ "cpu": cpu, "memory": "100" });
        json!({ "name": name, "resources": { "limits": amounts, "requests": amounts } })
    };
    let main: Vec<_> = cpus.iter().enumerate().map(|(at, cpu)| container(format!("c{at}"), cpu)).collect();
    let init: Vec<_> = init.iter().map(|cpu| container("init".into(), cpu)).collect();
    serde_json::from_value(json!({ "metadata": { "uid": uid },
        "spec": { "containers": main, "initContainers": init } }))
    .expect("a pod")
}

fn resources(directory: &Path, topology: TopologyPolicy) -> Resources {
    let policies =
        Policies { static_cpus: true, static_memory: true, topology, reserved_cpu_milli: 1000, ..Policies::default() };
    Resources::with_layout(directory, policies, two_sockets(), Arc::default()).expect("a checkpoint")
}

#[tokio::test]
async fn what_is_not_stored_or_not_readable_is_not_given() {
    let directory = tempfile::tempdir().expect("a directory");
    let resources = resources(directory.path(), TopologyPolicy::None);
    // As on a full disk.
    let obstacle = directory.path().join("resource_grants.new");
    std::fs::create_dir(&obstacle).expect("a directory");
    let refused = resources.allocate(&pod("a", None, &["2"])).await.expect_err("not stored");
    assert_eq!(refused.reason, "UnexpectedAdmissionError");
    assert_eq!(resources.shared_cpus().to_string(), "0-7", "nothing is held for it");
    std::fs::remove_dir(&obstacle).expect("removed");
    resources.allocate(&pod("a", None, &["2"])).await.expect("room");
    std::fs::write(directory.path().join("resource_grants.json"), "{").expect("written");
    assert!(Resources::open(directory.path(), Policies::default(), 0, Arc::default()).is_err());
}

#[tokio::test]
async fn cpus_are_given_reused_and_freed() {
    let directory = tempfile::tempdir().expect("a directory");
    let resources = resources(directory.path(), TopologyPolicy::None);
    assert_eq!(resources.shared_cpus().to_string(), "0-7");
    resources.allocate(&pod("a", Some("2"), &["2", "1500m"])).await.expect("room");
    let own = |container: &str| resources.cpus_of("a", container);
    assert_eq!(own("init"), own("c0"), "what the init container had is used again");
    assert_eq!(resources.shared_cpus().len(), 6);
    assert_eq!(own("c1"), resources.shared_cpus().to_string());
    let known = self::resources(directory.path(), TopologyPolicy::None);
    assert_eq!(known.cpus_of("a", "c0"), own("c0"), "a restarted node knows it");
    let refused = resources.allocate(&pod("b", None, &["6"])).await.expect_err("too many");
    assert_eq!(
        refused.message,
        "Allocate failed due to not enough cpus available to satisfy request: requested=6, available=5, which is unexpected"
    );
    resources.release("a");
    assert_eq!(resources.shared_cpus().to_string(), "0-7");
}

#[tokio::test]
async fn resources_lie_together_or_the_pod_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let resources = resources(directory.path(), TopologyPolicy::SingleNumaNode);
    resources.allocate(&pod("a", None, &["4"])).await.expect("room");
    assert_eq!(resources.cpus_of("a", "c0"), "2-3,6-7", "the reserved CPU is on the other node");
    assert_eq!(resources.grant("a", "c0").memory.expect("memory").nodes.to_string(), "1");
    let refused = resources.allocate(&pod("b", None, &["4"])).await.expect_err("three are left on one node");
    assert_eq!(refused.reason, "TopologyAffinityError");
}

/// As on hosts whose GPUs have memory of their own.
#[tokio::test]
async fn many_nodes_do_not_fill_memory() {
    let all = |topology| Policies {
        static_cpus: true,
        static_memory: true,
        topology,
        reserved_cpu_milli: 1000,
        ..Policies::default()
    };
    for policies in [Policies::default(), all(TopologyPolicy::BestEffort), all(TopologyPolicy::SingleNumaNode)] {
        let directory = tempfile::tempdir().expect("a directory");
        let mut layout = two_sockets();
        layout.memory.extend((2..60).map(|node| (node, BTreeMap::from([("memory".to_owned(), 1 << 30)]))));
        let resources =
            Resources::with_layout(directory.path(), policies, layout, Arc::default()).expect("a checkpoint");
        let device = devices::Device { healthy: true, nodes: NumberSet::from_iter([59]) };
        resources.devices.set_devices("example.com/gpu", BTreeMap::from([("one".to_owned(), device)]));
        let mut pod = pod("a", None, &["2"]);
        let amount = k8s_openapi::apimachinery::pkg::api::resource::Quantity("1".to_owned());
        let spec = pod.spec.as_mut().expect("a spec");
        let limits = spec.containers[0].resources.as_mut().and_then(|own| own.limits.as_mut()).expect("limits");
        limits.insert("example.com/gpu".to_owned(), amount);
        let refused = resources.allocate(&pod).await.expect_err("no plugin");
        assert!(refused.message.contains("cannot allocate unregistered device"), "{}", refused.message);
    }
}

#[test]
fn reserved_memory_is_read() {
    let read = parse_reserved_memory("0:memory=1Ki,hugepages-2Mi=2Mi;1:memory=5").expect("amounts");
    assert_eq!(read[&0]["hugepages-2Mi"], 2 << 20);
    assert_eq!(read[&1]["memory"], 5);
    assert_eq!(parse_reserved_memory("memory=1"), None);
}
