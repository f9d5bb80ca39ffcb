//! The routing table: built from Ingresses, queried by host and path. Pure.

mod paths;

use std::collections::HashMap;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::{Ingress, IngressBackend, IngressClass};

use crate::{CLASS, CONTROLLER};
use paths::Paths;

/// The port of a Service that requests go to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    pub namespace: String,
    pub service: String,
    pub port: Port,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Port {
    Name(String),
    Number(u16),
}

/// `T` is the backend that serves a target.
pub struct Table<T> {
    hosts: HashMap<String, Paths<T>>,
    /// Without the star: `.example.org`.
    wildcards: HashMap<String, Paths<T>>,
    anywhere: Paths<T>,
    default: Option<Arc<T>>,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { hosts: HashMap::new(), wildcards: HashMap::new(), anywhere: Paths::default(), default: None }
    }
}

impl<T> Table<T> {
    /// Builds the rules of all Ingresses; for equal paths the older Ingress wins.
    pub fn build(ingresses: &[Arc<Ingress>], mut backend_of: impl FnMut(Target) -> Arc<T>) -> Self {
        let mut table = Self::default();
        for ingress in oldest_first(ingresses) {
            let namespace = ingress.metadata.namespace.as_deref().unwrap_or_default();
            let Some(spec) = &ingress.spec else { continue };
            if let Some(target) = spec.default_backend.as_ref().and_then(|backend| target(namespace, backend))
                && table.default.is_none()
            {
                table.default = Some(backend_of(target));
            }
            for rule in spec.rules.iter().flatten() {
                let Some(http) = &rule.http else { continue };
                let host = rule.host.as_deref().unwrap_or_default().to_ascii_lowercase();
                let rules = match host.strip_prefix('*') {
                    Some(suffix) => table.wildcards.entry(suffix.to_owned()).or_default(),
                    None if host.is_empty() => &mut table.anywhere,
                    None => table.hosts.entry(host).or_default(),
                };
                for path in &http.paths {
                    if let Some(target) = target(namespace, &path.backend) {
                        let text = path.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
                        rules.add(text, path.path_type == "Exact", backend_of(target));
                    }
                }
            }
        }
        table
    }

    /// Rules for the exact host come first, then for its wildcard, then for all hosts: a rule without a host applies to all
    /// traffic, whatever other rules say about a host.
    pub fn find(&self, host: &str, path: &str) -> Option<&Arc<T>> {
        let lower;
        let host = if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
            lower = host.to_ascii_lowercase();
            &lower
        } else {
            host
        };
        // A wildcard stands for one label.
        let wildcard = host.find('.').and_then(|dot| self.wildcards.get(&host[dot..]));
        let lists = [self.hosts.get(host), wildcard, Some(&self.anywhere)];
        lists.into_iter().flatten().find_map(|rules| rules.find(path)).or(self.default.as_ref())
    }
}

/// Whether a path has a segment `..`, in any spelling that some server resolves: percent-encoded, between backslashes, or with
/// parameters (`..;`). Rules are compared literally, so such a path could match one prefix and mean another to the pod.
pub fn climbs(path: &str) -> bool {
    let bytes = path.as_bytes();
    let mut at = 0;
    // Dots at the start of this segment; `None` once it has anything else.
    let mut dots = Some(0);
    loop {
        let (byte, length) = match bytes.get(at..) {
            None | Some([]) => (b'/', 1),
            Some([b'%', high, low, ..]) => (decoded(*high, *low).unwrap_or(b'%'), 3),
            Some([byte, ..]) => (*byte, 1),
        };
        match byte {
            b'/' | b'\\' | b';' if dots == Some(2) => return true,
            b'/' | b'\\' => dots = Some(0),
            b'.' => dots = dots.map(|count| count + 1),
            _ => dots = None,
        }
        if at >= bytes.len() {
            return false;
        }
        at += length;
    }
}

fn decoded(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(high)? * 16 + digit(low)?).ok()
}

/// Ingresses by age: nobody takes a host, path or certificate from an older one.
pub fn oldest_first(ingresses: &[Arc<Ingress>]) -> Vec<&Arc<Ingress>> {
    let mut sorted: Vec<&Arc<Ingress>> = ingresses.iter().collect();
    sorted.sort_by_cached_key(|ingress| {
        let meta = &ingress.metadata;
        (meta.creation_timestamp.as_ref().map(|time| time.0), meta.namespace.clone(), meta.name.clone())
    });
    sorted
}

fn target(namespace: &str, backend: &IngressBackend) -> Option<Target> {
    let service = backend.service.as_ref()?;
    let port = service.port.as_ref()?;
    let number = port.number.and_then(|number| u16::try_from(number).ok()).filter(|number| *number != 0);
    let port = match (&port.name, number) {
        (_, Some(number)) => Port::Number(number),
        (Some(name), None) if !name.is_empty() => Port::Name(name.clone()),
        _ => return None,
    };
    Some(Target { namespace: namespace.to_owned(), service: service.name.clone(), port })
}

/// Whether an Ingress belongs to this controller.
pub fn is_ours(ingress: &Ingress, classes: &[Arc<IngressClass>]) -> bool {
    let named = ingress.spec.as_ref().and_then(|spec| spec.ingress_class_name.as_deref());
    let annotations = ingress.metadata.annotations.as_ref();
    let annotated = annotations.and_then(|all| all.get("kubernetes.io/ingress.class")).map(String::as_str);
    match (named, annotated) {
        (Some(name), _) => {
            classes.iter().any(|class| class.metadata.name.as_deref() == Some(name) && is_our_class(class))
        }
        (None, Some(name)) => name == CLASS,
        (None, None) => classes.iter().any(|class| is_our_class(class) && is_default(class)),
    }
}

pub fn is_default(class: &IngressClass) -> bool {
    let annotations = class.metadata.annotations.as_ref();
    annotations
        .and_then(|all| all.get("ingressclass.kubernetes.io/is-default-class"))
        .is_some_and(|value| value == "true")
}

fn is_our_class(class: &IngressClass) -> bool {
    class.spec.as_ref().and_then(|spec| spec.controller.as_deref()) == Some(CONTROLLER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn ingress(rules: Value, default: Option<&str>) -> Arc<Ingress> {
        let mut spec = json!({"rules": rules});
        if let Some(name) = default {
            spec["defaultBackend"] = json!({"service": {"name": name, "port": {"number": 80}}});
        }
        Arc::new(serde_json::from_value(json!({"metadata": {"name": "i", "namespace": "n"}, "spec": spec})).unwrap())
    }

    fn path(path: &str, kind: &str, service: &str) -> Value {
        json!({"path": path, "pathType": kind, "backend": {"service": {"name": service, "port": {"name": "http"}}}})
    }

    #[test]
    fn requests_find_their_backend() {
        let rules = json!([
            {"host": "Shop.example", "http": {"paths": [path("/", "Prefix", "root"), path("/cart", "Prefix", "cart"),
                path("/cart", "Exact", "cart-exact"), path("/foo/", "Prefix", "foo")]}},
            {"host": "*.example", "http": {"paths": [path("/", "ImplementationSpecific", "wild")]}},
            {"http": {"paths": [path("/only", "Prefix", "any")]}},
            {"host": "narrow.example", "http": {"paths": [path("/here", "Prefix", "narrow")]}},
            {"host": "narrow.other", "http": {"paths": [path("/here", "Prefix", "narrow")]}},
        ]);
        let table = Table::build(&[ingress(rules, Some("fallback"))], Arc::new);
        for (host, path, expected) in [
            ("shop.example", "/", "root"),
            ("SHOP.example", "/cart", "cart-exact"),
            ("shop.example", "/cart/", "cart"),
            ("shop.example", "/cart/7", "cart"),
            ("shop.example", "/carts", "root"),
            ("shop.example", "/foo", "foo"),
            ("shop.example", "/foobar", "root"),
            ("a.example", "/x", "wild"),
            ("a.b.example", "/x", "fallback"),
            ("narrow.example", "/here/x", "narrow"),
            ("narrow.example", "/x", "wild"),
            ("narrow.other", "/only", "any"),
            ("narrow.other", "/", "fallback"),
            ("example", "/only/this", "any"),
            ("other", "/", "fallback"),
        ] {
            let found = table.find(host, path).map(|target| target.service.clone());
            assert_eq!(found.as_deref(), Some(expected), "{host}{path}");
        }
        let empty: Table<Target> = Table::build(&[], Arc::new);
        assert!(empty.find("shop.example", "/").is_none());
    }

    /// CVE-2025-1974 and its relatives in ingress-nginx: whatever an Ingress holds, the routes of others stay what they were, and
    /// paths are compared literally.
    #[test]
    fn no_field_of_an_ingress_changes_the_routes_of_others() {
        const HOSTILE: [&str; 8] = [
            "}\n}\nserver { listen 80; }",
            "a;#",
            "\r\nX-Evil: 1",
            "\";load_module /tmp/x.so;#",
            "/var/run/secrets/kubernetes.io/serviceaccount/token",
            "../../etc/passwd",
            "$(id)`id`",
            "{{.Values}}",
        ];
        const ANNOTATIONS: [&str; 16] = [
            "rewrite-target",
            "auth-url",
            "auth-method",
            "auth-proxy-set-headers",
            "auth-tls-match-cn",
            "auth-tls-secret",
            "auth-secret",
            "auth-snippet",
            "mirror-target",
            "mirror-host",
            "permanent-redirect",
            "configuration-snippet",
            "server-snippet",
            "custom-http-errors",
            "default-backend",
            "server-alias",
        ];
        let victim = ingress(json!([{"host": "bank.example", "http": {"paths": [path("/", "Prefix", "bank")]}}]), None);
        for text in HOSTILE {
            let annotations: serde_json::Map<String, Value> =
                ANNOTATIONS.iter().map(|name| (format!("nginx.ingress.kubernetes.io/{name}"), json!(text))).collect();
            let hostile = json!({"metadata": {"name": "h", "namespace": "evil", "annotations": annotations},
                "spec": {"rules": [{"host": "evil.example", "http": {"paths": [
                    path(&format!("/x{text}"), "Exact", "evil"), path(text, "Prefix", "evil")]}}]}});
            let hostile: Arc<Ingress> = Arc::new(serde_json::from_value(hostile).unwrap());
            let table = Table::build(&[hostile, victim.clone()], Arc::new);
            let found = |host: &str, path: &str| {
                table.find(host, path).map(|target| format!("{}/{}", target.namespace, target.service))
            };
            for path in ["/", "/account", "/xa", text] {
                let expected = path.starts_with('/').then(|| "n/bank".to_owned());
                assert_eq!(found("bank.example", path), expected, "{text:?} {path:?}");
            }
            assert_eq!(found("evil.example", &format!("/x{text}")).as_deref(), Some("evil/evil"), "{text:?}");
            assert_eq!(found("evil.example", "/elsewhere"), None, "{text:?}");
            assert_eq!(found("other.example", "/"), None, "{text:?}");
        }
    }

    /// CVE-2025-32431 of Traefik: a path that a pod resolves to one outside the prefix.
    #[test]
    fn paths_that_climb_are_recognized() {
        for (path, expected) in [
            ("/", false),
            ("/a/b", false),
            ("/a.b/..c/c../...", false),
            ("/a/./b", false),
            ("/a%2fb/%2e", false),
            ("/100%", false),
            ("/%zz..", false),
            ("/a/..", true),
            ("/../a", true),
            ("/a/../b", true),
            ("/a/%2e%2e/b", true),
            ("/a/.%2E/b", true),
            ("/a/..%2fb", true),
            ("/a%2f../b", true),
            ("/a/..\\b", true),
            ("/a%5c..%5Cb", true),
            ("/a/..;/b", true),
            ("/a/..;x=1/b", true),
        ] {
            assert_eq!(climbs(path), expected, "{path}");
        }
    }

    /// CVE-2020-8553: objects whose names run together are distinct.
    #[test]
    fn names_of_namespace_and_object_do_not_run_together() {
        let of = |namespace: &str, service: &str| Target {
            namespace: namespace.to_owned(),
            service: service.to_owned(),
            port: Port::Number(80),
        };
        assert_ne!(of("a-b", "c"), of("a", "b-c"));
    }

    #[test]
    fn classes_decide_whose_an_ingress_is() {
        let class = |name: &str, controller: &str, default: &str| -> Arc<IngressClass> {
            let class = json!({"metadata": {"name": name, "annotations": {"ingressclass.kubernetes.io/is-default-class": default}},
                "spec": {"controller": controller}});
            Arc::new(serde_json::from_value(class).unwrap())
        };
        let of = |name: Option<&str>, annotation: Option<&str>| -> Ingress {
            let mut object = json!({"metadata": {"name": "i"}, "spec": {}});
            if let Some(name) = name {
                object["spec"]["ingressClassName"] = json!(name);
            }
            if let Some(annotation) = annotation {
                object["metadata"]["annotations"] = json!({"kubernetes.io/ingress.class": annotation});
            }
            serde_json::from_value(object).unwrap()
        };
        let classes = [class("knarr", CONTROLLER, "true"), class("other", "example.org/other", "false")];
        for (name, annotation, expected) in [
            (Some("knarr"), None, true),
            (Some("other"), None, false),
            (Some("missing"), None, false),
            (None, Some("knarr"), true),
            (None, Some("nginx"), false),
            (None, None, true),
        ] {
            assert_eq!(is_ours(&of(name, annotation), &classes), expected, "{name:?} {annotation:?}");
        }
        assert!(!is_ours(&of(None, None), &[class("knarr", CONTROLLER, "false")]));
    }
}
