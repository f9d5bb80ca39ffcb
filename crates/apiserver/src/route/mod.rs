//! Parses what a request is for: its path, its query parameters and options, and the content types it accepts.

pub mod accept;
pub mod options;
pub mod query;
pub mod target;
