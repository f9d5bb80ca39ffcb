//! Impersonation: requests on behalf of another user, by users who are authorized to impersonate it.

use http::HeaderMap;
use knarr_api::status::Status;

use super::header::{HeaderError, texts};
use crate::authorize::{Authorizer, Decision, forbidden};
use crate::request::{ANONYMOUS, GROUP_AUTHENTICATED, GROUP_UNAUTHENTICATED, Target, User};

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA_PREFIX: &str = "impersonate-extra-";

/// The user that the headers request to impersonate, if any.
pub fn impersonate(user: &User, headers: &HeaderMap, authorizer: &dyn Authorizer) -> Result<Option<User>, Status> {
    let Some(impersonated) = read(headers)? else { return Ok(None) };
    for target in targets(&impersonated) {
        if let Decision::NoOpinion(reason) = authorizer.decide(user, &target) {
            return Err(forbidden(user, &target, &reason));
        }
    }
    Ok(Some(complete(impersonated)))
}

fn read(headers: &HeaderMap) -> Result<Option<User>, Status> {
    let unreadable = |error: HeaderError| Status::bad_request(error.to_string());
    let names = texts(headers, USER).map_err(unreadable)?;
    let name = names.first().cloned().unwrap_or_default();
    if name.is_empty() && names.iter().any(|name| !name.is_empty()) {
        return Err(Status::bad_request("the header impersonate-user is given more than once, first without a name"));
    }
    let uid = texts(headers, UID).map_err(unreadable)?.into_iter().next().unwrap_or_default();
    let mut impersonated = User { name, uid, ..User::default() };
    impersonated.groups = texts(headers, GROUP).map_err(unreadable)?;
    for header in headers.keys() {
        if let Some(key) = header.as_str().strip_prefix(EXTRA_PREFIX) {
            let values = texts(headers, header.as_str()).map_err(unreadable)?;
            impersonated.extra.entry(decode_percent(key)).or_default().extend(values);
        }
    }
    if impersonated.name.is_empty() {
        if impersonated.groups.is_empty() && impersonated.uid.is_empty() && impersonated.extra.is_empty() {
            return Ok(None);
        }
        return Err(Status::bad_request(format!(
            "requested {} without impersonating a user name",
            describe(&impersonated)
        )));
    }
    Ok(Some(impersonated))
}

/// The requested user in the format of Kubernetes' error message.
fn describe(impersonated: &User) -> String {
    let list = |texts: &[String]| match texts {
        [] => "[]string(nil)".to_owned(),
        texts => format!("[]string{{{}}}", texts.iter().map(|text| format!("{text:?}")).collect::<Vec<_>>().join(", ")),
    };
    let extra = if impersonated.extra.is_empty() {
        "map[string][]string(nil)".to_owned()
    } else {
        let pairs: Vec<String> =
            impersonated.extra.iter().map(|(key, values)| format!("{key:?}:{}", list(values))).collect();
        format!("map[string][]string{{{}}}", pairs.join(", "))
    };
    let groups = list(&impersonated.groups);
    format!("&user.DefaultInfo{{Name:\"\", UID:{:?}, Groups:{groups}, Extra:{extra}}}", impersonated.uid)
}

/// The targets that the requesting user must be authorized to impersonate.
fn targets(impersonated: &User) -> Vec<Target> {
    let target = |group: &str, resource: &str, name: &str| Target {
        verb: "impersonate".into(),
        group: group.into(),
        version: "v1".into(),
        resource: resource.into(),
        name: name.into(),
        ..Target::default()
    };
    let mut targets = vec![match service_account(&impersonated.name) {
        Some((namespace, name)) => Target { namespace: namespace.into(), ..target("", "serviceaccounts", name) },
        None => target("", "users", &impersonated.name),
    }];
    targets.extend(impersonated.groups.iter().map(|group| target("", "groups", group)));
    for (key, values) in &impersonated.extra {
        targets.extend(
            values.iter().map(|value| Target {
                subresource: key.clone(),
                ..target("authentication.k8s.io", "userextras", value)
            }),
        );
    }
    if !impersonated.uid.is_empty() {
        targets.push(target("authentication.k8s.io", "uids", &impersonated.uid));
    }
    targets
}

/// Adds the groups that the user would have after authentication.
fn complete(mut user: User) -> User {
    if user.groups.is_empty()
        && let Some((namespace, _)) = service_account(&user.name)
    {
        user.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
    }
    let is_anonymous = user.name == ANONYMOUS;
    let is_complete = user.is_in(GROUP_UNAUTHENTICATED) || (!is_anonymous && user.is_in(GROUP_AUTHENTICATED));
    if !is_complete {
        user.groups.push(if is_anonymous { GROUP_UNAUTHENTICATED } else { GROUP_AUTHENTICATED }.to_owned());
    }
    user
}

fn service_account(name: &str) -> Option<(&str, &str)> {
    let (namespace, name) = name.strip_prefix("system:serviceaccount:")?.split_once(':')?;
    let is_plain = |text: &str| !text.is_empty() && !text.contains([':', '/']);
    (is_plain(namespace) && is_plain(name)).then_some((namespace, name))
}

/// Header names cannot hold every character of an extra's key; clients percent-encode the others.
fn decode_percent(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut index = 0;
    while index < bytes.len() {
        let escaped = (bytes[index] == b'%')
            .then(|| text.get(index + 1..index + 3))
            .flatten()
            .and_then(|digits| u8::from_str_radix(digits, 16).ok());
        decoded.push(escaped.unwrap_or(bytes[index]));
        index += if escaped.is_some() { 3 } else { 1 };
    }
    String::from_utf8(decoded).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn groups_are_completed() {
        let admin = User::named("admin", &[]);
        for (requested, groups) in [
            (&[("Impersonate-User", "u"), ("Impersonate-Group", "g")][..], "g,system:authenticated"),
            (
                &[("Impersonate-User", "system:serviceaccount:n:s")],
                "system:serviceaccounts,system:serviceaccounts:n,system:authenticated",
            ),
            (&[("Impersonate-User", "system:anonymous")], "system:unauthenticated"),
        ] {
            let user = impersonate(&admin, &headers(requested), &Only("*")).unwrap().unwrap();
            assert_eq!(user.groups.join(","), groups);
        }
    }

    #[test]
    fn each_part_must_be_allowed() {
        let user = User::named("u", &[]);
        let requested = headers(&[("Impersonate-User", "v"), ("Impersonate-Group", "g")]);
        let refused = impersonate(&user, &requested, &Only("users")).unwrap_err();
        assert_eq!(
            refused.message,
            r#"groups "g" is forbidden: User "u" cannot impersonate resource "groups" in API group "" at the cluster scope"#
        );
        assert_eq!(impersonate(&user, &HeaderMap::new(), &Only("")).unwrap(), None);
    }

    fn raw(pairs: &[(&str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let value = http::HeaderValue::from_bytes(value).unwrap();
            headers.append(http::HeaderName::try_from(*name).unwrap(), value);
        }
        headers
    }

    #[test]
    fn names_outside_ascii_are_names() {
        let admin = User::named("admin", &[]);
        let requested = raw(&[
            ("Impersonate-User", "müller".as_bytes()),
            ("Impersonate-Group", "größe".as_bytes()),
            ("Impersonate-Extra-Ort", "Köln".as_bytes()),
        ]);
        let user = impersonate(&admin, &requested, &Only("*")).unwrap().unwrap();
        assert_eq!((user.name.as_str(), user.groups[0].as_str()), ("müller", "größe"));
        assert_eq!(user.extra["ort"], ["Köln"]);
        let refused = impersonate(&admin, &requested, &Only("groups")).unwrap_err();
        assert_eq!(refused.code, 403);
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
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
            let refused = impersonate(&admin, &raw(requested), &Only("*"));
            assert_eq!(refused.map_err(|status| status.code), Err(400), "{requested:?}");
        }
        let twice = raw(&[user, ("Impersonate-User", b"v")]);
        assert_eq!(impersonate(&admin, &twice, &Only("*")).unwrap().unwrap().name, "u");
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
        assert_eq!(decode_percent("example.com%2fkey%zz"), "example.com/key%zz");
    }
}
