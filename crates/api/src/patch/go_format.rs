//! Formatting of values as Go's `%v` prints them: `map[name:x ports:[80 443]]`.

use serde_json::Value;
use std::fmt::{self, Display};

/// Formats a value.
pub fn go_format(value: &Value) -> impl Display + '_ {
    GoFormat(value)
}

struct GoFormat<'a>(&'a Value);

impl Display for GoFormat<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => out.write_str("<nil>"),
            Value::Bool(flag) => write!(out, "{flag}"),
            Value::Number(number) => write!(out, "{number}"),
            Value::String(text) => out.write_str(text),
            Value::Array(items) => {
                out.write_str("[")?;
                for (at, item) in items.iter().enumerate() {
                    write!(out, "{}{}", if at > 0 { " " } else { "" }, GoFormat(item))?;
                }
                out.write_str("]")
            }
            Value::Object(fields) => {
                out.write_str("map[")?;
                for (at, (name, value)) in fields.iter().enumerate() {
                    write!(out, "{}{name}:{}", if at > 0 { " " } else { "" }, GoFormat(value))?;
                }
                out.write_str("]")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn values_are_formatted_as_in_go() {
        let value = json!({"b": [1, "x", null], "a": {"c": true}});
        assert_eq!(go_format(&value).to_string(), "map[a:map[c:true] b:[1 x <nil>]]");
    }
}
