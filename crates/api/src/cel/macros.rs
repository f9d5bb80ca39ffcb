//! Expansion of CEL macros such as `all`, `map` and `cel.bind`.

use super::ast::{Kind, Macro, MacroName, Node};
use super::error::Problem;

/// Builds a call on a value, or expands the macro of that name.
pub(super) fn member_call(target: Node, name: String, mut arguments: Vec<Node>, at: usize) -> Result<Node, Problem> {
    if name == "bind" && arguments.len() == 3 && matches!(&target.kind, Kind::Name(library) if library == "cel") {
        let mut parts = arguments.drain(..);
        if let (Some(variable), Some(value), Some(body)) = (parts.next(), parts.next(), parts.next()) {
            let name = variable_name(&variable)?;
            return Ok(Node::new(at, Kind::Bind { name, value: Box::new(value), body: Box::new(body) }));
        }
    }
    use MacroName::{
        All, Exists, ExistsOne, Filter, Map, OptionalFlatMap, OptionalMap, SortBy, TransformMap, TransformMapEntry,
    };
    let (macro_name, variables, filters) = match (name.as_str(), arguments.len()) {
        ("all", 2) => (All, 1, false),
        ("all", 3) => (All, 2, false),
        ("exists", 2) => (Exists, 1, false),
        ("exists", 3) => (Exists, 2, false),
        ("exists_one" | "existsOne", 2) => (ExistsOne, 1, false),
        ("exists_one" | "existsOne", 3) => (ExistsOne, 2, false),
        ("map", 2) => (Map, 1, false),
        ("map", 3) => (Map, 1, true),
        ("filter", 2) => (Filter, 1, false),
        ("transformList", 3) => (Map, 2, false),
        ("transformList", 4) => (Map, 2, true),
        ("transformMap", 3) => (TransformMap, 2, false),
        ("transformMap", 4) => (TransformMap, 2, true),
        ("transformMapEntry", 3) => (TransformMapEntry, 2, false),
        ("transformMapEntry", 4) => (TransformMapEntry, 2, true),
        ("optMap", 2) => (OptionalMap, 1, false),
        ("optFlatMap", 2) => (OptionalFlatMap, 1, false),
        ("sortBy", 2) => (SortBy, 1, false),
        _ => {
            return Ok(Node::new(at, Kind::Call { function: name, target: Some(Box::new(target)), arguments }));
        }
    };
    let mut parts = arguments.into_iter();
    let first = parts.next().map(|node| variable_name(&node)).transpose()?.unwrap_or_default();
    let second = if variables == 2 { parts.next().map(|node| variable_name(&node)).transpose()? } else { None };
    let filter = if filters { parts.next() } else { None };
    let Some(body) = parts.next() else { return Err(Problem { at, message: "argument missing".to_owned() }) };
    let all = Macro { name: macro_name, range: target, variables: (first, second), filter, body };
    Ok(Node::new(at, Kind::Macro(Box::new(all))))
}

fn variable_name(node: &Node) -> Result<String, Problem> {
    match &node.kind {
        Kind::Name(name) => Ok(name.clone()),
        _ => Err(Problem { at: node.at, message: "argument must be a simple name".to_owned() }),
    }
}
