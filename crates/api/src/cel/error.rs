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

/// More problems are only counted, as cel-go does: each repeats its line.
const MAX_PROBLEMS: usize = 100;
/// Longer lines are not shown.
const MAX_LINE: usize = 16_384;

/// Formats problems as one text, each with its line and a mark below it.
pub(super) fn describe(source: &str, problems: &[Problem]) -> CompileError {
    let mut lines: Vec<String> = problems.iter().take(MAX_PROBLEMS).map(|problem| shown(source, problem)).collect();
    if problems.len() > MAX_PROBLEMS {
        lines.push(format!("{} more errors were truncated", problems.len() - MAX_PROBLEMS));
    }
    CompileError(lines.join("\n"))
}

fn shown(source: &str, problem: &Problem) -> String {
    if source.is_empty() {
        // There is no position to point at.
        return format!("ERROR: <input>:1:0: {}", problem.message);
    }
    let before = &source[..problem.at.min(source.len())];
    let line = before.matches('\n').count();
    let column = before.rsplit('\n').next().unwrap_or_default().chars().count();
    let text = source.split('\n').nth(line).unwrap_or_default();
    let head = format!("ERROR: <input>:{}:{}: {}", line + 1, column + 1, problem.message);
    if text.len() > MAX_LINE {
        return head;
    }
    let mark_of = |c: char, wide: char, narrow: char| if c.len_utf8() > 1 { wide } else { narrow };
    let dots: String = text.chars().take(column).map(|c| mark_of(c, '\u{ff0e}', '.')).collect();
    let mark = mark_of(text.chars().nth(column).unwrap_or(' '), '\u{ff3e}', '^');
    format!("{head}\n | {}\n | {dots}{mark}", text.replace('\t', " "))
}
