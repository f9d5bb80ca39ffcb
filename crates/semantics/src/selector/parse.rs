//! The grammar of label selectors in text form.

use std::collections::BTreeSet;

use super::{Operator, Requirement, SelectorError};
use crate::field::quoted;
use crate::names;

pub(super) fn requirements(text: &str) -> Result<Vec<Requirement>, SelectorError> {
    Parser { tokens: tokens(text), position: 0 }.selector()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    End,
    Close,
    Comma,
    Not,
    DoubleEquals,
    Equals,
    Greater,
    Word,
    In,
    Less,
    NotEquals,
    NotIn,
    Open,
}

fn tokens(text: &str) -> Vec<(Token, &str)> {
    // A zero byte ends the text.
    let mut rest = text.split('\0').next().unwrap_or_default();
    let mut tokens = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let special = |c: char| matches!(c, '=' | '!' | '(' | ')' | ',' | '>' | '<');
        let (token, length) = match rest.chars().next() {
            None => break,
            Some('=') if rest.starts_with("==") => (Token::DoubleEquals, 2),
            Some('=') => (Token::Equals, 1),
            Some('!') if rest.starts_with("!=") => (Token::NotEquals, 2),
            Some('!') => (Token::Not, 1),
            Some('(') => (Token::Open, 1),
            Some(')') => (Token::Close, 1),
            Some(',') => (Token::Comma, 1),
            Some('>') => (Token::Greater, 1),
            Some('<') => (Token::Less, 1),
            Some(_) => {
                let ends = |c: char| special(c) || matches!(c, ' ' | '\t' | '\r' | '\n');
                let length = rest.find(ends).unwrap_or(rest.len());
                let token = match &rest[..length] {
                    "in" => Token::In,
                    "notin" => Token::NotIn,
                    _ => Token::Word,
                };
                (token, length)
            }
        };
        let (literal, after) = rest.split_at(length);
        tokens.push((token, literal));
        rest = after;
    }
    tokens.push((Token::End, ""));
    tokens
}

struct Parser<'a> {
    tokens: Vec<(Token, &'a str)>,
    position: usize,
}

impl<'a> Parser<'a> {
    fn selector(&mut self) -> Result<Vec<Requirement>, SelectorError> {
        let mut requirements = Vec::new();
        loop {
            match self.peek() {
                (Token::Word | Token::Not, _) => {}
                (Token::End, _) => return Ok(requirements),
                (_, literal) => return unexpected(literal, "!, identifier, or 'end of string'"),
            }
            let requirement = self.requirement();
            requirements.push(requirement.map_err(|e| SelectorError(format!("unable to parse requirement: {e}")))?);
            match self.next() {
                (Token::End, _) => return Ok(requirements),
                (Token::Comma, _) => {
                    let (token, literal) = self.peek();
                    if !matches!(token, Token::Word | Token::Not) {
                        return unexpected(literal, "identifier after ','");
                    }
                }
                (_, literal) => return unexpected(literal, "',' or 'end of string'"),
            }
        }
    }

    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        let (mut token, mut literal) = self.next();
        let negated = token == Token::Not;
        if negated {
            (token, literal) = self.next();
        }
        if token != Token::Word {
            return unexpected(literal, "identifier");
        }
        let key = literal;
        let wrong = names::qualified_name(key);
        if !wrong.is_empty() {
            return Err(SelectorError(format!("<nil>: Invalid value: {}: {}", quoted(key), wrong.join("; "))));
        }
        if negated {
            return Requirement::new(key, Operator::DoesNotExist, Vec::new());
        }
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Requirement::new(key, Operator::Exists, Vec::new());
        }
        let operator = self.operator()?;
        let values = match operator {
            Operator::In | Operator::NotIn => self.values()?,
            _ => self.exact_value()?,
        };
        Requirement::new(key, operator, values.into_iter().map(str::to_owned).collect())
    }

    fn operator(&mut self) -> Result<Operator, SelectorError> {
        let (token, literal) = self.next_operator();
        Ok(match token {
            Token::In => Operator::In,
            Token::NotIn => Operator::NotIn,
            Token::Equals => Operator::Equals,
            Token::DoubleEquals => Operator::DoubleEquals,
            Token::NotEquals => Operator::NotEquals,
            Token::Greater => Operator::GreaterThan,
            Token::Less => Operator::LessThan,
            _ => return unexpected(literal, "in, notin, =, ==, !=, gt, lt"),
        })
    }

    fn values(&mut self) -> Result<BTreeSet<&'a str>, SelectorError> {
        let (token, literal) = self.next();
        if token != Token::Open {
            return Err(SelectorError(format!("found '{literal}' expected: '('")));
        }
        match self.peek() {
            (Token::Close, _) => {
                self.next();
                Ok(BTreeSet::from([""]))
            }
            (Token::Word | Token::Comma, _) => {
                let values = self.value_list()?;
                self.next();
                Ok(values)
            }
            (_, literal) => unexpected(literal, "',', ')' or identifier"),
        }
    }

    /// Values between commas, which may be empty; stops before the parenthesis.
    fn value_list(&mut self) -> Result<BTreeSet<&'a str>, SelectorError> {
        let mut values = BTreeSet::new();
        loop {
            match self.next() {
                (Token::Word, word) => {
                    values.insert(word);
                    match self.peek() {
                        (Token::Comma, _) => {}
                        (Token::Close, _) => return Ok(values),
                        (_, literal) => return unexpected(literal, "',' or ')'"),
                    }
                }
                (Token::Comma, _) => {
                    if values.is_empty() {
                        values.insert("");
                    }
                    match self.peek().0 {
                        Token::Close => {
                            values.insert("");
                            return Ok(values);
                        }
                        Token::Comma => {
                            values.insert("");
                        }
                        _ => {}
                    }
                }
                (_, literal) => return unexpected(literal, "',', or identifier"),
            }
        }
    }

    fn exact_value(&mut self) -> Result<BTreeSet<&'a str>, SelectorError> {
        if matches!(self.peek().0, Token::End | Token::Comma) {
            return Ok(BTreeSet::from([""]));
        }
        match self.next() {
            (Token::Word, word) => Ok(BTreeSet::from([word])),
            (_, literal) => unexpected(literal, "identifier"),
        }
    }

    /// The next token; `in` and `notin` are plain values unless an operator is expected.
    fn peek(&self) -> (Token, &'a str) {
        match self.tokens.get(self.position).copied().unwrap_or((Token::End, "")) {
            (Token::In | Token::NotIn, literal) => (Token::Word, literal),
            other => other,
        }
    }

    fn next(&mut self) -> (Token, &'a str) {
        let token = self.peek();
        self.position += 1;
        token
    }

    fn next_operator(&mut self) -> (Token, &'a str) {
        let token = self.tokens.get(self.position).copied().unwrap_or((Token::End, ""));
        self.position += 1;
        token
    }
}

fn unexpected<T>(found: &str, expected: &str) -> Result<T, SelectorError> {
    Err(SelectorError(format!("found '{found}', expected: {expected}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_read_as_in_kubernetes() {
        let bad_key = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an \
                       alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is \
                       '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
        let bad_value = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and \
                         must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', \
                         regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
        for (text, message) in [
            ("a===b", "unable to parse requirement: found '=', expected: identifier"),
            ("a,", "found '', expected: identifier after ','"),
            (",a", "found ',', expected: !, identifier, or 'end of string'"),
            ("!", "unable to parse requirement: found '', expected: identifier"),
            ("!a=b", "found '=', expected: ',' or 'end of string'"),
            ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
            ("a in b", "unable to parse requirement: found 'b' expected: '('"),
            ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
            ("a in (=", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
            ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
            (
                "a>b",
                "unable to parse requirement: values[0]: Invalid value: \"b\": for 'Gt', 'Lt' operators, the value must be an integer",
            ),
            ("-a=b", &format!("unable to parse requirement: <nil>: Invalid value: \"-a\": {bad_key}")),
            ("a=-b", &format!("unable to parse requirement: values[0][a]: Invalid value: \"-b\": {bad_value}")),
        ] {
            assert_eq!(requirements(text).unwrap_err().0, message, "{text}");
        }
    }
}
