//! Strategic merge patch: lists merge by the keys of the schema, and directives control the rest.
//!
//! Directives: `$patch: replace|delete` for an object or a list's element, `$retainKeys` for the fields that stay,
//! `$deleteFromPrimitiveList/field` for values to remove, `$setElementOrder/field` for the resulting order.

#[cfg(test)]
mod tests;

use super::element_order::{Identity, Places, arrange};
use super::{PatchError, go_format};
use crate::schema::{Field, NodeRef, Shape};
use crate::value::{depth, go_type};
use serde_json::{Map, Value};
use std::collections::HashSet;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const DELETE_PREFIX: &str = "$deleteFromPrimitiveList";
const ORDER_PREFIX: &str = "$setElementOrder";

type Fields = Map<String, Value>;
type Result<T> = std::result::Result<T, PatchError>;

/// The maximum number of values in the lists that one patch merges. A patch may name one element of a list thousands of times,
/// and each time the lists in it are merged; other patches need a hundredth of this.
const MAX_WORK: usize = 10_000_000;

/// How many more values may be merged.
struct Work(usize);

impl Work {
    fn spend(&mut self, list: &[Value]) -> Result<()> {
        let all_visited = list.iter().all(|item| depth(item, &mut self.0).is_some());
        self.0 = self.0.saturating_sub(list.len());
        if all_visited && self.0 > 0 {
            return Ok(());
        }
        Err(PatchError::Unprocessable("the patch merges too many values".into()))
    }
}

/// Merges a patch, which must be an object, into an object of the kind that `node` describes.
pub fn strategic_merge(original: Value, patch: Value, node: NodeRef<'_>) -> Result<Value> {
    match (original, patch) {
        (Value::Object(original), Value::Object(patch)) => {
            merge_objects(original, patch, Some(node), &mut Work(MAX_WORK)).map(Value::Object)
        }
        _ => Err(PatchError::Malformed("invalid JSON document".into())),
    }
}

fn merge_objects(
    mut original: Fields,
    mut patch: Fields,
    node: Option<NodeRef<'_>>,
    work: &mut Work,
) -> Result<Fields> {
    if let Some(directive) = patch.remove(DIRECTIVE) {
        return match directive.as_str() {
            Some("replace") => Ok(patch),
            Some("delete") => Ok(Fields::new()),
            _ => {
                patch.insert(DIRECTIVE.to_owned(), directive.clone());
                Err(unknown_directive(&directive, &patch.into()))
            }
        };
    }
    retain_keys(&mut original, &mut patch)?;
    set_element_orders(&mut original, &mut patch, node, work)?;
    for (name, value) in patch {
        if let Some(rest) = name.strip_prefix(DELETE_PREFIX) {
            let target = rest.strip_prefix('/').ok_or_else(|| malformed("invalid patch format of primitive list"))?;
            delete_from_list(&mut original, target, value, work)?;
        } else if value.is_null() {
            original.remove(&name);
        } else {
            merge_field(&mut original, name, value, node, work)?;
        }
    }
    Ok(original)
}

fn merge_field(
    original: &mut Fields,
    name: String,
    patch: Value,
    node: Option<NodeRef<'_>>,
    work: &mut Work,
) -> Result<()> {
    let merged = match (original.get_mut(&name).map(Value::take), patch) {
        (Some(Value::Object(before)), Value::Object(patch)) => {
            let (field, target) = look_up(node, &name)?;
            if field.is_some_and(|field| field.patch.replace) {
                Some(Value::Object(patch))
            } else {
                Some(Value::Object(merge_objects(before, patch, target, work)?))
            }
        }
        (Some(Value::Array(before)), Value::Array(patch)) => {
            let (field, target) = look_up(node, &name)?;
            if field.is_some_and(|field| field.patch.merge) {
                let element = target.and_then(NodeRef::element);
                let key = field.and_then(|field| field.merge_key.as_deref());
                Some(Value::Array(merge_lists(before, patch, element, key, work)?))
            } else {
                Some(Value::Array(patch))
            }
        }
        (_, patch) => without_directives(without_nulls(patch)),
    };
    match merged {
        Some(value) => original.insert(name, value),
        None => original.remove(&name),
    };
    Ok(())
}

/// The schema of a field and the node of its value; none inside maps.
fn look_up<'s>(node: Option<NodeRef<'s>>, name: &str) -> Result<(Option<&'s Field>, Option<NodeRef<'s>>)> {
    let Some(node) = node else { return Ok((None, None)) };
    match &node.get().shape {
        Shape::Object(object) => match object.field(name) {
            Some(field) => Ok((Some(field), Some(node.at(field.node)))),
            None => Err(PatchError::Internal(
                format!("unable to find api field in struct {} for the json field {name:?}", node.struct_name()).into(),
            )),
        },
        Shape::Map(_) => {
            Err(PatchError::Internal("merging an object in json but data type is not struct, instead is: map".into()))
        }
        _ => Ok((None, None)),
    }
}

fn retain_keys(original: &mut Fields, patch: &mut Fields) -> Result<()> {
    let Some(directive) = patch.remove(RETAIN_KEYS) else { return Ok(()) };
    let Value::Array(keys) = directive else {
        return Err(malformed("invalid patch format of retainKeys"));
    };
    let keys: HashSet<&str> = keys.iter().filter_map(Value::as_str).collect();
    let retained = |name: &str| keys.contains(name);
    let is_directive = |name: &str| name.starts_with(DELETE_PREFIX) || name.starts_with(ORDER_PREFIX);
    if patch.iter().any(|(name, value)| !value.is_null() && !is_directive(name) && !retained(name)) {
        return Err(malformed("invalid patch format of retainKeys"));
    }
    original.retain(|name, _| retained(name));
    Ok(())
}

/// Merges every list for which the patch has an order, and removes it from the patch.
fn set_element_orders(
    original: &mut Fields,
    patch: &mut Fields,
    node: Option<NodeRef<'_>>,
    work: &mut Work,
) -> Result<()> {
    let directives: Vec<String> = patch.keys().filter(|name| name.starts_with(ORDER_PREFIX)).cloned().collect();
    for directive in directives {
        let order = match patch.remove(&directive) {
            Some(Value::Array(order)) => order,
            Some(other) => return Err(wrong_type("[]interface {}", &other)),
            None => continue,
        };
        let wrong_format = || malformed("invalid patch format of setElementOrder list");
        let name = directive[ORDER_PREFIX.len()..].strip_prefix('/').ok_or_else(wrong_format)?;
        let before = original.get(name).map(as_list).transpose()?;
        work.spend(before.map_or(&[], Vec::as_slice))?;
        let before = before.cloned();
        let patched = patch.get(name).map(as_list).transpose()?.cloned();
        let (field, target) = look_up(node, name)?;
        let key = field.and_then(|field| field.merge_key.as_deref());
        check_order(patched.as_deref().unwrap_or_default(), &order, key)?;
        let merged = match (before.clone(), patched) {
            (None, None) => continue,
            (Some(before), None) => before,
            (None, Some(patched)) => match without_directives(Value::Array(patched)) {
                Some(Value::Array(kept)) => kept,
                _ => continue,
            },
            (Some(before), Some(patched)) if field.is_some_and(|field| field.patch.merge) => {
                merge_lists(before, patched, target.and_then(NodeRef::element), key, work)?
            }
            (Some(_), Some(patched)) => patched,
        };
        check_merge_keys(&merged, key)?;
        check_merge_keys(&order, key)?;
        let live = before.unwrap_or_default();
        original.insert(name.to_owned(), Value::Array(arrange(merged, &order, &live, Identity(key))));
        patch.remove(name);
    }
    Ok(())
}

/// The patch may only contain elements that its order lists, in that order.
fn check_order(patched: &[Value], order: &[Value], key: Option<&str>) -> Result<()> {
    if order.is_empty() {
        return Ok(());
    }
    let identity = Identity(key);
    let mut order_left = order.iter();
    for element in patched.iter().filter(|element| element.get(DIRECTIVE).is_none()) {
        check_merge_keys(std::slice::from_ref(element), key)?;
        if !order_left.any(|other| identity.of(other) == identity.of(element)) {
            let message = format!(
                "The order in patch list:\n{}\n doesn't match {ORDER_PREFIX} list:\n{}\n",
                go_format(&patched.into()),
                go_format(&order.into())
            );
            return Err(PatchError::Internal(message.into()));
        }
    }
    Ok(())
}

fn merge_lists(
    original: Vec<Value>,
    patch: Vec<Value>,
    element: Option<NodeRef<'_>>,
    key: Option<&str>,
    work: &mut Work,
) -> Result<Vec<Value>> {
    if original.is_empty() && patch.is_empty() {
        return Ok(original);
    }
    work.spend(&original)?;
    if !check_same_type(&original, &patch)? {
        let mut merged: Vec<Value> = Vec::with_capacity(original.len() + patch.len());
        let mut places = Places::of(&[], Identity(None));
        for value in original.iter().chain(&patch) {
            if places.find(value).is_none() {
                places.note(value, merged.len());
                merged.push(value.clone());
            }
        }
        return Ok(arrange(merged, &patch, &original, Identity(None)));
    }
    let Some(key) = key else {
        return Err(PatchError::Internal("cannot merge lists without merge key for struct".into()));
    };
    let (original, patch) = carry_out_directives(original, patch, key)?;
    let mut merged = original.clone();
    let mut places = Places::of(&merged, Identity(Some(key)));
    for item in &patch {
        check_merge_keys(std::slice::from_ref(item), Some(key))?;
        match places.find(item) {
            Some(at) => {
                if let (Value::Object(before), Value::Object(item)) = (merged[at].take(), item.clone()) {
                    merged[at] = Value::Object(merge_objects(before, item, element, work)?);
                }
            }
            None => {
                places.note(item, merged.len());
                merged.push(item.clone());
            }
        }
    }
    check_merge_keys(&merged, Some(key))?;
    Ok(arrange(merged, &patch, &original, Identity(Some(key))))
}

/// Applies the directives in elements and returns the remaining elements of both lists.
fn carry_out_directives(mut original: Vec<Value>, patch: Vec<Value>, key: &str) -> Result<(Vec<Value>, Vec<Value>)> {
    let (mut kept, mut deleted) = (Vec::with_capacity(patch.len()), Vec::new());
    let mut replaces = false;
    for item in patch {
        match item
            .get(DIRECTIVE)
            .map(|directive| (directive.clone(), directive.as_str().unwrap_or_default().to_owned()))
        {
            None => kept.push(item),
            Some((_, directive)) if directive == "replace" => replaces = true,
            Some((_, directive)) if directive == "delete" => {
                if item.get(key).is_none() {
                    return Err(no_merge_key(&item, key));
                }
                deleted.push(item);
            }
            Some((_, directive)) if directive == "merge" => {
                return Err(PatchError::Internal("merging lists cannot yet be specified in the patch".into()));
            }
            Some((directive, _)) => return Err(unknown_directive(&directive, &item)),
        }
    }
    let deleted = Places::of(&deleted, Identity(Some(key)));
    original.retain(|element| deleted.find(element).is_none());
    if replaces { Ok((kept, Vec::new())) } else { Ok((original, kept)) }
}

fn delete_from_list(original: &mut Fields, name: &str, values: Value, work: &mut Work) -> Result<()> {
    match (original.get_mut(name), values) {
        (_, Value::Null) => {
            original.remove(name);
        }
        (Some(Value::Array(items)), Value::Array(values)) => {
            work.spend(items)?;
            let deleted = Places::of(&values, Identity(None));
            items.retain(|item| deleted.find(item).is_none());
        }
        _ => {}
    }
    Ok(())
}

/// Whether all elements are objects; lists inside lists and mixed lists are refused.
fn check_same_type(original: &[Value], patch: &[Value]) -> Result<bool> {
    let mut first: Option<&Value> = None;
    for value in original.iter().chain(patch) {
        if value.is_array() {
            return Err(PatchError::Unprocessable("lists of lists are not supported".into()));
        }
        if std::mem::discriminant(*first.get_or_insert(value)) != std::mem::discriminant(value) {
            let both = Value::Array(vec![original.into(), patch.into()]);
            return Err(PatchError::Internal(
                format!("list element types are not identical: {}", go_format(&both)).into(),
            ));
        }
    }
    Ok(first.is_some_and(Value::is_object))
}

fn check_merge_keys(list: &[Value], key: Option<&str>) -> Result<()> {
    let Some(key) = key else { return Ok(()) };
    for element in list {
        if !element.is_object() {
            return Err(wrong_type("map[string]interface {}", element));
        }
        if element.get(key).is_none() {
            return Err(no_merge_key(element, key));
        }
    }
    Ok(())
}

fn as_list(value: &Value) -> Result<&Vec<Value>> {
    value.as_array().ok_or_else(|| wrong_type("[]interface {}", value))
}

/// Removes nulls from a new value.
fn without_nulls(mut value: Value) -> Value {
    discard_nulls(&mut value);
    value
}

fn discard_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(discard_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(discard_nulls),
        _ => {}
    }
}

/// Removes directives from a new value.
fn without_directives(value: Value) -> Option<Value> {
    match value {
        Value::Object(fields) => {
            if fields.contains_key(DIRECTIVE) {
                return None;
            }
            let kept = fields.into_iter().filter_map(|(name, value)| Some((name, without_directives(value)?)));
            Some(Value::Object(kept.collect()))
        }
        Value::Array(items) => Some(items.into_iter().filter_map(without_directives).collect()),
        other => Some(other),
    }
}

fn malformed(message: &str) -> PatchError {
    PatchError::Malformed(message.into())
}

fn no_merge_key(element: &Value, key: &str) -> PatchError {
    PatchError::Internal(format!("map: {} does not contain declared merge key: {key}", go_format(element)).into())
}

fn unknown_directive(directive: &Value, within: &Value) -> PatchError {
    let directive = match directive {
        Value::String(text) => text.clone(),
        Value::Null => "%!s(<nil>)".to_owned(),
        other => format!("%!s({}={})", printed_type(other), go_format(other)),
    };
    PatchError::Internal(format!("unknown patch type: {directive} in map: {}", go_format(within)).into())
}

fn wrong_type(expected: &str, found: &Value) -> PatchError {
    PatchError::Internal(format!("expected a {expected}, but received a {}", printed_type(found)).into())
}

/// As Go prints the type of a value in this message: that of none is printed as a mistake of the format.
fn printed_type(value: &Value) -> &'static str {
    if value.is_null() { "%!s(<nil>)" } else { go_type(value) }
}
