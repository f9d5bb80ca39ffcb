//! Users that another server of the control plane has authenticated: it shows a certificate of an authority of its own
//! and names the user in headers.

use http::HeaderMap;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::request::User;

/// The name that a certificate must have so that its bearer is believed.
pub const CLIENT: &str = "front-proxy-client";

/// Whether a verified certificate is that of a proxy. `authority` is PEM.
pub fn is_front_proxy(certificate: &[u8], authority: &str) -> bool {
    let Ok((_, leaf)) = X509Certificate::from_der(certificate) else { return false };
    let Ok((_, pem)) = x509_parser::pem::parse_x509_pem(authority.as_bytes()) else { return false };
    let Ok(authority) = pem.parse_x509() else { return false };
    let named = leaf.subject().iter_common_name().any(|name| name.as_str() == Ok(CLIENT));
    named && leaf.issuer() == authority.subject() && leaf.verify_signature(Some(authority.public_key())).is_ok()
}

/// The user that the headers name; `None` when they name nobody.
pub fn user_of_headers(headers: &HeaderMap) -> Option<User> {
    let texts = |name: &str| -> Vec<String> {
        headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).map(str::to_owned).collect()
    };
    let name = texts("x-remote-user").into_iter().next().filter(|name| !name.is_empty())?;
    let mut user = User { name, groups: texts("x-remote-group"), ..User::default() };
    user.uid = texts("x-remote-uid").into_iter().next().unwrap_or_default();
    for header in headers.keys() {
        if let Some(key) = header.as_str().strip_prefix("x-remote-extra-") {
            let key = crate::route::query::decode(key, false).to_lowercase();
            user.extra.insert(key, texts(header.as_str()));
        }
    }
    Some(user)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Identity, Pki};
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    #[test]
    fn only_the_proxys_own_certificate_speaks_for_others() {
        let directory = tempfile::tempdir().unwrap();
        let now = jiff::Timestamp::UNIX_EPOCH;
        let pki = Pki::open(directory.path(), Identity::default(), now).unwrap();
        let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let proxy = pki.front_proxy_client(now).unwrap();
        assert!(is_front_proxy(&der(&proxy.certificate), &pki.front_proxy_authority.certificate));
        let forged = pki.client("forged", CLIENT, "", now).unwrap();
        assert!(!is_front_proxy(&der(&forged.certificate), &pki.front_proxy_authority.certificate));
    }

    #[test]
    fn headers_name_the_user() {
        let mut headers = HeaderMap::new();
        assert_eq!(user_of_headers(&headers), None);
        for (name, value) in [
            ("x-remote-user", "ann"),
            ("x-remote-group", "a"),
            ("x-remote-group", "b"),
            ("x-remote-extra-example.com%2fscope", "all"),
        ] {
            headers.append(name, value.parse().unwrap());
        }
        let user = user_of_headers(&headers).unwrap();
        assert_eq!((user.name.as_str(), user.groups.join(",").as_str()), ("ann", "a,b"));
        assert_eq!(user.extra["example.com/scope"], ["all"]);
    }
}
