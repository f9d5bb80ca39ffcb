mod constrained;

use super::*;
use crate::authorize::Decision;

struct Only(&'static str);

impl Authorizer for Only {
    fn decide(&self, _user: &User, target: &Target) -> Decision {
        if target.resource == self.0 || self.0 == "*" {
            Decision::Allow(String::new())
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

fn headers(pairs: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(http::HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
    }
    headers
}

fn list(resource: &str, namespace: &str) -> Target {
    Target {
        verb: "list".into(),
        version: "v1".into(),
        resource: resource.into(),
        namespace: namespace.into(),
        ..Target::default()
    }
}

#[tokio::test]
async fn groups_are_completed() {
    let admin = User::named("admin", &[]);
    for (requested, groups) in [
        (&[("Impersonate-User", "u"), ("Impersonate-Group", "g")][..], "g,system:authenticated"),
        (
            &[("Impersonate-User", "system:serviceaccount:n:s")],
            "system:serviceaccounts,system:serviceaccounts:n,system:authenticated",
        ),
        (&[("Impersonate-User", "system:anonymous")], "system:unauthenticated"),
    ] {
        let user = impersonate(&admin, &headers(requested), &Only("*")).await.unwrap().unwrap();
        assert_eq!(user.groups.join(","), groups);
    }
}

async fn impersonate(user: &User, headers: &HeaderMap, authorizer: &dyn Authorizer) -> Result<Option<User>, Status> {
    let outcome = Impersonation::default().impersonate(user, headers, &list("pods", ""), authorizer).await?;
    Ok(outcome.map(|found| found.user))
}

fn raw(pairs: &[(&str, &[u8])]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let value = http::HeaderValue::from_bytes(value).unwrap();
        headers.append(http::HeaderName::try_from(*name).unwrap(), value);
    }
    headers
}

#[tokio::test]
async fn names_outside_ascii_are_names() {
    let admin = User::named("admin", &[]);
    let requested = raw(&[
        ("Impersonate-User", "müller".as_bytes()),
        ("Impersonate-Group", "größe".as_bytes()),
        ("Impersonate-Extra-Ort", "Köln".as_bytes()),
    ]);
    let user = impersonate(&admin, &requested, &Only("*")).await.unwrap().unwrap();
    assert_eq!((user.name.as_str(), user.groups[0].as_str()), ("müller", "größe"));
    assert_eq!(user.extra["ort"], ["Köln"]);
    let refused = impersonate(&admin, &requested, &Only("groups")).await.unwrap_err();
    assert_eq!(refused.code, 403);
}

#[tokio::test]
async fn what_cannot_be_read_is_refused() {
    let admin = User::named("admin", &[]);
    let user: (&str, &[u8]) = ("Impersonate-User", b"u");
    for requested in [
        &[("Impersonate-User", &b"m\xfcller"[..])][..],
        &[("Impersonate-User", b""), user],
        &[("Impersonate-User", b"u"), ("Impersonate-User", b"\xff")],
        &[user, ("Impersonate-Group", b"\xff")],
        &[user, ("Impersonate-Group", b"g"), ("Impersonate-Group", b"\xff")],
        &[user, ("Impersonate-Uid", b"\xff")],
        &[user, ("Impersonate-Extra-Scope", b"\xff")],
        &[("Impersonate-Group", b"\xff")],
        &[("Impersonate-Group", b"g")],
        &[("Impersonate-Uid", b"7")],
        &[("Impersonate-Extra-Scope", b"s")],
    ] {
        let refused = impersonate(&admin, &raw(requested), &Only("*")).await;
        assert_eq!(refused.map_err(|status| status.code), Err(400), "{requested:?}");
    }
    let twice = raw(&[user, ("Impersonate-User", b"v")]);
    assert_eq!(impersonate(&admin, &twice, &Only("*")).await.unwrap().unwrap().name, "u");
}

#[test]
fn only_names_of_service_accounts_are_theirs() {
    assert_eq!(service_account("system:serviceaccount:n:s"), Some(("n", "s")));
    for name in ["system:serviceaccount:n", "system:serviceaccount:n:s:t", "system:serviceaccount::s", "n:s"] {
        assert_eq!(service_account(name), None, "{name}");
    }
}

#[test]
fn extras_are_decoded() {
    for (text, key) in [
        ("example.com%2fkey", "example.com/key"),
        ("example.com%2fkey%zz", "example.com%2fkey%zz"),
        ("a%", "a%"),
        ("a%2", "a%2"),
        ("%ff", "%ff"),
    ] {
        assert_eq!(extra_key(text), key);
    }
}
