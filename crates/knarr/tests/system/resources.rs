//! Limits and usage of pods, on both cgroup versions: limits in the kernel, in-place changes, OOM kills, evictions by disk
//! usage, statistics, and exclusive CPUs. The same tests run in a virtual machine with cgroup v2 (`make test-cgroup2`).

use std::path::{Path, PathBuf};

use super::harness::{self, Cluster, DevicePlugin, IMAGE, Options, RESOURCE};

fn pod(name: &str, command: &str, resources: &str, more: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 0
  restartPolicy: Never
  containers:
  - name: main
    image: {IMAGE}
    command: ["/bin/sh", "-c", "{command}"]
    resources: {resources}
{more}
"#
    )
}

/// A value of the container's cgroup, in either version.
struct Kernel {
    path: String,
}

impl Kernel {
    fn of(cluster: &Cluster, pod: &str, class: &str) -> Self {
        let field = |path: &str| cluster.kubectl(&["get", "pod", pod, "-o", &format!("jsonpath={path}")]);
        let id = field("{.status.containerStatuses[0].containerID}");
        let id = id.rsplit('/').next().expect("an id").to_owned();
        let root = &cluster.nodes[0].cgroup_root;
        Kernel { path: format!("{root}/kubepods{class}/pod{}/{id}", field("{.metadata.uid}")) }
    }

    /// The pod's own cgroup.
    fn above(&self) -> Self {
        Kernel { path: self.path.rsplit_once('/').expect("a path").0.to_owned() }
    }

    fn is_unified() -> bool {
        Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
    }

    fn read(&self, controller: &str, old: &str, new: &str) -> String {
        let mount = PathBuf::from("/sys/fs/cgroup");
        let file = match Self::is_unified() {
            true => mount.join(self.path.trim_start_matches('/')).join(new),
            false => mount.join(controller).join(self.path.trim_start_matches('/')).join(old),
        };
        std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())).trim().to_owned()
    }

    fn memory_limit(&self) -> String {
        self.read("memory", "memory.limit_in_bytes", "memory.max")
    }

    /// Microseconds per hundred thousand.
    fn cpu_quota(&self) -> String {
        self.read("cpu", "cpu.cfs_quota_us", "cpu.max").split_whitespace().next().unwrap_or_default().to_owned()
    }
}

fn status(cluster: &Cluster, pod: &str, path: &str) -> String {
    cluster.try_kubectl(&["get", "pod", pod, "-o", &format!("jsonpath={{.status.{path}}}")]).unwrap_or_default()
}

#[test]
fn resources_are_enforced_and_reported() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = Cluster::with(Options { nodes: 1, server: vec!["--pod-max-pids", "64"], ..Options::default() });
    limits_reach_the_kernel_and_change_in_place(&cluster);
    pod_level_limits_can_change(&cluster);
    containers_over_their_memory_limit_are_killed(&cluster);
    pods_over_their_storage_limit_are_evicted(&cluster);
    usage_is_reported(&cluster);
    pods_are_evicted_when_memory_stays_low(&mut cluster);
}

fn limits_reach_the_kernel_and_change_in_place(cluster: &Cluster) {
    let resources = "{limits: {cpu: 200m, memory: 64Mi}, requests: {cpu: 100m, memory: 32Mi}}";
    cluster.apply(&pod("limited", "while true; do :; done", resources, ""));
    cluster.wait_for("the pod to run", || cluster.ready_pods("app=limited") == 1);
    let kernel = Kernel::of(cluster, "limited", "/burstable");
    assert_eq!((kernel.memory_limit().as_str(), kernel.cpu_quota().as_str()), ("67108864", "20000"));
    assert_eq!(kernel.above().read("pids", "pids.max", "pids.max"), "64");
    if Kernel::is_unified() {
        // All processes of a container are killed together, and weigh what it requests.
        assert_eq!(kernel.read("", "", "memory.oom.group"), "1");
        assert_eq!(kernel.above().read("", "", "cpu.weight"), "4");
    }

    let larger = r#"{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"300m","memory":"96Mi"}}}]}}"#;
    cluster.kubectl(&["patch", "pod", "limited", "--subresource", "resize", "-p", larger]);
    cluster.wait_for("the new limits", || {
        (kernel.memory_limit().as_str(), kernel.cpu_quota().as_str()) == ("100663296", "30000")
    });
    assert_eq!(status(cluster, "limited", "containerStatuses[0].restartCount"), "0");
}

fn pod_level_limits_can_change(cluster: &Cluster) {
    let whole = "  resources: {limits: {cpu: 200m, memory: 64Mi}, requests: {cpu: 100m, memory: 32Mi}}";
    cluster.apply(&pod("whole", "sleep 1000", "{}", whole));
    cluster.wait_for("the pod to run", || cluster.ready_pods("app=whole") == 1);
    let kernel = Kernel::of(cluster, "whole", "/burstable").above();
    assert_eq!((kernel.memory_limit().as_str(), kernel.cpu_quota().as_str()), ("67108864", "20000"));
    let larger = r#"{"spec":{"resources":{"limits":{"cpu":"300m","memory":"96Mi"}}}}"#;
    cluster.kubectl(&["patch", "pod", "whole", "--subresource", "resize", "-p", larger]);
    cluster.wait_for("the new limits", || {
        (kernel.memory_limit().as_str(), kernel.cpu_quota().as_str()) == ("100663296", "30000")
    });
    cluster.wait_for("the status", || status(cluster, "whole", "resources.limits.memory") == "96Mi");
    assert_eq!(status(cluster, "whole", "containerStatuses[0].restartCount"), "0");
}

/// Restarts the node with a threshold that every host is below, while its pods run.
fn pods_are_evicted_when_memory_stays_low(cluster: &mut Cluster) {
    let node = &mut cluster.nodes[0];
    node.stop();
    node.add_flags(&["--eviction-soft", "memory.available<99%", "--eviction-soft-grace-period", "memory.available=5s"]);
    node.add_flags(&["--eviction-max-pod-grace-period", "3"]);
    node.start();
    cluster.wait_for("the node to say so", || {
        let condition = "jsonpath={.status.conditions[?(@.type==\"MemoryPressure\")].status}";
        cluster.try_kubectl(&["get", "node", "node-1", "-o", condition]).is_ok_and(|status| status == "True")
    });
    assert_eq!(status(cluster, "limited", "containerStatuses[0].restartCount"), "0");
    cluster.wait_for("the evictions", || status(cluster, "limited", "reason") == "Evicted");
    let message = status(cluster, "limited", "message");
    assert!(message.starts_with("The node was low on resource: memory. Threshold quantity: "), "{message}");
}

fn containers_over_their_memory_limit_are_killed(cluster: &Cluster) {
    let volume = "    volumeMounts: [{name: memory, mountPath: /memory}]\n  volumes: [{name: memory, emptyDir: {medium: Memory}}]";
    let resources = "{limits: {memory: 24Mi}}";
    // With cgroup v1, containerd misses some kills on a busy host: the cgroup is gone before its shim looks at it.
    let is_reported = |attempt: u32| {
        let name = format!("hungry-{attempt}");
        cluster.apply(&pod(&name, "exec cat /dev/zero > /memory/file", resources, volume));
        cluster.wait_for("its end", || status(cluster, &name, "phase") == "Failed");
        let terminated =
            |field: &str| status(cluster, &name, &format!("containerStatuses[0].state.terminated.{field}"));
        assert_eq!(terminated("exitCode"), "137");
        terminated("reason") == "OOMKilled"
    };
    assert!((0..20).any(is_reported), "no kill for memory is reported as one");
}

fn pods_over_their_storage_limit_are_evicted(cluster: &Cluster) {
    let volume =
        "    volumeMounts: [{name: disk, mountPath: /disk}]\n  volumes: [{name: disk, emptyDir: {sizeLimit: 1Mi}}]";
    let fill = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); cat /bin/busybox >> /disk/file; done; sleep 1000";
    cluster.apply(&pod("full", fill, "{}", volume));
    cluster.wait_for("the eviction", || status(cluster, "full", "reason") == "Evicted");
    assert_eq!(status(cluster, "full", "message"), "Usage of EmptyDir volume \"disk\" exceeds the limit \"1Mi\".");
}

fn usage_is_reported(cluster: &Cluster) {
    let page = |path: &str| cluster.kubectl(&["get", "--raw", &format!("/api/v1/nodes/node-1/proxy{path}")]);
    let summary: serde_json::Value = serde_json::from_str(&page("/stats/summary")).expect("JSON");
    let pods = summary["pods"].as_array().expect("pods");
    let limited = pods.iter().find(|pod| pod["podRef"]["name"] == "limited").expect("the pod");
    for stats in [limited, &limited["containers"][0]] {
        assert!(stats["cpu"]["usageCoreNanoSeconds"].as_u64().is_some_and(|used| used > 1_000_000), "{stats}");
        assert!(stats["memory"]["workingSetBytes"].as_u64().is_some_and(|used| used > 10_000), "{stats}");
    }
    if Kernel::is_unified() {
        for stats in [&summary["node"], limited, &limited["containers"][0]] {
            for resource in ["cpu", "memory", "io"] {
                assert!(stats[resource]["psi"]["some"]["total"].is_u64(), "{resource}: {stats}");
            }
        }
        assert!(limited["cpu"]["psi"]["some"]["total"].as_u64().is_some_and(|waited| waited > 0), "{limited}");
    }
    assert!(summary["node"]["memory"]["workingSetBytes"].as_u64().is_some_and(|used| used > 1 << 20), "{summary}");
    let cadvisor = page("/metrics/cadvisor");
    let of_unified = Kernel::is_unified().then_some("container_pressure_cpu_waiting_seconds_total");
    let families = [
        "container_cpu_cfs_throttled_periods_total",
        "container_memory_working_set_bytes",
        "container_spec_cpu_quota",
        "container_file_descriptors",
    ];
    for family in families.into_iter().chain(of_unified) {
        let sample = cadvisor.lines().any(|line| line.starts_with(family) && line.contains("pod=\"limited\""));
        assert!(sample, "{family} is missing");
    }
    let mut top = String::new();
    cluster.wait_for("what the pod uses", || {
        top = cluster.try_kubectl(&["top", "pod", "limited", "--containers", "--no-headers"]).unwrap_or_default();
        top.split_whitespace()
            .nth(2)
            .is_some_and(|cpu| cpu.trim_end_matches('m').parse().is_ok_and(|milli: u32| milli > 50))
    });
    assert!(top.starts_with("limited") && top.contains("main"), "{top}");
    cluster.wait_for("what the node uses", || {
        cluster.try_kubectl(&["top", "node", "--no-headers"]).is_ok_and(|top| top.starts_with("node-1"))
    });
    let service = cluster.kubectl(&[
        "get",
        "apiservice",
        "v1beta1.metrics.k8s.io",
        "-o",
        "jsonpath={.status.conditions[?(@.type==\"Available\")].status}",
    ]);
    assert_eq!(service, "True");
}

/// Restarts the node while a pod has a device.
fn devices_are_allocated_and_watched(cluster: &mut Cluster) {
    let directory = cluster.nodes[0].data.join("kubelet/device-plugins");
    cluster.wait_for("the node to listen for plugins", || DevicePlugin::is_awaited(&directory));
    let plugin = DevicePlugin::serve(&directory);
    cluster.wait_for("the plugin to be known", || plugin.register());
    let allocatable = |cluster: &Cluster| {
        let path = format!("jsonpath={{.status.allocatable.{}}}", RESOURCE.replace('.', "\\."));
        cluster.try_kubectl(&["get", "node", "node-1", "-o", &path]).unwrap_or_default()
    };
    cluster.wait_for("the devices", || allocatable(cluster) == "2");
    let resources = format!("{{limits: {{{RESOURCE}: 2}}}}");
    let script = "echo $DONGLES; test -c /dev/dongle && echo there; exec sleep 1000";
    cluster.apply(&pod("device", script, &resources, ""));
    cluster.wait_for("the pod to run", || cluster.ready_pods("app=device") == 1);
    cluster.wait_for("its word", || cluster.try_kubectl(&["logs", "device"]).as_deref() == Ok("a,b\nthere"));
    let health = "containerStatuses[0].allocatedResourcesStatus[0].resources[*].health";
    let is_well = |cluster: &Cluster, expected: &str| status(cluster, "device", health) == expected;
    cluster.wait_for("both to be well", || is_well(cluster, "Healthy Healthy"));
    plugin.set_well(false);
    cluster.wait_for("one to be ill", || allocatable(cluster) == "1" && is_well(cluster, "Healthy Unhealthy"));

    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    drop(plugin);
    cluster.wait_for("the node to listen again", || DevicePlugin::is_awaited(&directory));
    let plugin = DevicePlugin::serve(&directory);
    cluster.wait_for("the plugin to be known again", || plugin.register());
    cluster.wait_for("all to be well", || allocatable(cluster) == "2" && is_well(cluster, "Healthy Healthy"));
    assert_eq!(status(cluster, "device", "containerStatuses[0].restartCount"), "0");
    cluster.apply(&pod("second", "true", &resources.replace(": 2", ": 1"), ""));
    let reason = "conditions[?(@.type==\"PodScheduled\")].message";
    cluster.wait_for("the second pod to wait for a free device", || {
        status(cluster, "second", reason).contains(&format!("Insufficient {RESOURCE}"))
    });
}

#[test]
fn whole_cpus_and_devices_are_allocated() {
    if !harness::is_possible() {
        return;
    }
    if !std::thread::available_parallelism().is_ok_and(|count| count.get() >= 2) {
        harness::skip("whole CPUs are assigned only on a host with several");
        return;
    }
    let flags = vec!["--cpu-manager-policy", "static", "--system-reserved", "cpu=500m"];
    let mut cluster = Cluster::with(Options { nodes: 1, server: flags, ..Options::default() });
    devices_are_allocated_and_watched(&mut cluster);
    cluster.apply(&pod("shared", "sleep 1000", "{}", ""));
    cluster.wait_for("the first pod to run", || cluster.ready_pods("app=shared") == 1);
    let cpus = |pod: &str| {
        let table = cluster.kubectl(&["exec", pod, "--", "cat", "/proc/self/status"]);
        let line = table.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.expect("the kernel reports it").trim().to_owned()
    };
    let all = cpus("shared");
    let one = "{limits: {cpu: 1, memory: 32Mi}, requests: {cpu: 1, memory: 32Mi}}";
    cluster.apply(&pod("own", "sleep 1000", one, ""));
    cluster.wait_for("the second pod to run", || cluster.ready_pods("app=own") == 1);
    let own = cpus("own");
    assert!(own.parse::<u32>().is_ok(), "one CPU: {own}");
    cluster.wait_for("the first pod to leave that CPU", || {
        let shared = cpus("shared");
        shared != all && !shared.split(',').any(|part| part == own)
    });
    cluster.kubectl(&["delete", "pod", "own"]);
    cluster.wait_for("the first pod to have all CPUs again", || cpus("shared") == all);
}
