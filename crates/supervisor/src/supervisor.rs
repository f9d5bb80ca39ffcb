//! Owns components: starts, restarts and stops them.

use std::fmt::Display;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::fault;
use crate::panics::panic_message;
use crate::registry::{Component, ComponentFailure, Registry};
use crate::run::{Run, scope};

/// The output of a component's future.
pub trait Ending: Send {
    /// The error, if it ended with one.
    fn error(self) -> Option<String>;
}

impl Ending for () {
    fn error(self) -> Option<String> {
        None
    }
}

impl<E: Display + Send> Ending for Result<(), E> {
    fn error(self) -> Option<String> {
        self.err().map(|error| format!("{error:#}"))
    }
}

/// Owns a group of components: dropping it stops them.
pub struct Supervisor {
    registry: Registry,
    tasks: Mutex<JoinSet<()>>,
    /// Components may return now.
    stopping: Arc<AtomicBool>,
}

impl Supervisor {
    /// An empty group, whose components are reported in `registry`.
    pub fn new(registry: &Registry) -> Self {
        Self { registry: registry.clone(), tasks: Mutex::default(), stopping: Arc::default() }
    }

    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Runs a component for ever. When it panics, returns or fails, it is started again after a backoff.
    pub fn restart<F, R>(&self, name: impl Into<Arc<str>>, run: F)
    where
        F: FnMut() -> R + Send + 'static,
        R: Future<Output: Ending> + Send + 'static,
    {
        let supervised = restarting(&self.registry, name.into(), run, self.stopping.clone(), false);
        self.tasks.lock().spawn(supervised);
    }

    /// Runs a component until it returns without an error. When it panics or fails, it is started again after a backoff.
    pub fn complete<F, R>(&self, name: impl Into<Arc<str>>, run: F)
    where
        F: FnMut() -> R + Send + 'static,
        R: Future<Output: Ending> + Send + 'static,
    {
        let supervised = restarting(&self.registry, name.into(), run, self.stopping.clone(), true);
        self.tasks.lock().spawn(supervised);
    }

    /// Runs a component without which the process cannot go on: when it panics or returns, the process fails.
    pub fn essential<R>(&self, name: impl Into<Arc<str>>, future: R)
    where
        R: Future<Output: Ending> + Send + 'static,
    {
        let component = self.registry.add(name.into());
        let stopping = self.stopping.clone();
        self.tasks.lock().spawn(async move {
            let registration = Registration(component);
            let component = &registration.0;
            let reason = run_once(component, move || future).await;
            if stopping.load(Ordering::Acquire) {
                return;
            }
            let reason = reason.unwrap_or_else(|| "it returned unexpectedly".to_owned());
            tracing::error!(component = &*component.name, reason, "a component failed; the process ends");
            component.set_failure(Some(reason.clone()));
            component.registry.fail(component, reason);
            // Stays visible until the process has ended.
            std::future::pending::<()>().await;
        });
    }

    /// Runs the main work of a process as a component, in the current task. A panic becomes a failure.
    pub async fn run<T>(
        &self,
        name: impl Into<Arc<str>>,
        future: impl Future<Output = T>,
    ) -> Result<T, ComponentFailure> {
        let registration = Registration(self.registry.add(name.into()));
        let component = &registration.0;
        let (run, failed) = Run::new(component.clone());
        let _ended = EndOnDrop(run.clone());
        let body = AssertUnwindSafe(scope(run, async {
            let _at_stop = fault::AtStop(component.name.clone());
            fault::point("start");
            future.await
        }));
        let reason = tokio::select! {
            ended = body.catch_unwind() => match ended {
                Ok(output) => return Ok(output),
                Err(panic) => format!("it panicked: {}", panic_message(&*panic)),
            },
            Ok(reason) = failed => reason,
            () = fault::later(&component.name) => "it returned unexpectedly".to_owned(),
        };
        Err(ComponentFailure { component: component.name.clone(), reason })
    }

    /// From now on, components may return.
    pub fn expect_stop(&self) {
        self.stopping.store(true, Ordering::Release);
    }

    /// Stops all components at once.
    pub async fn shutdown(&self) {
        self.stopping.store(true, Ordering::Release);
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        tasks.shutdown().await;
    }

    /// Waits until all components have returned by themselves, after they were asked to stop.
    pub async fn finish(&self) {
        self.stopping.store(true, Ordering::Release);
        let mut tasks = std::mem::take(&mut *self.tasks.lock());
        while tasks.join_next().await.is_some() {}
    }
}

/// Runs a component of this process that outlives the one that started it, such as an informer that several share. It is
/// restarted until the returned handle is aborted. Outside of any component its panics are only logged.
pub fn spawn_restarting<F, R>(name: impl Into<Arc<str>>, run: F) -> AbortHandle
where
    F: FnMut() -> R + Send + 'static,
    R: Future<Output: Ending> + Send + 'static,
{
    let registry = crate::run::current_run().map(|run| run.registry().clone()).unwrap_or_default();
    tokio::spawn(restarting(&registry, name.into(), run, Arc::default(), true)).abort_handle()
}

/// Removes a component from the registry when its task ends or is aborted.
struct Registration(Arc<Component>);

impl Drop for Registration {
    fn drop(&mut self) {
        self.0.registry.remove(&self.0);
    }
}

fn restarting<F, R>(
    registry: &Registry,
    name: Arc<str>,
    mut run: F,
    stopping: Arc<AtomicBool>,
    may_return: bool,
) -> impl Future<Output = ()> + Send + use<F, R>
where
    F: FnMut() -> R + Send + 'static,
    R: Future<Output: Ending> + Send + 'static,
{
    let registration = Registration(registry.add(name));
    async move {
        let component = &registration.0;
        let mut backoff = Backoff::default();
        loop {
            let started = Instant::now();
            let reason = run_once(component, &mut run).await;
            if stopping.load(Ordering::Acquire) || (may_return && reason.is_none()) {
                return;
            }
            let reason = reason.unwrap_or_else(|| "it returned unexpectedly".to_owned());
            let delay = backoff.next(started.elapsed());
            tracing::error!(component = &*component.name, reason, ?delay, "a component failed; restarting it");
            component.set_failure(Some(format!("restarting after a failure: {reason}")));
            tokio::time::sleep(delay).await;
            component.count_restart();
            component.set_failure(None);
        }
    }
}

/// Runs a component once. Returns why it failed; `None` if it just returned.
async fn run_once<R>(component: &Arc<Component>, start: impl FnOnce() -> R + Send) -> Option<String>
where
    R: Future<Output: Ending> + Send + 'static,
{
    let (run, failed) = Run::new(component.clone());
    // Also when this task is aborted.
    let _ended = EndOnDrop(run.clone());
    let name = component.name.clone();
    let body = async move {
        let _at_stop = fault::AtStop(name.clone());
        fault::point("start");
        // Called as the component: what it creates belongs to the run, and it may panic as well as its future.
        let future = start();
        tokio::select! {
            ending = future => ending.error(),
            () = fault::later(&name) => None,
        }
    };
    let mut body = Box::pin(AssertUnwindSafe(scope(run, body)).catch_unwind());
    let reason = tokio::select! {
        ended = &mut body => match ended {
            Ok(error) => error,
            Err(panic) => Some(format!("it panicked: {}", panic_message(&*panic))),
        },
        Ok(reason) = failed => Some(reason),
    };
    // Dropping the state of a failed run may panic, too. That is logged, and the component is restarted nevertheless.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(move || drop(body)));
    reason
}

struct EndOnDrop(Arc<Run>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{current_run, spawn_linked};
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    fn counted(count: &Arc<AtomicUsize>) -> usize {
        count.fetch_add(1, Ordering::SeqCst)
    }

    #[tokio::test(start_paused = true)]
    async fn a_component_that_panics_or_returns_is_restarted() {
        let registry = Registry::default();
        let supervisor = Supervisor::new(&registry);
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = runs.clone();
        supervisor.restart("worker", move || {
            let run = counted(&counter);
            async move {
                match run {
                    0 => panic!("broken"),
                    1 => Ok(()),
                    2 => Err("no disk"),
                    _ => std::future::pending().await,
                }
            }
        });
        let failure = async || registry.report()[0].failure.clone();
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(failure().await.as_deref(), Some("restarting after a failure: it panicked: broken"));
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(failure().await.as_deref(), Some("restarting after a failure: it returned unexpectedly"));
        tokio::time::sleep(Duration::from_millis(200)).await;
        assert_eq!(failure().await.as_deref(), Some("restarting after a failure: no disk"));
        tokio::time::sleep(Duration::from_millis(400)).await;
        assert_eq!((registry.report()[0].restarts, failure().await), (3, None));
        assert_eq!(registry.failure(), None);
        supervisor.shutdown().await;
        assert_eq!(runs.load(Ordering::SeqCst), 4);
        assert!(registry.report().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_essential_component_fails_the_process() {
        let registry = Registry::default();
        let supervisor = Supervisor::new(&registry);
        supervisor.essential("listener", async {
            tokio::task::yield_now().await;
            if true {
                panic!("no socket");
            }
        });
        let failure = registry.failed().await;
        assert_eq!(failure.to_string(), "listener failed: it panicked: no socket");
        assert!(registry.report()[0].failure.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn components_may_return_when_they_are_stopped() {
        let registry = Registry::default();
        let supervisor = Supervisor::new(&registry);
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        supervisor.essential("listener", async move { drop(stopped.await) });
        supervisor.complete("import", || async {});
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(registry.report().len(), 1, "what is complete is not reported");
        let stopping = async {
            tokio::task::yield_now().await;
            drop(stop);
        };
        tokio::join!(supervisor.finish(), stopping);
        assert_eq!(registry.failure(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_of_a_linked_task_restarts_its_component() {
        let registry = Registry::default();
        let supervisor = Supervisor::new(&registry);
        let runs: Arc<Mutex<Vec<Arc<Run>>>> = Arc::default();
        let seen = runs.clone();
        supervisor.restart("outer", move || {
            let seen = seen.clone();
            async move {
                let is_first = seen.lock().is_empty();
                seen.lock().push(current_run().unwrap());
                spawn_linked("inner", async move {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                    assert!(!is_first, "the first one fails");
                    std::future::pending().await
                });
                std::future::pending::<()>().await
            }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        let runs = runs.lock();
        assert_eq!(runs.len(), 2);
        assert!(runs[0].is_over() && !runs[1].is_over());
        assert_eq!(registry.report()[0].restarts, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_while_a_failed_run_is_dropped_does_not_end_the_supervision() {
        struct Panics(bool);
        impl Drop for Panics {
            fn drop(&mut self) {
                assert!(!self.0, "while it is dropped");
            }
        }
        let registry = Registry::default();
        let supervisor = Supervisor::new(&registry);
        let runs = Arc::new(AtomicUsize::new(0));
        let counter = runs.clone();
        supervisor.restart("worker", move || {
            let is_first = counted(&counter) == 0;
            async move {
                let _held = Panics(is_first);
                if is_first {
                    spawn_linked("inner", async { panic!("a linked task") });
                }
                std::future::pending::<()>().await
            }
        });
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(runs.load(Ordering::SeqCst), 2);
        assert_eq!((registry.report()[0].restarts, registry.report()[0].failure.clone()), (1, None));
    }

    #[tokio::test(start_paused = true)]
    async fn dropping_the_owner_stops_its_components() {
        let registry = Registry::default();
        let supervisor = Supervisor::new(&registry);
        let alive = Arc::new(());
        let held = alive.clone();
        supervisor.restart("holder", move || {
            let held = held.clone();
            async move {
                let held = held;
                spawn_linked("inner", {
                    let held = held.clone();
                    async move {
                        let _held = held;
                        std::future::pending().await
                    }
                });
                std::future::pending::<()>().await
            }
        });
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert!(Arc::strong_count(&alive) >= 4);
        drop(supervisor);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(Arc::strong_count(&alive), 1);
        assert!(registry.report().is_empty());
    }
}
