//! Claims of the default class: data outlive pods, killed nodes and drains, and nothing stays mounted.

use super::harness::{self, Cluster, IMAGE};

/// A claim for 32 MiB, of the default class.
fn claim(name: &str, source: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: {name}}}
spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 32Mi}}}}{source}}}
"#
    )
}

fn pod(name: &str, claim: &str, script: &str) -> String {
    format!(
        r#"
apiVersion: v1
kind: Pod
metadata: {{name: {name}, labels: {{app: {name}}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: {IMAGE}
    command: ["sh", "-c", {script:?}]
    volumeMounts: [{{name: data, mountPath: /data}}]
  volumes: [{{name: data, persistentVolumeClaim: {{claimName: {claim}}}}}]
"#
    )
}

/// The places below the nodes' data directories at which volumes are mounted.
fn volumes_mounted(cluster: &Cluster) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").expect("mounts");
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(4));
    let is_on_node = |point: &&str| cluster.nodes.iter().any(|node| point.starts_with(&*node.data.to_string_lossy()));
    points
        .filter(is_on_node)
        .filter(|point| point.contains("kubernetes.io/csi") || point.contains("kubernetes.io~csi"))
        .map(str::to_owned)
        .collect()
}

fn read(cluster: &Cluster, pod: &str) -> Result<String, String> {
    cluster.try_kubectl(&["exec", pod, "--", "cat", "/data/file"])
}

#[test]
fn data_of_a_claim_outlive_pods_and_a_killed_node() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = Cluster::start(1);
    cluster.apply(&claim("data", ""));
    cluster.apply(&pod("writer", "data", "echo kept > /data/file; sleep 1000"));
    cluster.wait_for("the file", || read(&cluster, "writer").as_deref() == Ok("kept"));
    assert_eq!(volumes_mounted(&cluster).len(), 2, "staged and published: {:?}", volumes_mounted(&cluster));
    let container = ["get", "pod", "writer", "-o", "jsonpath={.status.containerStatuses[0].containerID}"];
    let started = cluster.kubectl(&container);

    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    cluster.wait_for("the writer to be known again", || read(&cluster, "writer").as_deref() == Ok("kept"));
    assert_eq!(cluster.kubectl(&container), started, "the container was not disturbed");

    // The pod is deleted while its node is killed: what it had mounted is found and removed.
    cluster.kubectl(&["delete", "pod", "writer", "--wait=false"]);
    cluster.nodes[0].kill();
    cluster.nodes[0].start();
    cluster.wait_for("the pod to be gone", || cluster.try_kubectl(&["get", "pods", "-o", "name"]).as_deref() == Ok(""));
    cluster.wait_for("everything to be unmounted", || volumes_mounted(&cluster).is_empty());

    cluster.apply(&pod("reader", "data", "sleep 1000"));
    cluster.wait_for("what was written", || read(&cluster, "reader").as_deref() == Ok("kept"));
    let node = cluster.kubectl(&["get", "csinode", "node-1", "-o", "jsonpath={.spec.drivers[*].name}"]);
    assert_eq!(node, "local.knarr.io");

    cluster.kubectl(&["delete", "pod", "reader"]);
    cluster.kubectl(&["delete", "pvc", "data"]);
    cluster.wait_for("the volume to be deleted", || {
        cluster.try_kubectl(&["get", "pv", "-o", "name"]).as_deref() == Ok("")
    });
    cluster.wait_for("nothing to be mounted", || volumes_mounted(&cluster).is_empty());
}

const STATEFUL_SET: &str = r#"
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  serviceName: web
  replicas: 3
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: main
        image: IMAGE
        command: ["sh", "-c", "test -e /data/file || hostname > /data/file; sleep 1000"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 32Mi}}}
"#;

const SNAPSHOT: &str = "
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: before}
spec: {source: {persistentVolumeClaimName: data-web-0}}
";

fn each_has_its_data(cluster: &Cluster, after: &str) {
    cluster.wait_for(&format!("three pods after {after}"), || cluster.ready_pods("app=web") == 3);
    for pod in ["web-0", "web-1", "web-2"] {
        cluster.wait_for(&format!("the data of {pod} after {after}"), || read(cluster, pod).as_deref() == Ok(pod));
    }
}

#[test]
fn each_pod_of_a_stateful_set_finds_its_data_again() {
    if !harness::is_possible() {
        return;
    }
    let mut cluster = Cluster::start(2);
    cluster.apply(&STATEFUL_SET.replace("IMAGE", IMAGE));
    each_has_its_data(&cluster, "the start");
    cluster.kubectl(&["delete", "pod", "-l", "app=web"]);
    each_has_its_data(&cluster, "the pods were deleted");

    cluster.kubectl(&["scale", "statefulset", "web", "--replicas=0"]);
    cluster.wait_for("no pods", || cluster.ready_pods("app=web") == 0);
    cluster.kubectl(&["scale", "statefulset", "web", "--replicas=3"]);
    each_has_its_data(&cluster, "scaling down and up");

    cluster.kubectl(&["drain", "node-2", "--ignore-daemonsets", "--delete-emptydir-data", "--force"]);
    cluster.wait_for("volumes that bind pods to the drained node", || {
        let pending =
            ["get", "pods", "-l", "app=web", "-o", "jsonpath={.items[?(@.status.phase=='Pending')].metadata.name}"];
        cluster.try_kubectl(&pending).is_ok_and(|names| !names.is_empty())
    });
    cluster.nodes[1].kill();
    cluster.nodes[1].start();
    cluster.kubectl(&["uncordon", "node-2"]);
    each_has_its_data(&cluster, "the drain");

    cluster.apply(SNAPSHOT);
    let ready = ["get", "volumesnapshot", "before", "-o", "jsonpath={.status.readyToUse}"];
    cluster.wait_for("the snapshot", || cluster.try_kubectl(&ready).as_deref() == Ok("true"));
    cluster.kubectl(&["exec", "web-0", "--", "sh", "-c", "echo changed > /data/file"]);
    let source = ", dataSource: {apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: before}";
    cluster.apply(&claim("restored", source));
    cluster.apply(&pod("reader", "restored", "sleep 1000"));
    cluster.wait_for("the data of the snapshot", || read(&cluster, "reader").as_deref() == Ok("web-0"));
    assert_eq!(read(&cluster, "web-0").as_deref(), Ok("changed"));
}
