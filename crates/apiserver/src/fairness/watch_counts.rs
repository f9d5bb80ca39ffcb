//! How many watches receive the event of a write.

use std::collections::HashMap;
use std::sync::Arc;

use knarr_api::selector::FieldSelector;
use parking_lot::Mutex;

use crate::request::Target;

/// The field by which nodes select their pods: the store finds these watches without asking each.
const INDEXED: (&str, &str) = ("pods", "spec.nodeName");

/// The open watches, by what they watch.
#[derive(Default)]
pub struct WatchCounts(Mutex<HashMap<String, usize>>);

/// A watch that is counted until this is dropped.
pub struct CountedWatch {
    counts: Arc<WatchCounts>,
    key: String,
}

impl WatchCounts {
    /// Counts a watch; `None` if its events cost nothing.
    pub fn count(self: &Arc<Self>, target: &Target) -> Option<CountedWatch> {
        if target.resource == INDEXED.0 && target.group.is_empty() {
            let fields = FieldSelector::parse(&target.field_selector).ok();
            if fields.is_some_and(|fields| fields.exact(INDEXED.1).is_some_and(|value| !value.is_empty())) {
                return None;
            }
        }
        let key = key(target, &target.namespace, &target.name);
        *self.0.lock().entry(key.clone()).or_default() += 1;
        Some(CountedWatch { counts: self.clone(), key })
    }

    /// The watches that receive a change of this object.
    pub fn interested(&self, target: &Target) -> usize {
        let counts = self.0.lock();
        if counts.is_empty() {
            return 0;
        }
        let of = |namespace: &str, name: &str| counts.get(&key(target, namespace, name)).copied().unwrap_or_default();
        let mut found = of("", "");
        if !target.namespace.is_empty() {
            found += of(&target.namespace, "");
        }
        if !target.name.is_empty() {
            found += of(&target.namespace, &target.name);
        }
        found
    }
}

impl Drop for CountedWatch {
    fn drop(&mut self) {
        let mut counts = self.counts.0.lock();
        if let Some(count) = counts.get_mut(&self.key) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.key);
            }
        }
    }
}

fn key(target: &Target, namespace: &str, name: &str) -> String {
    [&target.group, &target.resource, namespace, name].join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(namespace: &str, name: &str, fields: &str) -> Target {
        Target {
            resource: "pods".into(),
            namespace: namespace.into(),
            name: name.into(),
            field_selector: fields.into(),
            ..Target::default()
        }
    }

    #[test]
    fn watches_are_counted_by_what_they_select() {
        let counts = Arc::new(WatchCounts::default());
        let all = counts.count(&target("", "", ""));
        let namespace = counts.count(&target("a", "", ""));
        let one = counts.count(&target("a", "p", ""));
        let elsewhere = counts.count(&target("b", "", ""));
        assert!(counts.count(&target("", "", "spec.nodeName=n")).is_none());
        assert_eq!(counts.interested(&target("a", "p", "")), 3);
        assert_eq!(counts.interested(&target("a", "q", "")), 2);
        assert_eq!(counts.interested(&target("c", "q", "")), 1);
        drop((all, namespace, one));
        assert_eq!(counts.interested(&target("a", "p", "")), 0);
        assert_eq!(counts.interested(&target("b", "p", "")), 1);
        drop(elsewhere);
        assert!(counts.0.lock().is_empty());
    }
}
