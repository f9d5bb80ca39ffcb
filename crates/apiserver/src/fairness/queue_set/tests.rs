//! Tests of the queues of a priority level.

use std::collections::VecDeque;

use super::*;
use crate::fairness::shuffle;

const MILLISECOND: Duration = Duration::from_millis(1);

fn queued(queues: usize, hand_size: usize, length_limit: usize, limit: u32) -> QueueSet<&'static str> {
    QueueSet::new(Response::Queue { queues, hand_size, length_limit }, limit)
}

fn arrive(set: &mut QueueSet<&'static str>, now: Duration, flow: &'static str, seats: u32) -> Arrived {
    let mut started = Vec::new();
    let arrived = set.arrive(now, shuffle::hash_flow("schema", flow), Estimate::seats(seats), flow, &mut started);
    assert!(started.is_empty(), "an arrival starts no other request");
    arrived
}

/// Finishes the oldest of `running` every millisecond, and returns the flows in the order of their starts.
fn run(set: &mut QueueSet<&'static str>, mut running: VecDeque<RequestId>, steps: u32) -> Vec<&'static str> {
    let mut order = Vec::new();
    for step in 1..=steps {
        let mut started = Vec::new();
        let Some(id) = running.pop_front() else { break };
        set.finish(MILLISECOND * step, id, &mut started);
        for id in started {
            order.push(set.request(id).unwrap().description);
            running.push_back(id);
        }
    }
    order
}

#[test]
fn a_flow_of_many_requests_does_not_delay_one_of_few() {
    let mut set = queued(64, 6, 50, 4);
    let mut running = VecDeque::new();
    for _ in 0..100 {
        if let Arrived::Executing(id) = arrive(&mut set, Duration::ZERO, "elephant", 1) {
            running.push_back(id);
        }
    }
    assert_eq!((running.len(), set.waiting()), (4, 96));
    for _ in 0..3 {
        assert!(matches!(arrive(&mut set, Duration::ZERO, "mouse", 1), Arrived::Queued(_)));
    }
    let order = run(&mut set, running, 60);
    let last = order.iter().rposition(|flow| *flow == "mouse").unwrap();
    assert_eq!(order.iter().filter(|flow| **flow == "mouse").count(), 3);
    assert!(last < 30, "{order:?}");
}

#[test]
fn wide_requests_get_their_share_of_seats_not_of_turns() {
    let mut set = queued(64, 1, 500, 8);
    let mut running = VecDeque::new();
    for at in 0..400 {
        let (flow, seats) = if at % 2 == 0 { ("wide", 4) } else { ("narrow", 1) };
        if let Arrived::Executing(id) = arrive(&mut set, Duration::ZERO, flow, seats) {
            running.push_back(id);
        }
    }
    let order = run(&mut set, running, 150);
    let wide = order.iter().filter(|flow| **flow == "wide").count() * 4;
    let narrow = order.iter().filter(|flow| **flow == "narrow").count();
    assert!(wide.abs_diff(narrow) * 4 < wide + narrow, "{wide} and {narrow} seats");
}

#[test]
fn seats_are_never_exceeded_except_by_one_request_that_needs_more_than_all() {
    let mut set = queued(4, 2, 50, 10);
    let Arrived::Executing(first) = arrive(&mut set, Duration::ZERO, "a", 8) else { panic!() };
    let Arrived::Queued(second) = arrive(&mut set, Duration::ZERO, "a", 8) else { panic!() };
    assert_eq!((set.seats_in_use(), set.waiting()), (8, 1));
    let mut started = Vec::new();
    set.finish(MILLISECOND, first, &mut started);
    assert_eq!(started, [second]);
    let Arrived::Queued(huge) = arrive(&mut set, MILLISECOND, "b", 20) else { panic!() };
    started.clear();
    set.finish(MILLISECOND * 2, second, &mut started);
    assert_eq!(started, [huge]);
    assert!(matches!(arrive(&mut set, MILLISECOND * 2, "c", 1), Arrived::Queued(_)));
}

#[test]
fn full_queues_and_levels_without_queues_reject() {
    let mut set = queued(1, 1, 2, 1);
    assert!(matches!(arrive(&mut set, Duration::ZERO, "a", 1), Arrived::Executing(_)));
    assert!(matches!(arrive(&mut set, Duration::ZERO, "a", 1), Arrived::Queued(_)));
    assert!(matches!(arrive(&mut set, Duration::ZERO, "a", 1), Arrived::Queued(_)));
    assert_eq!(arrive(&mut set, Duration::ZERO, "a", 1), Arrived::Rejected(Reason::QueueFull));
    let mut set = QueueSet::new(Response::Reject, 1);
    assert!(matches!(arrive(&mut set, Duration::ZERO, "a", 1), Arrived::Executing(_)));
    assert_eq!(arrive(&mut set, Duration::ZERO, "a", 1), Arrived::Rejected(Reason::ConcurrencyLimit));
    assert_eq!((set.counts().dispatched, set.counts().rejected), (1, 1));
    let mut set = QueueSet::new(Response::Exempt, 0);
    for _ in 0..1000 {
        assert!(matches!(arrive(&mut set, Duration::ZERO, "a", 10), Arrived::Executing(_)));
    }
}

#[test]
fn a_request_that_leaves_its_queue_makes_room() {
    let mut set = queued(1, 1, 2, 1);
    let Arrived::Executing(first) = arrive(&mut set, Duration::ZERO, "a", 1) else { panic!() };
    let Arrived::Queued(second) = arrive(&mut set, Duration::ZERO, "a", 1) else { panic!() };
    let Arrived::Queued(third) = arrive(&mut set, Duration::ZERO, "a", 1) else { panic!() };
    let mut started = Vec::new();
    assert!(set.cancel(MILLISECOND, second, &mut started));
    assert!(!set.cancel(MILLISECOND, second, &mut started), "it is gone");
    assert!(!set.cancel(MILLISECOND, first, &mut started), "it executes");
    assert_eq!((set.waiting(), started.len()), (1, 0));
    set.finish(MILLISECOND, first, &mut started);
    assert_eq!(started, [third]);
    set.finish(MILLISECOND, third, &mut started);
    assert!(set.is_idle());
    assert_eq!((set.seats_in_use(), set.counts().cancelled), (0, 1));
}

#[test]
fn seats_of_a_write_that_many_watch_are_released_later() {
    let mut set = queued(1, 1, 5, 3);
    let estimate = Estimate { initial_seats: 1, final_seats: 3, additional_latency: MILLISECOND * 50 };
    let mut started = Vec::new();
    let Arrived::Executing(write) = set.arrive(Duration::ZERO, 0, estimate, "write", &mut started) else { panic!() };
    set.finish(MILLISECOND, write, &mut started);
    assert!(started.is_empty() && set.executing() == 0);
    let Arrived::Queued(next) = arrive(&mut set, MILLISECOND * 2, "next", 1) else { panic!() };
    assert_eq!(set.next_release(), Some(MILLISECOND * 51));
    set.advance(MILLISECOND * 51, &mut started);
    assert_eq!(started, [next]);
    assert_eq!(set.next_release(), None);
}

#[test]
fn fewer_queues_drain_and_a_higher_limit_starts_what_waits() {
    let mut set = queued(8, 1, 5, 1);
    let mut ids = Vec::new();
    for flow in ["a", "b", "c", "d", "e", "f"] {
        match arrive(&mut set, Duration::ZERO, flow, 1) {
            Arrived::Executing(id) | Arrived::Queued(id) => ids.push(id),
            Arrived::Rejected(reason) => panic!("{reason:?}"),
        }
    }
    set.configure(Response::Queue { queues: 2, hand_size: 1, length_limit: 5 });
    let mut started = Vec::new();
    set.set_limit(MILLISECOND, 10, &mut started);
    assert_eq!((started.len(), set.waiting(), set.executing()), (5, 0, 6));
    for id in ids {
        set.finish(MILLISECOND * 2, id, &mut started);
    }
    assert_eq!((set.queues().len(), set.seats_in_use()), (2, 0));
}

#[test]
fn demand_counts_what_waits_too() {
    let mut set = queued(1, 1, 50, 1);
    arrive(&mut set, Duration::ZERO, "a", 1);
    arrive(&mut set, Duration::ZERO, "a", 1);
    let observed = set.take_demand(Duration::from_secs(10));
    assert_eq!((observed.average, observed.max), (2.0, 2.0));
}

#[test]
fn a_wide_request_that_waits_does_not_make_its_queue_endless() {
    let mut set = queued(1, 1, 3, 4);
    assert!(matches!(arrive(&mut set, Duration::ZERO, "a", 2), Arrived::Executing(_)));
    // Two seats are free, which is not enough for it.
    assert!(matches!(arrive(&mut set, Duration::ZERO, "a", 3), Arrived::Queued(_)));
    for _ in 0..2 {
        assert!(matches!(arrive(&mut set, Duration::ZERO, "b", 1), Arrived::Queued(_)));
    }
    for _ in 0..10 {
        assert_eq!(arrive(&mut set, Duration::ZERO, "b", 1), Arrived::Rejected(Reason::QueueFull));
    }
    assert_eq!(set.waiting(), 3);
}
