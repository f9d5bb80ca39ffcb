//! What happened to an object on its way through the system, told as a timeline.
//!
//! In: spans and events that the parts record with `tracing` under the target [`TARGET`]; no part needs this crate for
//! that. Out: a [`Journal`] of bounded size that holds them, and the [`Story`] of one object and of all that came of it,
//! as text, JSON, a page or OTLP.
//!
//! What a part records has a field `object` (`pods/default/web`, `nodes/a`) and a name for the step: the span's own, or
//! an event's field `step`. An event may say in `took_us` how long the step took. All other fields are told as they are;
//! `owner` and `service` name other objects, and the story follows them.

mod html;
mod journal;
mod otlp;
mod outcome;
mod phases;
mod record;
mod step;
mod story;
mod text;
mod words;

pub use html::page;
pub use journal::{Follower, Journal};
pub use otlp::traces;
pub use outcome::Outcome;
pub use phases::Phase;
pub use record::Recorder;
pub use step::Step;
pub use story::{Chapter, Moment, Story, Telling, tell};
pub use text::{Style, news, outcome, print, title};

/// The `tracing` target of everything that belongs to a journey.
pub const TARGET: &str = "journey";
