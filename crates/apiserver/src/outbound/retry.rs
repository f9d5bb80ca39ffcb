//! Retries calls of configured webhooks after transient failures.

use std::future::Future;
use std::time::Duration;

use super::WebhookFailure;

const ATTEMPTS: u32 = 5;
const FIRST_DELAY: Duration = Duration::from_millis(500);
const FACTOR: f64 = 1.5;
const JITTER: f64 = 0.2;

/// Retries a call with a backoff until it succeeds, or fails in a way that a retry would not change.
pub async fn with_backoff<T, F>(mut call: impl FnMut() -> F) -> Result<T, WebhookFailure>
where
    F: Future<Output = Result<T, WebhookFailure>>,
{
    let mut delay = FIRST_DELAY;
    for attempt in 1.. {
        match call().await {
            Err(failure) if failure.is_temporary() && attempt < ATTEMPTS => {
                tokio::time::sleep(delay.mul_f64(1.0 + JITTER * rand::random::<f64>())).await;
                delay = delay.mul_f64(FACTOR);
            }
            outcome => return outcome,
        }
    }
    Err(WebhookFailure::Malformed("no attempt was made".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_temporary_failures_are_repeated() {
        for (code, attempts) in [(500, 5), (429, 5), (403, 1)] {
            let mut calls = 0;
            let outcome: Result<(), _> = with_backoff(|| {
                calls += 1;
                async move { Err(WebhookFailure::Status { code, text: String::new() }) }
            })
            .await;
            assert!(outcome.is_err());
            assert_eq!(calls, attempts, "{code}");
        }
    }
}
