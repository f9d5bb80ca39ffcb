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
pub mod field;
pub mod json_schema;
pub mod names;
pub mod openapi;
pub mod patch;
pub mod protobuf;
pub mod quantity;
pub mod schema;
pub mod selector;
pub mod status;
pub mod time;
pub mod value;

pub use knarr_go_duration as go_duration;
