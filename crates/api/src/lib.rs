//! What an object is.
//!
//! In: bytes and facts about kinds. Out: objects that are decoded, pruned, patched, owned, selected and encoded by data
//! (a row in the catalogue and a schema), for built-in kinds and custom resources alike. Nothing here does I/O.

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
