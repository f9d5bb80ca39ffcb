//! The clock of the reconcilers. It is injected, so that tests control the time.

use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

/// Returns the time. Reconcilers read it once and pass it to their plans, which are pure.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> Timestamp + Send + Sync>);

impl Clock {
    /// The system clock.
    pub fn system() -> Self {
        Self(Arc::new(Timestamp::now))
    }

    /// A clock that returns the function's time.
    pub fn showing(time: impl Fn() -> Timestamp + Send + Sync + 'static) -> Self {
        Self(Arc::new(time))
    }

    pub fn now(&self) -> Timestamp {
        (self.0)()
    }
}
