//! What a certificate request contains, and which requests each signer accepts.

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use knarr_identity::{Identity, IdentityError};
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;

pub(super) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(super) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(super) const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
const NODE_PREFIX: &str = "system:node:";
pub(super) const SIGNERS: [&str; 3] = [CLIENT, KUBELET_CLIENT, KUBELET_SERVING];

/// Subject and alternative names of a request.
#[derive(Debug, Default, PartialEq)]
pub(super) struct RequestedCertificate {
    pub identity: Identity,
    pub dns_names: Vec<String>,
    /// As text.
    pub addresses: Vec<String>,
    emails: usize,
    uris: usize,
    /// Alternative names of types that no signer accepts.
    others: usize,
}

/// Passes the parsed request to `use_it`.
pub(super) fn parse<T>(
    spec: &CertificateSigningRequestSpec,
    use_it: impl FnOnce(&X509CertificationRequest) -> T,
) -> Option<T> {
    let block = Pem::iter_from_buffer(&spec.request.0).next()?.ok()?;
    match X509CertificationRequest::from_der(&block.contents) {
        Ok(([], request)) if block.label == "CERTIFICATE REQUEST" => Some(use_it(&request)),
        _ => None,
    }
}

/// The subject alternative names of the request.
pub(super) fn names<'a>(request: &'a X509CertificationRequest) -> Vec<&'a GeneralName<'a>> {
    let extensions = request.requested_extensions().into_iter().flatten();
    let names = extensions.filter_map(|extension| match extension {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    names.flatten().collect()
}

impl RequestedCertificate {
    pub fn read(spec: &CertificateSigningRequestSpec) -> Result<Self, IdentityError> {
        let read = parse(spec, |request| {
            let identity = knarr_identity::of_subject(&request.certification_request_info.subject)?;
            let mut requested = Self { identity, ..Self::default() };
            for name in names(request) {
                match name {
                    GeneralName::DNSName(name) => requested.dns_names.push((*name).to_owned()),
                    GeneralName::IPAddress(bytes) => match address(bytes) {
                        Some(address) => requested.addresses.push(address),
                        None => requested.others += 1,
                    },
                    GeneralName::RFC822Name(_) => requested.emails += 1,
                    GeneralName::URI(_) => requested.uris += 1,
                    _ => requested.others += 1,
                }
            }
            Ok(requested)
        });
        read.ok_or(IdentityError::Request)?
    }

    /// The node that a kubelet's certificate is for.
    pub fn node(&self) -> &str {
        self.identity.name.strip_prefix(NODE_PREFIX).unwrap_or_default()
    }

    /// DNS names and addresses.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.dns_names.iter().chain(&self.addresses)
    }

    /// Whether the signer accepts the request, or why it does not.
    pub fn check(&self, spec: &CertificateSigningRequestSpec) -> Result<(), String> {
        let usages = spec.usages.clone().unwrap_or_default();
        let has = |usage: &str| usages.iter().any(|present| present == usage);
        let refuse = |reason: &str| Err(reason.to_owned());
        // Elliptic curve keys need no encipherment.
        let check_usages = |purpose: &str| {
            let required = [purpose, "digital signature", "key encipherment"];
            let has_only_these = usages.iter().all(|usage| required.contains(&usage.as_str()));
            if has_only_these && has(purpose) && has("digital signature") {
                return Ok(());
            }
            let mut rendered = required;
            rendered.sort_unstable();
            Err(format!("usages did not match [{}]", rendered.join(" ")))
        };
        match spec.signer_name.as_str() {
            CLIENT => {
                let allowed = ["digital signature", "key encipherment", "client auth"];
                if let Some(usage) = usages.iter().find(|usage| !allowed.contains(&usage.as_str())) {
                    return Err(format!("invalid usage for client certificate: {usage}"));
                }
                if !has("client auth") {
                    return refuse("missing required usage for client certificate: client auth");
                }
                Ok(())
            }
            KUBELET_CLIENT => {
                self.check_organization()?;
                let surplus = [
                    ("DNS", self.dns_names.len()),
                    ("Email", self.emails),
                    ("IP", self.addresses.len()),
                    ("URI", self.uris),
                    ("other", self.others),
                ];
                refuse_names(&surplus)?;
                self.check_common_name()?;
                check_usages("client auth")
            }
            KUBELET_SERVING => {
                self.check_organization()?;
                if self.names().next().is_none() {
                    return refuse("DNS or IP subjectAltName is required");
                }
                refuse_names(&[("Email", self.emails), ("URI", self.uris), ("other", self.others)])?;
                check_usages("server auth")?;
                self.check_common_name()
            }
            other => Err(format!("unrecognized signerName: \"{other}\"")),
        }
    }

    fn check_organization(&self) -> Result<(), String> {
        if self.identity.groups != ["system:nodes"] {
            return Err("subject organization is not system:nodes".to_owned());
        }
        Ok(())
    }

    fn check_common_name(&self) -> Result<(), String> {
        if !self.identity.name.starts_with(NODE_PREFIX) {
            return Err("subject common name does not begin with system:node:".to_owned());
        }
        if !is_node_name(self.node()) {
            return Err("subject common name does not name a node".to_owned());
        }
        Ok(())
    }
}

/// Node names are DNS names: lower case letters, digits, hyphens and dots.
fn is_node_name(name: &str) -> bool {
    let is_label = |label: &str| {
        let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        let mut bytes = label.bytes();
        is_edge(label.bytes().next())
            && is_edge(label.bytes().last())
            && bytes.all(|byte| byte == b'-' || is_edge(Some(byte)))
    };
    name.len() <= 253 && name.split('.').all(is_label)
}

fn refuse_names(counts: &[(&str, usize)]) -> Result<(), String> {
    match counts.iter().find(|(_, count)| *count > 0) {
        Some((kind, _)) => Err(format!("{kind} subjectAltNames are not allowed")),
        None => Ok(()),
    }
}

fn address(bytes: &[u8]) -> Option<String> {
    let four = <[u8; 4]>::try_from(bytes).map(|bytes| std::net::Ipv4Addr::from(bytes).to_string());
    four.or_else(|_| <[u8; 16]>::try_from(bytes).map(|bytes| std::net::Ipv6Addr::from(bytes).to_string())).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use rcgen::{CertificateParams, DnType, KeyPair};

    pub fn spec(
        signer: &str,
        name: &str,
        organization: &str,
        names: &[&str],
        usages: &[&str],
    ) -> CertificateSigningRequestSpec {
        let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, name);
        params.distinguished_name.push(DnType::OrganizationName, organization);
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        CertificateSigningRequestSpec {
            signer_name: signer.into(),
            request: ByteString(pem.into_bytes()),
            usages: Some(usages.iter().map(|usage| usage.to_string()).collect()),
            ..CertificateSigningRequestSpec::default()
        }
    }

    /// Created by openssl for `/O=system:nodes/CN=system:kube-controller-manager/CN=system:node:x`.
    #[test]
    fn a_request_with_two_common_names_is_refused() {
        let request = include_str!("two_names.csr");
        let spec = CertificateSigningRequestSpec {
            request: ByteString(request.as_bytes().to_vec()),
            ..spec(KUBELET_CLIENT, "a", "b", &[], &["digital signature", "client auth"])
        };
        assert_eq!(RequestedCertificate::read(&spec).unwrap_err().to_string(), "subject has more than one common name");
    }

    #[test]
    fn kubelets_are_named_after_nodes() {
        for (name, is_granted) in [
            ("system:node:a-1.example", true),
            ("system:node:", false),
            ("system:node:a b", false),
            ("system:node:A", false),
            ("system:node:a..b", false),
            ("system:node:-a", false),
            ("system:node:a:b", false),
        ] {
            let spec = spec(KUBELET_CLIENT, name, "system:nodes", &[], &["digital signature", "client auth"]);
            assert_eq!(RequestedCertificate::read(&spec).unwrap().check(&spec).is_ok(), is_granted, "{name}");
        }
    }

    #[test]
    fn signers_have_their_rules() {
        let (client, server) = (["digital signature", "client auth"], ["digital signature", "server auth"]);
        let no_usages = "usages did not match [client auth digital signature key encipherment]";
        for (case, spec, refused) in [
            ("a kubelet's", spec(KUBELET_CLIENT, "system:node:a", "system:nodes", &[], &client), ""),
            (
                "no node's name",
                spec(KUBELET_CLIENT, "admin", "system:nodes", &[], &client),
                "subject common name does not begin with system:node:",
            ),
            (
                "another group",
                spec(KUBELET_CLIENT, "system:node:a", "system:masters", &[], &client),
                "subject organization is not system:nodes",
            ),
            (
                "names for a client",
                spec(KUBELET_CLIENT, "system:node:a", "system:nodes", &["a"], &client),
                "DNS subjectAltNames are not allowed",
            ),
            (
                "addresses for a client",
                spec(KUBELET_CLIENT, "system:node:a", "system:nodes", &["10.0.0.1"], &client),
                "IP subjectAltNames are not allowed",
            ),
            ("wrong usage", spec(KUBELET_CLIENT, "system:node:a", "system:nodes", &[], &server), no_usages),
            ("serving", spec(KUBELET_SERVING, "system:node:a", "system:nodes", &["a", "10.0.0.1"], &server), ""),
            (
                "serving nobody",
                spec(KUBELET_SERVING, "system:node:a", "system:nodes", &[], &server),
                "DNS or IP subjectAltName is required",
            ),
            ("a client's", spec(CLIENT, "jane", "team", &[], &client), ""),
            (
                "a server's as a client's",
                spec(CLIENT, "jane", "team", &[], &server),
                "invalid usage for client certificate: server auth",
            ),
            (
                "of nobody we know",
                spec("example.com/x", "jane", "team", &[], &client),
                "unrecognized signerName: \"example.com/x\"",
            ),
        ] {
            let requested = RequestedCertificate::read(&spec).unwrap();
            assert_eq!(requested.check(&spec).err().unwrap_or_default(), refused, "{case}");
        }
    }
}
