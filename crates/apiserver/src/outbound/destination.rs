//! The server that a webhook or APIService names: a URL, or a Service of the cluster.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_api::value::Read;
use rand::seq::IndexedRandom;
use serde_json::Value;

use crate::object_reader::ObjectReader;

/// A server that an object names.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Destination {
    /// The name its certificate must be valid for.
    pub host: String,
    pub port: u16,
    /// With its parameters.
    pub path: String,
    /// Namespace and name of the service behind it.
    pub service: Option<(String, String)>,
    /// PEM of the authorities that may have signed its certificate; empty for those of the system.
    pub authorities: String,
}

impl Destination {
    /// Reads `{url | service, caBundle}` of a webhook.
    pub fn of_webhook(config: &Value) -> Result<Destination, String> {
        let authorities = decode_bundle(config.text(&["caBundle"]))?;
        if let service @ Value::Object(_) = config.at(&["service"]) {
            let mut destination = Destination::of_service(service, authorities);
            destination.path = clean_path(service.text(&["path"]));
            return Ok(destination);
        }
        let url = config.text(&["url"]);
        if url.is_empty() {
            return Err("webhook configuration must have either service or URL".to_owned());
        }
        let uri: http::Uri = url.parse().map_err(|error| format!("Unparsable URL: {error}"))?;
        let host = uri.host().unwrap_or_default().trim_matches(['[', ']']).to_owned();
        let mut path = clean_path(uri.path());
        if let Some(query) = uri.query() {
            path = format!("{path}?{query}");
        }
        Ok(Destination { host, port: uri.port_u16().unwrap_or(443), path, service: None, authorities })
    }

    /// Reads `{namespace, name, port}`.
    pub fn of_service(service: &Value, authorities: String) -> Destination {
        let (namespace, name) = (service.text(&["namespace"]), service.text(&["name"]));
        let port = service.integer(&["port"]).and_then(|port| u16::try_from(port).ok()).unwrap_or(443);
        Destination {
            host: format!("{name}.{namespace}.svc"),
            port,
            path: String::new(),
            service: Some((namespace.to_owned(), name.to_owned())),
            authorities,
        }
    }

    /// Host and port as a URL has them.
    pub fn authority(&self) -> String {
        match (self.host.contains(':'), self.service.is_none() && self.port == 443) {
            (true, true) => format!("[{}]", self.host),
            (true, false) => format!("[{}]:{}", self.host, self.port),
            (false, true) => self.host.clone(),
            (false, false) => format!("{}:{}", self.host, self.port),
        }
    }

    /// The address to connect to: an endpoint of the Service, or the host of the URL.
    pub fn resolve(&self, objects: &dyn ObjectReader) -> Result<Endpoint, String> {
        match &self.service {
            None => Ok(Endpoint { host: self.host.clone(), port: self.port, node: None }),
            Some((namespace, name)) => endpoint_of(objects, namespace, name, self.port),
        }
    }
}

/// An address to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    /// The node on which it is, whose tunnel leads there.
    pub node: Option<String>,
}

/// Normalizes a path: rooted, without empty, `.` and `..` segments, and without a trailing slash. Servers would redirect
/// other paths, and redirects are refused.
fn clean_path(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

pub(crate) fn decode_bundle(bundle: &str) -> Result<String, String> {
    let bytes = STANDARD.decode(bundle).map_err(|error| error.to_string())?;
    String::from_utf8(bytes).map_err(|error| error.to_string())
}

/// A ready endpoint of a Service. Endpoints are called directly, so that this server needs no service proxy on its host.
fn endpoint_of(objects: &dyn ObjectReader, namespace: &str, name: &str, port: u16) -> Result<Endpoint, String> {
    let service = objects.get("", "services", namespace, name).ok_or_else(|| format!("service {name:?} not found"))?;
    let ports = service.items(&["spec", "ports"]);
    let declared = ports.iter().find(|own| own.integer(&["port"]) == Some(i64::from(port)));
    if service.text(&["spec", "type"]) == "ExternalName" {
        return Ok(Endpoint { host: service.text(&["spec", "externalName"]).to_owned(), port, node: None });
    }
    let declared = declared.ok_or_else(|| format!("no service port {port} found for service {name:?}"))?;
    let port_name = declared.text(&["name"]);
    let slices = objects.list("discovery.k8s.io", "endpointslices", namespace);
    let own = slices.iter().filter(|slice| slice.text(&["metadata", "labels", "kubernetes.io/service-name"]) == name);
    let mut found: Vec<Endpoint> = Vec::new();
    for slice in own {
        let port = slice.items(&["ports"]).iter().find(|port| port.text(&["name"]) == port_name);
        let Some(port) = port.and_then(|port| port.integer(&["port"])).and_then(|port| u16::try_from(port).ok()) else {
            continue;
        };
        let ready = slice.items(&["endpoints"]).iter().filter(|one| one.flag(&["conditions", "ready"]) != Some(false));
        found.extend(ready.filter_map(|one| {
            let host = one.items(&["addresses"]).first()?.as_str()?.to_owned();
            let node = Some(one.text(&["nodeName"]).to_owned()).filter(|name| !name.is_empty());
            Some(Endpoint { host, port, node })
        }));
    }
    found.choose(&mut rand::rng()).cloned().ok_or_else(|| format!("no endpoints available for service {name:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    #[test]
    fn urls_and_services_are_parsed() {
        let of = |config: Value| Destination::of_webhook(&config).map(|to| (to.authority(), to.path));
        assert_eq!(of(json!({"url": "https://a.example/x?y=1"})), Ok(("a.example".into(), "/x?y=1".into())));
        assert_eq!(of(json!({"url": "https://[::1]:8443"})), Ok(("[::1]:8443".into(), "/".into())));
        let service = json!({"service": {"namespace": "n", "name": "s", "path": "/p"}});
        assert_eq!(of(service), Ok(("s.n.svc:443".into(), "/p".into())));
        assert!(of(json!({})).is_err());
    }

    #[test]
    fn paths_of_webhooks_are_normalized() {
        for (path, clean) in [
            ("", "/"),
            ("/", "/"),
            ("/failing", "/failing"),
            ("//failing", "/failing"),
            ("/a//b/", "/a/b"),
            ("/a/./b/../c", "/a/c"),
            ("/../../a", "/a"),
        ] {
            let of = |config: Value| Destination::of_webhook(&config).unwrap().path;
            assert_eq!(of(json!({"url": format!("https://a.example{path}")})), clean, "{path}");
            assert_eq!(of(json!({"service": {"namespace": "n", "name": "s", "path": path}})), clean, "{path}");
        }
    }

    #[test]
    fn services_resolve_to_ready_endpoints() {
        let objects = Fixed::new(vec![
            (
                "",
                "services",
                json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {"ports": [{"port": 443, "name": "a"}]}}),
            ),
            (
                "discovery.k8s.io",
                "endpointslices",
                json!({
                    "metadata": {"name": "s-1", "namespace": "n", "labels": {"kubernetes.io/service-name": "s"}},
                    "ports": [{"name": "a", "port": 8443}],
                    "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": false}}, {"addresses": ["10.0.0.2"], "nodeName": "n1"}],
                }),
            ),
        ]);
        assert_eq!(
            endpoint_of(&objects, "n", "s", 443),
            Ok(Endpoint { host: "10.0.0.2".into(), port: 8443, node: Some("n1".into()) })
        );
        assert_eq!(endpoint_of(&objects, "n", "s", 80), Err("no service port 80 found for service \"s\"".into()));
        assert_eq!(endpoint_of(&objects, "n", "t", 443), Err("service \"t\" not found".into()));
    }
}
