//! The Common Expression Language (CEL) with the libraries of Kubernetes.
//!
//! In: an expression with the types and values of its variables. Out: compile errors, or its value and cost.
//! Validation rules of custom resources, admission policies and device selectors use it.

mod ast;
mod authorizer;
mod check;
mod cost;
mod device;
mod equality;
mod error;
mod escape;
mod estimate;
mod evaluate;
mod functions;
#[cfg(test)]
mod hostile_tests;
mod lexer;
mod macros;
mod message;
mod parser;
mod program;
mod range;
mod signatures;
mod text;
mod types;
mod value;
mod weight;

pub use authorizer::{AccessCheck, Authorize, AuthorizerValue, Stage};
pub use device::{DeviceSelector, SelectorError};
pub use error::{CompileError, EvaluateError};
pub use escape::{RESERVED_WORDS, escape, unescape};
pub(crate) use estimate::smallest;
pub use functions::semver;
pub use message::Message;
pub use program::{Program, Variable};
pub use text::Text;
pub use types::{ObjectType, Type};
pub use value::Value;
