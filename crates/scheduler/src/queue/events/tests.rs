use std::sync::Arc;

use super::*;
use serde_json::{Value, json};

fn pod(spec: Value) -> PodState {
    let labels = json!({"app": "x"});
    let mut object = json!({"metadata": {"name": "p", "namespace": "n", "labels": labels}, "spec": {"containers": []}});
    object["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    PodState::new(Arc::new(serde_json::from_value(object).unwrap()))
}

fn node(labels: Value, spec: Value, cpu: &str) -> NodeState {
    let allocatable = json!({"cpu": cpu, "memory": "1Gi", "pods": "10"});
    let object =
        json!({"metadata": {"name": "n", "labels": labels}, "spec": spec, "status": {"allocatable": allocatable}});
    NodeState::new(Arc::new(serde_json::from_value(object).unwrap()))
}

fn container(cpu: &str, port: i32) -> Value {
    let resources = json!({"requests": {"cpu": cpu}});
    json!({"containers": [{"name": "c", "resources": resources, "ports": [{"containerPort": 1, "hostPort": port}]}]})
}

#[test]
fn only_helpful_events_requeue_pods() {
    let (plain, tainted) = (json!({}), json!({"taints": [{"key": "k", "effect": "NoSchedule"}]}));
    let empty = node(json!({}), plain.clone(), "1");
    let ssd = node(json!({"disk": "ssd", "zone": "a"}), plain.clone(), "4");
    let tainted_node = node(json!({"zone": "b"}), tainted, "4");
    let cordoned = node(json!({}), json!({"unschedulable": true}), "4");
    let term = |labels: Value| json!([{"topologyKey": "zone", "labelSelector": {"matchLabels": labels}}]);
    let required = |kind: &str, labels: Value| json!({"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": term(labels)}}});
    let selects = pod(json!({"nodeSelector": {"disk": "ssd"}}));
    let (two, port) = (pod(container("2", 80)), pod(container("0", 81)));
    let near = pod(required("podAffinity", json!({"app": "x"})));
    let apart = pod(required("podAntiAffinity", json!({"app": "x"})));
    let near_none = pod(required("podAffinity", json!({"app": "none"})));
    let any = pod(plain);
    let namespaces = Namespaces::default();
    let gpus = ["example.com/gpu".to_owned()];
    let gpu = pod(json!({"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]}));
    let declares =
        json!({"metadata": {"name": "n"}, "status": {"declaredFeatures": ["RestartAllContainersOnContainerExits"]}});
    let declares = NodeState::new(Arc::new(serde_json::from_value(declares).unwrap()));
    for (at, (plugin, waiting, on_event, wakes)) in [
        ("DynamicResources", &any, ClusterEvent::ResourceSlice { is_new: true }, true),
        ("DynamicResources", &any, ClusterEvent::ResourceClaim { is_new: false }, true),
        ("DynamicResources", &any, ClusterEvent::DeviceClass { is_new: true, resources: &[] }, true),
        ("DynamicResources", &any, ClusterEvent::PodRemoved(&two), false),
        ("DynamicResources", &any, ClusterEvent::NodeChanged { old: &empty, new: &ssd }, true),
        ("NodeResourcesFit", &gpu, ClusterEvent::DeviceClass { is_new: true, resources: &gpus }, true),
        ("NodeResourcesFit", &two, ClusterEvent::DeviceClass { is_new: true, resources: &gpus }, false),
        ("NodeResourcesFit", &two, ClusterEvent::ResourceSlice { is_new: true }, false),
        ("NodeDeclaredFeatures", &any, ClusterEvent::NodeAdded(&empty), true),
        ("NodeDeclaredFeatures", &any, ClusterEvent::NodeChanged { old: &empty, new: &ssd }, false),
        ("NodeDeclaredFeatures", &any, ClusterEvent::NodeChanged { old: &empty, new: &declares }, true),
        ("NodeDeclaredFeatures", &any, ClusterEvent::ResourceSlice { is_new: true }, false),
        ("NodeAffinity", &selects, ClusterEvent::NodeAdded(&empty), false),
        ("NodeAffinity", &selects, ClusterEvent::NodeAdded(&ssd), true),
        ("NodeAffinity", &selects, ClusterEvent::NodeChanged { old: &empty, new: &ssd }, true),
        ("NodeAffinity", &selects, ClusterEvent::NodeChanged { old: &ssd, new: &ssd }, false),
        ("TaintToleration", &any, ClusterEvent::NodeAdded(&tainted_node), false),
        ("TaintToleration", &any, ClusterEvent::NodeChanged { old: &tainted_node, new: &ssd }, true),
        ("NodeUnschedulable", &any, ClusterEvent::NodeChanged { old: &cordoned, new: &ssd }, true),
        ("NodeUnschedulable", &any, ClusterEvent::NodeAdded(&cordoned), false),
        ("NodeResourcesFit", &two, ClusterEvent::NodeAdded(&empty), false),
        ("NodeResourcesFit", &two, ClusterEvent::NodeAdded(&ssd), true),
        ("NodeResourcesFit", &two, ClusterEvent::NodeChanged { old: &ssd, new: &ssd }, false),
        ("NodeResourcesFit", &two, ClusterEvent::NodeChanged { old: &tainted_node, new: &ssd }, true),
        ("NodeResourcesFit", &two, ClusterEvent::PodRemoved(&any), true),
        ("NodePorts", &two, ClusterEvent::PodRemoved(&port), false),
        ("NodePorts", &two, ClusterEvent::PodRemoved(&two), true),
        ("InterPodAffinity", &near, ClusterEvent::PodAdded(&any), true),
        ("InterPodAffinity", &near_none, ClusterEvent::PodAdded(&any), false),
        ("InterPodAffinity", &apart, ClusterEvent::PodRemoved(&any), true),
        ("InterPodAffinity", &any, ClusterEvent::PodRemoved(&apart), true),
        ("InterPodAffinity", &any, ClusterEvent::PodRemoved(&near), false),
        ("InterPodAffinity", &near, ClusterEvent::NodeAdded(&empty), false),
        ("InterPodAffinity", &near, ClusterEvent::NodeChanged { old: &empty, new: &ssd }, true),
        ("VolumeBinding", &any, ClusterEvent::PodRemoved(&any), false),
        ("Something", &any, ClusterEvent::PodRemoved(&any), true),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(helps(plugin, waiting, &on_event, &namespaces), wakes, "{plugin}, row {at}");
    }
}
