use super::*;
use std::sync::atomic::Ordering;

fn level(limit: u32, length_limit: usize) -> Arc<Level> {
    let response = Response::Queue { queues: 1, hand_size: 1, length_limit };
    let level = Arc::new(Level::new("level", LevelSpec { response, shares: Shares::default() }));
    level.set_limits(SeatLimits { nominal: limit, min: limit, max: limit });
    level
}

fn description() -> Description {
    Description {
        schema: "schema".into(),
        distinguisher: "".into(),
        user: Arc::new(User::anonymous()),
        target: Target::default(),
    }
}

async fn acquire(level: &Arc<Level>, flow: &Arc<FlowStats>, estimate: Estimate, wait: u64) -> Result<Permit, Refused> {
    let give_up = Instant::now() + Duration::from_secs(wait);
    level.acquire(flow, 0, estimate, description(), give_up).await
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_until_another_has_finished() {
    let (level, flow) = (level(1, 10), Arc::new(FlowStats::default()));
    let first = acquire(&level, &flow, Estimate::seats(1), 5).await.unwrap();
    let waiting = tokio::spawn({
        let (level, flow) = (level.clone(), flow.clone());
        async move { acquire(&level, &flow, Estimate::seats(1), 5).await.is_ok() }
    });
    while flow.waiting.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    drop(first);
    assert!(waiting.await.unwrap());
    assert_eq!(flow.dispatched.load(Ordering::Relaxed), 2);
    assert!(level.read(|state| state.set.is_idle()));
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_too_long_is_refused() {
    let (level, flow) = (level(1, 10), Arc::new(FlowStats::default()));
    let first = acquire(&level, &flow, Estimate::seats(1), 5).await.unwrap();
    let started = Instant::now();
    assert_eq!(acquire(&level, &flow, Estimate::seats(1), 15).await.err(), Some(Refused { retry_after: 1 }));
    assert_eq!(started.elapsed().as_secs(), 15);
    assert_eq!(flow.rejected(Reason::TimeOut), 1);
    drop(first);
    assert!(level.read(|state| state.set.is_idle()));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_goes_away_leaves_the_queue() {
    let (level, flow) = (level(1, 1), Arc::new(FlowStats::default()));
    let first = acquire(&level, &flow, Estimate::seats(1), 5).await.unwrap();
    let mut waiting = Box::pin(acquire(&level, &flow, Estimate::seats(1), 60));
    assert!(futures::poll!(&mut waiting).is_pending());
    assert!(acquire(&level, &flow, Estimate::seats(1), 60).await.is_err(), "the queue is full");
    drop(waiting);
    assert_eq!(level.read(|state| state.set.waiting()), 0);
    // One that was dispatched in the meantime gives its seat back.
    let mut waiting = Box::pin(acquire(&level, &flow, Estimate::seats(1), 60));
    assert!(futures::poll!(&mut waiting).is_pending());
    drop(first);
    assert_eq!(level.read(|state| state.set.executing()), 1);
    drop(waiting);
    assert!(level.read(|state| state.set.is_idle()));
    assert_eq!(flow.executing.load(Ordering::Relaxed), 0);
    assert_eq!(flow.waiting.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn seats_that_linger_are_released_while_others_wait() {
    let (level, flow) = (level(2, 10), Arc::new(FlowStats::default()));
    let estimate = Estimate { initial_seats: 1, final_seats: 2, additional_latency: Duration::from_secs(2) };
    drop(acquire(&level, &flow, estimate, 5).await.unwrap());
    let started = Instant::now();
    drop(acquire(&level, &flow, Estimate::seats(1), 15).await.unwrap());
    assert_eq!(started.elapsed().as_secs(), 2);
    assert!(!level.read(|state| state.timer.is_some()));
}
