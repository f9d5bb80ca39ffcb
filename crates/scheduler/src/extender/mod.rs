//! Extenders: web services that filter and score nodes, choose preemption victims, and may bind
//! pods themselves. The scheduler's configuration names them.

pub mod rounds;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::{Container, Node};
use knarr_client::go_duration;
use kube::Client;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::cluster::Cluster;
use crate::cluster::pod::PodState;
use crate::framework::{MAX_SCORE, Rejection};
use crate::preemption::Victims;

/// Extenders score from 0 to 10.
const MAX_POINTS: i64 = 10;
/// The plugin name for rejections by extenders; any event may help against them.
pub const NAME: &str = "Extender";

/// An extender as the configuration file has it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ExtenderSettings {
    pub url_prefix: String,
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub bind_verb: String,
    pub weight: i64,
    #[serde(rename = "enableHTTPS")]
    pub enable_https: bool,
    pub tls_config: TlsSettings,
    #[serde(rename = "httpTimeout")]
    pub timeout: Option<String>,
    pub node_cache_capable: bool,
    pub managed_resources: Vec<ManagedResource>,
    pub ignorable: bool,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TlsSettings {
    pub insecure: bool,
    pub server_name: Option<String>,
    pub cert_file: Option<String>,
    pub key_file: Option<String>,
    pub ca_file: Option<String>,
    /// The same as in the files, in base64.
    pub cert_data: Option<String>,
    pub key_data: Option<String>,
    pub ca_data: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ManagedResource {
    pub name: String,
    pub ignored_by_scheduler: bool,
}

#[derive(Debug, thiserror::Error)]
pub enum ExtenderError {
    #[error("extender {0}: invalid URL")]
    Address(String),
    #[error("extender {url}: cannot connect: {source}")]
    Connect { url: String, source: Box<kube::Error> },
    #[error("open {file}: {}", go_error(.source))]
    File { file: String, source: std::io::Error },
    #[error("specifying a root certificates file with the insecure flag is not allowed")]
    InsecureAuthority,
    #[error("unable to load root certificates: unable to parse bytes as PEM block")]
    Authority,
    #[error("failed {verb} with extender at URL {url}, code {code}")]
    Refused { verb: String, url: String, code: u16 },
    #[error("Post \"{url}\": {source}")]
    Request { url: String, source: Box<kube::Error> },
    #[error("{0}")]
    Response(String),
}

#[derive(Clone)]
pub struct Extender {
    settings: Arc<ExtenderSettings>,
    client: Client,
}

/// The nodes that an extender accepts.
pub struct Filtered {
    pub left: BTreeSet<String>,
    /// Why the others were left out.
    pub rejected: BTreeMap<String, Rejection>,
}

impl Extender {
    pub fn new(settings: ExtenderSettings) -> Result<Self, ExtenderError> {
        let url = settings.url_prefix.clone();
        let address = url.parse().map_err(|_| ExtenderError::Address(url.clone()))?;
        let mut config = kube::Config::new(address);
        config.read_timeout =
            Some(settings.timeout.as_deref().and_then(go_duration::parse_positive).unwrap_or(Duration::from_secs(5)));
        let tls = &settings.tls_config;
        config.root_cert = tls.authorities()?;
        // As in Kubernetes, the certificate of an extender without its own authority is not verified.
        config.accept_invalid_certs = tls.insecure || settings.enable_https && config.root_cert.is_none();
        config.tls_server_name = tls.server_name.clone();
        config.auth_info.client_certificate = tls.cert_file.clone();
        config.auth_info.client_key = tls.key_file.clone();
        config.auth_info.client_certificate_data = tls.cert_data.clone();
        config.auth_info.client_key_data = tls.key_data.clone().map(Into::into);
        let client = Client::try_from(config)
            .map_err(|source| ExtenderError::Connect { url: url.clone(), source: Box::new(source) })?;
        Ok(Extender { settings: Arc::new(settings), client })
    }

    pub fn url(&self) -> &str {
        &self.settings.url_prefix
    }

    pub fn is_ignorable(&self) -> bool {
        self.settings.ignorable
    }

    pub fn is_binder(&self) -> bool {
        !self.settings.bind_verb.is_empty()
    }

    pub fn filters(&self) -> bool {
        !self.settings.filter_verb.is_empty()
    }

    pub fn scores(&self) -> bool {
        !self.settings.prioritize_verb.is_empty()
    }

    pub fn preempts(&self) -> bool {
        !self.settings.preempt_verb.is_empty()
    }

    /// Whether the pod requests a resource that the extender manages; one that manages none sees all pods.
    pub fn is_interested(&self, pod: &PodState) -> bool {
        let managed = &self.settings.managed_resources;
        let requests_managed = |container: &Container| {
            let resources = container.resources.as_ref();
            let given = resources.map(|given| given.requests.iter().chain(&given.limits).flatten());
            given.into_iter().flatten().any(|(name, _)| managed.iter().any(|own| own.name == *name))
        };
        let Some(spec) = &pod.object.spec else { return managed.is_empty() };
        managed.is_empty() || spec.containers.iter().chain(spec.init_containers.iter().flatten()).any(requests_managed)
    }

    pub async fn filter(&self, pod: &PodState, nodes: &[&Node]) -> Result<Filtered, ExtenderError> {
        let response = self.send(&self.settings.filter_verb, self.arguments(pod, nodes)).await?;
        let error = text(field(&response, "error"));
        if !error.is_empty() {
            return Err(ExtenderError::Response(error));
        }
        let names = if self.settings.node_cache_capable {
            list(field(&response, "nodeNames")).iter().map(text).collect()
        } else {
            let nodes = list(field(field(&response, "nodes"), "items"));
            nodes.iter().map(|node| text(&node["metadata"]["name"])).collect()
        };
        let mut rejected = BTreeMap::new();
        for (given, unresolvable) in [("failedNodes", false), ("failedAndUnresolvableNodes", true)] {
            for (node, reason) in field(&response, given).as_object().into_iter().flatten() {
                let rejection = Rejection { plugin: NAME, reasons: vec![text(reason)], unresolvable, is_error: false };
                rejected.insert(node.clone(), rejection);
            }
        }
        Ok(Filtered { left: names, rejected })
    }

    /// Scores of nodes by name, scaled and weighted.
    pub async fn score(&self, pod: &PodState, nodes: &[&Node]) -> Result<HashMap<String, i64>, ExtenderError> {
        let response = self.send(&self.settings.prioritize_verb, self.arguments(pod, nodes)).await?;
        let points = |one: &Value| {
            let score = field(one, "score").as_i64().unwrap_or(0);
            (text(field(one, "host")), score * self.settings.weight * (MAX_SCORE / MAX_POINTS))
        };
        Ok(list(&response).iter().map(points).collect())
    }

    /// Keeps the candidates that the extender agrees to, with the victims that it returns.
    pub async fn preempt(
        &self,
        pod: &PodState,
        candidates: Vec<Victims>,
        cluster: &Cluster,
    ) -> Result<Vec<Victims>, ExtenderError> {
        let name_of = |victims: &Victims| cluster.node(victims.node).name().to_owned();
        let described = |victims: &Victims| {
            let pods: Vec<Value> = victims
                .pods
                .iter()
                .map(|victim| {
                    if self.settings.node_cache_capable {
                        json!({"UID": victim.uid()})
                    } else {
                        json!(victim.whole.as_deref())
                    }
                })
                .collect();
            json!({"Pods": pods, "NumPDBViolations": victims.violations})
        };
        let all: serde_json::Map<String, Value> =
            candidates.iter().map(|victims| (name_of(victims), described(victims))).collect();
        let given = if self.settings.node_cache_capable { "NodeNameToMetaVictims" } else { "NodeNameToVictims" };
        let response = self.send(&self.settings.preempt_verb, json!({"Pod": *pod.object, given: all})).await?;
        let agreed = field(&response, "nodeNameToMetaVictims").clone();
        let mut left = Vec::new();
        for mut victims in candidates {
            let Some(chosen) = agreed.get(name_of(&victims)) else { continue };
            let uids: BTreeSet<String> =
                list(field(chosen, "pods")).iter().map(|pod| text(field(pod, "uid"))).collect();
            let on_node = &cluster.node(victims.node).pods;
            victims.pods = on_node.iter().filter(|pod| uids.contains(pod.uid())).cloned().collect();
            let violations = field(chosen, "numPDBViolations").as_u64();
            victims.violations = violations.and_then(|count| usize::try_from(count).ok()).unwrap_or(victims.violations);
            left.push(victims);
        }
        Ok(left)
    }

    pub async fn bind(&self, pod: &PodState, node: &str) -> Result<(), ExtenderError> {
        let arguments =
            json!({"PodName": pod.name(), "PodNamespace": pod.namespace(), "PodUID": pod.uid(), "Node": node});
        let response = self.send(&self.settings.bind_verb, arguments).await?;
        let error = text(field(&response, "error"));
        if error.is_empty() { Ok(()) } else { Err(ExtenderError::Response(error)) }
    }

    fn arguments(&self, pod: &PodState, nodes: &[&Node]) -> Value {
        if self.settings.node_cache_capable {
            let names: Vec<&str> = nodes.iter().map(|node| node.metadata.name.as_deref().unwrap_or_default()).collect();
            json!({"Pod": *pod.object, "Nodes": null, "NodeNames": names})
        } else {
            json!({"Pod": *pod.object, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": null})
        }
    }

    async fn send(&self, verb: &str, arguments: Value) -> Result<Value, ExtenderError> {
        let url = format!("{}/{verb}", self.settings.url_prefix.trim_end_matches('/'));
        let request = http::Request::post(format!("/{verb}"))
            .header("content-type", "application/json")
            .body(kube::client::Body::from(arguments.to_string().into_bytes()));
        let failed = |source: kube::Error| ExtenderError::Request { url: url.clone(), source: Box::new(source) };
        let request = request.map_err(|error| failed(kube::Error::HttpError(error)))?;
        let response = self.client.send(request).await.map_err(failed)?;
        let code = response.status().as_u16();
        if code != 200 {
            return Err(ExtenderError::Refused { verb: verb.to_owned(), url, code });
        }
        let body = response.into_body().collect_bytes().await.map_err(failed)?;
        serde_json::from_slice(&body).map_err(|error| failed(kube::Error::SerdeError(error)))
    }
}

/// A field by name, in either capitalization: extenders write both.
fn field<'a>(object: &'a Value, name: &str) -> &'a Value {
    let fields = object.as_object().into_iter().flatten();
    fields.into_iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map_or(&Value::Null, |(_, value)| value)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

impl TlsSettings {
    /// The authorities for the extender's certificate; the other files are checked as well.
    pub fn authorities(&self) -> Result<Option<Vec<Vec<u8>>>, ExtenderError> {
        let opened =
            |file: &String| std::fs::read(file).map_err(|source| ExtenderError::File { file: file.clone(), source });
        if self.insecure && (self.ca_file.is_some() || self.ca_data.is_some()) {
            return Err(ExtenderError::InsecureAuthority);
        }
        let text = match (&self.ca_data, &self.ca_file) {
            // Invalid base64 holds no certificate, which is reported below.
            (Some(data), _) => Some(STANDARD.decode(data).unwrap_or_default()),
            (None, file) => file.as_ref().map(opened).transpose()?,
        };
        for file in [self.cert_file.as_ref(), self.key_file.as_ref()].into_iter().flatten() {
            opened(file)?;
        }
        let found = text.map(|text| certificates(&text));
        if found.as_ref().is_some_and(Vec::is_empty) {
            return Err(ExtenderError::Authority);
        }
        Ok(found)
    }
}

/// Why a file could not be opened, in Kubernetes' message.
fn go_error(error: &std::io::Error) -> String {
    match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    }
}

/// The certificates of a PEM file, as their bytes.
fn certificates(pem: &[u8]) -> Vec<Vec<u8>> {
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;
    CertificateDer::pem_slice_iter(pem).filter_map(Result::ok).map(|certificate| certificate.to_vec()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusable_files_are_reported() {
        let missing = Some("/nonexistent/file".to_owned());
        let data = |text: &str| Some(STANDARD.encode(text));
        for (settings, expected) in [
            (TlsSettings::default(), ""),
            (TlsSettings { insecure: true, ..TlsSettings::default() }, ""),
            (
                TlsSettings { ca_file: missing.clone(), ..TlsSettings::default() },
                "open /nonexistent/file: no such file or directory",
            ),
            (
                TlsSettings { key_file: missing.clone(), ..TlsSettings::default() },
                "open /nonexistent/file: no such file or directory",
            ),
            (
                TlsSettings { insecure: true, ca_data: data("x"), ..TlsSettings::default() },
                "specifying a root certificates file with the insecure flag is not allowed",
            ),
            (
                TlsSettings { ca_data: data("x"), ..TlsSettings::default() },
                "unable to load root certificates: unable to parse bytes as PEM block",
            ),
        ] {
            let go_error = settings.authorities().err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(go_error, expected);
        }
    }

    #[test]
    fn fields_are_found_in_either_capitalization() {
        let response = json!({"NodeNames": ["a"], "error": "no"});
        assert_eq!(list(field(&response, "nodeNames")).len(), 1);
        assert_eq!(text(field(&response, "Error")), "no");
        assert_eq!(field(&response, "nodes"), &Value::Null);
    }
}
