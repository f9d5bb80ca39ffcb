//! From what the parts say with `tracing` to steps in a journal.

use std::fmt::Debug;
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::registry::LookupSpan;

use crate::TARGET;
use crate::journal::Journal;

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

    /// Writes a line as `Step` reads it. Steps are many, so nothing is made for one but its line.
    fn add(&self, name: &'static str, said: &Said, took: Duration) {
        let took = said.took_us.map_or(took, Duration::from_micros);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut line = Line(Vec::with_capacity(160 + said.object.len() + said.fields.0.len()));
        line.0.extend_from_slice(b"{\"began\":");
        line.number(micros(now.saturating_sub(took)));
        if !took.is_zero() {
            line.0.extend_from_slice(b",\"took\":");
            line.number(micros(took));
        }
        line.field("step", said.step.as_deref().unwrap_or(name));
        line.field("object", &said.object);
        line.field("process", &self.process);
        line.0.extend_from_slice(&said.fields.0);
        line.0.push(b'}');
        // It is made of texts alone.
        if let Ok(line) = String::from_utf8(line.0) {
            self.journal.add(line);
        }
    }
}

/// JSON in the making.
#[derive(Default)]
struct Line(Vec<u8>);

impl Line {
    fn number(&mut self, number: u64) {
        // Writing to memory does not fail, here and below.
        let _ = write!(self.0, "{number}");
    }

    fn field(&mut self, name: &str, value: &str) {
        self.0.push(b',');
        let _ = serde_json::to_writer(&mut self.0, name);
        self.0.push(b':');
        let _ = serde_json::to_writer(&mut self.0, value);
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
            self.add(span.metadata().name(), &said, began.elapsed());
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if Recorder::wants(event.metadata()) {
            let mut said = Said::default();
            event.record(&mut said);
            self.add("", &said, Duration::ZERO);
        }
    }
}

/// The fields of a span or event.
#[derive(Default)]
struct Said {
    step: Option<String>,
    object: String,
    took_us: Option<u64>,
    /// The others, as they stand in the line.
    fields: Line,
}

impl Said {
    fn take(&mut self, field: &Field, value: &str) {
        match field.name() {
            "step" => self.step = Some(value.to_owned()),
            "object" => value.clone_into(&mut self.object),
            // Nothing to tell.
            _ if value.is_empty() => {}
            name => self.fields.field(name, value),
        }
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.take(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "took_us" {
            self.took_us = Some(value);
        } else {
            self.take(field, &value.to_string());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.take(field, &format!("{value:?}"));
    }
}

#[cfg(test)]
mod tests {
    use tracing_subscriber::layer::SubscriberExt as _;

    use super::*;
    use crate::step::Step;

    fn recorded(act: impl FnOnce()) -> Vec<Step> {
        let journal = Journal::default();
        let subscriber = tracing_subscriber::registry().with(Recorder::new(journal.clone(), "here"));
        tracing::subscriber::with_default(subscriber, act);
        journal.text().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn an_event_is_a_step() {
        let steps = recorded(|| {
            tracing::info!(target: "journey", step = "request", object = "pods/a/b", took_us = 1_500_u64, user = "jane \"j\"\n", note = "");
            tracing::info!(object = "pods/a/b", "a log line is none");
        });
        assert_eq!(steps.len(), 1);
        assert_eq!((steps[0].step.as_ref(), steps[0].object.as_str(), steps[0].took), ("request", "pods/a/b", 1_500));
        assert_eq!(
            (steps[0].field("user"), steps[0].fields.len(), steps[0].process.as_str()),
            ("jane \"j\"\n", 1, "here")
        );
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
