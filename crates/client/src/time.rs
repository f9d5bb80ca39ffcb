//! Timestamps of the API: whole seconds for `Time`, microseconds for `MicroTime`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, Time};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The current time in whole seconds, so that a written status equals the one read back.
pub fn now() -> Time {
    truncated(Timestamp::now())
}

/// The current time in microseconds.
pub fn now_micro() -> MicroTime {
    MicroTime(Timestamp::now())
}

/// Truncates to whole seconds.
pub fn truncated(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// How long ago `then` was; negative when it is in the future.
pub fn since(now: Timestamp, then: &Time) -> SignedDuration {
    now.duration_since(then.0)
}

/// The time `seconds` after `then`.
pub fn after_seconds(then: &Time, seconds: i64) -> Timestamp {
    then.0.saturating_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

/// How long to wait from `now` until `at`; zero when it has passed.
pub fn until(now: Timestamp, at: Timestamp) -> std::time::Duration {
    at.duration_since(now).try_into().unwrap_or_default()
}
