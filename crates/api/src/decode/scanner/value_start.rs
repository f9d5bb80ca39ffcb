//! The kinds of JSON values by their first byte.

/// The kind of a value, which its first byte decides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::decode) enum ValueStart {
    Object,
    Array,
    String,
    Number,
    True,
    False,
    Null,
}

impl ValueStart {
    /// The name of the type in Go's type errors.
    pub fn go_name(self) -> &'static str {
        match self {
            ValueStart::Object => "object",
            ValueStart::Array => "array",
            ValueStart::String => "string",
            ValueStart::Number => "number",
            ValueStart::True | ValueStart::False => "bool",
            ValueStart::Null => "null",
        }
    }
}
