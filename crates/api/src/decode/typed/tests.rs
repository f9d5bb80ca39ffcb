//! Tests of decoding by schema.

use super::*;
use crate::schema::builtin;
use serde_json::json;

fn kind(group: &str, version: &str, kind: &str) -> NodeRef<'static> {
    builtin().kind(group, version, kind).expect("kind")
}

fn pod(text: &str) -> Result<Decoded, String> {
    decode(text.as_bytes(), kind("", "v1", "Pod")).map_err(|error| error.to_string())
}

#[test]
fn values_of_a_wrong_type_are_named_as_known() {
    for (body, expected) in [
        (
            r#"{"spec":{"containers":"no"}}"#,
            "json: cannot unmarshal string into Go struct field PodSpec.spec.containers of type []v1.Container",
        ),
        (r#"[]"#, "json: cannot unmarshal array into Go value of type v1.Pod"),
        (
            r#"{"spec":{"restartPolicy":1}}"#,
            "json: cannot unmarshal number into Go struct field PodSpec.spec.restartPolicy of type v1.RestartPolicy",
        ),
        (
            r#"{"metadata":{"labels":{"a":true}}}"#,
            "json: cannot unmarshal bool into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            r#"{"spec":{"containers":[{"ports":[{"containerPort":99999999999}]}]}}"#,
            "json: cannot unmarshal number 99999999999 into Go struct field \
             ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        (
            r#"{"spec":{"containers":[{"ports":[{"containerPort":80.5}]}]}}"#,
            "json: cannot unmarshal number 80.5 into Go struct field \
             ContainerPort.spec.containers.ports.containerPort of type int32",
        ),
        (
            r#"{"spec":{"volumes":[{"emptyDir":[]}]}}"#,
            "json: cannot unmarshal array into Go struct field Volume.spec.volumes.VolumeSource.emptyDir \
             of type v1.EmptyDirVolumeSource",
        ),
        (
            r#"{"metadata":{"creationTimestamp":5}}"#,
            "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.creationTimestamp of type string",
        ),
        (
            r#"{"metadata":{"creationTimestamp":"x"}}"#,
            r#"parsing time "x" as "2006-01-02T15:04:05Z07:00": cannot parse "x" as "2006""#,
        ),
        (
            r#"{"spec":{"containers":[{"resources":{"limits":{"cpu":"1x"}}}]}}"#,
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
        (
            r#"{"spec":{"containers":[{"livenessProbe":{"httpGet":{"port":true}}}]}}"#,
            "json: cannot unmarshal bool into Go struct field \
             HTTPGetAction.spec.containers.livenessProbe.ProbeHandler.httpGet.port of type int32",
        ),
        (r#"{"spec":{"containers":"no"},}"#, "invalid character '}' looking for beginning of object key string"),
    ] {
        assert_eq!(pod(body).map(|decoded| decoded.value), Err(expected.to_owned()), "{body}");
    }
}

#[test]
fn unknown_and_repeated_fields_are_problems() {
    let body = br#"{"spec":{"replicas":1,"replicas":2,"x":{"deep":[1]},"strategy":{"y":1},
        "template":{"spec":{"containers":[{},{"z":1}]},"metadata":{"labels":{"a":"1","a":"2"}}}}}"#;
    let decoded = decode(body, kind("apps", "v1", "Deployment")).expect("deployment");
    let problems: Vec<String> = decoded.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            r#"duplicate field "spec.replicas""#,
            r#"unknown field "spec.x""#,
            r#"unknown field "spec.strategy.y""#,
            r#"unknown field "spec.template.spec.containers[1].z""#,
            r#"duplicate field "spec.template.metadata.labels.a""#,
        ]
    );
    assert_eq!(decoded.value["spec"]["replicas"], 2);
    assert_eq!(decoded.value["spec"]["template"]["metadata"]["labels"], json!({"a": "2"}));
    assert_eq!(decoded.value["spec"]["strategy"], json!({}));
}

#[test]
fn names_match_by_case() {
    let decoded = pod(r#"{"Kind":"x","kind":"Pod"}"#).expect("pod");
    assert_eq!(decoded.value, json!({"kind": "Pod"}));
    assert_eq!(decoded.problems[0].to_string(), r#"unknown field "Kind""#);
}

#[test]
fn values_take_their_canonical_form() {
    let decoded = pod(r#"{"metadata":{"creationTimestamp":"2026-01-02T03:04:05.6+01:00","labels":null,"generation":0},
        "spec":{"hostNetwork":false,"priority":0,"nodeName":"","containers":[null,{"env":[],"command":null,
        "resources":{"limits":{"cpu":0.5,"memory":"1024Mi"}}}],"activeDeadlineSeconds":null}}"#)
    .expect("pod");
    assert_eq!(
        decoded.value,
        json!({"metadata": {"creationTimestamp": "2026-01-02T02:04:05Z"},
            "spec": {"priority": 0, "containers": [{"name": "", "resources": {}},
                {"resources": {"limits": {"cpu": "500m", "memory": "1Gi"}}}]}})
    );
}

#[test]
fn bytes_must_be_base64() {
    let secret = kind("", "v1", "Secret");
    let decoded = decode(br#"{"data":{"a":"aGk=","b":"aG\nk=","c":"","d":null,"e":"aGl="}}"#, secret).expect("secret");
    assert_eq!(decoded.value, json!({"data": {"a": "aGk=", "b": "aGk=", "c": "", "d": "", "e": "aGk="}}));
    let error = decode(br#"{"data":{"a":"a-b="}}"#, secret).expect_err("not base64");
    assert_eq!(error.to_string(), "illegal base64 data at input byte 1");
}

#[test]
fn json_schemas_decode_by_their_own_rules() {
    let definition = kind("apiextensions.k8s.io", "v1", "CustomResourceDefinition");
    let body = br#"{"spec":{"versions":[{"schema":{"openAPIV3Schema":{"type":"object","properties":{"a":{
        "additionalProperties":true,"items":{"type":"string","zzz":1},"default":{"x":null},"enum":[1,null]}}}}}]}}"#;
    let decoded = decode(body, definition).expect("definition");
    let property = &decoded.value["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["a"];
    assert_eq!(
        *property,
        json!({"additionalProperties": true, "items": {"type": "string"}, "default": {"x": null}, "enum": [1, null]})
    );
    assert!(decoded.problems.is_empty());
}

#[test]
fn no_struct_has_more_fields_than_the_mask_has_bits() {
    for info in builtin().types() {
        let count = builtin().node(info.node).object().map_or(0, |object| object.fields().len());
        assert!(count <= 128, "{}", info.name);
    }
}

/// Components decode objects of built-in kinds, which hold JSON of other kinds, by `serde_json`.
#[test]
fn what_is_accepted_is_not_too_deep_for_components() {
    let nested =
        |open: &str, close: &str, depth: usize| [open.repeat(depth), "{}".to_owned(), close.repeat(depth)].concat();
    let claim = |depth: usize| {
        let parameters = nested(r#"{"a":["#, "]}", depth / 2);
        format!(r#"{{"spec":{{"devices":{{"config":[{{"opaque":{{"driver":"d","parameters":{parameters}}}}}]}}}}}}"#)
    };
    let map = |depth: usize| {
        format!(r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{}}}]}}}}"#, nested(r#"{"f:a":"#, "}", depth))
    };
    let (claims, maps) = (kind("resource.k8s.io", "v1", "ResourceClaim"), kind("", "v1", "ConfigMap"));
    for depth in 90..130 {
        for (body, node, api_version, kind, limit) in [
            (claim(depth), claims, "resource.k8s.io/v1", "ResourceClaim", 113),
            (map(depth), maps, "v1", "ConfigMap", 115),
        ] {
            let found = decode(body.as_bytes(), node);
            let listed = format!(r#"{{"items":[{body}]}}"#);
            let readable = serde_json::from_str::<Value>(&listed).is_ok();
            assert!(found.is_ok() == (depth <= limit) && (readable || depth > limit), "{kind} {depth}");
            let mut object: Value = crate::decode::untyped_json(body.as_bytes()).unwrap().value;
            object["apiVersion"] = api_version.into();
            object["kind"] = kind.into();
            let sent = crate::protobuf::encode(&object).unwrap();
            assert!(readable || crate::protobuf::decode(&sent, None).is_err(), "{kind} {depth}");
            if let Err(error) = found {
                assert!(error.to_string().ends_with("exceeded max depth"), "{error}");
            }
        }
    }
}
