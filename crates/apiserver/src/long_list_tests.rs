//! Lists of objects are as long as their authors like: the work on a request grows with the length of its body, and not with
//! the square of it. Work on a body is not interrupted, so that a few such requests would stop the server.

use std::time::{Duration, Instant};

use http::Request;
use http_body_util::{BodyExt as _, Full};
use knarr_api::catalogue::Kind;
use knarr_api::schema::{NodeId, NodeRef, Shape, builtin};
use serde_json::{Map, Value, json};

use crate::request_tests::{Cluster, admin};

/// Shorter than the largest body.
const MAX_BYTES: usize = 2_500_000;
const MAX_ITEMS: usize = 20_000;
/// Of all lists together, fewer than would be refused at once.
const MAX_ITEMS_IN_ALL: usize = 90_000;

/// A struct with lists, and how to get there from the object: names of fields, and an empty text for an item of a list.
struct Place {
    path: Vec<String>,
    lists: Vec<(String, NodeId)>,
}

/// The structs with lists below a node.
fn places(node: NodeRef<'static>, path: &[String], passed: &mut Vec<NodeId>, found: &mut Vec<Place>) {
    if passed.contains(&node.id()) || path.len() > 14 {
        return;
    }
    passed.push(node.id());
    match &node.get().shape {
        Shape::Object(object) => {
            let mut lists = Vec::new();
            for field in object.fields() {
                // The same in many kinds.
                if matches!(&*field.name, "managedFields" | "template" | "jobTemplate") {
                    continue;
                }
                let below = node.at(field.node);
                if below.list().is_some() {
                    lists.push((field.name.to_string(), field.node));
                }
                let mut path = path.to_vec();
                path.push(field.name.to_string());
                places(below, &path, passed, found);
            }
            if !lists.is_empty() {
                found.push(Place { path: path.to_vec(), lists });
            }
        }
        Shape::List(list) => {
            let mut path = path.to_vec();
            path.push(String::new());
            places(node.at(list.element), &path, passed, found);
        }
        _ => {}
    }
    passed.pop();
}

/// A value that differs for each number, as far as the schema allows.
fn value(node: NodeRef<'_>, number: usize, depth: usize) -> Value {
    match &node.get().shape {
        Shape::Object(object) => {
            let fields = object.fields().iter().filter_map(|field| {
                let below = node.at(field.node);
                let is_plain = !matches!(below.get().shape, Shape::Object(_) | Shape::List(_) | Shape::Map(_));
                let given = field.values.first().map(|value| Value::from(&**value));
                (is_plain || depth > 0 && field.required).then(|| {
                    (field.name.to_string(), given.unwrap_or_else(|| value(below, number, depth.saturating_sub(1))))
                })
            });
            Value::Object(fields.filter(|(_, value)| !value.is_null()).collect())
        }
        Shape::List(list) => json!([value(node.at(list.element), number, depth)]),
        Shape::Map(_) => json!({}),
        Shape::String => format!("n{number}").into(),
        Shape::Integer { .. } | Shape::Number => (number % 60_000 + 1).into(),
        Shape::IntOrString => (number % 60_000 + 1).into(),
        Shape::Boolean => true.into(),
        Shape::Quantity => "1".into(),
        _ => Value::Null,
    }
}

fn object(place: &Place, node: NodeRef<'static>) -> Value {
    let mut inner = Map::new();
    let share = MAX_BYTES / place.lists.len();
    let max_items = MAX_ITEMS.min(MAX_ITEMS_IN_ALL / place.lists.len());
    for (name, list) in &place.lists {
        let Some(list) = node.at(*list).list() else { continue };
        let element = node.at(list.element);
        let size = value(element, MAX_ITEMS, 1).to_string().len() + 1;
        let count = (share / size).min(max_items);
        inner.insert(name.clone(), (0..count).map(|number| value(element, number, 1)).collect());
    }
    let mut built = Value::Object(inner);
    for name in place.path.iter().rev() {
        built = if name.is_empty() { json!([built]) } else { json!({ name: built }) };
    }
    built
}

/// The time and the code of the response to the creation of an object with long lists at a place.
async fn create(cluster: &Cluster, kind: &Kind, node: NodeRef<'static>, place: &Place) -> (Duration, u16) {
    let prefix = if kind.group.is_empty() { "/api".to_owned() } else { format!("/apis/{}", kind.group) };
    let namespace = if kind.namespaced { "/namespaces/default" } else { "" };
    let path = format!("{prefix}/{}{namespace}/{}?dryRun=All", kind.version, kind.plural);
    let mut body = object(place, node);
    if !body["metadata"].is_object() {
        body["metadata"] = json!({});
    }
    body["metadata"]["name"] = "a".into();
    body["kind"] = kind.kind.as_str().into();
    body["apiVersion"] = match kind.group.as_str() {
        "" => kind.version.clone().into(),
        group => format!("{group}/{}", kind.version).into(),
    };
    let request = Request::post(&path).header("content-type", "application/json");
    let request = request.body(Full::new(bytes::Bytes::from(body.to_string()))).unwrap();
    let started = Instant::now();
    let response = cluster.server().handle(request, &admin()).await;
    let code = response.status().as_u16();
    response.into_body().collect().await.unwrap();
    (started.elapsed(), code)
}

fn places_of(kind: &Kind) -> Option<(NodeRef<'static>, Vec<Place>)> {
    let node = builtin().kind(&kind.group, &kind.version, &kind.kind)?;
    let mut found = Vec::new();
    places(node, &[], &mut Vec::new(), &mut found);
    Some((node, found))
}

/// Lists that were once compared with each other, item by item.
#[tokio::test(flavor = "multi_thread")]
async fn lists_of_any_length_are_validated_in_proportion() {
    let cluster = Cluster::new().await;
    let kinds = cluster.server().backend.kinds.load_full();
    for (plural, path) in
        [("pods", "spec"), ("pods", "spec.containers."), ("pods", "spec.securityContext"), ("services", "spec")]
    {
        let kind = &kinds.resource("", "v1", plural).unwrap().kind;
        let (node, found) = places_of(kind).unwrap();
        let place = found.iter().find(|place| place.path.join(".") == path).unwrap();
        let (took, code) = create(&cluster, kind, node, place).await;
        assert!(code < 500 && took < Duration::from_secs(60), "{plural} {path}: {code} after {took:?}");
    }
}

/// Every list of every kind, on the whole way of a request. Takes long: run it when validation changes.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn no_list_takes_time_beyond_its_length() {
    let cluster = Cluster::new().await;
    let kinds = cluster.server().backend.kinds.load_full();
    let mut slow = Vec::new();
    for kind in kinds.all().map(|resource| &resource.kind) {
        let Some((node, found)) = places_of(kind) else { continue };
        for place in found {
            let (took, code) = create(&cluster, kind, node, &place).await;
            if took > Duration::from_secs(5) {
                let lists: Vec<&str> = place.lists.iter().map(|(name, _)| name.as_str()).collect();
                let line = format!("{took:?} {code} {} {} {lists:?}", kind.kind, place.path.join("."));
                eprintln!("{line}");
                slow.push(line);
            }
        }
    }
    assert!(slow.is_empty(), "{slow:#?}");
}
