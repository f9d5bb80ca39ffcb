//! The writes that wait to be charged to the quotas of a namespace.
//!
//! Whoever's turn it is charges all that wait, one after another, and stores each quota once for all of them. So a thousand
//! pods that are created at once cost a few updates of their quota, and none is refused because others were faster.

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

type Answer = Result<(), Status>;

/// The queue of each namespace in which a write waits.
#[derive(Default)]
pub struct Queues(Mutex<HashMap<String, Arc<Queue>>>);

#[derive(Default)]
struct Queue {
    waiting: Mutex<Vec<Waiter>>,
    /// Held by whoever charges.
    turn: tokio::sync::Mutex<()>,
}

struct Waiter {
    demand: Arc<Demand>,
    answer: oneshot::Sender<Answer>,
}

/// A write that is being charged.
struct Charging {
    waiter: Waiter,
    /// The quotas that were stored with its charge already.
    charged: HashSet<String>,
    /// Those that are to be stored with it in this round.
    wanted: Vec<String>,
}

impl Queues {
    /// Charges a write to the quotas of its namespace, together with all that wait there.
    pub async fn charge(
        &self,
        namespace: &str,
        demand: Demand,
        writer: &dyn QuotaWriter,
        objects: &dyn ObjectReader,
    ) -> Answer {
        let queue = Arc::clone(self.0.lock().entry(namespace.to_owned()).or_default());
        let answer = queue.charge(namespace, Arc::new(demand), writer, objects).await;
        let mut queues = self.0.lock();
        // The map's own reference and this one: nobody else waits here.
        if Arc::strong_count(&queue) == 2 {
            queues.remove(namespace);
        }
        answer
    }
}

impl Queue {
    async fn charge(
        &self,
        namespace: &str,
        demand: Arc<Demand>,
        writer: &dyn QuotaWriter,
        objects: &dyn ObjectReader,
    ) -> Answer {
        loop {
            let (answer, mut answered) = oneshot::channel();
            self.waiting.lock().push(Waiter { demand: Arc::clone(&demand), answer });
            tokio::select! {
                biased;
                answer = &mut answered => if let Ok(answer) = answer {
                    return answer;
                },
                _turn = self.turn.lock() => {
                    if let Ok(answer) = answered.try_recv() {
                        return answer;
                    }
                    let waiting = std::mem::take(&mut *self.waiting.lock());
                    charge_all(namespace, waiting, writer, objects).await;
                    if let Ok(answer) = answered.try_recv() {
                        return answer;
                    }
                }
            }
            // Whoever charged this write went away before it answered: the write waits once more.
        }
    }
}

/// Charges all that wait and answers each. A quota that somebody else changed meanwhile is read and charged again.
async fn charge_all(namespace: &str, waiting: Vec<Waiter>, writer: &dyn QuotaWriter, objects: &dyn ObjectReader) {
    let begin = |waiter| Charging { waiter, charged: HashSet::new(), wanted: Vec::new() };
    let mut open: Vec<Charging> = waiting.into_iter().map(begin).collect();
    while !open.is_empty() {
        let read = objects.list("", "resourcequotas", namespace);
        let mut quotas = read.clone();
        let charging: Vec<Charging> = open.drain(..).filter_map(|one| charge_one(one, &mut quotas)).collect();
        let mut stored: HashMap<String, Result<bool, Status>> = HashMap::new();
        for (quota, changed) in read.iter().zip(&quotas).filter(|(quota, changed)| !Arc::ptr_eq(quota, changed)) {
            let outcome = writer.write_used(quota, changed.at(&["status", "used"]).clone()).await;
            stored.insert(name_of(quota), outcome);
        }
        open = charging.into_iter().filter_map(|one| answer_stored(one, &stored)).collect();
    }
}

/// Adds a write to the quotas it counts for; answers at once where it is too much or counts for none.
fn charge_one(mut one: Charging, quotas: &mut [Arc<Value>]) -> Option<Charging> {
    if one.waiter.answer.is_closed() {
        return None;
    }
    let due: Vec<Arc<Value>> = quotas.iter().filter(|quota| !one.charged.contains(&name_of(quota))).cloned().collect();
    let answer = match charge(&one.waiter.demand, &due) {
        Err(refusal) => Err(refusal),
        Ok(charges) if charges.is_empty() => Ok(()),
        Ok(charges) => {
            for Charge { quota, used } in charges {
                let mut changed = (*quota).clone();
                changed.set(&["status", "used"], used);
                let changed = Arc::new(changed);
                quotas.iter_mut().filter(|own| Arc::ptr_eq(own, &quota)).for_each(|own| *own = Arc::clone(&changed));
                one.wanted.push(name_of(&quota));
            }
            return Some(one);
        }
    };
    // Who does not wait for the answer any more does not need it.
    let _ = one.waiter.answer.send(answer);
    None
}

/// Answers a write whose quotas are all stored, or one of which cannot be; gives back one that must be charged again.
fn answer_stored(mut one: Charging, stored: &HashMap<String, Result<bool, Status>>) -> Option<Charging> {
    let mut answer = Ok(());
    let mut again = false;
    for name in one.wanted.drain(..) {
        match stored.get(&name) {
            Some(Ok(true)) => drop(one.charged.insert(name)),
            Some(Err(status)) => answer = Err(status.clone()),
            Some(Ok(false)) | None => again = true,
        }
    }
    if again && answer.is_ok() {
        return Some(one);
    }
    let _ = one.waiter.answer.send(answer);
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
    struct Live {
        quota: Mutex<Arc<Value>>,
        stored: AtomicUsize,
    }

    impl Live {
        fn new(hard: &str) -> Arc<Self> {
            let quota = json!({"metadata": {"name": "q", "namespace": "n", "resourceVersion": "0"},
                "status": {"hard": {"pods": hard}, "used": {"pods": "0"}}});
            Arc::new(Live { quota: Mutex::new(Arc::new(quota)), stored: AtomicUsize::new(0) })
        }
    }

    #[async_trait]
    impl QuotaWriter for Live {
        async fn write_used(&self, quota: &Value, used: Value) -> Result<bool, Status> {
            // As a store that takes its time, in which others get their turn.
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            let mut own = self.quota.lock();
            let count = self.stored.fetch_add(1, Ordering::Relaxed) + 1;
            let mut changed = (**own).clone();
            changed.set(&["metadata", "resourceVersion"], count.to_string());
            // Every fourth time somebody else was faster.
            let wins = count % 4 != 0
                && own.text(&["metadata", "resourceVersion"]) == quota.text(&["metadata", "resourceVersion"]);
            if wins {
                changed.set(&["status", "used"], used);
            }
            *own = Arc::new(changed);
            Ok(wins)
        }
    }

    impl ObjectReader for Live {
        fn read(&self, _: &str, _: &str, _: &str, _: &str) -> Result<Option<Arc<Value>>, Status> {
            Ok(Some(Arc::clone(&self.quota.lock())))
        }

        fn read_all(&self, _: &str, _: &str, _: &str) -> Result<Vec<Arc<Value>>, Status> {
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

    async fn create(count: usize, live: &Arc<Live>) -> Vec<Result<Value, String>> {
        let plugin = Arc::new(ResourceQuota::new(Arc::clone(live) as Arc<dyn QuotaWriter>));
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
        let live = Live::new("1000");
        let outcomes = create(200, &live).await;
        assert!(outcomes.iter().all(Result::is_ok), "{:?}", outcomes.iter().find(|outcome| outcome.is_err()));
        assert_eq!(live.quota.lock().text(&["status", "used", "pods"]), "200");
        let stored = live.stored.load(Ordering::Relaxed);
        assert!(stored < 50, "the quota was stored {stored} times");
    }

    #[tokio::test]
    async fn no_more_are_admitted_than_the_quota_allows() {
        let live = Live::new("30");
        let outcomes = create(100, &live).await;
        assert_eq!(outcomes.iter().filter(|outcome| outcome.is_ok()).count(), 30);
        assert!(outcomes.iter().flatten().count() == 30);
        let refusal = outcomes.iter().find_map(|outcome| outcome.as_ref().err()).expect("a refusal");
        assert!(refusal.contains("exceeded quota: q, requested: pods=1, used: pods=30, limited: pods=30"), "{refusal}");
    }
}
