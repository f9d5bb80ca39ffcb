//! The TLS configuration of the server: its serving certificate and the authorities of client certificates.

use std::sync::Arc;

use arc_swap::ArcSwap;
use knarr_identity::{Authorities, any_certificate};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::tls_settings::{LoadedCertificate, TlsSettings, TlsSettingsError};
use super::{Authority, Error, Leaf};
use crate::authenticate::{AddedAuthorities, ClientAuthorities, CurrentAuthorities};

/// The server's TLS state.
pub struct Serving {
    resolver: Arc<CertificateResolver>,
    /// PEM of the authority, sent in the chain so that clients that know only its hash can verify it.
    authority: String,
    config: Arc<ServerConfig>,
    clients: CurrentAuthorities,
    settings: TlsSettings,
    /// PEM of the cluster's own authorities of users and of front proxies.
    own_authorities: [String; 2],
}

/// Chooses the certificate of a connection.
#[derive(Debug)]
struct CertificateResolver {
    own: ArcSwap<CertifiedKey>,
    added: ArcSwap<Added>,
    keeps_own: bool,
    /// The cluster's own names of the server.
    own_names: Vec<&'static str>,
}

/// Certificates of the administrator.
#[derive(Debug, Default)]
struct Added {
    by_name: Vec<LoadedCertificate>,
    default: Option<LoadedCertificate>,
}

/// Names by which pods and components of the cluster know the server.
const CLUSTER_NAMES: [&str; 5] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];

impl CertificateResolver {
    fn choose(&self, name: Option<&str>) -> Arc<CertifiedKey> {
        let added = self.added.load();
        if let Some(named) = name.and_then(|name| added.by_name.iter().find(|one| one.is_for(name))) {
            return named.key.clone();
        }
        let is_own = self.keeps_own && name.is_none_or(|name| self.own_names.contains(&name));
        match &added.default {
            Some(default) if !is_own => default.key.clone(),
            _ => self.own.load_full(),
        }
    }
}

impl ResolvesServerCert for CertificateResolver {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.choose(hello.server_name()))
    }
}

impl Serving {
    pub fn new(leaf: &Leaf, clients: &Authority, proxies: &Authority, settings: TlsSettings) -> Result<Self, Error> {
        let resolver = Arc::new(CertificateResolver {
            own: ArcSwap::new(certified(leaf, &clients.certificate)?),
            added: ArcSwap::from_pointee(load(&settings)?),
            keeps_own: settings.keeps_own,
            own_names: CLUSTER_NAMES.to_vec(),
        });
        let provider = Arc::new(settings.algorithms.provider().map_err(TlsSettingsError::from)?);
        let own_authorities = [clients.certificate.clone(), proxies.certificate.clone()];
        let authorities = load_clients(&own_authorities, &settings)?;
        let mut accepted = vec![&authorities.users, &authorities.proxies];
        accepted.extend(&authorities.added.users);
        accepted.extend(authorities.added.proxies.as_ref().map(|(authorities, _)| authorities));
        let verifier = any_certificate(&accepted, &provider);
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&settings.algorithms.versions().map_err(TlsSettingsError::from)?)?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(&resolver) as Arc<dyn ResolvesServerCert>);
        let protocols: &[&[u8]] = if settings.without_http2 { &[b"http/1.1"] } else { &[b"h2", b"http/1.1"] };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let authority = clients.certificate.clone();
        let (config, clients) = (Arc::new(config), Arc::new(ArcSwap::from_pointee(authorities)));
        Ok(Serving { resolver, authority, config, clients, settings, own_authorities })
    }

    /// The configuration for new connections. It stays the same when certificates are renewed.
    pub fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.config)
    }

    /// The authorities of client certificates.
    pub fn clients(&self) -> CurrentAuthorities {
        Arc::clone(&self.clients)
    }

    /// Uses a renewed certificate for new connections.
    pub fn set_certificate(&self, leaf: &Leaf) -> Result<(), Error> {
        self.resolver.own.store(certified(leaf, &self.authority)?);
        Ok(())
    }

    /// Reads the administrator's certificates and authorities again: certificates for new connections, authorities for new
    /// requests.
    pub fn reload(&self) -> Result<(), Error> {
        self.resolver.added.store(Arc::new(load(&self.settings)?));
        self.clients.store(Arc::new(load_clients(&self.own_authorities, &self.settings)?));
        Ok(())
    }

    /// The files that `reload` reads.
    pub fn files(&self) -> Vec<std::path::PathBuf> {
        let TlsSettings { certificate, by_name, client_authorities, proxy_authorities, .. } = &self.settings;
        let mut files: Vec<_> = certificate.iter().flat_map(|(certificate, key)| [certificate, key]).cloned().collect();
        files.extend(by_name.iter().flat_map(|named| [&named.certificate, &named.key]).cloned());
        files.extend(client_authorities.iter().cloned());
        files.extend(proxy_authorities.iter().map(|(file, _)| file.clone()));
        files
    }
}

fn load(settings: &TlsSettings) -> Result<Added, Error> {
    let by_name = settings.by_name.iter();
    let by_name = by_name.map(|named| LoadedCertificate::load(&named.certificate, &named.key, &named.names));
    let default = settings.certificate.as_ref();
    let default = default.map(|(certificate, key)| LoadedCertificate::load(certificate, key, &[]));
    Ok(Added { by_name: by_name.collect::<Result<_, _>>()?, default: default.transpose()? })
}

fn load_clients(own: &[String; 2], settings: &TlsSettings) -> Result<ClientAuthorities, Error> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let of_pem = |pem: &str| Authorities::from_pem(pem.as_bytes(), &provider);
    let of_file = |path: &std::path::Path| -> Result<Authorities, Error> {
        let pem = std::fs::read_to_string(path).map_err(|source| Error::File {
            action: "cannot read",
            path: path.to_owned(),
            source,
        })?;
        Ok(of_pem(&pem)?)
    };
    let [users, proxies] = own;
    let proxy_authorities = settings.proxy_authorities.as_ref();
    let added = AddedAuthorities {
        users: settings.client_authorities.as_deref().map(of_file).transpose()?,
        proxies: proxy_authorities
            .map(|(file, names)| of_file(file).map(|authorities| (authorities, names.clone())))
            .transpose()?,
    };
    Ok(ClientAuthorities { users: of_pem(users)?, proxies: of_pem(proxies)?, added })
}

fn certified(leaf: &Leaf, authority: &str) -> Result<Arc<CertifiedKey>, Error> {
    let unreadable = |error: rustls_pki_types::pem::Error| rustls::Error::General(error.to_string());
    let chain = [leaf.certificate.as_str(), authority].map(str::as_bytes);
    let chain: Result<Vec<_>, _> = chain.into_iter().flat_map(CertificateDer::pem_slice_iter).collect();
    let key = PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).map_err(unreadable)?;
    let provider = aws_lc_rs::default_provider();
    Ok(Arc::new(CertifiedKey::from_der(chain.map_err(unreadable)?, key, &provider)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Identity, Pki, Purpose};
    use crate::request::Sender;
    use std::path::{Path, PathBuf};

    fn now() -> jiff::Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    /// Certificate and key files of another authority.
    fn files(directory: &Path, other: &Pki, name: &str) -> (PathBuf, PathBuf) {
        let purpose = Purpose::Serving { name: name.into(), names: vec![name.into()], addresses: vec![] };
        let leaf = other.authority.sign(&purpose, now()).unwrap();
        let (certificate, key) = (directory.join(format!("{name}.crt")), directory.join(format!("{name}.key")));
        std::fs::write(&certificate, leaf.certificate).unwrap();
        std::fs::write(&key, leaf.key).unwrap();
        (certificate, key)
    }

    #[test]
    fn connections_get_the_certificate_of_their_name() {
        let directory = tempfile::tempdir().unwrap();
        let other = Pki::open(&directory.path().join("other"), Identity::default(), now()).unwrap();
        let default = files(directory.path(), &other, "api.example.com");
        let named = files(directory.path(), &other, "a.example.org");
        let settings = |keeps_own| TlsSettings {
            certificate: Some(default.clone()),
            by_name: vec![super::super::NamedCertificate {
                certificate: named.0.clone(),
                key: named.1.clone(),
                names: vec!["*.example.org".into()],
            }],
            keeps_own,
            ..TlsSettings::default()
        };
        for (keeps_own, of_address) in [(true, "own"), (false, "default")] {
            let path = directory.path().join(of_address);
            let pki = Pki::open_with(&path, Identity::default(), settings(keeps_own), now()).unwrap();
            let resolver = &pki.serving.resolver;
            let first = |key: &CertifiedKey| key.cert[0].clone();
            let added = resolver.added.load();
            let (own, default) = (first(&resolver.own.load()), first(&added.default.as_ref().unwrap().key));
            let name_of = |name: Option<&str>| {
                let chosen = first(&resolver.choose(name));
                match chosen {
                    chosen if chosen == own => "own",
                    chosen if chosen == default => "default",
                    _ => "named",
                }
            };
            assert_eq!(name_of(None), of_address);
            assert_eq!(name_of(Some("kubernetes.default.svc")), of_address);
            assert_eq!(name_of(Some("b.example.org")), "named");
            assert_eq!(name_of(Some("b.c.example.org")), "default");
            assert_eq!(name_of(Some("api.example.com")), "default");
        }
    }

    #[test]
    fn clients_of_added_authorities_are_users_or_proxies() {
        use rustls_pki_types::UnixTime;
        let directory = tempfile::tempdir().unwrap();
        let other = Pki::open(&directory.path().join("other"), Identity::default(), now()).unwrap();
        let write = |name: &str, text: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        let settings = TlsSettings {
            client_authorities: Some(write("users", &other.authority.certificate)),
            proxy_authorities: Some((write("proxies", &other.front_proxy_authority.certificate), vec!["gate".into()])),
            ..TlsSettings::default()
        };
        let pki = Pki::open_with(&directory.path().join("own"), Identity::default(), settings, now()).unwrap();
        let at = UnixTime::since_unix_epoch(std::time::Duration::from_secs(now().as_second() as u64));
        let sender = |leaf: &Leaf| {
            let chain: Vec<_> =
                CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).map(Result::unwrap).collect();
            let connection = crate::authenticate::ClientConnection::new(pki.serving.clients(), &chain, at);
            match connection.sender(at) {
                Sender::Remote(user) => user.map_or_else(String::new, |user| user.name.clone()),
                Sender::FrontProxy => "a proxy".to_owned(),
                _ => "refused".to_owned(),
            }
        };
        let client = |user: &str| Purpose::Client { user: user.into(), group: String::new() };
        assert_eq!(sender(&pki.admin(now()).unwrap()), "kubernetes-admin");
        assert_eq!(sender(&other.authority.sign(&client("ann"), now()).unwrap()), "ann");
        assert_eq!(sender(&other.front_proxy_authority.sign(&client("gate"), now()).unwrap()), "a proxy");
        assert_eq!(sender(&other.front_proxy_authority.sign(&client("ann"), now()).unwrap()), "refused");
        std::fs::write(directory.path().join("users"), &pki.authority.certificate).unwrap();
        pki.serving.reload().unwrap();
        assert_eq!(sender(&other.authority.sign(&client("ann"), now()).unwrap()), "refused", "after a reload");
    }
}
