//! From what the parts say with `tracing` to steps in a journal.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::{Debug, Write as _};
use std::time::{Duration, Instant, SystemTime};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::TARGET;
use crate::journal::Journal;
use crate::step::Step;

/// A layer that writes everything under the journey's target into a journal, and leaves all else alone.
pub struct Recorder {
    journal: Journal,
    process: String,
}

impl Recorder {
    /// `process` names this process among those of the cluster.
    pub fn new(journal: Journal, process: impl Into<String>) -> Recorder {
        Recorder { journal, process: process.into() }
    }

    /// Whether something is for a journal; layers that write logs leave it out.
    pub fn wants(metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn add(&self, name: &'static str, said: Said, took: Duration) {
        let Said { step, object, took_us, fields } = said;
        let took = took_us.map_or(took, Duration::from_micros);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.journal.add(&Step {
            began: micros(now.saturating_sub(took)),
            took: micros(took),
            step: step.map_or(Cow::Borrowed(name), Cow::Owned),
            object,
            process: self.process.clone(),
            fields,
        });
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl<S> Layer<S> for Recorder
where
    S: Subscriber + for<'s> LookupSpan<'s>,
{
    fn enabled(&self, metadata: &Metadata<'_>, _: Context<'_, S>) -> bool {
        Recorder::wants(metadata)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| Recorder::wants(span.metadata())) else { return };
        let mut said = Said::default();
        attributes.record(&mut said);
        span.extensions_mut().insert((said, Instant::now()));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some((said, _)) = span.extensions_mut().get_mut::<(Said, Instant)>() {
            values.record(said);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        if let Some((said, began)) = span.extensions_mut().remove::<(Said, Instant)>() {
            self.add(span.metadata().name(), said, began.elapsed());
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if Recorder::wants(event.metadata()) {
            let mut said = Said::default();
            event.record(&mut said);
            self.add("", said, Duration::ZERO);
        }
    }
}

/// The fields of a span or event.
#[derive(Default)]
struct Said {
    step: Option<String>,
    object: String,
    took_us: Option<u64>,
    fields: BTreeMap<Cow<'static, str>, String>,
}

impl Said {
    fn take(&mut self, field: &Field, value: String) {
        match field.name() {
            "step" => self.step = Some(value),
            "object" => self.object = value,
            // Nothing to tell.
            _ if value.is_empty() => {}
            name => drop(self.fields.insert(Cow::Borrowed(name), value)),
        }
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value.to_owned());
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "took_us" {
            self.took_us = Some(value);
        } else {
            self.take(field, value.to_string());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = write!(text, "{value:?}");
        self.take(field, text);
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;

    fn recorded(act: impl FnOnce()) -> Vec<Step> {
        let journal = Journal::default();
        let subscriber = tracing_subscriber::registry().with(Recorder::new(journal.clone(), "here"));
        tracing::subscriber::with_default(subscriber, act);
        journal.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn an_event_is_a_step() {
        let steps = recorded(|| {
            tracing::info!(target: "journey", step = "request", object = "pods/a/b", took_us = 1_500_u64, user = "jane", note = "");
            tracing::info!(object = "pods/a/b", "a log line is none");
        });
        assert_eq!(steps.len(), 1);
        assert_eq!((steps[0].step.as_ref(), steps[0].object.as_str(), steps[0].took), ("request", "pods/a/b", 1_500));
        assert_eq!((steps[0].field("user"), steps[0].fields.len(), steps[0].process.as_str()), ("jane", 1, "here"));
    }

    #[test]
    fn a_span_is_a_step_once_it_ends_with_what_it_learnt() {
        let steps = recorded(|| {
            let span = tracing::info_span!(target: "journey", "sandbox", object = %format_args!("pods/{}/{}", "a", "b"), address = tracing::field::Empty);
            span.record("address", "10.0.0.7");
        });
        assert_eq!(steps.len(), 1);
        assert_eq!((steps[0].step.as_ref(), steps[0].object.as_str()), ("sandbox", "pods/a/b"));
        assert_eq!(steps[0].field("address"), "10.0.0.7");
    }
}
