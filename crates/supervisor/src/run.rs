//! One run of a component, from a start to its end, and the tasks that belong to it.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::panics::panic_message;
use crate::registry::{Component, Registry};

tokio::task_local! {
    static CURRENT: Arc<Run>;
}

/// One run of a component. A restarted component has a new one.
pub struct Run {
    pub(crate) component: Arc<Component>,
    is_over: AtomicBool,
    /// Ends the run with a reason.
    fail: Mutex<Option<oneshot::Sender<String>>>,
    /// Linked tasks, which are aborted when the run ends.
    linked: Mutex<Vec<AbortHandle>>,
    numbers: AtomicUsize,
}

impl Run {
    pub(crate) fn new(component: Arc<Component>) -> (Arc<Self>, oneshot::Receiver<String>) {
        let (sender, failed) = oneshot::channel();
        let run = Self {
            component,
            is_over: AtomicBool::new(false),
            fail: Mutex::new(Some(sender)),
            linked: Mutex::default(),
            numbers: AtomicUsize::new(0),
        };
        (Arc::new(run), failed)
    }

    /// The component's name.
    pub fn name(&self) -> &str {
        &self.component.name
    }

    /// A number for each thing that a run creates, the same in each run: 0, 1 and so on.
    pub fn next_number(&self) -> usize {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// The components of this process.
    pub fn registry(&self) -> &Registry {
        &self.component.registry
    }

    /// Whether the run has ended: the component was stopped or restarted, and what was registered for it is stale.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire)
    }

    /// Calls a function as this component.
    pub fn enter<T>(self: &Arc<Self>, call: impl FnOnce() -> T) -> T {
        CURRENT.sync_scope(self.clone(), call)
    }

    /// Ends the run, so that the component is restarted or fails the process. The first reason counts.
    pub fn fail(&self, reason: String) {
        if let Some(sender) = self.fail.lock().take() {
            // The run may have ended for another reason.
            let _ = sender.send(reason);
        }
    }

    fn link(&self, task: AbortHandle) {
        let mut linked = self.linked.lock();
        linked.retain(|task| !task.is_finished());
        linked.push(task);
        drop(linked);
        if self.is_over() {
            self.end();
        }
    }

    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
        for task in self.linked.lock().drain(..) {
            task.abort();
        }
    }
}

/// The run of the component to which the current task belongs.
pub fn current_run() -> Option<Arc<Run>> {
    CURRENT.try_with(Arc::clone).ok()
}

pub(crate) async fn scope<F: Future>(run: Arc<Run>, future: F) -> F::Output {
    CURRENT.scope(run, future).await
}

/// Makes a future that runs in another task belong to the current component.
pub fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> {
    within(current_run(), future)
}

/// Makes a future belong to a run of a component.
pub async fn within<F: Future>(run: Option<Arc<Run>>, future: F) -> F::Output {
    match run {
        Some(run) => scope(run, future).await,
        None => future.await,
    }
}

/// Spawns a task of the current component that serves one request or connection. A panic is logged with the component's
/// name and ends only this task.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    // A future is boxed at most once: tokio moves it to the heap.
    tokio::spawn(inherit(future))
}

/// Spawns a long-lived task without which the current component does not work: a panic fails the component, and the task is
/// aborted when the component's run ends.
pub fn spawn_linked<F>(task: &'static str, future: F) -> AbortHandle
where
    F: Future<Output = ()> + Send + 'static,
{
    let run = current_run();
    let reporting = run.clone();
    let spawned = spawn(async move {
        if let Err(panic) = AssertUnwindSafe(future).catch_unwind().await
            && let Some(run) = reporting
        {
            run.fail(format!("its task {task} panicked: {}", panic_message(&*panic)));
        }
    });
    let handle = spawned.abort_handle();
    if let Some(run) = run {
        run.link(handle.clone());
    }
    handle
}

/// Waits for all tasks of a set, and panics as soon as one of them did.
pub async fn join_all<T: 'static>(mut tasks: JoinSet<T>) {
    while let Some(joined) = tasks.join_next().await {
        if let Err(error) = joined
            && error.is_panic()
        {
            std::panic::resume_unwind(error.into_panic());
        }
    }
}
