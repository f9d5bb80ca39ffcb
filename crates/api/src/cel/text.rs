//! Strings of CEL expressions.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// A string, borrowed or shared. Copies share its memory, because the cost limit counts the use of a variable the same for a long
/// string as for a short one.
#[derive(Clone, Debug)]
pub enum Text<'a> {
    /// A text of the expression or of its variables.
    Borrowed(&'a str),
    /// A text that the expression built.
    Shared(Arc<str>),
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        match self {
            Text::Borrowed(text) => text,
            Text::Shared(text) => text,
        }
    }
}

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Text::Borrowed(text)
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Text::Shared(text.into())
    }
}
