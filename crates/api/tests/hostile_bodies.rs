//! Hostile request bodies: the decoders accept or refuse each of them within a deadline.

use std::time::{Duration, Instant};

use knarr_api::custom::CustomSchema;
use knarr_api::field::{Errors, Path};
use knarr_api::schema::builtin;
use knarr_api::status::{GroupResource, Status};
use knarr_api::{decode, patch};
use serde_json::json;

/// A tenth of the largest body that the server reads, so that the test is quick without optimization.
const SIZE: usize = 300 * 1024;

/// Far more than linear time needs, even without optimization, and less than quadratic time does.
const DEADLINE: Duration = Duration::from_secs(3);

fn repeated(text: &str) -> String {
    text.repeat(SIZE / text.len())
}

fn within_deadline<T>(name: &str, decode: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let outcome = decode();
    let elapsed = start.elapsed();
    eprintln!("{name}: {elapsed:?}");
    assert!(elapsed < DEADLINE, "{name} took {elapsed:?}");
    outcome
}

/// Texts that are nested or long in each way that the syntaxes allow.
fn texts() -> Vec<(&'static str, String)> {
    let rows: String = (0..SIZE / 10).map(|row| format!("a{row:05}: 1\n")).collect();
    let aliases = format!("a: &a {}\nb: [{}", "x".repeat(SIZE / 2), "*a,".repeat(SIZE / 6));
    let deep_then_long = "[".repeat(490) + &"a,".repeat(SIZE / 2);
    let directives: String = (0..SIZE / 16).map(|row| format!("%TAG !a{row:05}! b\n")).collect();
    let anchors: String = (0..SIZE / 14).map(|row| format!("- &a{row:06} x\n")).collect();
    vec![
        ("lists", repeated("[")),
        ("objects", repeated("{")),
        ("objects in JSON", repeated("{\"a\":")),
        ("closed lists", "[".repeat(SIZE / 2) + &"]".repeat(SIZE / 2)),
        ("lists and objects", repeated("[{")),
        ("rows of dashes", repeated("- ")),
        ("dashes, one a line", repeated("-\n")),
        ("question marks", repeated("? ")),
        ("colons", repeated(": ")),
        ("keys", repeated("a: ")),
        ("an unclosed quote", format!("a: \"{}", repeated("x"))),
        ("an unclosed quote of lines", format!("a: '{}", repeated("x\n"))),
        ("many unclosed quotes", repeated("\" ' ")),
        ("comments", repeated("#\n")),
        ("commas", format!("[{}", repeated("a,"))),
        ("tags", repeated("!a ")),
        ("keys, one a line", rows),
        ("directives", directives + "---\na: 1\n"),
        ("anchors", anchors),
        ("a block of text", format!("a: |\n{}", repeated(" x\n"))),
        ("spaces", repeated(" ")),
        ("tabs", repeated("\t")),
        ("a number", repeated("9")),
        ("documents", repeated("---\n")),
        ("a long list within many", deep_then_long),
        ("a long text through many aliases", aliases + "]\n"),
        ("one key, many times", repeated("a: 1\n")),
        ("carriage returns", repeated("\r")),
        ("escapes", format!("a: \"{}", repeated("\\u0041"))),
        ("reserved directives", repeated("%A\n")),
        ("empty flow keys", format!("{{{}", repeated("?,"))),
    ]
}

#[test]
fn every_body_is_decoded_or_refused_quickly() {
    let node = builtin().kind("apps", "v1", "Deployment").expect("a schema");
    for (name, text) in texts() {
        let bytes = &text.as_bytes()[..text.len().min(SIZE)];
        within_deadline(&format!("{name} as YAML"), || drop(decode::yaml(bytes, node)));
        within_deadline(&format!("{name} as JSON"), || {
            drop(decode::json(bytes, node));
            drop(decode::untyped_json(bytes));
            drop(decode::type_meta(bytes));
        });
        within_deadline(&format!("{name} as a patch"), || {
            drop(patch::JsonPatch::read(bytes));
            drop(patch::read_merge_patch(bytes));
        });
    }
}

#[test]
fn aliases_that_expand_exponentially_are_refused() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for level in 1..=9 {
        let elements = vec![format!("*a{}", level - 1); 10].join(", ");
        text += &format!("a{level}: &a{level} [{elements}]\n");
    }
    let refusal = within_deadline("aliases", || decode::untyped_yaml(text.as_bytes())).expect_err("a bomb");
    assert_eq!(refusal.to_string(), "yaml: document contains excessive aliasing");
}

#[test]
fn merge_keys_that_expand_exponentially_are_refused() {
    let mut text = "a0: &a0 {}\n".to_owned();
    for level in 1..=40 {
        text += &format!("a{level}: &a{level} {{<<: [*a{0}, *a{0}]}}\n", level - 1);
    }
    let refusal = within_deadline("merge keys", || decode::untyped_yaml(text.as_bytes())).expect_err("a bomb");
    assert_eq!(refusal.to_string(), "yaml: document contains excessive aliasing");
}

#[test]
fn long_text_repeated_through_aliases_is_refused() {
    let text = format!("a: &a {}\nb: [{}]\n", "x".repeat(SIZE / 2), "*a,".repeat(SIZE / 6));
    let refusal = within_deadline("a long text", || decode::untyped_yaml(text.as_bytes())).expect_err("a bomb");
    assert_eq!(refusal.to_string(), "yaml: document contains excessive aliasing");
}

#[test]
fn many_directives_are_refused() {
    let text: String = (0..SIZE / 16).map(|row| format!("%TAG !a{row:05}! b\n")).collect();
    let refusal = within_deadline("directives", || decode::untyped_yaml(text.as_bytes())).expect_err("too many");
    assert_eq!(refusal.to_string(), "yaml: line 65: found more than 64 directives");
}

#[test]
fn deep_json_is_refused_as_kubernetes_does() {
    for text in ["[".repeat(100_000), "{\"a\":".repeat(100_000)] {
        let refusal = decode::untyped_json(text.as_bytes()).expect_err("too deep").to_string();
        assert!(refusal.ends_with("exceeded max depth"), "{refusal}");
    }
}

/// Merges two long lists: by key, as a set, and with an order for all elements.
#[test]
fn long_lists_merge_quickly() {
    let node = builtin().kind("", "v1", "Pod").expect("a schema");
    let names = |from: usize| (from..from + 5_000).map(|at| json!(format!("x/{at}"))).collect::<Vec<_>>();
    let volumes = |from: usize| (from..from + 5_000).map(|at| json!({"name": format!("v{at}")})).collect::<Vec<_>>();
    let object = json!({"metadata": {"finalizers": names(0)}, "spec": {"volumes": volumes(0)}});
    let patch = json!({
        "metadata": {"finalizers": names(2_500), "$setElementOrder/finalizers": names(2_500)},
        "spec": {"volumes": volumes(2_500), "$setElementOrder/volumes": volumes(2_500)},
    });
    let merged = within_deadline("a merge", || patch::strategic_merge(object, patch, node)).expect("merged");
    let count = |pointer: &str| merged.pointer(pointer).and_then(|list| list.as_array()).map(Vec::len);
    assert_eq!((count("/metadata/finalizers"), count("/spec/volumes")), (Some(7_500), Some(7_500)));
}

/// Of more errors no more are collected: a response names at most so many.
const MAX_ERRORS: usize = 10_000;

/// An object with an error in each of many fields: each message is listed once.
#[test]
fn many_field_errors_become_a_status_quickly() {
    let spec = Path::root("spec");
    let mut errors = Errors::new();
    for at in (0..50_000).chain(0..10) {
        errors.required(&spec.item("containers", at).child("name"), "");
    }
    let kind = GroupResource { group: "", name: "Pod" };
    let status = within_deadline("field errors", || Status::invalid(kind, "a", &errors));
    assert_eq!(status.message.matches("Required value").count(), MAX_ERRORS);
}

/// A custom resource with a long list: its elements are correlated by key, and each one is invalid.
#[test]
fn long_lists_of_custom_resources_are_validated_quickly() {
    let schema = json!({"type": "object", "properties": {"list": {
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
        "items": {"type": "object", "properties": {"k": {"type": "integer"}, "v": {"type": "integer", "maximum": 5}}},
    }}});
    let object = |value: usize| {
        let items: Vec<_> = (0..20_000).map(|key| json!({"k": key, "v": value})).collect();
        json!({"list": items})
    };
    let schema = CustomSchema::new(&schema, false, None);
    let validate = |new: &_, old: &_| schema.validate_update(new, old, Errors::new());
    let unchanged = within_deadline("an equal update", || validate(&object(6), &object(6)));
    assert!(unchanged.is_empty());
    let changed = within_deadline("an update", || validate(&object(7), &object(6)));
    assert_eq!(changed.0.len(), MAX_ERRORS);
}
