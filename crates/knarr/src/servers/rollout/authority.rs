//! The steps of a new certificate authority: first all servers and nodes trust it, then it signs, then the old one is no longer
//! trusted.
//!
//! The new authority has a second certificate, signed by the old one. Servers and nodes send it in their chains, so that clients
//! that know only the old authority, such as pods, accept certificates of the new one.

use anyhow::Context as _;
use jiff::Timestamp;
use knarr_apiserver::pki::Authority;

use super::Files;
use crate::join::Pin;

/// The files of each step, and the hash of the new authority. `certificates` and `key` are the current `ca.crt` and `ca.key`.
pub fn steps(certificates: &str, key: &str, now: Timestamp) -> anyhow::Result<(Vec<Files>, String)> {
    let old = first(certificates)?;
    let new = Authority::create(&format!("knarr-ca-{}", now.as_second()), now)?;
    let cross = Authority::from_pem(&old, key)?.cross_sign(&new, now)?;
    let files = |certificates: String, key: &str, cross: Option<&str>| {
        let content = [
            ("pki/ca.crt", Some(certificates)),
            ("pki/ca.key", Some(key.to_owned())),
            ("pki/ca-cross.crt", cross.map(str::to_owned)),
        ];
        Files(content.map(|(name, text)| (name.to_owned(), text)).into())
    };
    let hash = pin_of_first(&new.certificate)?;
    let steps = vec![
        files(format!("{old}{}", new.certificate), key, None),
        files(format!("{}{old}", new.certificate), &new.key(), Some(&cross)),
        files(new.certificate.clone(), &new.key(), Some(&cross)),
    ];
    Ok((steps, hash))
}

/// The first certificate of a file: that of the authority that signs.
fn first(certificates: &str) -> anyhow::Result<String> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificates.as_bytes()).context("ca.crt is not a certificate")?;
    Ok(crate::join::pem(&pem.contents))
}

/// The hash of the first certificate of a file.
pub fn pin_of_first(certificates: &str) -> anyhow::Result<String> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificates.as_bytes()).context("ca.crt is not a certificate")?;
    Ok(Pin::of(&pem.contents)?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_apiserver::pki::Purpose;
    use rustls::pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject};
    use rustls::{RootCertStore, client::WebPkiServerVerifier, client::danger::ServerCertVerifier};
    use std::sync::Arc;

    /// Whether a client with these roots accepts a chain.
    fn is_accepted(roots: &str, chain: &str) -> bool {
        let mut store = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(roots.as_bytes()) {
            store.add(certificate.unwrap()).unwrap();
        }
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider).build().unwrap();
        let name = ServerName::try_from("api.example").unwrap();
        verifier.verify_server_cert(&chain[0], &chain[1..], &name, &[], UnixTime::now()).is_ok()
    }

    #[test]
    fn in_each_step_clients_of_the_step_before_accept_servers() {
        let now = Timestamp::now();
        let old = Authority::create("old", now).unwrap();
        let (steps, hash) = steps(&old.certificate, &old.key(), now).unwrap();
        assert_eq!(steps.len(), 3);
        let purpose = Purpose::Serving { name: "s".into(), names: vec!["api.example".into()], addresses: vec![] };
        let mut roots = vec![old.certificate.clone()];
        for (number, step) in steps.iter().enumerate() {
            let content = |name: &str| step.0[name].clone();
            let (certificates, key) = (content("pki/ca.crt").unwrap(), content("pki/ca.key").unwrap());
            let mut signer = Authority::from_pem(&certificates, &key).unwrap();
            signer.cross = content("pki/ca-cross.crt");
            let chain = signer.sign(&purpose, now).unwrap().certificate;
            roots.push(certificates);
            for trusted in &roots {
                assert!(is_accepted(trusted, &chain), "step {number}");
            }
            assert_eq!(pin_of_first(roots.last().unwrap()).unwrap() == hash, number > 0);
        }
        // What the old authority signed is accepted until the last step.
        let chain = old.sign(&purpose, now).unwrap().certificate;
        let accepted: Vec<bool> = roots.iter().map(|trusted| is_accepted(trusted, &chain)).collect();
        assert_eq!(accepted, [true, true, true, false]);
    }
}
