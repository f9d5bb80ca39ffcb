//! Waits for another server from code that cannot wait otherwise: CEL expressions that ask the authorizer.

use std::future::Future;

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs a future to its end on this thread.
pub fn wait<T: Send>(future: impl Future<Output = T> + Send) -> T {
    match Handle::try_current() {
        Ok(handle) if handle.runtime_flavor() == RuntimeFlavor::MultiThread => {
            tokio::task::block_in_place(|| handle.block_on(future))
        }
        // On a runtime of one thread the future could not make progress: it gets a thread of its own.
        _ => std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.map(|runtime| runtime.block_on(future))
            });
            match running.join() {
                Ok(Ok(value)) => value,
                Ok(Err(error)) => std::panic::panic_any(format!("no runtime: {error}")),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn later() -> u32 {
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        7
    }

    #[tokio::test]
    async fn one_thread_waits() {
        assert_eq!(wait(later()), 7);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn many_threads_wait() {
        assert_eq!(wait(later()), 7);
    }
}
