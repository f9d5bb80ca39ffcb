//! Questions to upstream resolvers that are under way: equal ones are asked once, as each further one would give a forger one
//! more chance to guess right.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::cache::Asked;

type Answer = Option<Arc<[u8]>>;

#[derive(Default)]
pub struct InFlight(Mutex<HashMap<Asked, watch::Receiver<Answer>>>);

impl InFlight {
    /// The answer to a question: from `ask`, or from whoever asks the same already.
    pub async fn share<F: Future<Output = Option<Vec<u8>>>>(&self, asked: &Asked, ask: F) -> Option<Vec<u8>> {
        let (sender, mut receiver) = {
            let mut all = self.0.lock();
            match all.get(asked) {
                Some(receiver) => (None, receiver.clone()),
                None => {
                    let (sender, receiver) = watch::channel(None);
                    all.insert(asked.clone(), receiver.clone());
                    (Some(sender), receiver)
                }
            }
        };
        let Some(sender) = sender else {
            // An error says that whoever asked is gone without an answer.
            let answer = receiver.wait_for(Option::is_some).await.ok()?;
            return answer.as_deref().map(<[u8]>::to_vec);
        };
        let _under_way = UnderWay { all: self, asked };
        let answer = ask.await;
        if let Some(answer) = &answer {
            sender.send_replace(Some(answer.as_slice().into()));
        }
        answer
    }
}

/// Takes a question off the list, also when nobody waits for its answer any more.
struct UnderWay<'a> {
    all: &'a InFlight,
    asked: &'a Asked,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.all.0.lock().remove(self.asked);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::Name;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn equal_questions_are_asked_once() {
        let (all, count) = (InFlight::default(), AtomicUsize::new(0));
        let asked = |name: &str| Asked {
            name: Name::from_text(name).unwrap(),
            kind: 1,
            class: 1,
            wants_signatures: false,
            checking_disabled: false,
        };
        let (one, other) = (asked("a.example"), asked("b.example"));
        let ask = |asked| {
            all.share(asked, async {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::task::yield_now().await;
                Some(vec![7])
            })
        };
        let answers = futures::future::join_all((0..1000).map(|_| ask(&one)).chain([ask(&other)])).await;
        assert!(answers.iter().all(|answer| answer.as_deref() == Some(&[7])));
        assert_eq!(count.load(Ordering::Relaxed), 2);
        assert!(all.0.lock().is_empty());
    }
}
