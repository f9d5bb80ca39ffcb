//! Panics as messages and errors.

use std::any::Any;
use std::future::Future;
use std::panic::AssertUnwindSafe;

use futures::FutureExt;

/// The message of a panic.
pub fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

/// The output of one operation of several. A panic becomes its error, so that it is retried like any other failure.
pub async fn caught<T>(operation: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let ended = AssertUnwindSafe(operation).catch_unwind().await;
    ended.unwrap_or_else(|panic| Err(format!("a panic: {}", panic_message(&*panic))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error_of_its_operation() {
        assert_eq!(caught(async { Ok(1) }).await, Ok(1));
        assert_eq!(caught::<()>(async { Err("no".to_owned()) }).await, Err("no".to_owned()));
        let panicking = async {
            tokio::task::yield_now().await;
            panic!("broken {}", 1)
        };
        assert_eq!(caught::<()>(panicking).await, Err("a panic: broken 1".to_owned()));
    }
}
