//! What a request asks for, and what each signer grants.

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::pem::Pem;
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

pub(super) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(super) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(super) const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub(super) const SIGNERS: [&str; 3] = [CLIENT, KUBELET_CLIENT, KUBELET_SERVING];

/// The subject and names a request wants certified.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asked {
    pub common_name: String,
    pub organizations: Vec<String>,
    pub dns_names: Vec<String>,
    /// As text.
    pub addresses: Vec<String>,
    emails: usize,
    uris: usize,
}

/// Answers what `use_it` makes of the request, if it can be read.
pub(super) fn parse<T>(
    spec: &CertificateSigningRequestSpec,
    use_it: impl FnOnce(&X509CertificationRequest) -> T,
) -> Option<T> {
    let block = Pem::iter_from_buffer(&spec.request.0).next()?.ok()?;
    let (_, request) = X509CertificationRequest::from_der(&block.contents).ok()?;
    Some(use_it(&request))
}

/// The other names the request wants.
pub(super) fn names<'a>(request: &'a X509CertificationRequest) -> Vec<&'a GeneralName<'a>> {
    let extensions = request.requested_extensions().into_iter().flatten();
    let names = extensions.filter_map(|extension| match extension {
        ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
        _ => None,
    });
    names.flatten().collect()
}

impl Asked {
    pub fn read(spec: &CertificateSigningRequestSpec) -> Option<Self> {
        parse(spec, |request| {
            let subject = &request.certification_request_info.subject;
            let text = |value: &AttributeTypeAndValue| value.as_str().unwrap_or_default().to_owned();
            let mut asked = Self {
                common_name: subject.iter_common_name().last().map(text).unwrap_or_default(),
                organizations: subject.iter_organization().map(text).collect(),
                ..Self::default()
            };
            for name in names(request) {
                match name {
                    GeneralName::DNSName(name) => asked.dns_names.push((*name).to_owned()),
                    GeneralName::IPAddress(bytes) => asked.addresses.extend(address(bytes)),
                    GeneralName::RFC822Name(_) => asked.emails += 1,
                    GeneralName::URI(_) => asked.uris += 1,
                    _ => {}
                }
            }
            asked
        })
    }

    /// DNS names and addresses.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.dns_names.iter().chain(&self.addresses)
    }

    /// Whether the signer grants this, or why it does not.
    pub fn check(&self, spec: &CertificateSigningRequestSpec) -> Result<(), String> {
        let usages = spec.usages.clone().unwrap_or_default();
        let has = |usage: &str| usages.iter().any(|present| present == usage);
        let refuse = |reason: &str| Err(reason.to_owned());
        // Keys of elliptic curves need no encipherment.
        let check_usages = |purpose: &str| {
            let required = [purpose, "digital signature", "key encipherment"];
            let has_only_these = usages.iter().all(|usage| required.contains(&usage.as_str()));
            if has_only_these && has(purpose) && has("digital signature") {
                return Ok(());
            }
            let mut shown = required;
            shown.sort_unstable();
            Err(format!("usages did not match [{}]", shown.join(" ")))
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
                let unwanted = [
                    ("DNS", self.dns_names.len()),
                    ("Email", self.emails),
                    ("IP", self.addresses.len()),
                    ("URI", self.uris),
                ];
                refuse_names(&unwanted)?;
                self.check_common_name()?;
                check_usages("client auth")
            }
            KUBELET_SERVING => {
                self.check_organization()?;
                if self.names().next().is_none() {
                    return refuse("DNS or IP subjectAltName is required");
                }
                refuse_names(&[("Email", self.emails), ("URI", self.uris)])?;
                check_usages("server auth")?;
                self.check_common_name()
            }
            other => Err(format!("unrecognized signerName: \"{other}\"")),
        }
    }

    fn check_organization(&self) -> Result<(), String> {
        if self.organizations != ["system:nodes"] {
            return Err("subject organization is not system:nodes".to_owned());
        }
        Ok(())
    }

    fn check_common_name(&self) -> Result<(), String> {
        if !self.common_name.starts_with("system:node:") {
            return Err("subject common name does not begin with system:node:".to_owned());
        }
        Ok(())
    }
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
            let asked = Asked::read(&spec).unwrap();
            assert_eq!(asked.check(&spec).err().unwrap_or_default(), refused, "{case}");
        }
    }
}
