//! A span: an operation with its start, end, attributes and place in a trace. It is sent when it is dropped.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::Tracer;
use crate::context::TraceContext;
use crate::messages::{KeyValue, Link, SpanData, Status};

/// The longest name and the longest text of an attribute: clients choose some of them.
const MAX_TEXT_BYTES: usize = 256;

/// The side of a call that a span describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Internal = 1,
    Server = 2,
    Client = 3,
}

/// What a span is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parent {
    /// A trace of its own.
    None,
    /// A span whose sampling decision counts: of the same process, or of a trusted client.
    Trusted(TraceContext),
    /// A span of a client that does not decide what is sampled here: only a link names it.
    Linked(TraceContext),
}

/// A sampled span.
pub struct Span {
    pub(crate) tracer: Tracer,
    context: TraceContext,
    data: SpanData,
    started: Instant,
}

impl Span {
    pub(crate) fn start(tracer: &Tracer, mut name: String, kind: Kind, parent: Parent) -> Option<Span> {
        let span = nonzero(rand::random);
        let context = match parent {
            Parent::Trusted(parent) => TraceContext { span, ..parent },
            Parent::None | Parent::Linked(_) => {
                let trace = u128::from(nonzero(rand::random)) << 64 | u128::from(nonzero(rand::random));
                TraceContext { trace, span, is_sampled: is_sampled(trace, tracer.samples_per_million) }
            }
        };
        if !context.is_sampled {
            return None;
        }
        name.truncate(name.floor_char_boundary(MAX_TEXT_BYTES));
        name.shrink_to_fit();
        let mut data = SpanData {
            trace_id: context.trace.to_be_bytes().to_vec(),
            span_id: span.to_be_bytes().to_vec(),
            name,
            kind: kind as i32,
            start_time_unix_nano: nanoseconds(SystemTime::now()),
            ..SpanData::default()
        };
        match parent {
            Parent::None => {}
            Parent::Trusted(parent) => data.parent_span_id = parent.span.to_be_bytes().to_vec(),
            Parent::Linked(other) => data.links.push(Link {
                trace_id: other.trace.to_be_bytes().to_vec(),
                span_id: other.span.to_be_bytes().to_vec(),
            }),
        }
        Some(Span { tracer: tracer.clone(), context, data, started: Instant::now() })
    }

    /// Moves the start back: the operation started before it was known that it is traced.
    pub fn started(mut self, at: Instant) -> Span {
        let earlier = self.started.saturating_duration_since(at);
        let nanoseconds = u64::try_from(earlier.as_nanos()).unwrap_or(u64::MAX);
        self.data.start_time_unix_nano = self.data.start_time_unix_nano.saturating_sub(nanoseconds);
        self.started = at;
        self
    }

    /// The place of this span, for the spans and requests that are part of it.
    pub fn context(&self) -> TraceContext {
        self.context
    }

    /// A span within this one.
    pub fn child(&self, name: impl Into<String>, kind: Kind) -> Option<Span> {
        let mut child = self.tracer.span(name, kind, Parent::Trusted(self.context))?;
        // By the clock of this one, so that it is within it even if the system's clock is set.
        let after = u64::try_from(child.started.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX);
        child.data.start_time_unix_nano = self.data.start_time_unix_nano.saturating_add(after);
        Some(child)
    }

    pub fn text(&mut self, key: &str, value: &str) {
        let end = value.floor_char_boundary(MAX_TEXT_BYTES);
        self.data.attributes.push(KeyValue::text(key, &value[..end]));
    }

    pub fn number(&mut self, key: &str, value: i64) {
        self.data.attributes.push(KeyValue::number(key, value));
    }

    /// Marks the operation as failed.
    pub fn failed(&mut self, message: &str) {
        let end = message.floor_char_boundary(MAX_TEXT_BYTES);
        self.data.status = Some(Status { message: message[..end].to_owned(), code: 2 });
    }
}

impl Drop for Span {
    fn drop(&mut self) {
        let took = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut data = std::mem::take(&mut self.data);
        data.end_time_unix_nano = data.start_time_unix_nano.saturating_add(took);
        self.tracer.queue.push(data);
    }
}

fn nanoseconds(at: SystemTime) -> u64 {
    u64::try_from(at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos()).unwrap_or(u64::MAX)
}

/// Zero means none in a trace context.
fn nonzero(random: fn() -> u64) -> u64 {
    random().max(1)
}

/// Decides by the trace, so that all processes with the same rate decide the same.
fn is_sampled(trace: u128, per_million: u32) -> bool {
    let low = (trace as u64) >> 1;
    u128::from(low) * 1_000_000 < u128::from(per_million) << 63
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue is bounded in spans: its memory is only if each of them is.
    #[test]
    fn long_names_and_texts_are_cut() {
        let tracer = Tracer::without_collector(1_000_000);
        let long = "ä".repeat(30_000);
        let mut span = tracer.span(long.as_str(), Kind::Server, Parent::None).expect("all are sampled");
        span.text("url.path", &long);
        span.failed(&long);
        assert!(prost::Message::encoded_len(&span.data) < 4 * MAX_TEXT_BYTES);
        assert!(span.data.name.capacity() <= MAX_TEXT_BYTES);
    }

    #[test]
    fn traces_are_sampled_at_their_rate() {
        let traces = (0..100_000u64).map(|_| u128::from(rand::random::<u64>()));
        let sampled = traces.filter(|trace| is_sampled(*trace, 250_000)).count();
        assert!((24_000..26_000).contains(&sampled), "{sampled}");
        assert!(is_sampled(u128::MAX, 1_000_000) && !is_sampled(0, 0));
    }
}
