//! Expressions that a tenant may write, in a selector of devices for instance, and that are short: none takes much memory or
//! time within the limit of its cost.

use serde_json::json;

use super::equality::comparisons;
use super::program::Program;
use super::types::Type;
use super::value::Value;
use crate::json_schema::JsonSchemaProps;

const LIMIT: u64 = 1_000_000;
const EXCEEDED: &str = "operation cancelled: actual cost limit exceeded";

fn evaluated<T>(source: &str, then: impl FnOnce(&Value<'_>) -> T) -> Result<T, String> {
    let program = Program::compile(source, &[]).map_err(|error| error.to_string())?;
    let value = program.evaluate(Vec::new(), LIMIT).0.map_err(|error| error.to_string())?;
    Ok(then(&value))
}

/// Binds `s` to a text that is doubled that many times.
fn with_text(first: &str, times: usize, body: &str) -> String {
    let binds: String = (1..=times).map(|at| format!("cel.bind(s{at}, s{0} + s{0}, ", at - 1)).collect();
    format!("cel.bind(s0, {first}, {binds}cel.bind(s, s{times}, {body}){}", ")".repeat(times + 1))
}

fn repeated(what: &str, times: usize) -> String {
    vec![what; times].join(", ")
}

#[test]
fn what_an_expression_copies_is_shared_or_counted() {
    // A text that has a name is not copied wherever it is used.
    let source = with_text("'0123456789'", 3, "[s, s]");
    let is_shared = evaluated(&source, |value| match value {
        Value::List(items) => match &items[..] {
            [Value::String(one), Value::String(other)] => one.as_ptr() == other.as_ptr(),
            _ => false,
        },
        _ => false,
    });
    assert_eq!(is_shared, Ok(true));
    let is_shared = evaluated("lists.range(2).map(i, b'0123456789')", |value| match value {
        Value::List(items) => match &items[..] {
            [Value::Bytes(one), Value::Bytes(other)] => one.as_ptr() == other.as_ptr(),
            _ => false,
        },
        _ => false,
    });
    assert_eq!(is_shared, Ok(true));
    let numbers: Vec<String> = (0..1500).map(|number| format!("{number}: 0")).collect();
    for source in [
        // Text that grows or is copied by functions.
        with_text(r"'\\\\\\\\\\'", 12, &format!("{}s{}.size()", "strings.quote(".repeat(14), ")".repeat(14))),
        with_text("'~~~~~~~~~~'", 17, "lists.range(300).map(i, jsonpatch.escapeKey(s)).size()"),
        with_text("'0123456789'", 17, "cel.bind(b, bytes(s), lists.range(300).map(i, string(b)).size())"),
        with_text("'a.a.a.a.a.'", 16, "cel.bind(v, '1.2.3-' + s + 'a', lists.range(50).map(i, semver(v)).size())"),
        with_text("'0123456789'", 16, "cel.bind(u, url('http://a' + s), lists.range(500).map(i, u.getHost()).size())"),
        with_text("'%f%f%f%f%f'", 14, "cel.bind(n, lists.range(81920).map(i, 1e308), s.format(n).size())"),
        with_text("'%%%%%.1100f'", 14, "cel.bind(n, lists.range(16384).map(i, 1), s.format(n).size())"),
        with_text("'%.1100f%.1100f'", 14, "cel.bind(n, lists.range(32768).map(i, 1), s.format(n).size())"),
        // Lists and maps of constants.
        format!("lists.range(4000).map(i, [{}]).size()", repeated("0", 4500)),
        format!("lists.range(300).all(i, {{{}}}.size() > 0)", numbers.join(", ")),
        "cel.bind(l, lists.range(100000), lists.range(40).map(i, l + l).size())".to_owned(),
        "cel.bind(l, lists.range(100000), lists.range(60).map(i, l.reverse()).size())".to_owned(),
    ] {
        assert_eq!(evaluated(&source, |_| ()), Err(EXCEEDED.to_owned()), "{source:.150}");
    }
}

#[test]
fn what_an_expression_compares_or_searches_is_counted() {
    for source in [
        with_text("'0123456789'", 15, "cel.bind(l, lists.range(1000).map(i, s), l.isSorted())"),
        with_text("'0123456789'", 15, "cel.bind(l, lists.range(1000).map(i, s), l.sort().size())"),
        with_text("'0123456789'", 15, "cel.bind(l, lists.range(1000).map(i, s), l.max().size())"),
        with_text("'0123456789'", 15, "lists.range(1000).sortBy(i, s).size()"),
        with_text(
            "'0123456789'",
            12,
            "cel.bind(k, s + '2', cel.bind(m, {s + '1': 1, k: 2}, lists.range(5000).all(i, m[k] == 2)))",
        ),
        with_text("'AAAAAAAAAA'", 14, "s.findAll('.*[^A-Z]|[A-Z]').size()"),
    ] {
        assert_eq!(evaluated(&source, |_| ()), Err(EXCEEDED.to_owned()), "{source:.150}");
    }
    // These take time in proportion to their length.
    for (source, expected) in [
        (with_text("'aaaaaaaaaa'", 15, "s.indexOf(s.substring(100000) + 'b')"), -1),
        (with_text("'aaaaaaaaaa'", 15, "s.lastIndexOf('b' + s.substring(100000))"), -1),
        ("url('/?' + lists.range(40000).map(i, string(i)).join('&')).getQuery().size()".to_owned(), 40_000),
        ("cel.bind(l, lists.range(50000), l.filter(x, l.all(y, y > 0)).size())".to_owned(), 0),
        ("lists.range(20000).filter(i, '%d %s'.format([i, 'a']) == '').size()".to_owned(), 0),
        (with_text("'0123456789'", 17, "lists.range(100000).filter(i, s == 'a').size()"), 0),
        (with_text("'0123456789'", 17, "lists.range(100000).filter(i, s < '0').size()"), 0),
    ] {
        let number = evaluated(&source, |value| match value {
            Value::Int(number) => Some(*number),
            _ => None,
        });
        assert_eq!(number, Ok(Some(expected)), "{source:.150}");
    }
    assert!(evaluated("timestamp('2026-01-01T00:00:00Z').getHours('2000000000:00')", |_| ()).is_err());
}

/// Lists of type set and map are joined in a time that grows with their length, and as Kubernetes does it.
#[test]
fn long_lists_are_joined_in_proportion() {
    let list = |kind: &str, item: serde_json::Value| json!({"type": "array", "x-kubernetes-list-type": kind, "x-kubernetes-list-map-keys": ["k", "l"], "items": item});
    let entry = json!({"type": "object", "properties": {"k": {"type": "integer"}, "l": {"type": "string"},
        "v": {"type": "integer"}}});
    let (set, map) = (list("set", json!({"type": "integer"})), list("map", entry));
    let times = list("set", json!({"type": "string", "format": "duration"}));
    let props = json!({"type": "object", "properties": {"a": set, "b": set, "c": map, "d": map, "e": times, "f": times,
        "g": times, "h": times}});
    let props = JsonSchemaProps::read(&props);
    let kinds = [("self".to_owned(), Type::of_props(&props, false).expect("a type"))];
    let equals = |source: &str, object: &serde_json::Value| {
        let program = Program::compile(source, &kinds).map_err(|error| error.to_string())?;
        let variables = vec![("self", Value::of_json(object, Some(&props)))];
        match program.evaluate(variables, LIMIT).0 {
            Ok(Value::Bool(flag)) => Ok(flag),
            other => Err(format!("{other:?}")),
        }
    };
    let entry = |k: u32, v: u32| json!({"k": k, "l": "x", "v": v});
    let short = json!({"a": [1, 2], "b": [3, 2, 4], "c": [entry(1, 1), entry(2, 2)], "d": [entry(3, 3), entry(1, 4)]});
    let values = "(self.c + self.d).map(e, e.v)";
    for source in ["(self.a + self.b).map(e, e) == [1, 2, 3, 4]", &format!("{values} == [4, 2, 3]")] {
        assert_eq!(equals(source, &short), Ok(true), "{source}");
    }
    let time = |at: u32| format!("{at}ns");
    let entries = |range: std::ops::Range<u32>| range.map(|k| entry(k, k)).collect::<Vec<_>>();
    let times = |range: std::ops::Range<u32>| range.map(time).collect::<Vec<_>>();
    let unfit = vec!["never"; 3000];
    let long = json!({"a": (0..3000).collect::<Vec<_>>(), "b": (2000..5000).collect::<Vec<_>>(), "c": entries(0..3000),
        "d": entries(2000..5000), "e": times(0..3000), "f": times(2000..5000), "g": unfit, "h": unfit});
    for (source, size) in
        [("self.a + self.b", 5000), ("self.c + self.d", 5000), ("self.e + self.f", 5000), ("self.g + self.h", 6000)]
    {
        let source = format!("({source}).size() == {size}");
        let compared = comparisons::during(|| assert_eq!(equals(&source, &long), Ok(true), "{source}"));
        assert!(compared < 100_000, "{compared} comparisons: {source}");
    }
}

#[test]
fn errors_of_an_expression_do_not_fill_memory() {
    for (source, begin, end) in [
        (format!("[{}]", repeated("nobody", 2000)), "ERROR: <input>:1:2: ", "1900 more errors were truncated"),
        (format!("[{}]", repeated("nobody", 50)), "ERROR: <input>:1:2: ", "^"),
        ("'ä' + nobody".to_owned(), "ERROR: <input>:1:7: ", "\n | .\u{ff0e}....^"),
    ] {
        let error = evaluated(&source, |_| ()).unwrap_err();
        assert!(error.starts_with(begin) && error.ends_with(end) && error.len() < 4_000_000, "{error:.300}");
    }
    let long = format!("[{}]", repeated("nobody", 20_000));
    assert!(evaluated(&long, |_| ()).unwrap_err().len() < 20_000, "long lines are not shown");
}

/// An object is not copied, but its items are converted when they are read, and what is in base64 is decoded.
#[test]
fn what_an_expression_reads_of_an_object_is_counted() {
    let (text, bytes) = (json!({"type": "string"}), json!({"type": "string", "format": "byte"}));
    let list = |kind: &str, items: &serde_json::Value| json!({"type": "array", "x-kubernetes-list-type": kind, "items": items});
    let props = json!({"type": "object", "properties": {"numbers": list("atomic", &json!({"type": "integer"})),
        "texts": list("atomic", &text), "few": list("set", &text), "blobs": list("atomic", &bytes), "blob": bytes,
        "map": {"type": "object", "additionalProperties": bytes}}});
    let props = JsonSchemaProps::read(&props);
    let blob = "AAAA".repeat(1 << 18);
    let object = json!({"numbers": (0..200).collect::<Vec<_>>(), "texts": vec!["a"; 50_000], "blob": blob, "blobs": [blob],
        "few": [format!("{blob}A"), format!("{blob}B")], "map": {"a": blob}});
    let kinds = [("self".to_owned(), Type::of_props(&props, false).expect("a type"))];
    let holds = |source: &str| {
        let program = Program::compile(source, &kinds).map_err(|error| error.to_string())?;
        let outcome = program.evaluate(vec![("self", Value::of_json(&object, Some(&props)))], LIMIT).0;
        outcome.map(|value| matches!(value, Value::Bool(true))).map_err(|error| error.to_string())
    };
    // Many times, for little each time.
    let many = |source: &str| holds(&format!("self.numbers.all(x, self.numbers.all(y, {source}))"));
    for source in [
        "has(self.blob)",
        "self.blobs[0] != b'a'",
        "!(b'a' in self.blobs)",
        "self.blobs != [b'a']",
        "self.map.all(k, v, k == 'a')",
        "(self.few + self.few).size() == 2",
    ] {
        assert_eq!(many(source), Err(EXCEEDED.to_owned()), "{source}");
    }
    let joined = with_text("'0123456789'", 14, "self.texts.join(s).size() > 0");
    assert_eq!(holds(&joined), Err(EXCEEDED.to_owned()));
    // These read nothing of what is long.
    let start = std::time::Instant::now();
    for source in
        ["self.texts != []", "self.blobs != []", "optional.of(self.texts).hasValue()", "self.map.all(k, k == 'a')"]
    {
        assert_eq!(many(source), Ok(true), "{source}");
    }
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
}
