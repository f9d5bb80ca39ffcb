use super::*;
use crate::audit::{Backend, BatchSettings, Log, LogSettings, Mode, Policy};
use crate::kinds::no_descriptions;
use crate::request::Annotation;
use http::Request;
use knarr_api::catalogue::Catalogue;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

fn audit(path: &Path, mode: Mode) -> Arc<Audit> {
    let policy =
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitManagedFields: true\nrules: [{level: RequestResponse}]";
    let log = Log::open(LogSettings { path: path.to_owned(), ..Default::default() }).unwrap();
    let (backend, _) = Backend::new(Arc::new(log), mode, BatchSettings::LOG, None);
    Arc::new(Audit::new(Policy::parse(policy).unwrap(), vec![backend]))
}

fn lines(path: &Path) -> Vec<Value> {
    std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_request_is_recorded_in_stages() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let audit = audit(&path, Mode::Blocking);
    let (parts, ()) = Request::post("/api/v1/namespaces/a/pods?dryRun=All")
        .header("user-agent", "test/1")
        .header("content-type", "application/json")
        .header("audit-id", "42")
        .body(())
        .unwrap()
        .into_parts();
    let target = Target {
        verb: "create".into(),
        version: "v1".into(),
        resource: "pods".into(),
        namespace: "a".into(),
        ..Target::default()
    };
    let now = Timestamp::UNIX_EPOCH;
    let mut record = Record::start(Some(audit.clone()), &parts, &target, now);
    record.identified(Some(&User::named("ann", &["devs"])), &target, now);
    record.write().await.unwrap();
    assert_eq!(lines(&path).len(), 1, "the arrival is recorded before the request is handled");
    record.allowed("RBAC: allowed");
    let body = Bytes::from(r#"{"kind":"Pod","metadata":{"name":"p","managedFields":[]}}"#);
    let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
    record.received(&parts.headers, &body, &target, &kinds);
    let mut response = Response::new(Body::full(r#"{"kind":"Status","status":"Failure","reason":"Conflict"}"#));
    *response.status_mut() = http::StatusCode::CONFLICT;
    response.extensions_mut().insert(AuditAnnotations(vec![Annotation {
        key: "k".into(),
        value: "v".into(),
        of_request: false,
    }]));
    record.responded(&mut response, now);
    record.write().await.unwrap();
    let lines = lines(&path);
    assert_eq!(lines.len(), 2);
    assert_eq!((&lines[0]["stage"], &lines[0]["auditID"]), (&json!("RequestReceived"), &json!("42")));
    let last = &lines[1];
    assert_eq!(last["responseStatus"], json!({"metadata": {}, "code": 409, "status": "Failure", "reason": "Conflict"}));
    assert_eq!(last["requestObject"]["metadata"], json!({"name": "p"}));
    assert_eq!(last["requestObject"]["spec"]["restartPolicy"], "Always", "as the server understands it");
    assert_eq!(last["annotations"]["k"], "v");
    assert_eq!(last["objectRef"], json!({"resource": "pods", "namespace": "a", "name": "p", "apiVersion": "v1"}));
    assert_eq!(last["stageTimestamp"], "1970-01-01T00:00:00.000000Z");
}

/// The response to `/ui/link` is a code that signs in as the user, and that to `/ui/forward` a link with a key.
#[tokio::test]
async fn responses_that_are_no_objects_are_not_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let audit = audit(&path, Mode::Blocking);
    let list = json!({"kind": "PodList", "items": []});
    let refusal = json!({"kind": "Status", "reason": "Forbidden"});
    for (resource, body, recorded) in
        [("", json!({"code": "secret"}), Value::Null), ("", refusal.clone(), Value::Null), ("pods", list.clone(), list)]
    {
        let (parts, ()) = Request::get("/").body(()).unwrap().into_parts();
        let target = Target { verb: "list".into(), resource: resource.into(), ..Target::default() };
        let mut record = Record::start(Some(audit.clone()), &parts, &target, Timestamp::UNIX_EPOCH);
        record.identified(Some(&User::named("ann", &[])), &target, Timestamp::UNIX_EPOCH);
        record.responded(&mut Response::new(Body::full(body.to_string())), Timestamp::UNIX_EPOCH);
        record.write().await.unwrap();
        let lines = lines(&path);
        let last = lines.last().unwrap();
        assert_eq!(last["responseObject"], recorded);
        assert_eq!(last["responseStatus"].get("reason"), body.get("reason"), "the outcome is recorded");
    }
}

#[tokio::test]
async fn impersonation_and_panics_are_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let audit = audit(&path, Mode::Blocking);
    let (parts, ()) = Request::get("/version").body(()).unwrap().into_parts();
    let target = Target { verb: "get".into(), path: "/version".into(), ..Target::default() };
    for (constraint, expected) in
        [("", Value::Null), ("impersonate:user-info", json!({"impersonationConstraint": "impersonate:user-info"}))]
    {
        let mut record = Record::start(Some(audit.clone()), &parts, &target, Timestamp::UNIX_EPOCH);
        record.identified(Some(&User::named("ann", &[])), &target, Timestamp::UNIX_EPOCH);
        record.impersonated(&Impersonated { user: User::named("bob", &["g"]), constraint });
        let mut response = Response::new(Body::full("text"));
        response.extensions_mut().insert(Panicked("index out of bounds".to_owned()));
        record.responded(&mut response, Timestamp::UNIX_EPOCH);
        record.write().await.unwrap();
        let lines = lines(&path);
        let [.., first, last] = lines.as_slice() else { panic!("{lines:?}") };
        assert_eq!((&first["stage"], first.get("impersonatedUser")), (&json!("RequestReceived"), None));
        assert_eq!(last["impersonatedUser"], json!({"username": "bob", "groups": ["g"]}));
        assert_eq!(last.get("authenticationMetadata").unwrap_or(&Value::Null), &expected);
        assert_eq!(last["stage"], "Panic");
        assert_eq!(last["responseStatus"]["message"], "APIServer panic'd: index out of bounds");
    }
}

#[tokio::test]
async fn a_request_that_cannot_be_recorded_fails_in_strict_mode() {
    let (parts, ()) = Request::get("/version").body(()).unwrap().into_parts();
    let target = Target { verb: "get".into(), path: "/version".into(), ..Target::default() };
    for (mode, fails) in [(Mode::Blocking, false), (Mode::BlockingStrict, true)] {
        let audit = audit(Path::new("/dev/full"), mode);
        let mut record = Record::start(Some(audit.clone()), &parts, &target, Timestamp::UNIX_EPOCH);
        record.identified(Some(&User::named("ann", &[])), &target, Timestamp::UNIX_EPOCH);
        assert_eq!(record.write().await.is_err(), fails, "{mode:?}");
    }
}

/// What is done is recorded, however the body says it.
#[tokio::test]
async fn no_body_is_hidden_by_the_way_it_is_written() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let audit = audit(&path, Mode::Blocking);
    let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
    let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "m"}, "data": {"k": "v"}});
    let deep =
        format!(r#"{{"metadata":{{"name":"m"}},"data":{{"k":"v"}},"x":{}1{}}}"#, "[".repeat(300), "]".repeat(300));
    let protobuf = protobuf::encode(&object).unwrap();
    // Its type is missing: the path names it.
    let untyped = [&b"k8s\0"[..], &protobuf_without_type(&protobuf)].concat();
    let options = json!({"gracePeriodSeconds": 7});
    for (verb, subresource, content_type, body, field) in [
        ("create", "", "application/json", object.to_string().into_bytes(), "data"),
        ("create", "", "application/json; a=protobuf", object.to_string().into_bytes(), "data"),
        ("create", "", "application/json;yaml=1", deep.into_bytes(), "data"),
        ("create", "", "application/vnd.kubernetes.protobuf", untyped, "data"),
        ("update", "", "application/yaml", b"metadata: {name: m}\ndata: {k: v}".to_vec(), "data"),
        ("patch", "", "application/merge-patch+json; protobuf", br#"{"data":{"k":"v"}}"#.to_vec(), "data"),
        ("patch", "", "application/apply-patch+yaml", b"data: {k: v}".to_vec(), "data"),
        ("delete", "", "application/json", options.to_string().into_bytes(), "gracePeriodSeconds"),
        ("deletecollection", "", "", options.to_string().into_bytes(), "gracePeriodSeconds"),
        ("create", "proxy", "application/json", object.to_string().into_bytes(), ""),
    ] {
        let (parts, ()) = Request::post("/").header("content-type", content_type).body(()).unwrap().into_parts();
        let resource = if subresource.is_empty() { "configmaps" } else { "services" };
        let target = Target {
            verb: verb.into(),
            version: "v1".into(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: "a".into(),
            ..Target::default()
        };
        let mut record = Record::start(Some(audit.clone()), &parts, &target, Timestamp::UNIX_EPOCH);
        record.identified(Some(&User::named("ann", &[])), &target, Timestamp::UNIX_EPOCH);
        record.received(&parts.headers, &body.into(), &target, &kinds);
        record.responded(&mut Response::new(Body::full("{}")), Timestamp::UNIX_EPOCH);
        record.write().await.unwrap();
        let lines = lines(&path);
        let last = lines.last().unwrap();
        let found = last.get("requestObject").map(|object| object.get(field).is_some());
        assert_eq!(found.unwrap_or_default(), !field.is_empty(), "{verb} {content_type}: {last}");
        let name = matches!(verb, "create" | "update") && subresource.is_empty();
        assert_eq!(last["objectRef"].get("name").is_some(), name, "{verb} {content_type}: {last}");
    }
}

/// Removes the first field, the type, of the envelope of an object.
fn protobuf_without_type(encoded: &[u8]) -> Vec<u8> {
    let message = &encoded[4..];
    assert_eq!(message[0], 0x0a, "the first field, with a length");
    message[2 + usize::from(message[1])..].to_vec()
}

/// Requests are in progress when the server starts to stop, and their clients leave when it has.
#[tokio::test]
async fn requests_that_end_while_the_server_stops_are_recorded() {
    for mode in [Mode::Blocking, Mode::Batch] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("audit.log");
        let cluster = crate::request_tests::Cluster::new().await;
        let log = Log::open(LogSettings { path: path.clone(), ..Default::default() }).unwrap();
        let (backend, sender) = Backend::new(Arc::new(log), mode, BatchSettings::LOG, None);
        let policy = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]";
        let audit = Arc::new(Audit::new(Policy::parse(policy).unwrap(), vec![backend]));
        assert!(cluster.server().telemetry.audit.set(audit.clone()).is_ok());
        let sending = sender.map(|sender| tokio::spawn(sender.run(audit.closing())));
        let endless = futures::stream::pending::<Result<http_body::Frame<Bytes>, std::io::Error>>();
        let request = Request::post("/api/v1/namespaces/default/configmaps");
        let request = request.body(http_body_util::StreamBody::new(endless)).unwrap();
        let admin = crate::request_tests::admin();
        let mut handling = cluster.server().handle(request, &admin);
        let received = async {
            while !path.exists() || lines(&path).is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            _ = &mut handling => panic!("the body never ends"),
            () = received => {}
        }
        cluster.started.stop.send_replace(true);
        tokio::task::yield_now().await;
        drop(handling);
        crate::listen::finish(cluster.server()).await;
        if let Some(sending) = sending {
            sending.await.unwrap();
        }
        // The process would end now.
        let stages: Vec<Value> = lines(&path).iter().map(|line| line["stage"].clone()).collect();
        assert_eq!(stages, ["RequestReceived", "ResponseComplete"], "{mode:?}");
    }
}

/// Whoever closes the connection early may have done something.
#[tokio::test]
async fn a_request_whose_client_goes_away_is_recorded() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("audit.log");
    let cluster = crate::request_tests::Cluster::new().await;
    assert!(cluster.server().telemetry.audit.set(audit(&path, Mode::Blocking)).is_ok());
    let endless = futures::stream::pending::<Result<http_body::Frame<Bytes>, std::io::Error>>();
    let request = Request::post("/api/v1/namespaces/default/configmaps");
    let request = request.body(http_body_util::StreamBody::new(endless)).unwrap();
    let sender = crate::request_tests::admin();
    let mut handling = cluster.server().handle(request, &sender);
    let received = async {
        while !path.exists() || lines(&path).is_empty() {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        _ = &mut handling => panic!("the body never ends"),
        () = received => {}
    }
    drop(handling);
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(60);
    while lines(&path).len() < 2 {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    let last = lines(&path).pop().unwrap();
    assert_eq!((&last["stage"], &last["verb"]), (&json!("ResponseComplete"), &json!("create")));
    assert_eq!(last["responseStatus"]["message"], "Connection closed early");
}
