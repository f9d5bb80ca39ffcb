use super::super::placement::by_node;
use super::*;
use serde_json::{Value, json};

fn set(strategy: Value) -> DaemonSet {
    serde_json::from_value(json!({
        "metadata": {"name": "d", "namespace": "ns", "uid": "d", "generation": 3},
        "spec": {"selector": {}, "template": {"spec": {"containers": []}}, "updateStrategy": strategy}
    }))
    .unwrap()
}

fn nodes(count: usize) -> Vec<Arc<Node>> {
    let node = |n: usize| Arc::new(serde_json::from_value(json!({"metadata": {"name": format!("n{n}")}})).unwrap());
    (0..count).map(node).collect()
}

/// Node, hash, phase, readiness.
fn pod((name, node, hash, phase, ready): (&str, &str, &str, &str, bool)) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "ns", "uid": name, "labels": {"controller-revision-hash": hash}},
            "spec": {"nodeName": node, "containers": []},
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]}
        }))
        .unwrap(),
    )
}

fn rendered(set: &DaemonSet, node_count: usize, rows: &[(&str, &str, &str, &str, bool)]) -> (Vec<String>, Vec<String>) {
    let (nodes, by_node) = (nodes(node_count), by_node(rows.iter().copied().map(pod).collect()));
    let observed = Observed { set, spec: set.spec.as_ref().unwrap(), nodes: &nodes, by_node: &by_node, hash: "new" };
    let plan = plan(&observed, Timestamp::UNIX_EPOCH, |_| None);
    let mut deleted: Vec<String> = plan.delete.iter().map(|pod| name(&**pod).to_owned()).collect();
    deleted.sort();
    (plan.create, deleted)
}

#[test]
fn what_is_created_and_deleted() {
    let replace_in_place = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}});
    let surge = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    let on_delete = json!({"type": "OnDelete"});
    let run = "Running";
    for (case, strategy, node_count, rows, create, delete) in [
        ("fresh", &replace_in_place, 2, vec![], vec!["n0", "n1"], vec![]),
        ("up to date", &replace_in_place, 1, vec![("a", "n0", "new", run, true)], vec![], vec![]),
        (
            "doubled",
            &replace_in_place,
            1,
            vec![("a", "n0", "new", run, true), ("b", "n0", "new", run, true)],
            vec![],
            vec!["b"],
        ),
        ("failed", &replace_in_place, 1, vec![("a", "n0", "new", "Failed", false)], vec![], vec!["a"]),
        (
            "one at a time",
            &replace_in_place,
            2,
            vec![("a", "n0", "old", run, true), ("b", "n1", "old", run, true)],
            vec![],
            vec!["a"],
        ),
        (
            "wait for it",
            &replace_in_place,
            2,
            vec![("a", "n0", "new", run, false), ("b", "n1", "old", run, true)],
            vec![],
            vec![],
        ),
        (
            "broken goes at once",
            &replace_in_place,
            2,
            vec![("a", "n0", "new", run, false), ("b", "n1", "old", run, false)],
            vec![],
            vec!["b"],
        ),
        ("by hand", &on_delete, 1, vec![("a", "n0", "old", run, true)], vec![], vec![]),
        ("surge", &surge, 2, vec![("a", "n0", "old", run, true), ("b", "n1", "old", run, true)], vec!["n0"], vec![]),
        (
            "surging",
            &surge,
            2,
            vec![("a", "n0", "old", run, true), ("c", "n0", "new", run, false), ("b", "n1", "old", run, true)],
            vec![],
            vec![],
        ),
        ("surged", &surge, 1, vec![("a", "n0", "old", run, true), ("c", "n0", "new", run, true)], vec![], vec!["a"]),
    ] {
        let create: Vec<String> = create.into_iter().map(str::to_owned).collect();
        let delete: Vec<String> = delete.into_iter().map(str::to_owned).collect();
        assert_eq!(rendered(&set(strategy.clone()), node_count, &rows), (create, delete), "{case}");
    }
}

#[test]
fn status_counts_nodes() {
    let set = set(json!({}));
    let (nodes, pods) =
        (nodes(3), vec![pod(("a", "n0", "new", "Running", true)), pod(("b", "n1", "old", "Running", false))]);
    let by_node = by_node(pods);
    let observed =
        Observed { set: &set, spec: set.spec.as_ref().unwrap(), nodes: &nodes, by_node: &by_node, hash: "new" };
    let status = status(&observed, &by_node, true, Timestamp::UNIX_EPOCH);
    assert_eq!((status.desired_number_scheduled, status.current_number_scheduled, status.number_ready), (3, 2, 1));
    assert_eq!(
        (status.updated_number_scheduled, status.number_available, status.number_unavailable),
        (Some(1), Some(1), Some(2))
    );
    assert_eq!(status.observed_generation, Some(3));
}
