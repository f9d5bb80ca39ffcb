//! Malformed and oversized requests: each is refused with a reason, and nothing is stored.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use serde_json::{Value, json};

use crate::request_tests::{Cluster, MAPS, admin, map};

async fn send(cluster: &Cluster, method: &str, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> (u16, Value) {
    let mut request = Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = cluster.server().handle(request.body(Full::new(Bytes::from(body))).unwrap(), &admin()).await;
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

const JSON: &str = "application/json";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn nested(open: &str, inner: &str, close: &str, depth: usize) -> Vec<u8> {
    [open.repeat(depth), inner.to_owned(), close.repeat(depth)].concat().into_bytes()
}

/// Each line refers to the line before nine times: ten lines expand to a billion values.
fn billion_laughs() -> Vec<u8> {
    let mut text = String::from("apiVersion: v1\nkind: ConfigMap\na0: &a0 [x, x, x, x, x, x, x, x, x]\n");
    for level in 1..10 {
        let before = vec![format!("*a{}", level - 1); 9].join(", ");
        text.push_str(&format!("a{level}: &a{level} [{before}]\n"));
    }
    text.into_bytes()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    use std::io::Write;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[tokio::test]
async fn malformed_objects_are_refused() {
    let cluster = Cluster::new().await;
    let object = map("m", json!({})).to_string();
    let within = |deep: Vec<u8>| {
        [br#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"m"},"data":"#.to_vec(), deep, b"}".to_vec()]
            .concat()
    };
    let mut truncated = b"k8s\0".to_vec();
    truncated.extend(b"\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\xff\xff\xff\xff\x0f");
    for (case, media_type, body) in [
        ("nothing", JSON, vec![]),
        ("no JSON", JSON, b"hello".to_vec()),
        ("half an object", JSON, object.as_bytes()[..object.len() - 3].to_vec()),
        ("two objects", JSON, [object.as_bytes(), object.as_bytes()].concat()),
        ("no UTF-8", JSON, b"{\"apiVersion\":\"v1\",\"kind\":\"\xff\xfe\"}".to_vec()),
        ("a list", JSON, b"[]".to_vec()),
        ("a number", JSON, b"1e999999999".to_vec()),
        ("zeros", JSON, vec![0; 1024]),
        ("deep lists", JSON, nested("[", "", "]", 1_000_000)),
        ("deep lists without an end", JSON, nested("[", "", "", 1_000_000)),
        ("deep objects", JSON, nested("{\"a\":", "1", "}", 400_000)),
        ("deep lists in an object", JSON, within(nested("[", "", "]", 1_000_000))),
        ("deep objects in an object", JSON, within(nested("{\"a\":", "1", "}", 400_000))),
        ("gzip", JSON, gzip(object.as_bytes())),
        ("a bomb", JSON, gzip(&vec![b' '; 64 * 1024 * 1024])),
        ("no YAML", YAML, b"a: [".to_vec()),
        ("tabs", YAML, b"a:\n\t- b".to_vec()),
        ("deep flow", YAML, nested("[", "", "]", 100_000)),
        ("deep mappings", YAML, nested("{a: ", "1", "}", 100_000)),
        ("deep blocks", YAML, nested("- ", "1", "", 100_000)),
        ("a billion laughs", YAML, billion_laughs()),
        ("an alias of itself", YAML, b"a: &a [*a]".to_vec()),
        ("an unknown alias", YAML, b"a: *b".to_vec()),
        ("no UTF-8 in YAML", YAML, b"a: \xff\xfe".to_vec()),
        ("nothing as protobuf", PROTOBUF, vec![]),
        ("no protobuf", PROTOBUF, object.clone().into_bytes()),
        ("only the magic", PROTOBUF, b"k8s\0".to_vec()),
        ("a length beyond the end", PROTOBUF, truncated),
        ("an endless number", PROTOBUF, [b"k8s\0".to_vec(), vec![0xff; 64]].concat()),
        ("groups", PROTOBUF, [b"k8s\0".to_vec(), vec![0x0b; 100_000]].concat()),
        ("an unknown type", "application/cbor", vec![0xa0]),
        ("no type at all", "///", b"{}".to_vec()),
    ] {
        let encoding = if case == "gzip" || case == "a bomb" { "gzip" } else { "identity" };
        let headers = [("content-type", media_type), ("content-encoding", encoding)];
        let (code, refusal) = send(&cluster, "POST", MAPS, &headers, body).await;
        assert!((400..500).contains(&code), "{case}: {code} {refusal}");
        assert!(!refusal["message"].as_str().unwrap_or_default().is_empty(), "{case}: {refusal}");
    }
    let (_, list) = cluster.json("GET", MAPS, Value::Null).await;
    assert_eq!(list["items"].as_array().map(Vec::len), Some(0));
}

#[tokio::test]
async fn malformed_patches_are_refused() {
    let cluster = Cluster::new().await;
    cluster.json("POST", MAPS, map("m", json!({}))).await;
    let path = format!("{MAPS}/m?fieldManager=t");
    let merge = "application/merge-patch+json";
    let strategic = "application/strategic-merge-patch+json";
    let list = "application/json-patch+json";
    let apply = "application/apply-patch+yaml";
    let pointer = |path: String| json!([{"op": "add", "path": path, "value": 1}]).to_string().into_bytes();
    for (case, media_type, body) in [
        ("nothing", merge, vec![]),
        ("a list", merge, b"[]".to_vec()),
        ("deep", merge, nested("{\"a\":", "1", "}", 400_000)),
        ("nothing", strategic, vec![]),
        ("a word", strategic, b"\"x\"".to_vec()),
        ("deep", strategic, nested("{\"metadata\":", "1", "}", 200_000)),
        ("an object", list, b"{}".to_vec()),
        ("an unknown operation", list, br#"[{"op":"explode","path":"/a"}]"#.to_vec()),
        ("no path", list, br#"[{"op":"add","value":1}]"#.to_vec()),
        ("no pointer", list, pointer("metadata".to_owned())),
        ("a pointer to nowhere", list, pointer("/a/b/c/d".to_owned())),
        ("a long pointer", list, pointer("/a".repeat(500_000))),
        ("deep", list, nested("[", "", "]", 1_000_000)),
        (
            "too many operations",
            list,
            vec![br#"{"op":"test","path":"/metadata/name","value":"m"}"#.to_vec(); 10_001].join(&b","[..]),
        ),
        ("nothing", apply, vec![]),
        ("a list", apply, b"- a".to_vec()),
        ("deep", apply, nested("[", "", "]", 100_000)),
        ("a billion laughs", apply, billion_laughs()),
        ("an unknown type", "application/patch", b"{}".to_vec()),
    ] {
        let (code, refusal) = send(&cluster, "PATCH", &path, &[("content-type", media_type)], body).await;
        assert!((400..500).contains(&code), "{media_type}, {case}: {code} {refusal}");
    }
    // Copies of copies grow exponentially unless they are limited.
    let doubling: Vec<Value> =
        (0..40).map(|step| json!({"op": "copy", "from": "/metadata", "path": format!("/metadata/x{step}")})).collect();
    let (code, refusal) =
        send(&cluster, "PATCH", &path, &[("content-type", list)], json!(doubling).to_string().into_bytes()).await;
    assert!((400..500).contains(&code), "{code} {refusal}");
    assert_eq!(cluster.json("GET", &format!("{MAPS}/m"), Value::Null).await.0, 200);
}

#[tokio::test]
async fn malformed_queries_and_headers_are_refused() {
    let cluster = Cluster::new().await;
    let mut accepted = Vec::new();
    for query in [
        format!("labelSelector={}", "a,".repeat(10_000)),
        "labelSelector=a%20in%20((((".to_owned(),
        "fieldSelector=%00".to_owned(),
        "limit=-99999999999999999999".to_owned(),
        "continue=%ff%fe".to_owned(),
        format!("continue={}", "A".repeat(50_000)),
        "resourceVersion=-1".to_owned(),
        "resourceVersion=99999999999999999999999".to_owned(),
        "timeoutSeconds=abc&watch=true".to_owned(),
    ] {
        let start = &query[..query.len().min(60)];
        let (code, refusal) = send(&cluster, "GET", &format!("{MAPS}?{query}"), &[], vec![]).await;
        if !(400..500).contains(&code) {
            accepted.push(format!("{start}: {code} {refusal}"));
        }
    }
    assert!(accepted.is_empty(), "{accepted:#?}");
    for (name, value) in [
        ("authorization", "Bearer"),
        ("authorization", "Bearer ...."),
        ("accept", ";;;,,,"),
        ("accept", "application/json;as=Table;v=v9;g="),
    ] {
        let (code, refusal) = send(&cluster, "GET", MAPS, &[(name, value)], vec![]).await;
        assert!(code < 500, "{name}: {value}: {code} {refusal}");
    }
}

/// An object nested as deeply as allowed can be stored, read, selected and changed.
#[tokio::test]
async fn every_accepted_object_can_be_read_again() {
    let cluster = Cluster::new().await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    });
    let following = tokio::spawn(crate::definition_controller::run(cluster.server().clone()));
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let (code, created) = cluster.json("POST", definitions, definition).await;
    assert_eq!(code, 201, "{created}");
    let things = "/apis/example.com/v1/namespaces/default/things";
    while cluster.json("GET", things, Value::Null).await.0 != 200 {
        tokio::task::yield_now().await;
    }
    for depth in [50, 120, 126, 127, 128, 200, 450, 600] {
        let deep = String::from_utf8(nested("[", "", "]", depth)).unwrap();
        let body = format!(
            r#"{{"apiVersion":"example.com/v1","kind":"Thing","metadata":{{"name":"t{depth}"}},"deep":{deep}}}"#
        );
        let (code, refusal) = send(&cluster, "POST", things, &[("content-type", JSON)], body.into_bytes()).await;
        if (400..500).contains(&code) {
            continue;
        }
        assert_eq!(code, 201, "{depth}: {refusal}");
        let path = format!("{things}/t{depth}");
        assert_eq!(send(&cluster, "GET", &path, &[], vec![]).await.0, 200, "{depth}");
        let patch = json!({"metadata": {"labels": {"a": "b"}}});
        let (code, refusal) = cluster.request("PATCH", &path, "application/merge-patch+json", patch).await;
        assert_eq!(code, 200, "{depth}: {refusal}");
        assert_eq!(
            send(&cluster, "GET", &format!("{things}?labelSelector=a%3Db"), &[], vec![]).await.0,
            200,
            "{depth}"
        );
        assert_eq!(send(&cluster, "DELETE", &path, &[], vec![]).await.0, 200, "{depth}");
    }
    following.abort();
}

/// An option of a wrong type is not taken for none: the client wanted less than a deletion.
#[tokio::test]
async fn malformed_options_delete_nothing() {
    let cluster = Cluster::new().await;
    let object = map("m", json!({})).to_string();
    send(&cluster, "POST", MAPS, &[("content-type", JSON)], object.into_bytes()).await;
    let path = format!("{MAPS}/m");
    for (media_type, options, message) in [
        (
            JSON,
            r#"{"dryRun":"All"}"#,
            "json: cannot unmarshal string into Go struct field DeleteOptions.dryRun of type []string",
        ),
        (
            JSON,
            r#"{"preconditions":{"uid":5}}"#,
            "json: cannot unmarshal number into Go struct field Preconditions.preconditions.uid of type types.UID",
        ),
        (
            YAML,
            "orphanDependents: maybe",
            "json: cannot unmarshal string into Go struct field DeleteOptions.orphanDependents of type bool",
        ),
    ] {
        let (code, status) =
            send(&cluster, "DELETE", &path, &[("content-type", media_type)], options.as_bytes().to_vec()).await;
        assert_eq!((code, status["message"].as_str()), (400, Some(message)), "{options}");
    }
    assert_eq!(send(&cluster, "GET", &path, &[], vec![]).await.0, 200);
}
