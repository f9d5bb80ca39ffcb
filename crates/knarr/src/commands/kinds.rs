//! Resolves object names such as `pod/web`, `deploy web` and `widgets.example.com/w` by discovery, so that the short names of
//! custom resources work, too.

use anyhow::{Context as _, bail};
use http::Request;
use http::header::ACCEPT;
use knarr_client::kube::Client;
use knarr_why::nearest;
use serde_json::Value;

/// All kinds of a cluster in two responses.
const DISCOVERY: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A resolved object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    group: String,
    version: String,
    plural: String,
    /// Empty for cluster-scoped kinds.
    namespace: String,
    name: String,
}

impl Named {
    /// Its path in the API.
    pub fn path(&self) -> String {
        let Named { group, version, plural, namespace, name } = self;
        let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        match namespace.as_str() {
            "" => format!("{root}/{plural}/{name}"),
            namespace => format!("{root}/namespaces/{namespace}/{plural}/{name}"),
        }
    }

    /// Its name in the journal.
    pub fn in_journal(&self) -> String {
        let Named { plural, namespace, name, .. } = self;
        if namespace.is_empty() { format!("{plural}/{name}") } else { format!("{plural}/{namespace}/{name}") }
    }
}

/// Resolves `KIND/NAME` or `KIND NAME`.
pub async fn find(client: &Client, words: &[String], namespace: Option<&str>) -> anyhow::Result<Named> {
    let (kind, name) = split(words)?;
    let mut kinds = Vec::new();
    for path in ["/api", "/apis"] {
        let request = Request::get(path).header(ACCEPT, DISCOVERY).body(Vec::new())?;
        let document: Value = client.request(request).await.context("cannot discover the kinds of the cluster")?;
        kinds.extend(kinds_of(&document));
    }
    let kind = choose(&kinds, &kind)?;
    let namespace = match kind.namespaced {
        true => namespace.unwrap_or_else(|| client.default_namespace()).to_owned(),
        false => String::new(),
    };
    let Kind { group, version, plural, .. } = kind.clone();
    Ok(Named { group, version, plural, namespace, name })
}

fn split(words: &[String]) -> anyhow::Result<(String, String)> {
    let parts: Vec<&str> = words.iter().flat_map(|word| word.split('/')).collect();
    match parts.as_slice() {
        [kind, name] if !kind.is_empty() && !name.is_empty() => Ok((kind.to_lowercase(), (*name).to_owned())),
        _ => bail!("{:?} is not of the form KIND/NAME, such as pod/web", words.join(" ")),
    }
}

/// A kind from discovery.
#[derive(Clone, Debug)]
struct Kind {
    group: String,
    version: String,
    plural: String,
    namespaced: bool,
    /// All its names.
    names: Vec<String>,
}

/// The kinds of a discovery document, each in the preferred version.
fn kinds_of(document: &Value) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = Vec::new();
    let items = |value: &Value, field: &str| value[field].as_array().cloned().unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for group in items(document, "items") {
        let group_name = text(&group["metadata"]["name"]);
        for version in items(&group, "versions") {
            for resource in items(&version, "resources") {
                let plural = text(&resource["resource"]);
                if kinds.iter().any(|known| known.group == group_name && known.plural == plural) {
                    continue;
                }
                let mut names: Vec<String> = items(&resource, "shortNames").iter().map(text).collect();
                names.extend([
                    plural.clone(),
                    text(&resource["singularResource"]),
                    text(&resource["responseKind"]["kind"]),
                ]);
                names.iter_mut().for_each(|name| *name = name.to_lowercase());
                if !group_name.is_empty() {
                    names.push(format!("{plural}.{group_name}"));
                }
                kinds.push(Kind {
                    group: group_name.clone(),
                    version: text(&version["version"]),
                    plural,
                    namespaced: resource["scope"] == "Namespaced",
                    names,
                });
            }
        }
    }
    kinds
}

fn choose<'k>(kinds: &'k [Kind], word: &str) -> anyhow::Result<&'k Kind> {
    // The core group comes first, then the order in which the server lists its groups.
    if let Some(kind) = kinds.iter().find(|kind| kind.names.iter().any(|name| name == word)) {
        return Ok(kind);
    }
    let known = kinds.iter().flat_map(|kind| &kind.names).map(String::as_str);
    match nearest(word, known) {
        Some(near) => bail!("the cluster has no kind {word:?}; did you mean {near:?}?"),
        None => bail!("the cluster has no kind {word:?}; `kubectl api-resources` lists all kinds"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kinds() -> Vec<Kind> {
        let resource = |plural: &str, singular: &str, short: &[&str], scope: &str| json!({"resource": plural, "singularResource": singular, "shortNames": short, "scope": scope, "responseKind": {"kind": singular}});
        let core = json!({"items": [{"metadata": {}, "versions": [{"version": "v1", "resources": [
            resource("pods", "pod", &["po"], "Namespaced"), resource("nodes", "node", &["no"], "Cluster"),
            resource("events", "event", &["ev"], "Namespaced"),
        ]}]}]});
        let groups = json!({"items": [
            {"metadata": {"name": "apps"}, "versions": [{"version": "v1", "resources": [resource("deployments", "deployment", &["deploy"], "Namespaced")]}]},
            {"metadata": {"name": "events.k8s.io"}, "versions": [{"version": "v1", "resources": [resource("events", "event", &["ev"], "Namespaced")]}]},
            {"metadata": {"name": "example.com"}, "versions": [
                {"version": "v2", "resources": [resource("widgets", "widget", &["wd"], "Namespaced")]},
                {"version": "v1", "resources": [resource("widgets", "widget", &["wd"], "Namespaced")]},
            ]},
        ]});
        [kinds_of(&core), kinds_of(&groups)].concat()
    }

    #[test]
    fn kinds_have_many_names() {
        for (word, expected) in [
            ("po", "/v1/pods"),
            ("pod", "/v1/pods"),
            ("pods", "/v1/pods"),
            ("deploy", "apps/v1/deployments"),
            ("deployments.apps", "apps/v1/deployments"),
            ("ev", "/v1/events"),
            ("events.events.k8s.io", "events.k8s.io/v1/events"),
            ("wd", "example.com/v2/widgets"),
        ] {
            let kinds = kinds();
            let kind = choose(&kinds, word).unwrap();
            assert_eq!(format!("{}/{}/{}", kind.group, kind.version, kind.plural), expected);
        }
        assert!(choose(&kinds(), "deplyoment").unwrap_err().to_string().contains("did you mean \"deployment\"?"));
        assert!(choose(&kinds(), "spaceship").unwrap_err().to_string().contains("api-resources"));
    }

    #[test]
    fn objects_are_named_in_one_word_or_two() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        assert_eq!(split(&words("Pod/web")).unwrap(), ("pod".to_owned(), "web".to_owned()));
        assert_eq!(split(&words("pod web")).unwrap(), ("pod".to_owned(), "web".to_owned()));
        for wrong in ["web", "/web", "pod/", "pod/web/x", "pod/web x"] {
            assert!(split(&words(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn paths_lead_to_the_object() {
        let mut named = Named {
            group: "apps".into(),
            version: "v1".into(),
            plural: "deployments".into(),
            namespace: "a".into(),
            name: "web".into(),
        };
        assert_eq!(named.path(), "/apis/apps/v1/namespaces/a/deployments/web");
        assert_eq!(named.in_journal(), "deployments/a/web");
        named = Named { group: String::new(), plural: "nodes".into(), namespace: String::new(), ..named };
        assert_eq!((named.path().as_str(), named.in_journal().as_str()), ("/api/v1/nodes/web", "nodes/web"));
    }
}
