//! The queue's order, backoff and wake-ups, on a clock of the test's own.

use super::*;
use crate::cluster::node::NodeState;
use serde_json::json;

fn pod(name: &str, priority: i32) -> Arc<PodState> {
    let object =
        json!({"metadata": {"name": name, "namespace": "n"}, "spec": {"containers": [], "priority": priority}});
    Arc::new(PodState::new(Arc::new(serde_json::from_value(object).unwrap())))
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn queue() -> Queue {
    Queue::new(Duration::from_secs(1), Duration::from_secs(10))
}

fn set(queue: &mut Queue, pod: Arc<PodState>, is_gated: bool, now: Timestamp) {
    queue.set(pod, is_gated, &Namespaces::default(), now);
}

fn node() -> NodeState {
    let object = json!({"metadata": {"name": "n"}, "status": {"allocatable": {"pods": "1"}}});
    NodeState::new(Arc::new(serde_json::from_value(object).unwrap()))
}

fn next(queue: &mut Queue) -> Option<String> {
    queue.pop().map(|pod| pod.name().to_owned())
}

#[test]
fn the_more_important_then_the_older_comes_first() {
    let mut queue = queue();
    set(&mut queue, pod("old", 0), false, at(1));
    set(&mut queue, pod("young", 0), false, at(2));
    set(&mut queue, pod("high", 5), false, at(3));
    let order: Vec<Option<String>> = (0..4).map(|_| next(&mut queue)).collect();
    assert_eq!(order, [Some("high".into()), Some("old".into()), Some("young".into()), None]);
}

#[test]
fn only_events_that_help_wake_a_waiting_pod() {
    let mut queue = queue();
    set(&mut queue, pod("a", 0), false, at(1));
    next(&mut queue);
    queue.unschedulable("n/a", vec!["TaintToleration"], at(1));
    queue.on_event(&ClusterEvent::PodRemoved(&pod("b", 0)), &Namespaces::default(), at(5));
    queue.advance(at(5));
    assert_eq!(next(&mut queue), None);
    queue.on_event(&ClusterEvent::NodeAdded(&node()), &Namespaces::default(), at(5));
    queue.advance(at(5));
    assert_eq!(next(&mut queue), Some("a".into()));
}

#[test]
fn a_requeued_pod_backs_off_unless_no_other_pod_waits() {
    let mut queue = queue();
    set(&mut queue, pod("a", 0), false, at(1));
    next(&mut queue);
    queue.unschedulable("n/a", vec!["NodeResourcesFit"], at(1));
    queue.on_event(&ClusterEvent::NodeAdded(&node()), &Namespaces::default(), at(1));
    assert_eq!(queue.advance(at(1)), Some(at(2)), "it waits out its back-off");
    set(&mut queue, pod("b", 0), false, at(1));
    assert_eq!(next(&mut queue), Some("b".into()), "others are ready");
    assert_eq!(next(&mut queue), Some("a".into()), "nobody else is");
}

#[test]
fn errors_are_waited_out() {
    let mut queue = queue();
    set(&mut queue, pod("a", 0), false, at(0));
    let mut now = at(0);
    for seconds in [1, 2, 4, 8, 10, 10] {
        assert!(next(&mut queue).is_some());
        queue.failed("n/a", now);
        assert_eq!(next(&mut queue), None);
        let until = queue.advance(now).unwrap();
        assert_eq!(until.as_second() - now.as_second(), seconds);
        now = until;
        queue.advance(now);
    }
}

#[test]
fn nothing_helps_for_five_minutes_then_it_is_tried_again() {
    let mut queue = queue();
    set(&mut queue, pod("a", 0), false, at(0));
    next(&mut queue);
    queue.unschedulable("n/a", vec!["NodeName"], at(0));
    assert_eq!(queue.advance(at(299)), Some(at(300)));
    queue.advance(at(300));
    assert_eq!(next(&mut queue), Some("a".into()));
}

#[test]
fn gates_hold_a_pod_until_they_open() {
    let mut queue = queue();
    set(&mut queue, pod("a", 0), true, at(0));
    assert_eq!(next(&mut queue), None);
    queue.reconsider_gated(|_| true, at(1));
    assert_eq!(next(&mut queue), None);
    queue.reconsider_gated(|_| false, at(1));
    assert_eq!(next(&mut queue), Some("a".into()));
    set(&mut queue, pod("b", 0), true, at(2));
    set(&mut queue, pod("b", 0), false, at(3));
    assert_eq!(next(&mut queue), Some("b".into()));
}

#[test]
fn a_change_of_the_pod_moves_it_in_the_queue() {
    let mut queue = queue();
    set(&mut queue, pod("a", 0), false, at(0));
    set(&mut queue, pod("b", 1), false, at(0));
    set(&mut queue, pod("a", 2), false, at(1));
    assert_eq!(next(&mut queue), Some("a".into()));
    queue.unschedulable("n/a", vec!["PluginOfOthers"], at(1));
    set(&mut queue, pod("a", 3), false, at(9));
    assert_eq!(next(&mut queue), Some("a".into()));
    assert_eq!(next(&mut queue), Some("b".into()));
    assert_eq!(next(&mut queue), None);
}

#[test]
fn a_pod_of_the_same_name_is_another() {
    let mut queue = queue();
    set(&mut queue, pod("a", 0), false, at(0));
    queue.remove_same("n/a", "other");
    assert!(queue.is_waiting("n/a"));
    queue.remove_same("n/a", "");
    assert!(!queue.is_waiting("n/a"));
}

#[test]
fn a_pod_whose_victims_stay_is_retried() {
    let mut queue = queue();
    set(&mut queue, pod("a", 0), false, at(1));
    next(&mut queue);
    queue.retry("n/a", at(1));
    assert_eq!(next(&mut queue), None, "it is being decided");
    queue.unschedulable("n/a", vec!["NodeResourcesFit"], at(1));
    assert_eq!(next(&mut queue), None, "it waits for a pod to be deleted");
    queue.retry("n/a", at(60));
    queue.advance(at(60));
    assert_eq!(next(&mut queue), Some("a".into()));
    queue.retry("n/gone", at(60));
}
