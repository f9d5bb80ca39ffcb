//! A node in the place of the API server, for tests.

use std::sync::Arc;

use knarr_apiserver::pki::Pki;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The configuration of a node's server that claims the address of the API server.
pub fn node_server(pki: &Pki) -> Arc<ServerConfig> {
    let key = rcgen::KeyPair::from_pem(&pki.authority.key()).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&pki.authority.certificate, key).unwrap();
    let mut params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.extended_key_usages = vec![rcgen::ExtendedKeyUsagePurpose::ServerAuth];
    let own = rcgen::KeyPair::generate().unwrap();
    let leaf = params.signed_by(&own, &issuer).unwrap();
    let authority = CertificateDer::from_pem_slice(pki.authority.certificate.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(own.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone(), authority], key)
        .unwrap();
    Arc::new(config)
}
