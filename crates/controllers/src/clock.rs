//! The one place that reads the clock. Reconcilers read it once and hand the time to their plans, which are pure.

use k8s_openapi::jiff::Timestamp;

pub fn now() -> Timestamp {
    Timestamp::now()
}
