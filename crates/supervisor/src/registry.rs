//! The state of all components of a process.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::watch;

/// A failure that ends the process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentFailure {
    pub component: Arc<str>,
    pub reason: String,
}

impl std::fmt::Display for ComponentFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} failed: {}", self.component, self.reason)
    }
}

impl std::error::Error for ComponentFailure {}

/// One component for health checks and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ComponentReport {
    pub name: Arc<str>,
    /// Why it does not run now.
    pub failure: Option<String>,
    pub restarts: u64,
    pub panics: u64,
}

/// The components of a process. Clones share them.
#[derive(Clone)]
pub struct Registry(Arc<Inner>);

struct Inner {
    components: Mutex<Vec<Arc<Component>>>,
    failure: watch::Sender<Option<ComponentFailure>>,
}

impl Default for Registry {
    fn default() -> Self {
        Self(Arc::new(Inner { components: Mutex::default(), failure: watch::Sender::new(None) }))
    }
}

impl Registry {
    /// All components, ordered by name. Those of one name, such as informers of one kind, are reported together.
    pub fn report(&self) -> Vec<ComponentReport> {
        let mut reports: Vec<ComponentReport> = self.0.components.lock().iter().map(|one| one.report()).collect();
        reports.sort_by(|one, other| one.name.cmp(&other.name));
        reports.dedup_by(|next, kept| {
            let is_same = next.name == kept.name;
            if is_same {
                kept.failure = kept.failure.take().or(next.failure.take());
                kept.restarts += next.restarts;
                kept.panics += next.panics;
            }
            is_same
        });
        reports
    }

    /// The failure that ends the process, if there was one.
    pub fn failure(&self) -> Option<ComponentFailure> {
        self.0.failure.borrow().clone()
    }

    /// Waits for a failure that ends the process.
    pub async fn failed(&self) -> ComponentFailure {
        let mut failure = self.0.failure.subscribe();
        let failed = failure.wait_for(Option::is_some).await;
        match failed.map(|failure| failure.clone()) {
            Ok(Some(failure)) => failure,
            // The sender lives in `self`.
            _ => std::future::pending().await,
        }
    }

    pub(crate) fn add(&self, name: Arc<str>) -> Arc<Component> {
        let component = Arc::new(Component {
            name,
            failure: Mutex::new(None),
            restarts: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            registry: self.clone(),
        });
        self.0.components.lock().push(component.clone());
        component
    }

    pub(crate) fn remove(&self, component: &Arc<Component>) {
        self.0.components.lock().retain(|own| !Arc::ptr_eq(own, component));
    }

    pub(crate) fn fail(&self, component: &Component, reason: String) {
        let failure = ComponentFailure { component: component.name.clone(), reason };
        // The first failure is the cause of those after it.
        self.0.failure.send_if_modified(|known| {
            let is_first = known.is_none();
            known.get_or_insert(failure);
            is_first
        });
    }
}

/// One component of the process, across restarts.
pub(crate) struct Component {
    pub name: Arc<str>,
    failure: Mutex<Option<String>>,
    restarts: AtomicU64,
    panics: AtomicU64,
    pub registry: Registry,
}

impl Component {
    pub fn set_failure(&self, failure: Option<String>) {
        *self.failure.lock() = failure;
    }

    pub fn count_restart(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    pub fn count_panic(&self) {
        self.panics.fetch_add(1, Ordering::Relaxed);
    }

    fn report(&self) -> ComponentReport {
        ComponentReport {
            name: self.name.clone(),
            failure: self.failure.lock().clone(),
            restarts: self.restarts.load(Ordering::Relaxed),
            panics: self.panics.load(Ordering::Relaxed),
        }
    }
}
