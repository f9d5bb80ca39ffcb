//! Where reconcilers get the time from: a clock they are given, so that a test can give them another.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

/// Tells the time. Reconcilers ask once and hand the answer to their plans, which are pure.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The machine's own clock.
    pub fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    /// A clock that shows what the function says.
    pub fn showing(time: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(time))
    }

    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}
