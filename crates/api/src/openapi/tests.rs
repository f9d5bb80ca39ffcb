use std::collections::BTreeSet;
use std::sync::Arc;

use super::*;
use crate::catalogue::{GroupVersionKind, Kind, Subresource, Verb, Verbs};
use crate::protobuf::wire::{Content, Reader};

const NOTHING: Describe<'static> = &|_, _| None;

fn built_in(catalogue: &Catalogue) -> Source<'_> {
    Source { catalogue, custom: &[], describe: NOTHING }
}

fn parse(document: &[u8]) -> Value {
    serde_json::from_slice(document).unwrap()
}

fn widget() -> Kind {
    let kind = GroupVersionKind::new("shop.example.com/v1", "Widget");
    let verbs: Verbs = [Verb::Get, Verb::Patch, Verb::Update].into_iter().collect();
    Kind {
        group: kind.group.clone(),
        version: kind.version.clone(),
        kind: kind.kind.clone(),
        list_kind: "WidgetList".to_owned(),
        plural: "widgets".to_owned(),
        singular: "widget".to_owned(),
        short_names: Vec::new(),
        categories: Vec::new(),
        namespaced: true,
        verbs: Verbs::ALL,
        subresources: vec![Subresource { name: "status".to_owned(), kind, verbs }],
        type_name: custom_type_name("shop.example.com", "v1", "Widget"),
        storage: None,
        custom: true,
        selectable: vec!["spec.color".to_owned()],
    }
}

#[test]
fn v2_is_complete_and_every_reference_leads_somewhere() {
    let document = parse(&v2_json(&built_in(&Catalogue::built_in()), &Additions::default()));
    assert_eq!(document["paths"].as_object().unwrap().len(), 408);
    assert_eq!(document["definitions"].as_object().unwrap().len(), 584);
    let mut found = Vec::new();
    schemas::references(&document, &mut found);
    for name in found.into_iter().collect::<BTreeSet<_>>() {
        let known = ["definitions", "parameters"].iter().any(|part| document[part].get(&name).is_some());
        assert!(known, "{name}");
    }
}

#[test]
fn operations_say_what_older_clients_look_for() {
    let document = parse(&v2_json(&built_in(&Catalogue::built_in()), &Additions::default()));
    let pods = &document["paths"]["/api/v1/namespaces/{namespace}/pods"];
    assert_eq!(pods["get"]["operationId"], "listCoreV1NamespacedPod");
    assert_eq!(pods["post"]["description"], "create a Pod");
    assert_eq!(pods["delete"]["x-kubernetes-action"], "deletecollection");
    let names = |operation: &Value| -> Vec<String> {
        let parameters = operation["parameters"].as_array().unwrap().iter();
        parameters.filter_map(|parameter| parameter["name"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(names(&pods["post"]), ["body", "dryRun", "fieldValidation"]);
    let pod = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"];
    assert_eq!(names(&pod["patch"]), ["dryRun", "fieldValidation"]);
    assert_eq!(pod["delete"]["responses"]["200"]["schema"]["$ref"], "#/definitions/io.k8s.api.core.v1.Pod");
    let eviction = &document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}/eviction"]["post"];
    assert_eq!(
        eviction["x-kubernetes-group-version-kind"],
        json!({"group": "policy", "version": "v1", "kind": "Eviction"})
    );
    let proxy = &document["paths"]["/api/v1/nodes/{name}/proxy/{path}"];
    assert_eq!(proxy["options"]["operationId"], "connectCoreV1OptionsNodeProxyWithPath");
    let schema = &document["paths"]["/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas"]["get"];
    assert_eq!(schema["tags"], json!(["flowcontrolApiserver_v1"]));
}

#[test]
fn fields_carry_their_marks_in_both_versions() {
    let describe: Describe<'_> = &|name, field| match (name, field) {
        ("io.k8s.api.core.v1.PodSpec", "") => Some("What a pod is to be.".to_owned()),
        ("io.k8s.api.core.v1.PodSpec", "affinity") => Some("Where it likes to be.".to_owned()),
        _ => None,
    };
    let catalogue = Catalogue::built_in();
    let source = Source { describe, ..built_in(&catalogue) };
    let spec = &parse(&v2_json(&source, &Additions::default()))["definitions"]["io.k8s.api.core.v1.PodSpec"];
    assert_eq!(spec["description"], "What a pod is to be.");
    assert_eq!(spec["required"], json!(["containers"]));
    assert_eq!(
        spec["properties"]["containers"],
        json!({"type": "array", "items": {"$ref": "#/definitions/io.k8s.api.core.v1.Container"},
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "x-kubernetes-patch-strategy": "merge", "x-kubernetes-patch-merge-key": "name"})
    );
    let affinity = json!({"description": "Where it likes to be.", "$ref": "#/definitions/io.k8s.api.core.v1.Affinity"});
    assert_eq!(spec["properties"]["affinity"], affinity);

    let core = parse(&v3_json(&source, "api/v1").unwrap());
    let schemas = &core["components"]["schemas"];
    let spec = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"];
    let reference = json!({"$ref": "#/components/schemas/io.k8s.api.core.v1.Affinity"});
    assert_eq!(spec["affinity"], json!({"description": "Where it likes to be.", "allOf": [reference]}));
    let container = json!({"$ref": "#/components/schemas/io.k8s.api.core.v1.Container"});
    assert_eq!(spec["containers"]["items"], json!({"default": {}, "allOf": [container]}));
    let port = &schemas["io.k8s.api.core.v1.ContainerPort"]["properties"]["protocol"];
    assert_eq!(port, &json!({"type": "string", "default": "TCP", "enum": ["SCTP", "TCP", "UDP"]}));
    let quantity = &schemas["io.k8s.apimachinery.pkg.api.resource.Quantity"];
    assert_eq!(quantity["oneOf"], json!([{"type": "string"}, {"type": "number"}]));
}

#[test]
fn v3_documents_hold_what_they_lead_to_and_no_more() {
    let catalogue = Catalogue::built_in();
    let source = built_in(&catalogue);
    let index = v3_index(&source);
    assert_eq!(index["paths"].as_object().unwrap().len(), v3_names(&catalogue).len());
    let url = index["paths"]["apis/apps/v1"]["serverRelativeURL"].as_str().unwrap().to_owned();
    assert!(url.starts_with("/openapi/v3/apis/apps/v1?hash="), "{url}");
    for name in v3_names(&catalogue) {
        let document = parse(&v3_json(&source, &name).unwrap());
        let mut found = Vec::new();
        schemas::references(&document["paths"], &mut found);
        schemas::references(&document["components"], &mut found);
        let schemas = document["components"]["schemas"].as_object().cloned().unwrap_or_default();
        let wanted: BTreeSet<String> = found.into_iter().collect();
        let held: BTreeSet<String> = schemas.keys().cloned().collect();
        assert_eq!(wanted, held, "{name}");
    }
    let version = parse(&v3_json(&source, "apis/policy/v1").unwrap());
    let options = &version["components"]["schemas"]["io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions"];
    assert_eq!(
        options["x-kubernetes-group-version-kind"],
        json!([{"group": "", "version": "v1", "kind": "DeleteOptions"}, {"group": "policy", "version": "v1", "kind": "DeleteOptions"}])
    );
    for name in ["apis/nowhere", "apis/apps/v9", "else", ""] {
        assert!(v3_json(&source, name).is_none() && v3_protobuf(&source, name).is_none(), "{name}");
    }
}

#[test]
fn protobuf_forms_hold_all_paths_and_definitions() {
    let catalogue = Catalogue::built_in();
    let source = built_in(&catalogue);
    let document = v2_protobuf(&source, &Additions::default());
    let parts = fields(&document);
    assert_eq!(parts.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 8, 9, 10, 12, 13]);
    assert_eq!(parts[0].1, b"2.0");
    assert_eq!(fields(parts[2].1).len(), 408);
    let definitions = fields(parts[3].1);
    assert_eq!(definitions.len(), 584);
    let names: BTreeSet<&[u8]> = definitions.iter().map(|(_, entry)| fields(entry)[0].1).collect();
    assert!(names.contains(b"io.k8s.api.core.v1.Pod".as_slice()));

    let document = v3_protobuf(&source, "apis/apps/v1").unwrap();
    let parts = fields(&document);
    assert_eq!(parts.iter().map(|(number, _)| *number).collect::<Vec<_>>(), [1, 2, 4, 5]);
    let schemas = fields(fields(parts[3].1)[0].1).len();
    let json = parse(&v3_json(&source, "apis/apps/v1").unwrap());
    assert_eq!(schemas, json["components"]["schemas"].as_object().unwrap().len());
}

fn fields(message: &[u8]) -> Vec<(u32, &[u8])> {
    let mut reader = Reader::new(message);
    let mut found = Vec::new();
    while let Some((number, content)) = reader.next().unwrap() {
        if let Content::Bytes(bytes) = content {
            found.push((number, bytes));
        }
    }
    found
}

#[test]
fn custom_kinds_are_described_from_their_definitions() {
    let kind = widget();
    let schema = json!({"type": "object", "description": "A widget", "properties": {
    "spec": {"type": "object", "properties": {
        "color": {"type": "string", "default": "red", "enum": ["red", "blue"]},
        "port": {"x-kubernetes-int-or-string": true},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "maybe": {"type": "string", "nullable": true},
        "either": {"type": "object", "oneOf": [{"required": ["a"]}], "additionalProperties": {"type": "integer"}},
    }}}});
    let catalogue = Catalogue::built_in().with_custom([Arc::new(kind.clone())]);
    let custom = [CustomSchema::new(&kind, &schema)];
    let source = Source { custom: &custom, ..built_in(&catalogue) };

    let v2 = parse(&v2_json(&source, &Additions::default()));
    let spec = &v2["definitions"]["com.example.shop.v1.Widget"]["properties"]["spec"]["properties"];
    assert_eq!(spec["color"], json!({"type": "string", "enum": ["red", "blue"]}));
    assert_eq!(spec["port"], json!({"x-kubernetes-int-or-string": true}));
    assert_eq!(spec["any"], json!({"x-kubernetes-preserve-unknown-fields": true}));
    assert_eq!(spec["maybe"], json!({}));
    assert_eq!(spec["either"], json!({"type": "object", "additionalProperties": {"type": "integer"}}));
    assert!(v2["definitions"].get("com.example.shop.v1.WidgetList").is_some());

    let v3 = parse(&v3_json(&source, "apis/shop.example.com/v1").unwrap());
    let paths: Vec<&String> = v3["paths"].as_object().unwrap().keys().collect();
    assert_eq!(
        paths,
        [
            "/apis/shop.example.com/v1/namespaces/{namespace}/widgets",
            "/apis/shop.example.com/v1/namespaces/{namespace}/widgets/{name}",
            "/apis/shop.example.com/v1/namespaces/{namespace}/widgets/{name}/status",
            "/apis/shop.example.com/v1/widgets",
        ]
    );
    let widget = &v3["components"]["schemas"]["com.example.shop.v1.Widget"];
    assert_eq!(widget["x-kubernetes-selectable-fields"], json!([{"fieldPath": "spec.color"}]));
    assert_eq!(
        widget["properties"]["spec"]["properties"]["port"]["anyOf"],
        json!([{"type": "integer"}, {"type": "string"}])
    );
    assert_eq!(widget["properties"]["spec"]["properties"]["color"]["default"], "red");
    let hash = v3_hash(&source, "apis/shop.example.com/v1");
    let other = json!({"type": "object"});
    let changed = [CustomSchema::new(&kind, &other)];
    assert_ne!(hash, v3_hash(&Source { custom: &changed, ..source }, "apis/shop.example.com/v1"));
    assert!(
        v2_protobuf(&source, &Additions::default()).len() > 100_000
            && v3_protobuf(&source, "apis/shop.example.com/v1").is_some()
    );
}
