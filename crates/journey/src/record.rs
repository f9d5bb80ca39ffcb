//! A `tracing` layer that writes journey events into a journal.

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

/// The longest text of a field: clients choose some of them, and one step must not displace all others from the journal.
const MAX_TEXT_BYTES: usize = 1024;

/// A layer that writes all events and spans of the journey target into a journal, and ignores others.
pub struct Recorder {
    journal: Journal,
    process: String,
}

impl Recorder {
    /// `process` identifies this process in the cluster.
    pub fn new(journal: Journal, process: impl Into<String>) -> Recorder {
        Recorder { journal, process: process.into() }
    }

    /// Whether an event or span belongs to the journal; log layers must ignore it.
    pub fn is_journey_event(metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    /// Writes a line in the format of `Step`. Steps are frequent, so nothing but the line is allocated.
    fn add(&self, name: &'static str, fields: &Fields, took: Duration) {
        let took = fields.took_us.map_or(took, Duration::from_micros);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let mut line = Line(Vec::with_capacity(160 + fields.object.len() + fields.others.0.len()));
        line.0.extend_from_slice(b"{\"began\":");
        line.number(micros(now.saturating_sub(took)));
        if !took.is_zero() {
            line.0.extend_from_slice(b",\"took\":");
            line.number(micros(took));
        }
        line.field("step", fields.step.as_deref().unwrap_or(name));
        line.field("object", &fields.object);
        line.field("process", &self.process);
        line.0.extend_from_slice(&fields.others.0);
        line.0.push(b'}');
        // All pieces are UTF-8, so this does not fail.
        if let Ok(line) = String::from_utf8(line.0) {
            self.journal.append_line(line);
        }
    }
}

/// A line of JSON being built.
#[derive(Default)]
struct Line(Vec<u8>);

impl Line {
    fn number(&mut self, number: u64) {
        // Writing to memory does not fail; the same applies below.
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
        Recorder::is_journey_event(metadata)
    }

    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let Some(span) = context.span(id).filter(|span| Recorder::is_journey_event(span.metadata())) else { return };
        let mut fields = Fields::default();
        attributes.record(&mut fields);
        span.extensions_mut().insert((fields, Instant::now()));
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let Some(span) = context.span(id) else { return };
        if let Some((fields, _)) = span.extensions_mut().get_mut::<(Fields, Instant)>() {
            values.record(fields);
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let Some(span) = context.span(&id) else { return };
        if let Some((fields, started)) = span.extensions_mut().remove::<(Fields, Instant)>() {
            self.add(span.metadata().name(), &fields, started.elapsed());
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if Recorder::is_journey_event(event.metadata()) {
            let mut fields = Fields::default();
            event.record(&mut fields);
            self.add("", &fields, Duration::ZERO);
        }
    }
}

/// The fields of a span or event.
#[derive(Default)]
struct Fields {
    step: Option<String>,
    object: String,
    took_us: Option<u64>,
    /// The other fields, as JSON.
    others: Line,
}

impl Fields {
    fn set(&mut self, field: &Field, value: &str) {
        match field.name() {
            "step" => self.step = Some(value.to_owned()),
            "object" => value.clone_into(&mut self.object),
            // An empty field is omitted.
            _ if value.is_empty() => {}
            name => self.others.field(name, &value[..value.floor_char_boundary(MAX_TEXT_BYTES)]),
        }
    }
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "took_us" {
            self.took_us = Some(value);
        } else {
            self.set(field, &value.to_string());
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.set(field, &format!("{value:?}"));
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
            tracing::info!(object = "pods/a/b", "a log line is not a step");
        });
        assert_eq!(steps.len(), 1);
        assert_eq!((steps[0].step.as_ref(), steps[0].object.as_str(), steps[0].took), ("request", "pods/a/b", 1_500));
        assert_eq!(
            (steps[0].field("user"), steps[0].fields.len(), steps[0].process.as_str()),
            ("jane \"j\"\n", 1, "here")
        );
    }

    #[test]
    fn a_span_is_a_step_once_it_closes_with_all_its_fields() {
        let steps = recorded(|| {
            let span = tracing::info_span!(target: "journey", "sandbox", object = %format_args!("pods/{}/{}", "a", "b"), address = tracing::field::Empty);
            span.record("address", "10.0.0.7");
        });
        assert_eq!(steps.len(), 1);
        assert_eq!((steps[0].step.as_ref(), steps[0].object.as_str()), ("sandbox", "pods/a/b"));
        assert_eq!(steps[0].field("address"), "10.0.0.7");
    }

    #[test]
    fn a_long_text_does_not_displace_other_steps() {
        let steps = recorded(|| {
            tracing::info!(target: "journey", step = "request", object = "pods/a/b", agent = "kubectl");
            for _ in 0..20 {
                tracing::info!(target: "journey", step = "request", object = "pods/a/b", agent = "\u{e9}".repeat(50_000));
            }
        });
        assert_eq!((steps.len(), steps[0].field("agent"), steps[1].field("agent").len()), (21, "kubectl", 1024));
    }
}
