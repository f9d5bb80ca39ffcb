//! What a request asks for: its target, its parameters, and the representations it sends and takes.

pub mod accept;
pub mod decode;
#[cfg(test)]
mod malformed;
pub mod query;
pub mod target;
