//! The Common Expression Language, as far as Kubernetes speaks it.
//!
//! In: an expression, what its variables are (types) and what they hold (JSON). Out: whether the expression makes sense,
//! and its value. Rules of custom resources are its first users; policies speak the same language.

mod ast;
mod authorizer;
mod check;
mod cost;
mod error;
mod escape;
mod estimate;
mod evaluate;
mod functions;
mod lexer;
mod macros;
mod message;
mod parser;
mod program;
mod signatures;
mod types;
mod value;
mod weight;

pub use authorizer::{AccessCheck, Authorize, AuthorizerValue, Stage};
pub use error::{CompileError, EvaluateError};
pub use escape::{escape, unescape};
pub(crate) use estimate::smallest;
pub use message::Message;
pub use program::{Program, Variable};
pub use types::{ObjectType, Type};
pub use value::Value;
