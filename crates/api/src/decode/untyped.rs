//! Decoding of JSON without a schema.

use super::Decoded;
use super::emptied::Emptied;
use super::error::{DecodeError, StrictProblem};
use super::path::{Step, document_path, go_target};
use super::scanner::{Scanner, ValueStart};
use serde_json::{Map, Number, Value};

/// The maximum number of recorded problems; a hostile body could have millions.
const MAX_PROBLEMS: usize = 100;
/// How much text the paths of problems may have together: a path repeats keys that may be as long as the body. That of the
/// first problem is always recorded, since it decides whether an object is refused.
const MAX_PROBLEM_BYTES: usize = 64 << 10;
/// The same for the paths of empty lists and maps, with the memory of their steps. They only embellish messages.
const MAX_EMPTIED_BYTES: usize = 1 << 20;

pub(super) fn decode(bytes: &[u8]) -> Result<Decoded, DecodeError> {
    let mut state = State::new(bytes);
    let value = state.any()?;
    state.scanner.finish()?;
    state.outcome(value)
}

/// The state of both decoders: the cursor, the path, and the errors so far.
pub(super) struct State<'a> {
    pub scanner: Scanner<'a>,
    pub steps: Vec<Step<'a>>,
    problems: Vec<StrictProblem>,
    /// How many more bytes the paths of problems may have.
    problem_bytes: usize,
    emptied: Vec<Emptied>,
    emptied_bytes: usize,
    /// Strict problems are not reported inside values with their own decoding.
    pub strict: bool,
    /// The first value of a wrong type; decoding continues, as a syntax error has precedence.
    mistyped: Option<DecodeError>,
    /// The first invalid value; after it only the syntax is checked.
    unreadable: Option<DecodeError>,
}

impl<'a> State<'a> {
    /// Starts before the first byte, in strict mode.
    pub fn new(bytes: &'a [u8]) -> Self {
        State {
            scanner: Scanner::new(bytes),
            steps: Vec::with_capacity(16),
            problems: Vec::new(),
            problem_bytes: MAX_PROBLEM_BYTES,
            emptied: Vec::new(),
            emptied_bytes: MAX_EMPTIED_BYTES,
            strict: true,
            mistyped: None,
            unreadable: None,
        }
    }

    /// The decoded value with its problems, or the error that takes precedence.
    pub fn outcome(self, value: Value) -> Result<Decoded, DecodeError> {
        match self.unreadable.or(self.mistyped) {
            Some(error) => Err(error),
            None => Ok(Decoded { value, problems: self.problems, emptied: self.emptied }),
        }
    }

    /// Records a strict problem with a field, once.
    pub fn report(&mut self, kind: fn(Box<str>) -> StrictProblem, name: &str) {
        if self.strict && self.problems.len() < MAX_PROBLEMS && self.problem_bytes > 0 {
            let path = document_path(&self.steps, name);
            self.problem_bytes = self.problem_bytes.saturating_sub(path.len());
            let problem = kind(path);
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
    }

    /// Records an empty list or map at the current path.
    pub fn note_emptied(&mut self, value: &Value) {
        if self.emptied_bytes > 0 {
            let emptied = Emptied::new(&self.steps, value);
            self.emptied_bytes = self.emptied_bytes.saturating_sub(emptied.size());
            self.emptied.push(emptied);
        }
    }

    /// Records a value of a wrong type; decoding continues.
    pub fn mistyped(&mut self, found: &str, go_type: &str) {
        if self.mistyped.is_none() {
            self.mistyped = Some(self.type_error(found, go_type));
        }
    }

    /// Records a wrong type in a value with its own decoding, which stops decoding.
    pub fn mistyped_within(&mut self, found: &str, go_type: &str) {
        if self.unreadable.is_none() {
            self.unreadable = Some(self.type_error(found, go_type));
        }
    }

    /// Records an invalid value; after it only the syntax is checked.
    pub fn unreadable(&mut self, message: String) {
        self.unreadable.get_or_insert(DecodeError::Value(message.into()));
    }

    /// Records an invalid value; decoding continues.
    pub fn misread(&mut self, message: String) {
        self.mistyped.get_or_insert(DecodeError::Value(message.into()));
    }

    fn type_error(&self, found: &str, go_type: &str) -> DecodeError {
        DecodeError::Type(format!("json: cannot unmarshal {found} into {}", go_target(&self.steps, go_type)).into())
    }

    /// Decodes a value without a schema.
    pub fn any(&mut self) -> Result<Value, DecodeError> {
        match self.scanner.start_value()? {
            ValueStart::Object => self.any_object(),
            ValueStart::Array => self.any_array(),
            ValueStart::String => Ok(Value::String(self.scanner.string()?.into_owned())),
            ValueStart::Number => {
                let text = self.scanner.number()?;
                Ok(number(text).unwrap_or_else(|| {
                    self.mistyped(&format!("number {text}"), "float64");
                    Value::Null
                }))
            }
            literal => {
                self.scanner.literal(literal)?;
                Ok(match literal {
                    ValueStart::True => Value::Bool(true),
                    ValueStart::False => Value::Bool(false),
                    _ => Value::Null,
                })
            }
        }
    }

    fn any_object(&mut self) -> Result<Value, DecodeError> {
        self.scanner.check_value_depth()?;
        let mut object = Map::new();
        let mut key = self.scanner.first_key()?;
        while let Some(name) = key {
            if object.contains_key(&*name) {
                self.report(StrictProblem::Duplicate, &name);
            }
            self.steps.push(Step::Key(name.clone()));
            let value = self.any()?;
            self.steps.pop();
            object.insert(name.into_owned(), value);
            key = self.scanner.next_key()?;
        }
        Ok(Value::Object(object))
    }

    fn any_array(&mut self) -> Result<Value, DecodeError> {
        self.scanner.check_value_depth()?;
        let mut items = Vec::new();
        let mut more = self.scanner.first_element()?;
        while more {
            self.steps.push(Step::Index(items.len()));
            items.push(self.any()?);
            self.steps.pop();
            more = self.scanner.next_element()?;
        }
        Ok(Value::Array(items))
    }
}

/// A number without a type: an integer if its value is one, as it is printed without a fraction then.
pub(super) fn number(text: &str) -> Option<Value> {
    if let Ok(whole) = text.parse::<i64>() {
        return Some(whole.into());
    }
    let float: f64 = text.parse().ok().filter(|float: &f64| float.is_finite())?;
    if float.fract() == 0.0 && float.abs() < 9.0e15 {
        return Some((float as i64).into());
    }
    Number::from_f64(float).map(Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn any_json_is_read() {
        let decoded = decode(br#"{"b":[1,2.5,1e3,-0,"x",null,true,{"c":{}}],"a":18446744073709551615}"#).expect("JSON");
        assert_eq!(decoded.value["b"], json!([1, 2.5, 1000, 0, "x", null, true, {"c": {}}]));
        assert_eq!(decoded.value["a"].as_f64(), Some(18_446_744_073_709_551_615.0));
        assert!(decoded.problems.is_empty());
    }

    #[test]
    fn fields_given_twice_are_problems_and_the_last_counts() {
        let decoded = decode(br#"{"a":1,"l":[{"x":1,"x":2,"x":3}],"a":2}"#).expect("JSON");
        assert_eq!(decoded.value, json!({"a": 2, "l": [{"x": 3}]}));
        let problems: Vec<String> = decoded.problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems, [r#"duplicate field "l[0].x""#, r#"duplicate field "a""#]);
    }

    #[test]
    fn numbers_and_depth_have_limits() {
        assert_eq!(
            decode(br#"{"a":1e999}"#).expect_err("too large").to_string(),
            "json: cannot unmarshal number 1e999 into Go value of type float64"
        );
        let deep = "[".repeat(5_000) + &"]".repeat(5_000);
        assert_eq!(decode(deep.as_bytes()).expect_err("deep").to_string(), "invalid character '[' exceeded max depth");
    }
}
