//! The syntax tree of an expression.

use std::sync::Arc;

/// An expression and its position in the text.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub at: usize,
    pub kind: Kind,
    /// The nesting depth of this expression. Traversals of a tree recurse, so the parser limits it.
    pub height: usize,
}

#[derive(Clone, Debug)]
pub(super) enum Kind {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    Text(String),
    Bytes(Arc<[u8]>),
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
    /// `Name{field: value}`; fields marked with `?` are left out when they are none.
    Message {
        name: String,
        fields: Vec<(String, Node, bool)>,
    },
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
    /// A node at a position of the text.
    pub fn new(at: usize, kind: Kind) -> Self {
        let mut node = Node { at, kind, height: 0 };
        node.height = node.children().into_iter().map(|child| child.height + 1).max().unwrap_or_default();
        node
    }

    /// A call of a global function.
    pub fn call(at: usize, function: &str, arguments: Vec<Node>) -> Self {
        Node::new(at, Kind::Call { function: function.to_owned(), target: None, arguments })
    }

    /// Whether the expression names a variable anywhere.
    pub fn mentions(&self, name: &str) -> bool {
        let own = matches!(&self.kind, Kind::Name(other) if other == name);
        own || self.children().into_iter().any(|child| child.mentions(name))
    }

    /// The fields of a variable that the expression selects by name.
    pub fn fields_of<'n>(&'n self, variable: &str, found: &mut Vec<&'n str>) {
        if let Kind::Select { operand, field, .. } | Kind::Has { operand, field } = &self.kind
            && matches!(&operand.kind, Kind::Name(name) if name == variable)
        {
            found.push(field);
        }
        for child in self.children() {
            child.fields_of(variable, found);
        }
    }

    /// `a.b.c` as a text, where the expression is nothing but names joined by dots.
    pub fn dotted(&self) -> Option<String> {
        match &self.kind {
            Kind::Name(name) => Some(name.clone()),
            Kind::Select { operand, field, optional: false } => Some(format!("{}.{field}", operand.dotted()?)),
            _ => None,
        }
    }

    fn children(&self) -> Vec<&Node> {
        match &self.kind {
            Kind::Select { operand, .. } | Kind::Has { operand, .. } => vec![operand],
            Kind::Call { target, arguments, .. } => target.as_deref().into_iter().chain(arguments).collect(),
            Kind::List(elements) => elements.iter().map(|(element, _)| element).collect(),
            Kind::Map(entries) => entries.iter().flat_map(|(key, value, _)| [key, value]).collect(),
            Kind::Macro(all) => [&all.range, &all.body].into_iter().chain(&all.filter).collect(),
            Kind::Message { fields, .. } => fields.iter().map(|(_, value, _)| value).collect(),
            Kind::Bind { value, body, .. } => vec![value, body],
            _ => Vec::new(),
        }
    }
}
