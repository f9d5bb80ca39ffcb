//! Fault injection for tests, in builds with debug assertions only.
//!
//! `KNARR_FAULT=scheduler:start,cluster-dns:running*3` makes the scheduler panic once when it is started, and cluster DNS
//! three times a second after its start. `*` alone means always. Stages are `start`, `running`, `return` and `stop` of any
//! component, and the names of [`point`]s in the code: `handler` of an informer's changes, `work` on a key of a queue, `status`
//! for the write of a status, and those of single components.

#[cfg(debug_assertions)]
mod injected {
    use std::sync::LazyLock;

    use parking_lot::Mutex;

    #[derive(Debug, PartialEq, Eq)]
    pub struct Fault {
        pub component: String,
        pub stage: String,
        pub remaining: u32,
    }

    pub static FAULTS: LazyLock<Mutex<Vec<Fault>>> =
        LazyLock::new(|| Mutex::new(parse(&std::env::var("KNARR_FAULT").unwrap_or_default())));

    pub fn parse(text: &str) -> Vec<Fault> {
        let faults = text.split(',').filter_map(|fault| {
            let (place, count) = fault.split_once('*').unwrap_or((fault, "1"));
            let (component, stage) = place.trim().rsplit_once(':')?;
            let remaining = if count.is_empty() { u32::MAX } else { count.parse().ok()? };
            Some(Fault { component: component.to_owned(), stage: stage.to_owned(), remaining })
        });
        faults.collect()
    }

    /// Whether the fault is to happen now; each call uses it up once.
    pub fn happens(faults: &mut [Fault], component: &str, stage: &str) -> bool {
        let found =
            faults.iter_mut().find(|fault| fault.remaining > 0 && fault.component == component && fault.stage == stage);
        let Some(fault) = found else { return false };
        if fault.remaining != u32::MAX {
            fault.remaining -= 1;
        }
        true
    }
}

/// Whether a fault of a component at a stage is to happen now.
pub fn happens(component: &str, stage: &str) -> bool {
    #[cfg(debug_assertions)]
    return injected::happens(&mut injected::FAULTS.lock(), component, stage);
    #[cfg(not(debug_assertions))]
    {
        let _ = (component, stage);
        false
    }
}

/// Panics if a fault is injected into the current component at this stage.
pub fn point(stage: &str) {
    if cfg!(debug_assertions)
        && let Some(run) = crate::run::current_run()
    {
        point_of(run.name(), stage);
    }
}

/// Panics if a fault is injected into `component` at this stage.
pub fn point_of(component: &str, stage: &str) {
    if happens(component, stage) {
        panic!("injected fault {component}:{stage}");
    }
}

/// Panics when it is dropped, if that fault is injected: it stands for state of a component whose `drop` panics.
pub(crate) struct AtStop(pub(crate) std::sync::Arc<str>);

impl Drop for AtStop {
    fn drop(&mut self) {
        // A second panic would abort the process.
        if cfg!(debug_assertions) && !std::thread::panicking() {
            point_of(&self.0, "stop");
        }
    }
}

/// Resolves a while after the start of a component, if it is to panic or return then.
pub(crate) async fn later(component: &str) {
    #[cfg(debug_assertions)]
    {
        let known = |stage: &str| {
            let faults = injected::FAULTS.lock();
            faults.iter().any(|fault| fault.remaining > 0 && fault.component == component && fault.stage == stage)
        };
        if known("running") || known("return") {
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            point_of(component, "running");
            if happens(component, "return") {
                return;
            }
        }
    }
    let _ = component;
    std::future::pending().await
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::injected::*;

    #[test]
    fn faults_are_parsed_and_used_up() {
        let mut faults = parse("scheduler:start,informer/Pod:handler*2, dns:running*,nonsense");
        assert_eq!(faults.len(), 3);
        let mut uses = |component: &str, stage: &str| (0..5).filter(|_| happens(&mut faults, component, stage)).count();
        assert_eq!(uses("scheduler", "start"), 1);
        assert_eq!(uses("informer/Pod", "handler"), 2);
        assert_eq!(uses("dns", "running"), 5);
        assert_eq!(uses("dns", "start"), 0);
    }
}
