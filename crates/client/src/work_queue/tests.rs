use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

#[tokio::test(start_paused = true)]
async fn queues_a_key_once() {
    let queue = WorkQueue::new();
    for key in ["a", "b", "a"] {
        queue.add(key);
    }
    assert_eq!(queue.len(), 2);
    assert_eq!(queue.take().await, Some("a"));
    queue.add("a");
    assert_eq!(queue.take().await, Some("b"), "a is being processed");
    assert!(queue.is_empty());
    queue.done(&"a");
    assert_eq!(queue.take().await, Some("a"), "it was added while being processed");
}

#[tokio::test(start_paused = true)]
async fn delayed_keys_come_at_their_earliest_time() {
    let queue = WorkQueue::new();
    let start = Instant::now();
    queue.add_after("late", Duration::from_secs(60));
    queue.add_after("late", Duration::from_secs(30));
    queue.add_after("late", Duration::from_secs(90));
    queue.add_after("early", Duration::from_secs(10));
    assert_eq!(queue.take().await, Some("early"));
    assert_eq!(start.elapsed().as_secs(), 10);
    assert_eq!(queue.take().await, Some("late"));
    assert_eq!(start.elapsed().as_secs(), 30);
    queue.done(&"late");
    let more = tokio::time::timeout(Duration::from_secs(200), queue.take()).await;
    assert!(more.is_err(), "later requests were merged into the earliest");
}

#[tokio::test(start_paused = true)]
async fn a_delay_may_be_longer_than_time() {
    let queue = WorkQueue::new();
    queue.add_after("never", Duration::from_secs(i64::MAX as u64));
    queue.add_after("never", Duration::MAX);
    queue.add_after("later", Duration::from_secs(u64::from(u32::MAX)));
    queue.add("now");
    assert_eq!(queue.take().await, Some("now"));
}

#[tokio::test(start_paused = true)]
async fn backoff_doubles_up_to_its_maximum_and_is_reset() {
    let queue = WorkQueue::new();
    let mut waits = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        queue.add_rate_limited("a");
        queue.take().await;
        queue.done(&"a");
        waits.push(start.elapsed());
    }
    assert_eq!(waits[..3], [5, 10, 20].map(Duration::from_millis));
    assert_eq!(waits[19], MAX_BACKOFF);
    queue.forget(&"a");
    assert_eq!(queue.failures(&"a"), 0);
}

#[tokio::test(start_paused = true)]
async fn workers_retry_and_never_share_a_key() {
    let queue = WorkQueue::new();
    let (tries, busy) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    queue.add("a");
    let workers = {
        let (queue, tries, busy) = (queue.clone(), tries.clone(), busy.clone());
        run_workers(queue.clone(), 4, move |key| {
            let (queue, tries, busy) = (queue.clone(), tries.clone(), busy.clone());
            async move {
                assert_eq!(busy.fetch_add(1, Ordering::SeqCst), 0);
                queue.add(key);
                tokio::time::sleep(Duration::from_millis(1)).await;
                busy.fetch_sub(1, Ordering::SeqCst);
                match tries.fetch_add(1, Ordering::SeqCst) {
                    5.. => {
                        queue.shutdown();
                        Ok(())
                    }
                    _ => Err("not yet"),
                }
            }
        })
    };
    workers.await;
    assert!(tries.load(Ordering::SeqCst) >= 6);
}

#[tokio::test(start_paused = true)]
async fn a_key_that_keeps_failing_is_counted_under_its_component() {
    use knarr_supervisor::{Registry, Supervisor};
    let supervisor = Supervisor::new(&Registry::default());
    let queues: Arc<Mutex<Vec<Arc<WorkQueue<&str>>>>> = Arc::default();
    let created = queues.clone();
    supervisor.restart("failing-test-controller", move || {
        let queue = WorkQueue::new();
        created.lock().push(queue.clone());
        queue.add("a");
        run_workers(queue, 1, |_| async { Err::<(), _>("broken") })
    });
    let failures = || queues.lock().first().map_or(0, |queue| queue.failures(&"a"));
    let holding = || queues.lock().first().map(|queue| queue.holding()).unwrap_or_default();
    // From 5 ms on, the backoff doubles: the tenth failure is 2.6 s after the first one, the eleventh 5.1 s.
    for (count, failing) in [(10, 0), (11, 1)] {
        while failures() < count {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert_eq!(holding().failing, failing, "after {count} failures");
    }
    let mut page = String::new();
    crate::work_queue_metrics::write_metrics(&mut page);
    for line in [
        "workqueue_retries_total{name=\"failing_test\"} 11",
        "knarr_workqueue_failing_keys{name=\"failing_test\"} 1",
        "workqueue_work_duration_seconds_count{name=\"failing_test\"} 11",
    ] {
        assert!(page.lines().any(|own| own == line), "{line} in {page}");
    }
}
