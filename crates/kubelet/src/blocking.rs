//! Calls that may block for long: a volume's file system is as fast as its server, which may be a pod's own, or hang.

use tokio::runtime::{Handle, RuntimeFlavor};

/// Runs work on this thread, whose other tasks move to another one. Only the caller waits.
pub fn in_place<T>(work: impl FnOnce() -> T) -> T {
    match Handle::try_current() {
        Ok(current) if current.runtime_flavor() == RuntimeFlavor::MultiThread => tokio::task::block_in_place(work),
        _ => work(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// As many hung volumes as there are threads must not stop the process.
    #[test]
    fn a_hung_volume_blocks_its_own_pod_only() {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build().expect("a runtime");
        let (release, hung) = channel::<()>();
        let (done, finished) = channel();
        let pod = runtime.spawn(async move { super::in_place(|| hung.recv()) });
        runtime.spawn(async move {
            done.send(()).expect("somebody waits");
            release.send(()).expect("the pod waits");
        });
        finished.recv_timeout(Duration::from_secs(60)).expect("other tasks go on");
        runtime.block_on(pod).expect("no panic").expect("released");
    }
}
