//! The user of a client certificate: the common name is the user name, each organization a group. The signature is
//! verified elsewhere.

use std::collections::BTreeMap;

use knarr_identity::{Identity, IdentityError};

use crate::request::User;

pub fn user_of_certificate(der: &[u8]) -> Result<User, IdentityError> {
    let Identity { name, uid, groups } = knarr_identity::of_certificate(der)?;
    let fingerprint: String = {
        use sha2::{Digest, Sha256};
        Sha256::digest(der).iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let credential = vec![format!("X509SHA256={fingerprint}")];
    let extra = BTreeMap::from([("authentication.kubernetes.io/credential-id".to_owned(), credential)]);
    Ok(User { name, uid, groups, extra })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Identity, Pki};
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    #[test]
    fn the_subject_names_user_and_groups() {
        let directory = tempfile::tempdir().unwrap();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let pki = Pki::open(directory.path(), Identity::default(), now).unwrap();
        let leaf = pki.client("x", "system:node:one", "system:nodes", now).unwrap();
        let der = CertificateDer::from_pem_slice(leaf.certificate.as_bytes()).unwrap();
        let user = user_of_certificate(&der).unwrap();
        assert_eq!((user.name.as_str(), user.groups.as_slice()), ("system:node:one", &["system:nodes".to_owned()][..]));
        assert!(user_of_certificate(b"nonsense").is_err());
    }

    /// Created with openssl: `/O=system:nodes/CN=system:kube-controller-manager/CN=system:node:x`.
    #[test]
    fn a_certificate_with_two_common_names_is_refused() {
        let der = CertificateDer::from_pem_slice(include_bytes!("two_names.crt")).unwrap();
        assert_eq!(user_of_certificate(&der).unwrap_err().to_string(), "subject has more than one common name");
    }
}
