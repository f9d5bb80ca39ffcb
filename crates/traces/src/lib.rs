//! OpenTelemetry traces: spans of requests and operations, sent to a collector over OTLP with gRPC.
//!
//! A component has a [`Tracer`] only if its configuration asks for one. Spans that are sampled wait in a bounded queue; what
//! does not fit, or what the collector does not take in time, is dropped and counted. Nothing waits for the collector.

mod configuration;
mod context;
mod current;
mod exporter;
mod messages;
mod span;

pub use configuration::{Configuration, ConfigurationError};
pub use context::{TRACEPARENT, TraceContext};
pub use current::{Place, call_within, child_of_current, current, within};
pub use span::{Kind, Parent, Span};

use std::sync::Arc;

use knarr_supervisor::Supervisor;

use exporter::Queue;

/// Starts spans of one component.
#[derive(Clone)]
pub struct Tracer {
    queue: Arc<Queue>,
    samples_per_million: u32,
}

impl Tracer {
    /// Starts to export the spans of a component, as a task of `supervisor`. The attributes describe the component.
    pub fn start(
        configuration: &Configuration,
        service: &'static str,
        attributes: &[(&'static str, String)],
        supervisor: &Supervisor,
    ) -> Result<Tracer, ConfigurationError> {
        let channel = configuration.channel()?;
        let queue = Arc::new(Queue::new(service, attributes));
        let exported = queue.clone();
        supervisor.restart("trace-exporter", move || exporter::run(exported.clone(), channel.clone()));
        Ok(Tracer { queue, samples_per_million: configuration.sampling_rate_per_million.unwrap_or(0) })
    }

    /// A tracer whose spans are not sent.
    #[doc(hidden)]
    pub fn without_collector(samples_per_million: u32) -> Tracer {
        Tracer { queue: Arc::new(Queue::new("test", &[])), samples_per_million }
    }

    /// The names and traces of the spans that wait to be sent.
    #[doc(hidden)]
    pub fn waiting(&self) -> Vec<(String, u128)> {
        self.queue.waiting()
    }

    /// Starts a span; `None` if it is not sampled.
    pub fn span(&self, name: impl Into<String>, kind: Kind, parent: Parent) -> Option<Span> {
        Span::start(self, name.into(), kind, parent)
    }
}
