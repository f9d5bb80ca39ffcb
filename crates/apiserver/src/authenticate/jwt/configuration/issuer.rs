//! The issuer of tokens: where its keys are found, and for whom its tokens are.

use std::collections::HashSet;

use http::Uri;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use serde_json::Value;

use crate::outbound::egress::Network;

/// An issuer of tokens.
#[derive(Clone, Debug)]
pub struct Issuer {
    pub url: String,
    /// Empty if it is found below the URL.
    pub discovery_url: String,
    /// PEM; empty for the authorities of the system.
    pub certificate_authority: String,
    pub audiences: Vec<String>,
    /// The network that its server is in, if connections into it may take another way.
    pub network: Option<Network>,
}

pub(super) fn read(issuer: &Value, path: &Path<'_>, reserved: &[String], errors: &mut Errors) -> Option<Issuer> {
    let before = errors.0.len();
    let (url, discovery_url) = (issuer.text(&["url"]), issuer.text(&["discoveryURL"]));
    if url.is_empty() {
        errors.required(&path.child("url"), "");
    } else {
        check_url(url, reserved, &path.child("url"), errors);
    }
    if !discovery_url.is_empty() {
        let path = path.child("discoveryURL");
        if !url.is_empty() && url.trim_end_matches('/') == discovery_url.trim_end_matches('/') {
            errors.invalid(&path, discovery_url, "discoveryURL must be different from URL");
        }
        check_url(discovery_url, &[], &path, errors);
    }
    let audiences: Vec<String> =
        issuer.items(&["audiences"]).iter().filter_map(Value::as_str).map(str::to_owned).collect();
    check_audiences(&audiences, issuer.text(&["audienceMatchPolicy"]), path, errors);
    let authority = issuer.text(&["certificateAuthority"]);
    if !authority.is_empty() && !is_bundle(authority) {
        let why = "data does not contain any valid RSA or ECDSA certificates";
        errors.invalid(&path.child("certificateAuthority"), "<omitted>", why);
    }
    let network = match issuer.text(&["egressSelectorType"]) {
        "" => None,
        "controlplane" => Some(Network::ControlPlane),
        "cluster" => Some(Network::Cluster),
        other => {
            let why = "egress selector must be either controlplane or cluster";
            errors.invalid(&path.child("egressSelectorType"), other, why);
            None
        }
    };
    (errors.0.len() == before).then(|| Issuer {
        url: url.to_owned(),
        discovery_url: discovery_url.to_owned(),
        certificate_authority: authority.to_owned(),
        audiences,
        network,
    })
}

fn is_bundle(pem: &str) -> bool {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    certificates.is_ok_and(|certificates| {
        !certificates.is_empty()
            && certificates.iter().all(|certificate| x509_parser::parse_x509_certificate(certificate).is_ok())
    })
}

fn check_url(url: &str, reserved: &[String], path: &Path<'_>, errors: &mut Errors) {
    if reserved.iter().any(|own| own == url) {
        let mut sorted = reserved.to_vec();
        sorted.sort();
        let why = format!("URL must not overlap with disallowed issuers: [{}]", sorted.join(" "));
        errors.invalid(path, url, why);
    }
    // Fragments are no part of what the parser keeps.
    let (plain, fragment) = url.split_once('#').unwrap_or((url, ""));
    let parsed: Uri = match plain.parse() {
        Ok(parsed) => parsed,
        Err(error) => {
            errors.invalid(path, url, format!("parse {url:?}: {error}"));
            return;
        }
    };
    if parsed.scheme_str() != Some("https") {
        errors.invalid(path, url, "URL scheme must be https");
    }
    if parsed.authority().is_some_and(|authority| authority.as_str().contains('@')) {
        errors.invalid(path, url, "URL must not contain a username or password");
    }
    if parsed.query().is_some_and(|query| !query.is_empty()) {
        errors.invalid(path, url, "URL must not contain a query");
    }
    if !fragment.is_empty() {
        errors.invalid(path, url, "URL must not contain a fragment");
    }
}

fn check_audiences(audiences: &[String], policy: &str, issuer: &Path<'_>, errors: &mut Errors) {
    let path = issuer.child("audiences");
    if audiences.is_empty() {
        errors.required(&path, format!("at least one {path} is required"));
        return;
    }
    let mut seen = HashSet::new();
    for (index, audience) in audiences.iter().enumerate() {
        if audience.is_empty() {
            errors.required(&path.index(index), "");
        }
        if !seen.insert(audience) {
            errors.duplicate(&path.index(index), audience.as_str());
        }
    }
    let policy_path = issuer.child("audienceMatchPolicy");
    if audiences.len() > 1 && policy != "MatchAny" {
        errors.invalid(&policy_path, policy, "audienceMatchPolicy must be MatchAny for multiple audiences");
    }
    if audiences.len() == 1 && !matches!(policy, "" | "MatchAny") {
        errors.invalid(&policy_path, policy, "audienceMatchPolicy must be empty or MatchAny for single audience");
    }
}
