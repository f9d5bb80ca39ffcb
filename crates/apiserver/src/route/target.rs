//! Parses the method and path of a request into its target.

use http::Method;
use knarr_api::selector::FieldSelector;

use super::query::{Query, decode};
use crate::request::Target;

/// A target with details of its path.
#[derive(Debug)]
pub struct Routed {
    pub target: Target,
    /// Whether the path itself names an object; a field selector may name one too.
    pub named: bool,
    /// How many segments follow the subresource.
    pub beyond: usize,
}

/// Parses the path of a request.
///
/// `/api/v1/namespaces/web/pods/one/status` names a subresource of an object in a namespace; the namespace segment is
/// optional, and `watch` before the resource is the old form of a watch.
pub fn route(method: &Method, path: &str, query: &Query) -> Routed {
    let mut target = Target { verb: method.as_str().to_ascii_lowercase(), path: path.to_owned(), ..Target::default() };
    // Decoded first, as servers do to which requests are passed on: they see an encoded slash as one, too.
    let decoded = decode(path, false);
    let parts: Vec<&str> = decoded.split('/').filter(|part| !part.is_empty()).collect();
    let rest = match parts.as_slice() {
        ["api", version, rest @ ..] if !rest.is_empty() => {
            target.version = (*version).to_owned();
            rest
        }
        ["apis", group, version, rest @ ..] if !rest.is_empty() => {
            target.group = (*group).to_owned();
            target.version = (*version).to_owned();
            rest
        }
        _ => return Routed { target, named: false, beyond: 0 },
    };
    let (old_watch, rest) = match rest {
        ["watch", after @ ..] if !after.is_empty() => (true, after),
        _ => (false, rest),
    };
    target.verb = if old_watch { "watch" } else { verb_of(method) }.to_owned();
    let mut rest = rest;
    if let ["namespaces", namespace, after @ ..] = rest {
        target.namespace = (*namespace).to_owned();
        if !after.is_empty() && !matches!(after[0], "status" | "finalize") {
            rest = after;
        }
    }
    target.resource = rest[0].to_owned();
    target.name = rest.get(1).copied().unwrap_or_default().to_owned();
    if !old_watch {
        target.subresource = rest.get(2).copied().unwrap_or_default().to_owned();
    }
    let named = !target.name.is_empty();
    let beyond = rest.len().saturating_sub(if old_watch { 2 } else { 3 });
    if target.name.is_empty() && target.verb == "get" {
        target.verb = if query.flag("watch") == Some(true) { "watch" } else { "list" }.to_owned();
    }
    if target.name.is_empty() && target.verb == "delete" {
        target.verb = "deletecollection".to_owned();
    }
    if matches!(target.verb.as_str(), "list" | "watch" | "deletecollection") {
        target.field_selector = query.text("fieldSelector").to_owned();
        target.label_selector = query.text("labelSelector").to_owned();
        if target.name.is_empty() {
            target.name = single_name(&target.field_selector).unwrap_or_default();
        }
    }
    Routed { target, named, beyond }
}

fn verb_of(method: &Method) -> &'static str {
    match *method {
        Method::POST => "create",
        Method::GET | Method::HEAD => "get",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    }
}

/// The one name that a field selector matches: then a permission for that name suffices.
fn single_name(selector: &str) -> Option<String> {
    // Most requests select nothing, or not by name.
    if !selector.contains("metadata.name") {
        return None;
    }
    let selector = FieldSelector::parse(selector).ok()?;
    selector.exact("metadata.name").filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The path after the subresource of a proxied request, with its slashes. Names may look like anything, so only the
/// number of segments says where it starts.
pub fn tail<'a>(path: &'a str, target: &Target) -> &'a str {
    let of_version = if target.group.is_empty() { 2 } else { 3 };
    let of_namespace = if target.namespace.is_empty() || target.resource == "namespaces" { 0 } else { 2 };
    // Resource, name, subresource.
    let before = of_version + of_namespace + 3;
    path.match_indices('/').nth(before).map_or("", |(at, _)| &path[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_become_targets() {
        for (method, uri, verb, group, namespace, resource, name, subresource) in [
            ("GET", "/api/v1/pods", "list", "", "", "pods", "", ""),
            ("GET", "/api/v1/pods?watch=1", "watch", "", "", "pods", "", ""),
            ("GET", "/api/v1/watch/namespaces/a/pods", "watch", "", "a", "pods", "", ""),
            ("GET", "/api/v1/watch/namespaces/a/pods/x", "watch", "", "a", "pods", "x", ""),
            ("GET", "/api/v1/namespaces/a", "get", "", "a", "namespaces", "a", ""),
            ("PUT", "/api/v1/namespaces/a/finalize", "update", "", "a", "namespaces", "a", "finalize"),
            ("GET", "/api/v1/namespaces", "list", "", "", "namespaces", "", ""),
            (
                "DELETE",
                "/apis/apps/v1/namespaces/a/deployments",
                "deletecollection",
                "apps",
                "a",
                "deployments",
                "",
                "",
            ),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/a/deployments/d/scale",
                "patch",
                "apps",
                "a",
                "deployments",
                "d",
                "scale",
            ),
            ("GET", "/api/v1/namespaces/a/pods/p/proxy/x/y", "get", "", "a", "pods", "p", "proxy"),
            ("GET", "/api/v1/pods?fieldSelector=metadata.name%3Dp", "list", "", "", "pods", "p", ""),
            // A value with an escaped comma is one requirement, which selects no name.
            (
                "GET",
                "/api/v1/secrets?fieldSelector=metadata.namespace!%3Dx%5C%2Cmetadata.name%3Dp",
                "list",
                "",
                "",
                "secrets",
                "",
                "",
            ),
            ("PUT", "/apis/g/v1/namespaces/a/foos/x%2Fstatus", "update", "g", "a", "foos", "x", "status"),
            ("GET", "/apis/g/v1/namespaces/a%2Ffoos%2Fx", "get", "g", "a", "foos", "x", ""),
            ("GET", "/apis/g/v1%2Ffoos", "list", "g", "", "foos", "", ""),
            ("GET", "/healthz", "get", "", "", "", "", ""),
            ("GET", "/apis/apps/v1", "get", "", "", "", "", ""),
        ] {
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            let found = route(&Method::from_bytes(method.as_bytes()).unwrap(), path, &Query::parse(query)).target;
            let parts =
                (&*found.verb, &*found.group, &*found.namespace, &*found.resource, &*found.name, &*found.subresource);
            assert_eq!(parts, (verb, group, namespace, resource, name, subresource), "{uri}");
        }
    }

    #[test]
    fn a_proxied_path_keeps_its_tail() {
        for (path, expected) in [
            ("/api/v1/namespaces/a/pods/x/proxy/x/y", "/x/y"),
            ("/api/v1/namespaces/proxy-1/services/proxy-2:web/proxy/", "/"),
            ("/api/v1/namespaces/services/services/proxy/proxy", ""),
            ("/api/v1/nodes/n1/proxy/proxy/z", "/proxy/z"),
        ] {
            assert_eq!(tail(path, &route(&Method::GET, path, &Query::default()).target), expected, "{path}");
        }
    }
}
