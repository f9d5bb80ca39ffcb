//! The parser: tokens to syntax trees, with macros expanded.

use super::ast::{Kind, Node};
use super::error::Problem;
use super::lexer::{Token, tokens};
use super::macros::member_call;

/// The maximum depth of a tree, by brackets or by chains of operators and calls.
const MAX_DEPTH: usize = 250;

/// The maximum depth of brackets. Each level takes several recursive calls, so it is lower.
const MAX_BRACKETS: usize = 100;

pub(super) fn parse(source: &str) -> Result<Node> {
    let mut parser = Parser { tokens: tokens(source)?, next: 0, depth: 0 };
    let node = parser.expression()?;
    match parser.peek() {
        Token::End => Ok(node),
        _ => Err(parser.unexpected("<EOF>")),
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    next: usize,
    depth: usize,
}

type Result<T> = std::result::Result<T, Problem>;

/// Operators by precedence, lowest first, with their functions.
const BINARY: [&[(&str, &str)]; 5] = [
    &[("||", "_||_")],
    &[("&&", "_&&_")],
    &[("<", "_<_"), ("<=", "_<=_"), (">", "_>_"), (">=", "_>=_"), ("==", "_==_"), ("!=", "_!=_"), ("in", "@in")],
    &[("+", "_+_"), ("-", "_-_")],
    &[("*", "_*_"), ("/", "_/_"), ("%", "_%_")],
];

impl Parser {
    fn peek(&self) -> &Token {
        &self.tokens[self.next.min(self.tokens.len() - 1)].0
    }

    fn at(&self) -> usize {
        self.tokens[self.next.min(self.tokens.len() - 1)].1
    }

    fn advance(&mut self) -> Token {
        let token = self.peek().clone();
        self.next += 1;
        token
    }

    fn is(&self, sign: &str) -> bool {
        matches!(self.peek(), Token::Sign(other) if *other == sign)
    }

    fn accept(&mut self, sign: &str) -> bool {
        let found = self.is(sign);
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<()> {
        if self.accept(sign) { Ok(()) } else { Err(self.unexpected(&format!("'{sign}'"))) }
    }

    fn unexpected(&self, expected: &str) -> Problem {
        let found = match self.peek() {
            Token::Name(name) => name.clone(),
            Token::Int(number) => number.to_string(),
            Token::Uint(number) => format!("{number}u"),
            Token::Double(number) => number.to_string(),
            Token::Text(text) => format!("\"{text}\""),
            Token::Bytes(_) => "bytes".to_owned(),
            Token::Sign(sign) => (*sign).to_owned(),
            Token::End => "<EOF>".to_owned(),
        };
        // An extra token before the end has a different message.
        let last = expected == "<EOF>" && matches!(self.tokens.get(self.next + 1), Some((Token::End, _)));
        let how = if last { "extraneous" } else { "mismatched" };
        self.problem(format!("Syntax error: {how} input '{found}' expecting {expected}"))
    }

    /// Whether the next token directly follows a call's opening parenthesis.
    fn at_first_argument(&self) -> bool {
        let before = |distance: usize| self.next.checked_sub(distance).map(|at| &self.tokens[at].0);
        matches!((before(2), before(1)), (Some(Token::Name(_)), Some(Token::Sign("("))))
    }

    fn problem(&self, message: String) -> Problem {
        Problem { at: self.at(), message }
    }

    fn expression(&mut self) -> Result<Node> {
        self.depth += 1;
        if self.depth > MAX_BRACKETS {
            return Err(self.problem(format!("expression recursion limit exceeded: {MAX_DEPTH}")));
        }
        let condition = self.binary(0)?;
        let at = self.at();
        let node = if self.accept("?") {
            let then = self.binary(0)?;
            self.expect(":")?;
            let otherwise = self.expression()?;
            Node::call(at, "_?_:_", vec![condition, then, otherwise])
        } else {
            condition
        };
        self.depth -= 1;
        self.bounded(node)
    }

    /// Checks the depth of a node: chains such as `1 + 1 + 1` nest without recursion of the parser.
    fn bounded(&self, node: Node) -> Result<Node> {
        if node.height > MAX_DEPTH {
            return Err(self.problem(format!("expression recursion limit exceeded: {MAX_DEPTH}")));
        }
        Ok(node)
    }

    /// Operands joined by operators of at least that precedence.
    fn binary(&mut self, level: usize) -> Result<Node> {
        let mut left = self.unary()?;
        while let Some((found, function)) = self.operator().filter(|(found, _)| *found >= level) {
            if matches!(function, "_&&_" | "_||_") {
                left = self.junctions(left, found, function)?;
                continue;
            }
            let at = self.at();
            self.next += 1;
            let right = self.binary(found + 1)?;
            left = self.bounded(Node::call(at, function, vec![left, right]))?;
        }
        Ok(left)
    }

    /// Operands joined by `&&` or by `||`, as a balanced tree: there may be thousands of them.
    fn junctions(&mut self, first: Node, level: usize, function: &str) -> Result<Node> {
        let (mut operands, mut places) = (vec![first], Vec::new());
        while self.operator().is_some_and(|(found, _)| found == level) {
            places.push(self.at());
            self.next += 1;
            operands.push(self.binary(level + 1)?);
        }
        let mut operands = operands.into_iter().map(Some).collect::<Vec<_>>();
        balanced(&mut operands, &places, function)
            .ok_or_else(|| self.problem("Syntax error: an operand is missing".to_owned()))
            .and_then(|node| self.bounded(node))
    }

    /// The next operator: its precedence and its function.
    fn operator(&self) -> Option<(usize, &'static str)> {
        let written = match self.peek() {
            Token::Sign(sign) => *sign,
            Token::Name(name) if name == "in" => "in",
            _ => return None,
        };
        BINARY.iter().enumerate().find_map(|(level, operators)| {
            operators.iter().find(|(sign, _)| *sign == written).map(|(_, function)| (level, *function))
        })
    }

    fn unary(&mut self) -> Result<Node> {
        let at = self.at();
        for (sign, function) in [("!", "!_"), ("-", "-_")] {
            if self.is(sign) {
                let mut count = 0;
                while self.accept(sign) {
                    count += 1;
                }
                if sign == "-" && count % 2 == 1 {
                    return self.negative(at);
                }
                let operand = self.member()?;
                return Ok(if count % 2 == 1 { Node::call(at, function, vec![operand]) } else { operand });
            }
        }
        self.member()
    }

    /// A minus and a number are one number, so that the smallest can be written.
    fn negative(&mut self, at: usize) -> Result<Node> {
        match self.peek() {
            Token::Int(number) => {
                let number = -i128::from(*number);
                let kind =
                    i64::try_from(number).map(Kind::Int).map_err(|_| self.problem("invalid int literal".to_owned()))?;
                self.next += 1;
                self.suffixes(Node::new(at, kind))
            }
            Token::Double(number) => {
                let kind = Kind::Double(-number);
                self.next += 1;
                self.suffixes(Node::new(at, kind))
            }
            _ => {
                let operand = self.member()?;
                Ok(Node::call(at, "-_", vec![operand]))
            }
        }
    }

    fn member(&mut self) -> Result<Node> {
        let node = self.primary()?;
        self.suffixes(node)
    }

    fn suffixes(&mut self, mut node: Node) -> Result<Node> {
        loop {
            let at = self.at();
            if self.accept(".") {
                let optional = self.accept("?");
                let Token::Name(field) = self.advance() else {
                    self.next -= 1;
                    return Err(self.unexpected("IDENTIFIER"));
                };
                let call_at = self.at();
                if !optional && self.accept("(") {
                    let arguments = self.arguments(")")?;
                    node = member_call(node, field, arguments, call_at)?;
                } else {
                    node = Node::new(at, Kind::Select { operand: Box::new(node), field, optional });
                }
            } else if self.accept("[") {
                let function = if self.accept("?") { "_[?_]" } else { "_[_]" };
                let index = self.expression()?;
                self.expect("]")?;
                node = Node::call(at, function, vec![node, index]);
            } else if self.is("{")
                && let Some(name) = node.dotted()
            {
                self.next += 1;
                node = Node::new(at, Kind::Message { name, fields: self.fields()? });
            } else {
                return Ok(node);
            }
            node = self.bounded(node)?;
        }
    }

    fn arguments(&mut self, end: &str) -> Result<Vec<Node>> {
        let mut arguments = Vec::new();
        while !self.accept(end) {
            arguments.push(self.expression()?);
            if !self.accept(",") {
                self.expect(end)?;
                break;
            }
        }
        Ok(arguments)
    }

    fn primary(&mut self) -> Result<Node> {
        let at = self.at();
        let kind = match self.advance() {
            Token::Int(number) => Kind::Int(
                i64::try_from(number)
                    .map_err(|_| Problem { at, message: "Syntax error: invalid int literal".to_owned() })?,
            ),
            Token::Uint(number) => Kind::Uint(number),
            Token::Double(number) => Kind::Double(number),
            Token::Text(text) => Kind::Text(text),
            Token::Bytes(bytes) => Kind::Bytes(bytes.into()),
            Token::Name(name) => match name.as_str() {
                "true" => Kind::Bool(true),
                "false" => Kind::Bool(false),
                "null" => Kind::Null,
                "in" => {
                    self.next -= 1;
                    return Err(self.unexpected("an expression"));
                }
                _ => return self.name(name, at),
            },
            Token::Sign(".") => match self.advance() {
                Token::Name(name) => return self.name(name, at),
                _ => {
                    self.next -= 1;
                    return Err(self.unexpected("IDENTIFIER"));
                }
            },
            Token::Sign("(") => {
                let node = self.expression()?;
                self.expect(")")?;
                return Ok(node);
            }
            Token::Sign("[") => Kind::List(self.elements()?),
            Token::Sign("{") => Kind::Map(self.entries()?),
            _ => {
                self.next -= 1;
                // A call may have no arguments.
                let end = if self.at_first_argument() { "')', " } else { "" };
                return Err(self.unexpected(&format!(
                    "{{'[', '{{', '(', {end}'.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, \
                     BYTES, IDENTIFIER}}"
                )));
            }
        };
        Ok(Node::new(at, kind))
    }

    fn name(&mut self, name: String, at: usize) -> Result<Node> {
        let call_at = self.at();
        if !self.accept("(") {
            return Ok(Node::new(at, Kind::Name(name)));
        }
        let mut arguments = self.arguments(")")?;
        if name == "has" {
            return match (arguments.pop().map(|node| node.kind), arguments.is_empty()) {
                (Some(Kind::Select { operand, field, .. }), true) => {
                    Ok(Node::new(call_at, Kind::Has { operand, field }))
                }
                _ => Err(Problem { at: call_at, message: "invalid argument to has() macro".to_owned() }),
            };
        }
        Ok(Node::call(call_at, &name, arguments))
    }

    fn elements(&mut self) -> Result<Vec<(Node, bool)>> {
        let mut elements = Vec::new();
        while !self.accept("]") {
            let optional = self.accept("?");
            elements.push((self.expression()?, optional));
            if !self.accept(",") {
                self.expect("]")?;
                break;
            }
        }
        Ok(elements)
    }

    fn fields(&mut self) -> Result<Vec<(String, Node, bool)>> {
        let mut fields = Vec::new();
        while !self.accept("}") {
            let optional = self.accept("?");
            let Token::Name(name) = self.advance() else {
                self.next -= 1;
                return Err(self.unexpected("IDENTIFIER"));
            };
            self.expect(":")?;
            fields.push((name, self.expression()?, optional));
            if !self.accept(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(fields)
    }

    fn entries(&mut self) -> Result<Vec<(Node, Node, bool)>> {
        let mut entries = Vec::new();
        while !self.accept("}") {
            let optional = self.accept("?");
            let key = self.expression()?;
            self.expect(":")?;
            entries.push((key, self.expression()?, optional));
            if !self.accept(",") {
                self.expect("}")?;
                break;
            }
        }
        Ok(entries)
    }
}

/// A balanced tree over operands in their order; `places` are the positions of the operators between them.
fn balanced(operands: &mut [Option<Node>], places: &[usize], function: &str) -> Option<Node> {
    if operands.len() < 2 {
        return operands.first_mut()?.take();
    }
    let middle = operands.len().div_ceil(2);
    let (left, right) = operands.split_at_mut(middle);
    let left = balanced(left, &places[..middle - 1], function)?;
    let right = balanced(right, &places[middle..], function)?;
    Some(Node::call(places[middle - 1], function, vec![left, right]))
}
