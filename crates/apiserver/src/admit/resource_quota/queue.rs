//! Queues of writes that wait to be charged to the quotas of their namespace.
//!
//! The task that holds a namespace's lock charges all waiting writes in order and stores each quota once for all of them.
//! So a thousand pods created at once cost a few updates of their quota, and none fails because of a conflict.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use knarr_api::status::Status;
use knarr_api::value::{Read, Write};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::oneshot;

use super::QuotaWriter;
use super::check::{Charge, Demand, charge};
use crate::object_reader::ObjectReader;

/// Whether a write is within all quotas; the error is what its client gets.
type Outcome = Result<(), Status>;

/// The queue of each namespace in which a write waits.
#[derive(Default)]
pub struct Queues(Mutex<HashMap<String, Arc<Queue>>>);

#[derive(Default)]
struct Queue {
    waiting: Mutex<Vec<Waiter>>,
    /// Held by the task that charges the waiting writes.
    charging: tokio::sync::Mutex<()>,
}

struct Waiter {
    demand: Arc<Demand>,
    outcome: oneshot::Sender<Outcome>,
}

/// A write that is being charged.
struct PendingCharge {
    waiter: Waiter,
    /// Quotas already stored with the charge of this write.
    stored: HashSet<String>,
    /// Quotas to be stored with it in this round.
    to_store: Vec<String>,
}

impl Queues {
    /// Charges a write to the quotas of its namespace, together with all that wait there.
    pub async fn charge(
        &self,
        namespace: &str,
        demand: Demand,
        writer: &dyn QuotaWriter,
        objects: &dyn ObjectReader,
    ) -> Outcome {
        let queue = Arc::clone(self.0.lock().entry(namespace.to_owned()).or_default());
        let outcome = queue.charge(namespace, Arc::new(demand), writer, objects).await;
        let mut queues = self.0.lock();
        // Only the map's reference and this one are left, so no other write waits.
        if Arc::strong_count(&queue) == 2 {
            queues.remove(namespace);
        }
        outcome
    }
}

impl Queue {
    async fn charge(
        &self,
        namespace: &str,
        demand: Arc<Demand>,
        writer: &dyn QuotaWriter,
        objects: &dyn ObjectReader,
    ) -> Outcome {
        loop {
            let (sender, mut receiver) = oneshot::channel();
            self.waiting.lock().push(Waiter { demand: Arc::clone(&demand), outcome: sender });
            tokio::select! {
                biased;
                outcome = &mut receiver => if let Ok(outcome) = outcome {
                    return outcome;
                },
                _guard = self.charging.lock() => {
                    if let Ok(outcome) = receiver.try_recv() {
                        return outcome;
                    }
                    let waiting = std::mem::take(&mut *self.waiting.lock());
                    charge_all(namespace, waiting, writer, objects).await;
                    if let Ok(outcome) = receiver.try_recv() {
                        return outcome;
                    }
                }
            }
            // The task that was charging this write was cancelled: queue the write again.
        }
    }
}

/// Charges all waiting writes and reports each outcome. A quota changed by somebody else meanwhile is read and charged
/// again. If the quotas cannot be read, every open write is refused.
async fn charge_all(namespace: &str, waiting: Vec<Waiter>, writer: &dyn QuotaWriter, objects: &dyn ObjectReader) {
    let start = |waiter| PendingCharge { waiter, stored: HashSet::new(), to_store: Vec::new() };
    let mut open: Vec<PendingCharge> = waiting.into_iter().map(start).collect();
    while !open.is_empty() {
        let read = match objects.read_all("", "resourcequotas", namespace) {
            Ok(quotas) => quotas,
            Err(status) => {
                open.into_iter().for_each(|pending| pending.waiter.report(Err(status.clone())));
                return;
            }
        };
        let mut quotas = read.clone();
        let charged: Vec<PendingCharge> =
            open.drain(..).filter_map(|pending| charge_one(pending, &mut quotas)).collect();
        let mut writes: HashMap<String, Result<bool, Status>> = HashMap::new();
        for (quota, changed) in read.iter().zip(&quotas).filter(|(quota, changed)| !Arc::ptr_eq(quota, changed)) {
            let outcome = writer.write_used(quota, changed.at(&["status", "used"]).clone()).await;
            writes.insert(name_of(quota), outcome);
        }
        open = charged.into_iter().filter_map(|pending| finish_stored(pending, &writes)).collect();
    }
}

impl Waiter {
    fn report(self, outcome: Outcome) {
        // The receiver is gone when the client cancelled its request.
        let _ = self.outcome.send(outcome);
    }
}

/// Adds a write to the quotas it counts towards; reports at once if it exceeds one or counts towards none.
fn charge_one(mut pending: PendingCharge, quotas: &mut [Arc<Value>]) -> Option<PendingCharge> {
    if pending.waiter.outcome.is_closed() {
        return None;
    }
    let due: Vec<Arc<Value>> =
        quotas.iter().filter(|quota| !pending.stored.contains(&name_of(quota))).cloned().collect();
    let outcome = match charge(&pending.waiter.demand, &due) {
        Err(refusal) => Err(refusal),
        Ok(charges) if charges.is_empty() => Ok(()),
        Ok(charges) => {
            for Charge { quota, used } in charges {
                let mut changed = (*quota).clone();
                changed.set(&["status", "used"], used);
                let changed = Arc::new(changed);
                quotas.iter_mut().filter(|own| Arc::ptr_eq(own, &quota)).for_each(|own| *own = Arc::clone(&changed));
                pending.to_store.push(name_of(&quota));
            }
            return Some(pending);
        }
    };
    pending.waiter.report(outcome);
    None
}

/// Reports the outcome of a write whose quotas are all stored, or one of which cannot be; returns a write that must be
/// charged again.
fn finish_stored(mut pending: PendingCharge, writes: &HashMap<String, Result<bool, Status>>) -> Option<PendingCharge> {
    let mut outcome = Ok(());
    let mut has_conflict = false;
    for name in pending.to_store.drain(..) {
        match writes.get(&name) {
            Some(Ok(true)) => drop(pending.stored.insert(name)),
            Some(Err(status)) => outcome = Err(status.clone()),
            Some(Ok(false)) | None => has_conflict = true,
        }
    }
    if has_conflict && outcome.is_ok() {
        return Some(pending);
    }
    pending.waiter.report(outcome);
    None
}

fn name_of(quota: &Value) -> String {
    quota.text(&["metadata", "name"]).to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::super::Operation;
    use super::super::super::tests::run_as;
    use super::super::ResourceQuota;
    use super::*;
    use crate::request::User;
    use async_trait::async_trait;
    use serde_json::json;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A store of one quota that somebody else changes now and then.
    struct SharedQuota {
        quota: Mutex<Arc<Value>>,
        stored: AtomicUsize,
        /// How many reads succeed before all others fail.
        readable: AtomicUsize,
    }

    impl SharedQuota {
        fn new(hard: &str) -> Arc<Self> {
            let quota = json!({"metadata": {"name": "q", "namespace": "n", "resourceVersion": "0"},
                "status": {"hard": {"pods": hard}, "used": {"pods": "0"}}});
            Arc::new(SharedQuota {
                quota: Mutex::new(Arc::new(quota)),
                stored: AtomicUsize::new(0),
                readable: AtomicUsize::new(usize::MAX),
            })
        }
    }

    #[async_trait]
    impl QuotaWriter for SharedQuota {
        async fn write_used(&self, quota: &Value, used: Value) -> Result<bool, Status> {
            // Let other tasks run, as a slow store would.
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            let mut own = self.quota.lock();
            let count = self.stored.fetch_add(1, Ordering::Relaxed) + 1;
            let mut changed = (**own).clone();
            changed.set(&["metadata", "resourceVersion"], count.to_string());
            // Every fourth write conflicts.
            let wins = !count.is_multiple_of(4)
                && own.text(&["metadata", "resourceVersion"]) == quota.text(&["metadata", "resourceVersion"]);
            if wins {
                changed.set(&["status", "used"], used);
            }
            *own = Arc::new(changed);
            Ok(wins)
        }
    }

    impl ObjectReader for SharedQuota {
        fn read(&self, _: &str, _: &str, _: &str, _: &str) -> Result<Option<Arc<Value>>, Status> {
            Ok(Some(Arc::clone(&self.quota.lock())))
        }

        fn read_all(&self, _: &str, _: &str, _: &str) -> Result<Vec<Arc<Value>>, Status> {
            let left = self.readable.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
            left.map_err(|_| Status::internal("stored objects cannot be read"))?;
            Ok(vec![Arc::clone(&self.quota.lock())])
        }

        fn get(&self, _: &str, _: &str, _: &str, _: &str) -> Option<Arc<Value>> {
            Some(Arc::clone(&self.quota.lock()))
        }

        fn list(&self, _: &str, _: &str, _: &str) -> Vec<Arc<Value>> {
            vec![Arc::clone(&self.quota.lock())]
        }

        fn version(&self, _: &str, _: &str) -> u64 {
            0
        }
    }

    async fn create(count: usize, live: &Arc<SharedQuota>) -> Vec<Result<Value, String>> {
        let plugin = Arc::new(ResourceQuota::new(Arc::clone(live) as Arc<dyn QuotaWriter>, Default::default()));
        let creations = (0..count).map(|at| {
            let (plugin, live) = (Arc::clone(&plugin), Arc::clone(live));
            tokio::spawn(async move {
                let pod = json!({"kind": "Pod", "metadata": {"name": format!("p{at}"), "namespace": "n"},
                    "spec": {"containers": [{"name": "c"}]}});
                let user = User::named("ann", &[]);
                run_as(&user, &*plugin, Operation::Create, ("", "pods"), pod, None, &*live).await
            })
        });
        futures::future::join_all(creations).await.into_iter().map(|done| done.expect("a task")).collect()
    }

    #[tokio::test]
    async fn writes_that_wait_are_charged_together() {
        let live = SharedQuota::new("1000");
        let outcomes = create(200, &live).await;
        assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
        assert_eq!(live.quota.lock().text(&["status", "used", "pods"]), "200");
        let stored = live.stored.load(Ordering::Relaxed);
        assert!(stored < 50, "the quota was stored {stored} times");
    }

    #[tokio::test]
    async fn no_more_are_admitted_than_the_quota_allows() {
        let live = SharedQuota::new("30");
        let outcomes = create(100, &live).await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 30);
        assert!(outcomes.iter().flatten().count() == 30);
        let refusal = outcomes.iter().find_map(|outcome| outcome.as_ref().err()).expect("a refusal");
        assert!(refusal.contains("exceeded quota: q, requested: pods=1, used: pods=30, limited: pods=30"), "{refusal}");
    }

    #[tokio::test]
    async fn writes_are_refused_while_quotas_cannot_be_read() {
        // The first read decides whether to queue the write; the second one charges it.
        for readable in 0..2 {
            let live = SharedQuota::new("1000");
            live.readable.store(readable, Ordering::Relaxed);
            let outcomes = create(1, &live).await;
            let refusal = outcomes[0].as_ref().expect_err("the quota cannot be read");
            assert!(refusal.contains("stored objects cannot be read"), "{readable}: {refusal}");
            assert_eq!(live.stored.load(Ordering::Relaxed), 0);
        }
    }
}
