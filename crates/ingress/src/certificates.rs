//! TLS certificates by server name, from Secrets that may change at any time.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use arc_swap::ArcSwap;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::networking::v1::Ingress;
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::IngressError;
use crate::routes::oldest_first;

/// Secrets of one namespace that are used: each is watched by every node.
const MAX_SECRETS_OF_NAMESPACE: usize = 1000;

#[derive(Debug)]
pub struct Certificates {
    by_name: ArcSwap<HashMap<String, Arc<CertifiedKey>>>,
    /// For names that no Secret covers.
    default: Arc<CertifiedKey>,
}

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{0} is missing")]
    Missing(&'static str),
    #[error("cannot parse the certificate or key: {0}")]
    Unreadable(String),
}

impl Certificates {
    pub fn new() -> Result<Self, IngressError> {
        let failed = |error: String| IngressError::Certificate(error);
        let made = rcgen::generate_simple_self_signed(["ingress.local".to_owned()])
            .map_err(|error| failed(error.to_string()))?;
        let key =
            PrivateKeyDer::try_from(made.signing_key.serialize_der()).map_err(|error| failed(error.to_string()))?;
        let key = aws_lc_rs::sign::any_supported_type(&key).map_err(|error| failed(error.to_string()))?;
        let default = Arc::new(CertifiedKey::new(vec![made.cert.der().clone()], key));
        Ok(Self { by_name: ArcSwap::default(), default })
    }

    /// Replaces the certificates of all Ingresses.
    pub fn set(&self, by_name: HashMap<String, Arc<CertifiedKey>>) {
        self.by_name.store(Arc::new(by_name));
    }

    pub fn server_config(self: &Arc<Self>) -> Result<ServerConfig, rustls::Error> {
        let mut provider = aws_lc_rs::default_provider();
        // Smaller keys and hashes first: as secure, and a handshake costs half as much.
        provider.cipher_suites.sort_by_key(|suite| {
            use rustls::CipherSuite::{
                TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
                TLS13_AES_128_GCM_SHA256,
            };
            let first = [
                TLS13_AES_128_GCM_SHA256,
                TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
                TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            ];
            (suite.tls13().is_none(), !first.contains(&suite.suite()))
        });
        let builder = ServerConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_safe_default_protocol_versions()?.with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        config.ignore_client_order = true;
        // Clients resume their session by a ticket, without state on the server.
        config.ticketer = aws_lc_rs::Ticketer::new()?;
        config.send_tls13_tickets = 1;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }

    fn find(&self, name: &str) -> Arc<CertifiedKey> {
        let by_name = self.by_name.load();
        let wildcard = || name.find('.').and_then(|dot| by_name.get(&format!("*{}", &name[dot..])));
        Arc::clone(by_name.get(name).or_else(wildcard).unwrap_or(&self.default))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.find(&hello.server_name().unwrap_or_default().to_ascii_lowercase()))
    }
}

/// Namespace and name of the Secrets that Ingresses reference: those of the oldest, up to a limit in each namespace.
pub fn watched_secrets(ingresses: &[Arc<Ingress>]) -> BTreeSet<(String, String)> {
    let mut watched = BTreeSet::new();
    let mut counts: HashMap<String, usize> = HashMap::new();
    for (namespace, name) in oldest_first(ingresses).into_iter().flat_map(|ingress| secrets_of(ingress)) {
        let key = (namespace, name);
        if watched.contains(&key) {
            continue;
        }
        let count = counts.entry(key.0.clone()).or_default();
        *count += 1;
        if *count <= MAX_SECRETS_OF_NAMESPACE {
            watched.insert(key);
        }
    }
    for (namespace, count) in counts.iter().filter(|(_, count)| **count > MAX_SECRETS_OF_NAMESPACE) {
        tracing::warn!(namespace, count, limit = MAX_SECRETS_OF_NAMESPACE, "TLS secrets beyond the limit are not used");
    }
    watched
}

/// Namespace and name of the Secrets that an Ingress references.
fn secrets_of(ingress: &Ingress) -> Vec<(String, String)> {
    let namespace = ingress.metadata.namespace.as_deref().unwrap_or_default();
    let listed = ingress.spec.iter().flat_map(|spec| spec.tls.iter().flatten());
    let names = listed.filter_map(|tls| tls.secret_name.as_deref()).filter(|name| !name.is_empty());
    names.map(|name| (namespace.to_owned(), name.to_owned())).collect()
}

/// Certificates by name, from the TLS sections of the Ingresses; the oldest that names a host decides. Secrets that cannot be
/// used are logged and skipped. Each is parsed once, however often it is named.
pub fn of_ingresses(
    ingresses: &[Arc<Ingress>],
    secret_of: impl Fn(&str, &str) -> Option<Arc<Secret>>,
) -> HashMap<String, Arc<CertifiedKey>> {
    let mut by_name = HashMap::new();
    let mut parsed: HashMap<(&str, &str), Option<Arc<CertifiedKey>>> = HashMap::new();
    for ingress in oldest_first(ingresses) {
        let namespace = ingress.metadata.namespace.as_deref().unwrap_or_default();
        let Some(spec) = &ingress.spec else { continue };
        // The first section without hosts applies to all hosts, so that nothing is left to another.
        let mut is_applied_to_all = false;
        for tls in spec.tls.iter().flatten() {
            let is_for_all = tls.hosts.iter().flatten().next().is_none();
            if is_for_all && is_applied_to_all {
                continue;
            }
            let Some(name) = tls.secret_name.as_deref() else { continue };
            let read = || {
                let secret = secret_of(namespace, name)?;
                let key = read(&secret).inspect_err(|error| {
                    tracing::warn!(namespace, secret = name, %error, "a TLS secret cannot be used");
                });
                key.ok().map(Arc::new)
            };
            let Some(key) = parsed.entry((namespace, name)).or_insert_with(read).clone() else { continue };
            let rules = spec.rules.iter().flatten().filter_map(|rule| rule.host.as_ref());
            let listed: Vec<&String> = tls.hosts.iter().flatten().collect();
            // A TLS section without hosts applies to all hosts of the Ingress.
            let hosts = if listed.is_empty() { rules.collect() } else { listed };
            is_applied_to_all |= is_for_all;
            for host in hosts {
                by_name.entry(host.to_ascii_lowercase()).or_insert_with(|| Arc::clone(&key));
            }
        }
    }
    by_name
}

fn read(secret: &Secret) -> Result<CertifiedKey, CertificateError> {
    let field = |name: &'static str| {
        let data = secret.data.as_ref().and_then(|data| data.get(name));
        data.map(|bytes| bytes.0.as_slice()).ok_or(CertificateError::Missing(name))
    };
    let unreadable = |error: &dyn std::fmt::Display| CertificateError::Unreadable(error.to_string());
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(field("tls.crt")?)
        .collect::<Result<_, _>>()
        .map_err(|error| unreadable(&error))?;
    if chain.is_empty() {
        return Err(CertificateError::Missing("a certificate in tls.crt"));
    }
    let key = PrivateKeyDer::from_pem_slice(field("tls.key")?).map_err(|error| unreadable(&error))?;
    let key = aws_lc_rs::sign::any_supported_type(&key).map_err(|error| unreadable(&error))?;
    let certified = CertifiedKey::new(chain, key);
    match certified.keys_match() {
        Ok(()) | Err(rustls::Error::InconsistentKeys(rustls::InconsistentKeys::Unknown)) => Ok(certified),
        Err(error) => Err(unreadable(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use serde_json::json;

    fn secret(name: &str) -> Arc<Secret> {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        let data = [("tls.crt", made.cert.pem()), ("tls.key", made.signing_key.serialize_pem())];
        let data = data.into_iter().map(|(key, text)| (key.to_owned(), ByteString(text.into_bytes()))).collect();
        Arc::new(Secret { data: Some(data), ..Secret::default() })
    }

    #[test]
    fn names_find_their_certificate() {
        let (one, wild) = (secret("shop.example"), secret("*.example"));
        let ingress: Ingress = serde_json::from_value(json!({"metadata": {"name": "i", "namespace": "n"}, "spec": {
            "rules": [{"host": "*.example"}],
            "tls": [{"hosts": ["Shop.example"], "secretName": "one"}, {"secretName": "wild"}, {"secretName": "missing"}]}}))
        .unwrap();
        let found = of_ingresses(&[Arc::new(ingress)], |_, name| match name {
            "one" => Some(Arc::clone(&one)),
            "wild" => Some(Arc::clone(&wild)),
            _ => None,
        });
        let certificates = Certificates::new().unwrap();
        let default = certificates.find("shop.example").cert[0].clone();
        certificates.set(found);
        let of = |name: &str| certificates.find(name).cert[0].clone();
        assert_ne!(of("shop.example"), default);
        assert_ne!(of("other.example"), of("shop.example"));
        assert_eq!(of("a.b.example"), default);
    }

    fn with_secrets(namespace: &str, created: &str, secrets: &[&str]) -> Arc<Ingress> {
        let tls: Vec<_> = secrets.iter().map(|name| json!({"hosts": ["shop.example"], "secretName": name})).collect();
        let ingress = json!({"metadata": {"name": "i", "namespace": namespace, "creationTimestamp": created},
            "spec": {"tls": tls}});
        Arc::new(serde_json::from_value(ingress).unwrap())
    }

    #[test]
    fn an_older_ingress_keeps_its_certificate_and_secrets_are_parsed_once() {
        let (own, forged) = (secret("shop.example"), secret("shop.example"));
        let victim = with_secrets("shop", "2026-01-01T00:00:00Z", &["own"]);
        let hostile = with_secrets("a-hostile", "2026-02-01T00:00:00Z", &["forged"; 1000]);
        let count = std::cell::Cell::new(0);
        let found = of_ingresses(&[hostile, victim], |_, name| {
            count.set(count.get() + 1);
            Some(Arc::clone(if name == "own" { &own } else { &forged }))
        });
        assert_eq!(found["shop.example"].cert, read(&own).unwrap().cert);
        assert_eq!(count.get(), 2);
    }

    #[test]
    fn sections_without_hosts_do_not_multiply_with_rules() {
        let (own, other) = (secret("shop.example"), secret("shop.example"));
        let hosts: Vec<_> = (0..20_000).map(|number| json!({"host": format!("h{number}.example")})).collect();
        let mut tls = vec![json!({"secretName": "missing"}), json!({"secretName": "own"})];
        tls.extend((0..20_000).map(|_| json!({"secretName": "other"})));
        let ingress = json!({"metadata": {"name": "i", "namespace": "n"}, "spec": {"rules": hosts, "tls": tls}});
        let ingress: Arc<Ingress> = Arc::new(serde_json::from_value(ingress).unwrap());
        let started = std::time::Instant::now();
        let found = of_ingresses(&[ingress], |_, name| match name {
            "own" => Some(Arc::clone(&own)),
            "other" => Some(Arc::clone(&other)),
            _ => None,
        });
        assert_eq!(found.len(), 20_000);
        assert_eq!(found["h19999.example"].cert, read(&own).unwrap().cert);
        assert!(started.elapsed() < std::time::Duration::from_secs(10), "{:?}", started.elapsed());
    }

    #[test]
    fn an_ingress_does_not_make_nodes_watch_secrets_without_end() {
        let names: Vec<String> = (0..5000).map(|number| format!("s{number}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let hostile = with_secrets("a-hostile", "2026-01-01T00:00:00Z", &names);
        let victim = with_secrets("shop", "2026-02-01T00:00:00Z", &["own"]);
        let watched = watched_secrets(&[hostile, victim]);
        assert_eq!(watched.len(), MAX_SECRETS_OF_NAMESPACE + 1);
        assert!(watched.contains(&("shop".to_owned(), "own".to_owned())));
    }
}
