//! What the rules of several kinds share.

pub mod addresses;
pub mod checks;
pub mod columns;
pub mod defaults;
pub mod formats;
pub mod image;
pub mod int_or_percent;
pub mod label_selector;
pub mod labels;
pub mod node_labels;
pub mod resources;
pub mod go_duration;
pub mod workload;
