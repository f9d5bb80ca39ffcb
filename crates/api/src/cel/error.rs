//! Errors of compilation and evaluation.

use thiserror::Error;

/// An expression that does not compile. The text shows the position, as cel-go prints it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct CompileError(pub String);

/// An expression whose evaluation failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EvaluateError {
    #[error("{0}")]
    Failed(String),
    /// The cost limit was exceeded.
    #[error("operation cancelled: actual cost limit exceeded")]
    TooExpensive,
}

/// A problem at a position in the text.
#[derive(Debug, Clone)]
pub(super) struct Problem {
    pub at: usize,
    pub message: String,
}

impl EvaluateError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        EvaluateError::Failed(message.into())
    }

    pub(super) fn no_such_overload() -> Self {
        EvaluateError::new("no such overload")
    }
}

/// Formats problems as one text, each with its line and a mark below it.
pub(super) fn describe(source: &str, problems: &[Problem]) -> CompileError {
    let mut lines = Vec::new();
    for problem in problems {
        if source.is_empty() {
            // There is no position to point at.
            lines.push(format!("ERROR: <input>:1:0: {}", problem.message));
            continue;
        }
        let before = &source[..problem.at.min(source.len())];
        let line = before.matches('\n').count();
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
        let text = source.split('\n').nth(line).unwrap_or_default();
        let dots = ".".repeat(column);
        lines.push(format!(
            "ERROR: <input>:{}:{}: {}\n | {}\n | {dots}^",
            line + 1,
            column + 1,
            problem.message,
            text.replace('\t', " ")
        ));
    }
    CompileError(lines.join("\n"))
}
