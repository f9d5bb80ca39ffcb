//! Expressions as tokens.

use super::error::Problem;

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    Name(String),
    Int(u64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    /// An operator or a bracket.
    Sign(&'static str),
    End,
}

/// Longer signs first, so that they are not taken for shorter ones.
const SIGNS: [&str; 25] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "?", ":", "+", "-", "*", "/", "%", "(", ")", "[", "]", "{", "}",
    ".", ",", "=",
];

pub(super) fn tokens(source: &str) -> Result<Vec<(Token, usize)>, Problem> {
    let mut lexer = Lexer { source, at: 0 };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_space();
        let at = lexer.at;
        let token = lexer.token()?;
        let end = token == Token::End;
        tokens.push((token, at));
        if end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.source[self.at..]
    }

    fn problem(&self, message: impl Into<String>) -> Problem {
        Problem { at: self.at, message: format!("Syntax error: {}", message.into()) }
    }

    fn skip_space(&mut self) {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start_matches([' ', '\t', '\r', '\n', '\x0c']);
            self.at += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return;
            }
            self.at += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    fn token(&mut self) -> Result<Token, Problem> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else { return Ok(Token::End) };
        if let Some(token) = self.quoted()? {
            return Ok(token);
        }
        if first.is_ascii_digit() || first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit()) {
            return self.number();
        }
        if first.is_ascii_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
            self.at += end;
            return Ok(Token::Name(rest[..end].to_owned()));
        }
        if first == '`' {
            let end = rest[1..].find('`').ok_or_else(|| self.problem("token recognition error at: '`'"))?;
            self.at += end + 2;
            return Ok(Token::Name(rest[1..=end].to_owned()));
        }
        match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            Some(sign) => {
                self.at += sign.len();
                Ok(Token::Sign(sign))
            }
            None => Err(self.problem(format!("token recognition error at: '{first}'"))),
        }
    }

    fn number(&mut self) -> Result<Token, Problem> {
        let rest = self.rest();
        if let Some(digits) = rest.strip_prefix("0x").or_else(|| rest.strip_prefix("0X")) {
            let end = digits.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(digits.len());
            let number = u64::from_str_radix(&digits[..end], 16).map_err(|_| self.problem("invalid int literal"))?;
            self.at += 2 + end;
            return Ok(self.with_suffix(number));
        }
        let digits = |text: &str| text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let mut end = digits(rest);
        let mut whole = true;
        if rest[end..].starts_with('.') && rest[end + 1..].starts_with(|c: char| c.is_ascii_digit()) {
            whole = false;
            end += 1 + digits(&rest[end + 1..]);
        }
        if rest[end..].starts_with(['e', 'E']) {
            let exponent = &rest[end + 1..];
            let sign = usize::from(exponent.starts_with(['+', '-']));
            let length = digits(&exponent[sign..]);
            if length > 0 {
                whole = false;
                end += 1 + sign + length;
            }
        }
        let text = &rest[..end];
        let token = if whole {
            let number = text.parse::<u64>().map_err(|_| self.problem("invalid int literal"))?;
            self.at += end;
            self.with_suffix(number)
        } else {
            self.at += end;
            Token::Double(text.parse().unwrap_or_default())
        };
        Ok(token)
    }

    fn with_suffix(&mut self, number: u64) -> Token {
        if self.rest().starts_with(['u', 'U']) {
            self.at += 1;
            Token::Uint(number)
        } else {
            Token::Int(number)
        }
    }

    /// A text or bytes, where the next token is one: prefixes in any order, then one or three quotes.
    fn quoted(&mut self) -> Result<Option<Token>, Problem> {
        let rest = self.rest();
        let prefix = rest.find(|c| !matches!(c, 'r' | 'R' | 'b' | 'B')).unwrap_or(rest.len());
        let (letters, body) = rest.split_at(prefix);
        let Some(quote) = body.chars().next().filter(|c| matches!(c, '"' | '\'') && prefix <= 2) else {
            return Ok(None);
        };
        let raw = letters.contains(['r', 'R']);
        let bytes = letters.contains(['b', 'B']);
        let long = quote.to_string().repeat(3);
        let delimiter = if body.starts_with(&long) { long } else { quote.to_string() };
        self.at += prefix + delimiter.len();
        let mut text = Vec::new();
        loop {
            let rest = self.rest();
            if rest.starts_with(&delimiter) {
                self.at += delimiter.len();
                break;
            }
            let c = rest.chars().next().ok_or_else(|| self.problem("token recognition error: unterminated string"))?;
            if c == '\n' && delimiter.len() == 1 {
                return Err(self.problem("token recognition error: unterminated string"));
            }
            if c == '\\' && !raw {
                self.at += 1;
                self.escape(bytes, &mut text)?;
            } else {
                if c == '\\' {
                    // In raw texts a backslash keeps the quote after it from ending the text.
                    text.push(b'\\');
                    self.at += 1;
                    let Some(next) = self.rest().chars().next() else { continue };
                    text.extend(next.to_string().bytes());
                    self.at += next.len_utf8();
                    continue;
                }
                text.extend(c.to_string().bytes());
                self.at += c.len_utf8();
            }
        }
        Ok(Some(if bytes { Token::Bytes(text) } else { Token::Text(String::from_utf8_lossy(&text).into_owned()) }))
    }

    fn escape(&mut self, bytes: bool, text: &mut Vec<u8>) -> Result<(), Problem> {
        let rest = self.rest();
        let c = rest.chars().next().ok_or_else(|| self.problem("unterminated escape"))?;
        let plain = match c {
            'a' => 0x07,
            'b' => 0x08,
            'f' => 0x0c,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 0x0b,
            '\\' | '\'' | '"' | '`' | '?' => c as u8,
            'x' | 'X' => return self.code(1, 2, 16, bytes, text),
            'u' => return self.code(1, 4, 16, false, text),
            'U' => return self.code(1, 8, 16, false, text),
            '0'..='3' => return self.code(0, 3, 8, bytes, text),
            _ => return Err(self.problem("invalid escape sequence")),
        };
        text.push(plain);
        self.at += 1;
        Ok(())
    }

    fn code(
        &mut self,
        skip: usize,
        digits: usize,
        base: u32,
        as_byte: bool,
        text: &mut Vec<u8>,
    ) -> Result<(), Problem> {
        let written = self.rest().get(skip..skip + digits);
        let code = written.and_then(|digits| u32::from_str_radix(digits, base).ok());
        let code = code.ok_or_else(|| self.problem("invalid escape sequence"))?;
        if as_byte {
            text.push(code as u8);
        } else {
            let c = char::from_u32(code).ok_or_else(|| self.problem("invalid unicode code point"))?;
            text.extend(c.to_string().bytes());
        }
        self.at += skip + digits;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_and_numbers_are_read() {
        let read = |source: &str| tokens(source).map(|tokens| tokens[0].0.clone()).map_err(|problem| problem.message);
        for (source, expected) in [
            (r#""a\n\x41\u00e9""#, Token::Text("a\nAé".to_owned())),
            (r#"r"a\n""#, Token::Text(r"a\n".to_owned())),
            (r#"'''a'b"c'''"#, Token::Text("a'b\"c".to_owned())),
            (r#"b"\xff\101""#, Token::Bytes(vec![0xff, b'A'])),
            ("0x1F", Token::Int(31)),
            ("12u", Token::Uint(12)),
            ("1.5e3", Token::Double(1500.0)),
            (".5", Token::Double(0.5)),
            ("// note\n x", Token::Name("x".to_owned())),
        ] {
            assert_eq!(read(source), Ok(expected), "{source}");
        }
        assert!(read("\"abc").is_err());
        assert!(read("#").is_err());
    }
}
