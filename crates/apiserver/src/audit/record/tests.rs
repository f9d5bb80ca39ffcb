use super::*;
use crate::audit::{Backend, BatchSettings, Log, LogSettings, Mode, Policy};
use crate::kinds::no_descriptions;
use http::Request;
use knarr_api::catalogue::Catalogue;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

fn audit(path: &Path, mode: Mode) -> Audit {
    let policy =
        "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitManagedFields: true\nrules: [{level: RequestResponse}]";
    let log = Log::open(LogSettings { path: path.to_owned(), ..Default::default() }).unwrap();
    let (backend, _) = Backend::new(Arc::new(log), mode, BatchSettings::LOG, None);
    Audit::new(Policy::parse(policy).unwrap(), vec![backend])
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
    let mut record = Record::start(Some(&audit), &parts, &target, now);
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
    record.responded(&mut response, false, now);
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
        let mut record = Record::start(Some(&audit), &parts, &target, Timestamp::UNIX_EPOCH);
        record.identified(Some(&User::named("ann", &[])), &target, Timestamp::UNIX_EPOCH);
        record.responded(&mut Response::new(Body::full(body.to_string())), false, Timestamp::UNIX_EPOCH);
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
        let mut record = Record::start(Some(&audit), &parts, &target, Timestamp::UNIX_EPOCH);
        record.identified(Some(&User::named("ann", &[])), &target, Timestamp::UNIX_EPOCH);
        record.impersonated(&Impersonated { user: User::named("bob", &["g"]), constraint });
        let mut response = Response::new(Body::full("text"));
        response.extensions_mut().insert(Panicked("index out of bounds".to_owned()));
        record.responded(&mut response, false, Timestamp::UNIX_EPOCH);
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
        let mut record = Record::start(Some(&audit), &parts, &target, Timestamp::UNIX_EPOCH);
        record.identified(Some(&User::named("ann", &[])), &target, Timestamp::UNIX_EPOCH);
        assert_eq!(record.write().await.is_err(), fails, "{mode:?}");
    }
}
