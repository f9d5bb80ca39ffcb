//! The first inputs of every target, encoded by the code that is to decode them: a fuzzer starts beyond the first checks.

mod peers;

use std::path::Path;

use knarr_api::protobuf;
use knarr_store::{Embedded, Options, Store};
use serde_json::{Value, json};

use crate::{KINDS, pod};

/// Inputs by target.
pub fn seeds() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    let mut all = Vec::new();
    let mut add = |target: &'static str, seeds: Vec<Vec<u8>>| all.push((target, seeds));
    let chosen = |texts: Vec<String>| -> Vec<Vec<u8>> {
        (0..KINDS.len() as u8)
            .flat_map(|kind| texts.iter().map(move |text| [&[kind], text.as_bytes()].concat()))
            .collect()
    };
    let objects: Vec<String> = objects().iter().map(Value::to_string).collect();
    add("json", chosen(objects.clone()));
    add("yaml", chosen(YAML.iter().map(|text| (*text).to_owned()).chain(objects).collect()));
    add("protobuf", self::objects().iter().filter_map(|object| protobuf::encode(object).ok()).collect());
    add("json_patch", texts(&JSON_PATCHES));
    add("merge_patch", texts(&MERGE_PATCHES));
    add("strategic_patch", texts(&STRATEGIC_PATCHES));
    add("apply_patch", texts(&APPLY));
    add("cel", texts(&EXPRESSIONS));
    add("label_selector", texts(&LABELS));
    add("field_selector", texts(&["metadata.name=a", "status.phase!=Running,spec.nodeName==n", "a\\,b=c\\=d"]));
    add("quantity", texts(&QUANTITIES));
    add("token_file", texts(&["token,user,uid,\"a,b\"\nother,admin,1", "t,u,i", "\"a\"\"b\",c,d"]));
    #[cfg(feature = "server")]
    add("service_account_token", tokens());
    let (logs, images) = stored();
    add("store_records", logs.iter().filter(|log| log.len() > 24).map(|log| log[24..].to_vec()).collect());
    add("store_log", logs);
    add("store_image", images);
    add("cni", texts(&CNI));
    add("dns", vec![QUESTION.to_vec(), ANSWER.to_vec()]);
    add("manifest", texts(&YAML));
    add("proxied_page", texts(&PAGES));
    add("ingress_request", texts(&REQUESTS));
    add("ingress_answer", texts(&ANSWERS));
    add("ingress_chunks", texts(&CHUNKS));
    let (certificates, requests) = certificates();
    add("certificate", certificates);
    add("certificate_request", requests);
    add("container_log", texts(&LOGS));
    add("etcd_database", vec![knarr_store::fuzzing::database_seed()]);
    peers::add(&mut add);
    all
}

/// A client certificate and a certificate request, with alternative names.
fn certificates() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let mut parameters =
        rcgen::CertificateParams::new(vec!["node.example".to_owned(), "10.0.0.1".to_owned()]).expect("names");
    parameters.distinguished_name.push(rcgen::DnType::CommonName, "system:node:a");
    parameters.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    let key = rcgen::KeyPair::generate().expect("a key");
    let request = parameters.serialize_request(&key).expect("a request");
    let certificate = parameters.self_signed(&key).expect("a certificate");
    (vec![certificate.der().to_vec()], vec![request.der().to_vec()])
}

fn texts(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn objects() -> Vec<Value> {
    vec![
        pod(),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"a": "YQ=="}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"ports": [{"port": 80, "targetPort": "http"}, {"port": 81, "targetPort": 8081}]}}),
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"replicas": 3, "selector": {"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]},
                "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 1}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod()["spec"]}}}),
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "a.b"},
            "spec": {"group": "b", "scope": "Cluster", "names": {"plural": "a", "kind": "A"}, "versions": [{"name": "v1", "served": true,
                "storage": true, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "array",
                    "default": [1], "items": {"type": "integer", "enum": [1, 2], "x-kubernetes-validations": [{"rule": "self > 0"}]}}}}}}]}}),
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d"},
                "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "AverageValue", "averageValue": "1500m"}}}]}}),
    ]
}

#[cfg(feature = "server")]
fn tokens() -> Vec<Vec<u8>> {
    use knarr_apiserver::authenticate::{ServiceAccountTokens, TokenRequest, TokenSettings};
    let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    let issuer = "https://kubernetes.default.svc";
    let signer = ServiceAccountTokens::new(&key, &[], TokenSettings::of_issuer(issuer)).expect("a signer");
    let account = json!({"metadata": {"name": "default", "namespace": "default", "uid": "1"}});
    let request = TokenRequest {
        namespace: "default",
        account: &account,
        audiences: vec![issuer.to_owned()],
        seconds: 3600,
        bound: None,
    };
    let (token, _) = signer.issue(&request, jiff::Timestamp::now()).expect("a token");
    vec![token.into_bytes(), b"a.b.c".to_vec(), b"eyJhbGciOiJub25lIn0.e30.".to_vec()]
}

/// Files that a store has written: logs, and an image of its content.
fn stored() -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
    let directory = tempfile::tempdir().expect("a directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut image = Vec::new();
    runtime.block_on(async {
        let store = Embedded::open(directory.path(), Options::default()).expect("a store");
        for name in ["a", "b", "c"] {
            let key = format!("/registry/configmaps/default/{name}");
            let made = store.create(&key, "{\"kind\":\"ConfigMap\"}".into(), None).await.expect("a write");
            store.update(&key, "{}".into(), made.revision, None).await.expect("a write");
        }
        store.snapshot(&mut image).await.expect("an image");
    });
    (files(directory.path()), vec![image])
}

fn files(directory: &Path) -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter(|entry| entry.path().is_file()).filter_map(|entry| std::fs::read(entry.path()).ok()).collect()
}

const YAML: [&str; 3] = [
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\nspec:\n  containers:\n  - name: c\n    image: \"i\"\n    command: [a, 'b']\n",
    "a: &x {b: 1}\nc: *x\nd: |\n  text\ne: >-\n  folded\n  text\n? complex\n: value\n--- \nf: !!str 1\n",
    "apiVersion: v1\nkind: Secret\ndata: {a: YQ==}\nstringData:\n  b: \"\\u00e9\"\n",
];

const JSON_PATCHES: [&str; 3] = [
    r#"[{"op":"add","path":"/metadata/labels/x~1y","value":"z"},{"op":"remove","path":"/spec/containers/1"}]"#,
    r#"[{"op":"test","path":"/kind","value":"Pod"},{"op":"replace","path":"/spec/containers/0/image","value":"k"}]"#,
    r#"[{"op":"copy","from":"/metadata","path":"/spec/-"},{"op":"move","from":"/spec/volumes/0","path":"/spec/volumes/-"}]"#,
];

const MERGE_PATCHES: [&str; 2] =
    [r#"{"metadata":{"labels":{"a":null,"b":"c"}}}"#, r#"{"spec":{"containers":[],"volumes":null}}"#];

const STRATEGIC_PATCHES: [&str; 4] = [
    r#"{"spec":{"containers":[{"name":"c","image":"x"},{"name":"d","$patch":"delete"}]}}"#,
    r#"{"spec":{"$setElementOrder/containers":[{"name":"d"},{"name":"c"}],"$retainKeys":["containers"]}}"#,
    r#"{"metadata":{"$deleteFromPrimitiveList/finalizers":["x/y"],"$patch":"replace"}}"#,
    r#"{"spec":{"volumes":[{"$patch":"replace"},{"name":"w","hostPath":{"path":"/"}}]}}"#,
];

const APPLY: [&str; 3] = [
    "apiVersion: v1\nkind: Pod\nmetadata: {name: p, labels: {a: c}}\nspec:\n  containers: [{name: c, image: z}]\n",
    "apiVersion: v1\nkind: Pod\nmetadata:\n  name: p\n  finalizers: [a/b]\n",
    r#"{"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:image":{}},"v:1":{},"i:0":{}}}}"#,
];

const EXPRESSIONS: [&str; 6] = [
    "self.spec.containers.all(c, c.name.matches('^[a-z]+$') && size(c.image) < 10)",
    "has(self.metadata.labels) ? self.metadata.labels.map(k, k + 'x').join(',') : \"\"",
    "self == oldSelf || [1, 2, 3].exists_one(x, x % 2 == 0) && {'a': 1u}.a in [1u]",
    "duration('1h') < timestamp('2026-01-01T00:00:00Z') - timestamp('2025-01-01T00:00:00Z')",
    "quantity('1.5Gi').isGreaterThan(quantity('1M')) && ip('10.0.0.1').family() == 4",
    "cidr('10.0.0.0/8').containsIP('10.1.1.1') && 'a,b'.split(',')[1].charAt(0) == r'b'",
];

const LABELS: [&str; 5] = ["a=b", "a==b,c!=d", "x in (a, b),!y", "z notin (q),w", "n>1,m<9"];

const QUANTITIES: [&str; 10] = ["0", "1", "1.5Gi", "100m", "1e3", "-5E-3", "12345678901234567890", "1Ki", "1n", ".5"];

const CNI: [&str; 2] = [
    r#"{"cniVersion":"1.1.0","name":"n","type":"knarr","bridge":"b0","subnets":["10.0.0.0/24"],"mtu":1450,
        "runtimeConfig":{"portMappings":[{"hostPort":80,"containerPort":80,"protocol":"tcp"}],"bandwidth":{"ingressRate":1}}}"#,
    r#"{"cniVersion":"0.4.0","name":"n","type":"knarr","prevResult":{"ips":[{"address":"10.0.0.2/24"}]},
        "cni.dev/valid-attachments":[{"containerID":"c","ifname":"eth0"}]}"#,
];

const PAGES: [&str; 3] = [
    "<!DOCTYPE html><html><head><link href='/s.css'><base href=\"http://10.0.0.9:80/\"></head><body background=/b.png>",
    "<a href=\"//10.0.0.9:80/x?y#z\">x &amp; y</a><script src=/s.js>'<a href=\"/x\">'</script><img src='/i.png'/>",
    "<!-- <a href='/x'> --><form action=\"http://localhost:8001/proxy/x\"><input formaction=/y usemap=#z><textarea><a href=/>",
];
const REQUESTS: [&str; 3] = [
    "GET /a/b?c=d HTTP/1.1\r\nHost: shop.example:80\r\nConnection: keep-alive\r\nX-Forwarded-For: 1.2.3.4\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: a\r\nContent-Length: 5\r\nProxy-Authorization: x\r\n\r\nhelloGET / HTTP/1.1\r\nHost: b\r\n\r\n",
    "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\n\r\n",
];
const ANSWERS: [&str; 3] = [
    "2HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\r\nhello",
    "3HTTP/1.0 304 Not Modified\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
    "0HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 204 No Content\r\nServer: s\r\n\r\n",
];
const CHUNKS: [&str; 2] =
    ["35\r\nhello\r\n1A;name=value\r\nabcdefghijklmnopqrstuvwxyz\r\n0\r\nTrailer: x\r\n\r\n", "10\r\n\r\n"];
const QUESTION: &[u8] =
    b"\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x01\x0akubernetes\x07default\x03svc\x07cluster\x05local\x00\x00\x01\
    \x00\x01\x00\x00\x29\x04\xd0\x00\x00\x00\x00\x00\x00";

const ANSWER: &[u8] = b"\x12\x34\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x01a\x00\x00\x01\x00\x01\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x1e\
    \x00\x04\x0a\x00\x00\x01";

const LOGS: [&str; 3] = [
    "2026-01-01T00:00:00.000000001Z stdout F hello\n2026-01-01T00:00:01Z stderr P par\n2026-01-01T00:00:01Z stderr F tial\n",
    "2026-01-01T00:00:00Z stdout F \n\n2026-01-01T00:00:00Z stdout\nno log at all",
    "2026-01-01T00:00:00Z stdout P a\n2026-01-01T00:00:00Z stdout P b\n",
];
