//! The JSON scanner, with the syntax errors of Go.

#[cfg(test)]
mod tests;
mod value_start;

use super::error::DecodeError;
use super::path::quoted_byte;
use std::borrow::Cow;
pub(super) use value_start::ValueStart;

/// The maximum depth of a document.
const MAX_SYNTAX_DEPTH: usize = 10_000;

/// The maximum depth of a value that is kept. Skipped values may be deeper.
pub const MAX_VALUE_DEPTH: usize = 500;

/// The maximum depth at which a value ends that an object of a built-in kind holds as it was sent. The components read such
/// objects of everybody, and their decoder refuses more than 127 levels, of which lists take some: one object that they cannot
/// read would keep all others of its kind from them.
pub const MAX_RAW_DEPTH: usize = 120;

/// The byte that messages name for a text that ends within a literal, number or escape.
const END: u8 = b' ';

/// A cursor over JSON text.
pub(super) struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
    /// How deep a value that is kept may be.
    pub deepest: usize,
}

type Result<T> = std::result::Result<T, DecodeError>;

impl<'a> Scanner<'a> {
    /// Starts before the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Scanner { bytes, at: 0, depth: 0, deepest: MAX_VALUE_DEPTH }
    }

    /// How many bytes are consumed.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The bytes from a position to the current one.
    pub fn slice_from(&self, start: usize) -> &'a [u8] {
        &self.bytes[start..self.at]
    }

    /// The kind of the next value, which is not consumed.
    pub fn start_value(&mut self) -> Result<ValueStart> {
        self.skip_space();
        match self.peek() {
            Some(b'{') => Ok(ValueStart::Object),
            Some(b'[') => Ok(ValueStart::Array),
            Some(b'"') => Ok(ValueStart::String),
            Some(b'-' | b'0'..=b'9') => Ok(ValueStart::Number),
            Some(b't') => Ok(ValueStart::True),
            Some(b'f') => Ok(ValueStart::False),
            Some(b'n') => Ok(ValueStart::Null),
            Some(byte) => Err(invalid(byte, "looking for beginning of value")),
            None => Err(unexpected_end()),
        }
    }

    /// After the opening brace: the first key, or none in `{}`.
    pub fn first_key(&mut self) -> Result<Option<Cow<'a, str>>> {
        self.enter()?;
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.leave();
            return Ok(None);
        }
        self.key().map(Some)
    }

    /// After a value in an object: the next key, or none at its end.
    pub fn next_key(&mut self) -> Result<Option<Cow<'a, str>>> {
        self.skip_space();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                self.skip_space();
                self.key().map(Some)
            }
            Some(b'}') => {
                self.leave();
                Ok(None)
            }
            Some(byte) => Err(invalid(byte, "after object key:value pair")),
            None => Err(unexpected_end()),
        }
    }

    fn key(&mut self) -> Result<Cow<'a, str>> {
        match self.peek() {
            Some(b'"') => {}
            Some(byte) => return Err(invalid(byte, "looking for beginning of object key string")),
            None => return Err(unexpected_end()),
        }
        let key = self.string()?;
        self.skip_space();
        match self.peek() {
            Some(b':') => {
                self.at += 1;
                Ok(key)
            }
            Some(byte) => Err(invalid(byte, "after object key")),
            None => Err(unexpected_end()),
        }
    }

    /// After the opening bracket: whether there is an element.
    pub fn first_element(&mut self) -> Result<bool> {
        self.enter()?;
        self.skip_space();
        if self.peek() == Some(b']') {
            self.leave();
            return Ok(false);
        }
        Ok(true)
    }

    /// After an element: whether there is another.
    pub fn next_element(&mut self) -> Result<bool> {
        self.skip_space();
        match self.peek() {
            Some(b',') => {
                self.at += 1;
                Ok(true)
            }
            Some(b']') => {
                self.leave();
                Ok(false)
            }
            Some(byte) => Err(invalid(byte, "after array element")),
            None => Err(unexpected_end()),
        }
    }

    /// Checks that only white space follows the document.
    pub fn finish(&mut self) -> Result<()> {
        self.skip_space();
        match self.peek() {
            Some(byte) => Err(invalid(byte, "after top-level value")),
            None => Ok(()),
        }
    }

    /// Consumes `null`, `true` or `false`.
    pub fn literal(&mut self, start_kind: ValueStart) -> Result<()> {
        let word: &str = match start_kind {
            ValueStart::True => "true",
            ValueStart::False => "false",
            _ => "null",
        };
        self.at += 1;
        for expected in word.bytes().skip(1) {
            match self.peek() {
                Some(byte) if byte == expected => self.at += 1,
                other => {
                    let context = format!("in literal {word} (expecting '{}')", expected as char);
                    return Err(invalid(other.unwrap_or(END), &context));
                }
            }
        }
        Ok(())
    }

    /// Consumes a number and returns its text.
    pub fn number(&mut self) -> Result<&'a str> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits(),
            other => return Err(invalid(other.unwrap_or(END), "in numeric literal")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.some_digits("after decimal point in numeric literal")?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.some_digits("in exponent of numeric literal")?;
        }
        Ok(std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default())
    }

    fn some_digits(&mut self, context: &str) -> Result<()> {
        match self.peek() {
            Some(b'0'..=b'9') => {
                self.digits();
                Ok(())
            }
            other => Err(invalid(other.unwrap_or(END), context)),
        }
    }

    fn digits(&mut self) {
        while let Some(b'0'..=b'9') = self.peek() {
            self.at += 1;
        }
    }

    /// Consumes a string. Bytes that are not UTF-8 become replacement characters.
    pub fn string(&mut self) -> Result<Cow<'a, str>> {
        self.at += 1;
        let start = self.at;
        self.plain_run();
        if self.peek() == Some(b'"') {
            let run = &self.bytes[start..self.at];
            self.at += 1;
            return Ok(String::from_utf8_lossy(run));
        }
        let mut text = String::from_utf8_lossy(&self.bytes[start..self.at]).into_owned();
        loop {
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Cow::Owned(text));
                }
                Some(b'\\') => {
                    self.at += 1;
                    self.escape(&mut text)?;
                }
                Some(byte) if byte < 0x20 => return Err(invalid(byte, "in string literal")),
                Some(_) => {
                    let start = self.at;
                    self.plain_run();
                    text.push_str(&String::from_utf8_lossy(&self.bytes[start..self.at]));
                }
                None => return Err(unexpected_end()),
            }
        }
    }

    fn plain_run(&mut self) {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..=0x1f));
        self.at += end.unwrap_or(rest.len());
    }

    fn escape(&mut self, text: &mut String) -> Result<()> {
        let byte = self.peek().unwrap_or(END);
        let plain = match byte {
            b'"' | b'\\' | b'/' => byte as char,
            b'b' => '\x08',
            b'f' => '\x0c',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                let unit = self.hexadecimal()?;
                text.push(self.character(unit)?);
                return Ok(());
            }
            _ => return Err(invalid(byte, "in string escape code")),
        };
        self.at += 1;
        text.push(plain);
        Ok(())
    }

    /// A UTF-16 unit, joined with the next one if they are a surrogate pair.
    fn character(&mut self, unit: u16) -> Result<char> {
        if !(0xd800..0xe000).contains(&unit) {
            return Ok(char::from_u32(unit.into()).unwrap_or(char::REPLACEMENT_CHARACTER));
        }
        if unit < 0xdc00 && self.bytes[self.at..].starts_with(br"\u") {
            let back = self.at;
            self.at += 2;
            let low = self.hexadecimal()?;
            if (0xdc00..0xe000).contains(&low) {
                let code = 0x10000 + ((u32::from(unit) - 0xd800) << 10) + (u32::from(low) - 0xdc00);
                return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = back;
        }
        Ok(char::REPLACEMENT_CHARACTER)
    }

    fn hexadecimal(&mut self) -> Result<u16> {
        let mut unit = 0;
        for _ in 0..4 {
            let byte = self.peek().unwrap_or(END);
            let Some(digit) = (byte as char).to_digit(16) else {
                return Err(invalid(byte, r"in \u hexadecimal character escape"));
            };
            unit = unit << 4 | digit as u16;
            self.at += 1;
        }
        Ok(unit)
    }

    /// Skips a value of any depth.
    pub fn skip_value(&mut self) -> Result<()> {
        // The open collections: true for an object, false for an array.
        let mut open: Vec<bool> = Vec::new();
        loop {
            let mut descended = false;
            match self.start_value()? {
                ValueStart::Object => {
                    if self.first_key()?.is_some() {
                        open.push(true);
                        descended = true;
                    }
                }
                ValueStart::Array => {
                    if self.first_element()? {
                        open.push(false);
                        descended = true;
                    }
                }
                ValueStart::String => self.skip_string()?,
                ValueStart::Number => {
                    self.number()?;
                }
                literal => self.literal(literal)?,
            }
            if descended {
                continue;
            }
            loop {
                let more = match open.last() {
                    None => return Ok(()),
                    Some(true) => self.next_key()?.is_some(),
                    Some(false) => self.next_element()?,
                };
                if more {
                    break;
                }
                open.pop();
            }
        }
    }

    fn skip_string(&mut self) -> Result<()> {
        self.string().map(drop)
    }

    fn enter(&mut self) -> Result<()> {
        self.depth += 1;
        if self.depth > MAX_SYNTAX_DEPTH {
            return Err(too_deep(self.bytes[self.at]));
        }
        self.at += 1;
        Ok(())
    }

    fn leave(&mut self) {
        self.depth -= 1;
        self.at += 1;
    }

    /// Refuses values that are deeper than they may be.
    pub fn check_value_depth(&self) -> Result<()> {
        if self.depth >= self.deepest {
            return Err(too_deep(self.peek().unwrap_or_default()));
        }
        Ok(())
    }

    fn skip_space(&mut self) {
        while let Some(b' ' | b'\t' | b'\r' | b'\n') = self.peek() {
            self.at += 1;
        }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }
}

fn invalid(byte: u8, context: &str) -> DecodeError {
    DecodeError::Syntax(format!("invalid character {} {context}", quoted_byte(byte)).into())
}

fn too_deep(byte: u8) -> DecodeError {
    invalid(byte, "exceeded max depth")
}

fn unexpected_end() -> DecodeError {
    DecodeError::Syntax("unexpected end of JSON input".into())
}
