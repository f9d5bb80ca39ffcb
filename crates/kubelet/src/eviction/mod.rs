//! Eviction decisions: which resources run short, for how long, and whether a pod must go. Pure functions only.

mod evaluate;
mod thresholds;

pub use evaluate::{Level, Monitor, Pressure, Shortage, Signals, is_below};
pub use thresholds::{Eviction, Limit, Signal, Threshold};

use knarr_client::quantity::{Format, Quantity as Amount};

/// An amount of bytes in the notation of the API.
pub fn bytes(amount: i64) -> String {
    Amount::new(amount, Format::BinarySi).to_string()
}
