//! Expressions as trees.

/// An expression and where in the text it stands.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub at: usize,
    pub kind: Kind,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Vec<u8>),
    Name(String),
    Select {
        operand: Box<Node>,
        field: String,
        optional: bool,
    },
    /// `has(operand.field)`
    Has {
        operand: Box<Node>,
        field: String,
    },
    Call {
        function: String,
        target: Option<Box<Node>>,
        arguments: Vec<Node>,
    },
    /// Elements marked with `?` are left out when they are none.
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    Macro(Box<Macro>),
    /// A name for a value, inside one expression.
    Bind {
        name: String,
        value: Box<Node>,
        body: Box<Node>,
    },
}

/// A macro over the elements of a list or map.
#[derive(Clone, Debug)]
pub(super) struct Macro {
    pub name: MacroName,
    pub range: Node,
    /// The element, or with two of them the index or key and the element.
    pub variables: (String, Option<String>),
    pub filter: Option<Node>,
    pub body: Node,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum MacroName {
    All,
    Exists,
    ExistsOne,
    Map,
    Filter,
    TransformMap,
    TransformMapEntry,
    OptionalMap,
    OptionalFlatMap,
    SortBy,
}

impl Node {
    pub fn call(at: usize, function: &str, arguments: Vec<Node>) -> Self {
        Node { at, kind: Kind::Call { function: function.to_owned(), target: None, arguments } }
    }

    /// Whether the expression names a variable anywhere.
    pub fn mentions(&self, name: &str) -> bool {
        let any = |nodes: &[Node]| nodes.iter().any(|node| node.mentions(name));
        match &self.kind {
            Kind::Name(other) => other == name,
            Kind::Select { operand, .. } | Kind::Has { operand, .. } => operand.mentions(name),
            Kind::Call { target, arguments, .. } => {
                target.as_ref().is_some_and(|target| target.mentions(name)) || any(arguments)
            }
            Kind::List(elements) => elements.iter().any(|(element, _)| element.mentions(name)),
            Kind::Map(entries) => entries.iter().any(|(key, value, _)| key.mentions(name) || value.mentions(name)),
            Kind::Macro(all) => {
                all.range.mentions(name)
                    || all.body.mentions(name)
                    || all.filter.as_ref().is_some_and(|filter| filter.mentions(name))
            }
            Kind::Bind { value, body, .. } => value.mentions(name) || body.mentions(name),
            _ => false,
        }
    }
}
