//! Kubernetes objects: decoding, patching, validation, ownership, selection and encoding.
//!
//! All of it is driven by data (a row in the catalogue and a schema), for built-in kinds and custom resources alike.
//! Start with [`catalogue`] (the kinds), [`schema`] (their fields) and [`decode`]. Nothing here does I/O.

pub mod apply;
pub mod catalogue;
pub mod cel;
pub mod custom;
pub mod decode;
pub mod discovery;
pub mod json_schema;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod schema;
pub mod selector;
pub mod status;
pub mod time;

pub use knarr_go_duration as go_duration;
pub use knarr_semantics::{
    cidr, field, int_or_percent, names, node_selector, pod_resources, qos, quantity, taint, value,
};
