//! The timeline of an object: what each component did with it, and when.
//!
//! In: spans and events that components record with `tracing` under the target [`TARGET`]; they do not depend on this
//! crate. Out: a [`Journal`] of bounded size that stores them, and the [`Timeline`] of one object and its dependents, as
//! text, JSON, HTML or OTLP.
//!
//! A journey event has a field `object` (`pods/default/web`, `nodes/a`) and the name of a step: the name of the span, or
//! the field `step` of an event. An event may set the duration of the step in `took_us`. All other fields are rendered
//! unchanged; `owner` and `service` name related objects, which the timeline includes.

mod html;
mod journal;
mod message;
mod otlp;
mod outcome;
mod phases;
mod record;
mod step;
mod text;
mod timeline;

pub use html::render_html;
pub use journal::{Journal, Subscription};
pub use otlp::render_otlp;
pub use outcome::Outcome;
pub use phases::Phase;
pub use record::Recorder;
pub use step::Step;
pub use text::{Style, render_entry, render_outcome, render_text, render_title};
pub use timeline::{Detail, Entry, Section, Timeline, build_timeline};

/// The `tracing` target of journey events.
pub const TARGET: &str = "journey";
