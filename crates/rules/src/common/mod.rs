//! Helpers that the rules of several kinds share.

pub mod addresses;
pub mod checks;
pub mod columns;
pub mod conditions;
pub mod defaults;
pub mod diff;
pub mod domain_path;
pub mod equality;
pub mod expressions;
pub mod formats;
pub mod go_json;
pub mod image;
pub mod int_or_percent;
pub mod internal_types;
pub mod label_selector;
pub mod labels;
pub mod node_labels;
pub mod resources;
pub mod template_metadata;
pub mod webhook;
