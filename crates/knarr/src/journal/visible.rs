//! What a reader sees of the journal: steps of objects that they may get. Without the right to the whole journal, other users
//! and pods of other namespaces are not named.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::Stream;
use knarr_apiserver::page::Reader;
use knarr_journey::{Detail, Journal, Step, Subscription, build_timeline};

use super::steps;

/// Combines a burst of steps into one timeline.
const BATCH_DELAY: Duration = Duration::from_millis(200);
/// The same for readers without the right to the whole journal: whether they may get its objects is decided again.
const LIMITED_BATCH_DELAY: Duration = Duration::from_secs(1);

/// Fields that may name what a reader may not get, and what is shown instead.
const HIDDEN: [(&str, &str); 2] = [("user", ""), ("by", "another pod")];

/// The lines of a text that the reader sees.
pub async fn text(lines: String, reader: &dyn Reader) -> serde_json::Result<String> {
    if reader.reads_all() {
        return Ok(lines);
    }
    let mut text = String::new();
    for step in limited(steps(lines.as_bytes())?, reader).await {
        text.push_str(&serde_json::to_string(&step)?);
        text.push('\n');
    }
    Ok(text)
}

/// The lines that the reader sees, those to come included. It ends if a line cannot be read.
pub fn lines(journal: &Journal, reader: Arc<dyn Reader>) -> impl Stream<Item = Bytes> + Send + 'static {
    futures::stream::unfold((journal.subscribe(), reader), |(mut subscription, reader)| async move {
        loop {
            let seen = text(subscription.next().await?, &*reader).await.ok()?;
            if !seen.is_empty() {
                return Some((Bytes::from(seen), (subscription, reader)));
            }
        }
    })
}

/// The timeline of an object as JSON; `None` when no step is known.
pub async fn timeline(lines: &str, object: &str, reader: &dyn Reader) -> serde_json::Result<Option<String>> {
    let mut steps = steps(lines.as_bytes())?;
    if !reader.reads_all() {
        steps = limited(steps, reader).await;
    }
    build_timeline(&steps, object, Detail::Changes).map(|timeline| serde_json::to_string(&timeline)).transpose()
}

/// The timeline of an object, a line of JSON each time that it has changed. It ends when the reader may no longer get it.
pub fn timelines(
    journal: &Journal,
    object: &str,
    reader: Arc<dyn Reader>,
) -> impl Stream<Item = Bytes> + Send + 'static {
    let start = WatchedTimeline {
        journal: journal.clone(),
        changes: journal.subscribe(),
        object: object.to_owned(),
        reader,
        last: String::new(),
    };
    futures::stream::unfold(start, |mut timeline| async move {
        let line = timeline.next().await?;
        Some((line, timeline))
    })
}

struct WatchedTimeline {
    journal: Journal,
    changes: Subscription,
    object: String,
    reader: Arc<dyn Reader>,
    last: String,
}

impl WatchedTimeline {
    fn batch_delay(&self) -> Duration {
        if self.reader.reads_all() { BATCH_DELAY } else { LIMITED_BATCH_DELAY }
    }

    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.changes.next().await?;
            self.reader.get(&self.object).await.ok()?;
            let found = timeline(&self.journal.text(), &self.object, &*self.reader).await.ok()?;
            let Some(found) = found.filter(|found| *found != self.last) else {
                tokio::time::sleep(self.batch_delay()).await;
                continue;
            };
            // The first one is sent at once.
            if !self.last.is_empty() {
                tokio::time::sleep(self.batch_delay()).await;
            }
            let line = Bytes::from(format!("{found}\n"));
            self.last = found;
            return Some(line);
        }
    }
}

/// The steps of objects that a reader may get.
async fn limited(steps: Vec<Step>, reader: &dyn Reader) -> Vec<Step> {
    let mut decided: HashMap<String, bool> = HashMap::new();
    let mut seen = Vec::new();
    for mut step in steps {
        let is_visible = match decided.get(&step.object) {
            Some(is_visible) => *is_visible,
            None => {
                let is_visible = reader.get(&step.object).await.is_ok();
                decided.insert(step.object.clone(), is_visible);
                is_visible
            }
        };
        if !is_visible {
            continue;
        }
        for (field, instead) in HIDDEN {
            if let Some(value) = step.fields.get_mut(field) {
                instead.clone_into(value);
            }
        }
        seen.push(step);
    }
    seen
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use futures::StreamExt as _;
    use knarr_api::status::Status;
    use parking_lot::Mutex;

    use super::*;

    /// A reader of a namespace, as long as it is one.
    struct OfNamespace(Mutex<String>);

    #[async_trait]
    impl Reader for OfNamespace {
        fn reads_all(&self) -> bool {
            self.0.lock().is_empty()
        }

        async fn get(&self, object: &str) -> Result<(), Status> {
            let is_own = object.split('/').nth(1) == Some(self.0.lock().as_str()) || self.reads_all();
            is_own.then_some(()).ok_or_else(|| Status::new(403, "Forbidden", "not yours"))
        }
    }

    fn reader(namespace: &str) -> Arc<OfNamespace> {
        Arc::new(OfNamespace(Mutex::new(namespace.to_owned())))
    }

    fn step(object: &str, fields: &[(&'static str, &str)]) -> Step {
        Step {
            started: 1,
            took: 0,
            step: "preempted".into(),
            object: object.to_owned(),
            process: String::new(),
            fields: fields.iter().map(|(name, value)| ((*name).into(), (*value).to_owned())).collect(),
        }
    }

    fn journal() -> Journal {
        let journal = Journal::default();
        journal.append(&step("pods/a/one", &[("user", "jane"), ("by", "b/two"), ("node", "n")]));
        journal.append(&step("pods/b/two", &[]));
        journal
    }

    #[tokio::test]
    async fn readers_of_a_namespace_see_its_steps_and_no_other_names() {
        let all = text(journal().text(), &*reader("")).await.unwrap();
        assert!(all.contains("jane") && all.lines().count() == 2, "{all}");
        let own = text(journal().text(), &*reader("a")).await.unwrap();
        assert!(!own.contains("jane") && !own.contains("two") && own.lines().count() == 1, "{own}");
        assert!(own.contains("another pod"), "{own}");
        let found = |object: &'static str, namespace: &'static str| async move {
            timeline(&journal().text(), object, &*reader(namespace)).await.unwrap()
        };
        assert!(found("pods/a/one", "a").await.is_some_and(|text| text.contains("preempted by another pod")));
        assert_eq!(found("pods/b/two", "a").await, None);
        assert!(found("pods/b/two", "b").await.is_some());
    }

    #[tokio::test]
    async fn lines_of_others_are_not_streamed() {
        let journal = journal();
        let mut seen = Box::pin(lines(&journal, reader("b")));
        let first = seen.next().await.unwrap();
        assert!(String::from_utf8_lossy(&first).contains("pods/b/two"));
        journal.append(&step("pods/a/one", &[]));
        assert!(futures::poll!(seen.next()).is_pending(), "a step of another namespace");
        journal.append(&step("pods/b/three", &[]));
        assert!(String::from_utf8_lossy(&seen.next().await.unwrap()).contains("pods/b/three"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_timeline_grows_and_ends_with_the_right_to_see_it() {
        let (journal, reader) = (journal(), reader("a"));
        let mut seen = Box::pin(timelines(&journal, "pods/a/one", reader.clone()));
        assert_eq!(seen.next().await.unwrap().iter().filter(|byte| **byte == b'\n').count(), 1);
        let mut exited = step("pods/a/one", &[("container", "web"), ("code", "3")]);
        exited.step = "container-ended".into();
        journal.append(&exited);
        assert!(String::from_utf8_lossy(&seen.next().await.unwrap()).contains("exited with 3"));
        "nothing".clone_into(&mut reader.0.lock());
        journal.append(&step("pods/b/two", &[]));
        assert_eq!(seen.next().await, None);
    }
}
