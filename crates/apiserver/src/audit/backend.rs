//! A backend of the audit: a sink for events, and whether requests wait for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::{Semaphore, mpsc};

use super::batch::{BatchSender, BatchSettings, MAX_BUFFERED_BYTES, Queued, weight};
use super::truncate::{self, Limits};

/// Events could not be written. The sink has logged why.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("failed to store audit event")]
pub struct NotStored;

/// Where events are written to.
#[async_trait]
pub trait Sink: Send + Sync {
    /// Writes events, and logs a failure.
    async fn send(&self, events: Vec<Value>) -> Result<(), NotStored>;
}

/// Whether requests wait until their events are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// They do not: events are sent in batches, and dropped if the sink is too slow.
    Batch,
    /// They wait.
    Blocking,
    /// They wait, and fail if their arrival cannot be recorded.
    BlockingStrict,
}

impl Mode {
    const ALL: [(&str, Mode); 3] =
        [("batch", Mode::Batch), ("blocking", Mode::Blocking), ("blocking-strict", Mode::BlockingStrict)];

    /// The mode with a name.
    pub fn parse(name: &str) -> Option<Mode> {
        Self::ALL.into_iter().find(|(known, _)| *known == name).map(|(_, mode)| mode)
    }

    /// The names of all modes, separated by commas.
    pub fn names() -> String {
        Self::ALL.map(|(name, _)| name).join(",")
    }
}

/// A backend.
pub struct Backend {
    delivery: Delivery,
    limits: Option<Limits>,
    dropped: AtomicU64,
}

enum Delivery {
    /// With the bytes that are left for events which wait.
    Queue(mpsc::Sender<Queued>, Arc<Semaphore>),
    Wait {
        sink: Arc<dyn Sink>,
        is_strict: bool,
    },
}

impl Backend {
    /// A backend; in batch mode with the sender that must be run in the background.
    pub fn new(
        sink: Arc<dyn Sink>,
        mode: Mode,
        settings: BatchSettings,
        limits: Option<Limits>,
    ) -> (Backend, Option<BatchSender>) {
        let with = |delivery| Backend { delivery, limits, dropped: AtomicU64::new(0) };
        if mode != Mode::Batch {
            return (with(Delivery::Wait { sink, is_strict: mode == Mode::BlockingStrict }), None);
        }
        let (sender, queue) = mpsc::channel(settings.buffer_size.max(1));
        let max_batch_bytes = limits.map(|limits| limits.batch);
        let room = Arc::new(Semaphore::new(MAX_BUFFERED_BYTES));
        (with(Delivery::Queue(sender, room)), Some(BatchSender::new(sink, settings, max_batch_bytes, queue)))
    }

    /// Writes or queues an event. The error fails the request, if it has only just arrived.
    pub async fn write(&self, mut event: Value) -> Result<(), NotStored> {
        if let Some(limits) = self.limits
            && !truncate::truncate(&mut event, limits.event)
        {
            self.drop_event("an event is larger than the limit");
            return Ok(());
        }
        match &self.delivery {
            Delivery::Queue(queue, room) => {
                // Bodies are as large as clients make them: a number of events is no limit of memory.
                let queued = match room.clone().try_acquire_many_owned(weight(&event)) {
                    Ok(room) => queue.try_send(Queued { event, room }).is_ok(),
                    Err(_) => false,
                };
                if !queued {
                    self.drop_event("the audit buffer is full");
                }
                Ok(())
            }
            Delivery::Wait { sink, is_strict } => match sink.send(vec![event]).await {
                Err(NotStored) if *is_strict => Err(NotStored),
                _ => Ok(()),
            },
        }
    }

    fn drop_event(&self, why: &str) {
        let dropped = self.dropped.fetch_add(1, Ordering::Relaxed) + 1;
        // The first and then every thousandth: a sink that is down drops many.
        if dropped % 1000 == 1 {
            tracing::error!(dropped, why, "audit events are dropped");
        }
    }

    /// How many events were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use serde_json::json;
    use std::time::Duration;

    /// A sink that fails on demand.
    #[derive(Default)]
    struct Fake {
        fails: bool,
        batches: Mutex<Vec<usize>>,
    }

    #[async_trait]
    impl Sink for Fake {
        async fn send(&self, events: Vec<Value>) -> Result<(), NotStored> {
            self.batches.lock().push(events.len());
            if self.fails { Err(NotStored) } else { Ok(()) }
        }
    }

    #[tokio::test]
    async fn only_the_strict_mode_fails_requests() {
        for (mode, fails, stored) in [
            ("blocking", false, true),
            ("blocking", true, true),
            ("blocking-strict", false, true),
            ("blocking-strict", true, false),
            ("batch", true, true),
        ] {
            let sink = Arc::new(Fake { fails, ..Fake::default() });
            let mode = Mode::parse(mode).unwrap();
            let (backend, sender) = Backend::new(sink.clone(), mode, BatchSettings::LOG, None);
            assert_eq!(backend.write(json!({})).await.is_ok(), stored, "{mode:?}");
            assert_eq!(sender.is_some(), mode == Mode::Batch);
            // A request that waits finds its event written when it goes on.
            assert_eq!(sink.batches.lock().len(), usize::from(mode != Mode::Batch), "{mode:?}");
        }
        assert_eq!(Mode::parse("fast"), None);
        assert_eq!(Mode::names(), "batch,blocking,blocking-strict");
    }

    #[tokio::test(start_paused = true)]
    async fn batches_are_full_or_as_old_as_they_may_get() {
        let sink = Arc::new(Fake::default());
        let settings = BatchSettings { max_batch_size: 4, max_wait: Duration::from_secs(30), ..BatchSettings::WEBHOOK };
        let (backend, sender) = Backend::new(sink.clone(), Mode::Batch, settings, None);
        let (_stop, stopping) = tokio::sync::watch::channel(false);
        let running = tokio::spawn(sender.unwrap().run(stopping));
        for _ in 0..10 {
            backend.write(json!({})).await.unwrap();
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*sink.batches.lock(), [4, 4], "the last two wait");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(*sink.batches.lock(), [4, 4, 2]);
        drop(backend);
        running.await.unwrap();
    }

    #[tokio::test]
    async fn what_waits_is_sent_before_the_server_stops() {
        let sink = Arc::new(Fake::default());
        let settings = BatchSettings { max_wait: Duration::from_secs(3600), ..BatchSettings::WEBHOOK };
        let (backend, sender) = Backend::new(sink.clone(), Mode::Batch, settings, None);
        backend.write(json!({})).await.unwrap();
        let (_stop, stopping) = tokio::sync::watch::channel(true);
        sender.unwrap().run(stopping).await;
        assert_eq!(*sink.batches.lock(), [1]);
    }

    #[tokio::test]
    async fn what_was_collected_is_sent_when_the_server_stops() {
        let sink = Arc::new(Fake::default());
        let settings = BatchSettings { max_wait: Duration::from_secs(3600), ..BatchSettings::WEBHOOK };
        let (backend, sender) = Backend::new(sink.clone(), Mode::Batch, settings, None);
        let (stop, stopping) = tokio::sync::watch::channel(false);
        let running = tokio::spawn(sender.unwrap().run(stopping));
        backend.write(json!({})).await.unwrap();
        let Delivery::Queue(queue, _) = &backend.delivery else { panic!("a queue") };
        while queue.capacity() < queue.max_capacity() {
            tokio::task::yield_now().await;
        }
        stop.send_replace(true);
        running.await.unwrap();
        assert_eq!(*sink.batches.lock(), [1]);
    }

    /// A sink that writes when it may.
    struct Held {
        may_write: tokio::sync::Semaphore,
        asked: tokio::sync::Notify,
        written: Mutex<usize>,
    }

    impl Held {
        fn new() -> Arc<Held> {
            let may_write = tokio::sync::Semaphore::new(0);
            Arc::new(Held { may_write, asked: tokio::sync::Notify::new(), written: Mutex::new(0) })
        }
    }

    #[async_trait]
    impl Sink for Held {
        async fn send(&self, events: Vec<Value>) -> Result<(), NotStored> {
            self.asked.notify_one();
            self.may_write.acquire().await.unwrap().forget();
            *self.written.lock() += events.len();
            Ok(())
        }
    }

    #[tokio::test]
    async fn batches_on_their_way_are_awaited_when_the_server_stops() {
        let sink = Held::new();
        let settings = BatchSettings { max_batch_size: 2, ..BatchSettings::LOG };
        let (backend, sender) = Backend::new(sink.clone(), Mode::Batch, settings, None);
        let (close, closing) = tokio::sync::watch::channel(false);
        let running = tokio::spawn(sender.unwrap().run(closing));
        for _ in 0..5 {
            backend.write(json!({})).await.unwrap();
        }
        // The first is on its way, and holds the only slot.
        sink.asked.notified().await;
        close.send_replace(true);
        // Two batches of two are written; that of the fifth is not.
        sink.may_write.add_permits(2);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!((*sink.written.lock(), running.is_finished()), (4, false), "the last batch is awaited");
        sink.may_write.add_permits(1);
        running.await.unwrap();
        assert_eq!(*sink.written.lock(), 5);
    }

    #[tokio::test(start_paused = true)]
    async fn a_sink_that_hangs_holds_the_end_no_longer_than_the_timeout() {
        let sink = Held::new();
        let (backend, sender) = Backend::new(sink.clone(), Mode::Batch, BatchSettings::WEBHOOK, None);
        let (close, closing) = tokio::sync::watch::channel(false);
        let running = tokio::spawn(sender.unwrap().run(closing));
        for _ in 0..10_000 {
            backend.write(json!({})).await.unwrap();
        }
        sink.asked.notified().await;
        let started = tokio::time::Instant::now();
        close.send_replace(true);
        running.await.unwrap();
        assert!(started.elapsed() <= super::super::CLOSE_TIMEOUT + Duration::from_secs(1), "{:?}", started.elapsed());
        assert_eq!(*sink.written.lock(), 0);
    }

    #[tokio::test]
    async fn large_events_do_not_fill_memory() {
        let (backend, mut sender) = Backend::new(Arc::new(Fake::default()), Mode::Batch, BatchSettings::WEBHOOK, None);
        let event = json!({"requestObject": {"data": "x".repeat(1 << 20)}});
        for _ in 0..1000 {
            backend.write(event.clone()).await.unwrap();
        }
        let kept = 1000 - usize::try_from(backend.dropped()).unwrap();
        assert!((1..=MAX_BUFFERED_BYTES >> 20).contains(&kept), "{kept} events");
        // What was sent makes room.
        drop(sender.as_mut().unwrap().queue.try_recv());
        backend.write(event).await.unwrap();
        assert_eq!(1000 - usize::try_from(backend.dropped()).unwrap(), kept);
    }

    #[tokio::test]
    async fn events_beyond_the_buffer_and_the_limit_are_dropped() {
        let settings = BatchSettings { buffer_size: 5, ..BatchSettings::WEBHOOK };
        let (backend, _sender) = Backend::new(Arc::new(Fake::default()), Mode::Batch, settings, None);
        for _ in 0..10_000 {
            backend.write(json!({})).await.unwrap();
        }
        assert_eq!(backend.dropped(), 9_995);
        let limits = Some(Limits { event: 10, batch: 10 });
        let sink = Arc::new(Fake::default());
        let (backend, _) = Backend::new(sink.clone(), Mode::BlockingStrict, BatchSettings::LOG, limits);
        backend.write(json!({"auditID": "too long for the limit"})).await.unwrap();
        assert_eq!((backend.dropped(), sink.batches.lock().len()), (1, 0));
    }
}
