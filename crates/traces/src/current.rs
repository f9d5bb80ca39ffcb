//! The span that the current task works for, so that what it calls, however deep, is part of the same trace.

use std::future::Future;

use crate::{Kind, Parent, Span, TraceContext, Tracer};

tokio::task_local! {
    static CURRENT: Place;
}

/// The place of a sampled span, for what is part of it.
#[derive(Clone)]
pub struct Place {
    tracer: Tracer,
    context: TraceContext,
}

impl Span {
    /// The place of this span, for [`within`].
    pub fn place(&self) -> Place {
        Place { tracer: self.tracer.clone(), context: self.context() }
    }
}

/// The span of the current task, if it has a sampled one.
pub fn current() -> Option<Place> {
    CURRENT.try_with(Place::clone).ok()
}

/// Runs a future as part of a span.
pub async fn within<F: Future>(place: Place, future: F) -> F::Output {
    CURRENT.scope(place, future).await
}

/// Calls a function as part of a span, if there is one.
pub fn call_within<T>(place: Option<Place>, call: impl FnOnce() -> T) -> T {
    match place {
        Some(place) => CURRENT.sync_scope(place, call),
        None => call(),
    }
}

/// Starts a span within that of the current task, if it has one.
pub fn child_of_current(name: impl Into<String>, kind: Kind) -> Option<Span> {
    let Place { tracer, context } = current()?;
    tracer.span(name, kind, Parent::Trusted(context))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn spans_belong_to_the_one_of_their_task() {
        let tracer = Tracer::without_collector(1_000_000);
        assert!(child_of_current("outside", Kind::Client).is_none());
        let request = tracer.span("request", Kind::Server, Parent::None).expect("sampled");
        let trace = request.context().trace;
        let called = within(request.place(), async {
            tokio::task::yield_now().await;
            child_of_current("call", Kind::Client).map(|span| span.context())
        });
        let called = called.await.expect("a span");
        assert_eq!(called.trace, trace);
        assert_ne!(called.span, request.context().span);
        call_within(Some(request.place()), || assert!(current().is_some()));
        call_within(None, || assert!(current().is_none()));
        drop(request);
        assert_eq!(tracer.waiting(), [("call".to_owned(), trace), ("request".to_owned(), trace)]);
    }
}
