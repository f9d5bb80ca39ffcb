//! Upstream queries in flight. Equal ones are sent once: each duplicate would give an attacker one more chance to guess the
//! id and port of a forged response.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cache::CacheKey;

type Response = Option<Arc<[u8]>>;

#[derive(Default)]
pub struct InFlight(Mutex<HashMap<CacheKey, watch::Receiver<Response>>>);

impl InFlight {
    /// The response to a query: from `ask`, or from an equal query that is already in flight.
    pub async fn share<F: Future<Output = Option<Vec<u8>>>>(&self, key: &CacheKey, ask: F) -> Option<Vec<u8>> {
        let (sender, mut receiver) = {
            let mut all = self.0.lock();
            match all.get(key) {
                Some(receiver) => (None, receiver.clone()),
                None => {
                    let (sender, receiver) = watch::channel(None);
                    all.insert(key.clone(), receiver.clone());
                    (Some(sender), receiver)
                }
            }
        };
        let Some(sender) = sender else {
            // An error means that the query in flight ended without a response.
            let response = receiver.wait_for(Option::is_some).await.ok()?;
            return response.as_deref().map(<[u8]>::to_vec);
        };
        let _entry = InFlightEntry { all: self, key };
        let response = ask.await;
        if let Some(response) = &response {
            sender.send_replace(Some(response.as_slice().into()));
        }
        response
    }
}

/// Removes a query from the map on drop, also when its future is cancelled.
struct InFlightEntry<'a> {
    all: &'a InFlight,
    key: &'a CacheKey,
}

impl Drop for InFlightEntry<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn equal_queries_are_sent_once() {
        let (all, count) = (InFlight::default(), AtomicUsize::new(0));
        let key = |name: &str| CacheKey {
            name: Name::from_text(name).unwrap(),
            kind: 1,
            class: 1,
            wants_signatures: false,
            checking_disabled: false,
        };
        let (one, other) = (key("a.example"), key("b.example"));
        let ask = |key| {
            all.share(key, async {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Some(vec![7])
            })
        };
        let answers = futures::future::join_all((0..1000).map(|_| ask(&one)).chain([ask(&other)])).await;
        assert!(answers.iter().all(|response| response.as_deref() == Some(&[7])));
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert!(all.0.lock().is_empty());
    }
}
