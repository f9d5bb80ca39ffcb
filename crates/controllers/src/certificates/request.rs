//! What a request asks for, and what each signer grants.

use k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec;
use rcgen::{CertificateSigningRequestParams, DnType, DnValue, SanType};

pub(super) const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(super) const KUBELET_CLIENT: &str = "kubernetes.io/kube-apiserver-client-kubelet";
pub(super) const KUBELET_SERVING: &str = "kubernetes.io/kubelet-serving";
pub(super) const SIGNERS: [&str; 3] = [CLIENT, KUBELET_CLIENT, KUBELET_SERVING];

/// The subject and names a request wants certified.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Asked {
    pub common_name: String,
    pub organizations: Vec<String>,
    /// DNS names and addresses, as text.
    pub names: Vec<String>,
    other_names: usize,
}

pub(super) fn parse(spec: &CertificateSigningRequestSpec) -> Option<CertificateSigningRequestParams> {
    CertificateSigningRequestParams::from_pem(std::str::from_utf8(&spec.request.0).ok()?).ok()
}

impl Asked {
    pub fn read(spec: &CertificateSigningRequestSpec) -> Option<Self> {
        let parsed = parse(spec)?;
        let mut asked = Self::default();
        for (kind, value) in parsed.params.distinguished_name.iter() {
            let text = text(value);
            match kind {
                DnType::CommonName => asked.common_name = text,
                DnType::OrganizationName => asked.organizations.push(text),
                _ => {}
            }
        }
        for san in &parsed.params.subject_alt_names {
            match san {
                SanType::DnsName(name) => asked.names.push(name.to_string()),
                SanType::IpAddress(address) => asked.names.push(address.to_string()),
                _ => asked.other_names += 1,
            }
        }
        Some(asked)
    }

    /// Whether the signer grants this, or why it does not.
    pub fn check(&self, spec: &CertificateSigningRequestSpec) -> Result<(), String> {
        let usages = spec.usages.clone().unwrap_or_default();
        let has = |usage: &str| usages.iter().any(|present| present == usage);
        let only = |allowed: &[&str]| usages.iter().all(|usage| allowed.contains(&usage.as_str()));
        let refuse = |reason: &str| Err(reason.to_owned());
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
                self.check_node()?;
                if !self.names.is_empty() || self.other_names > 0 {
                    return refuse("DNS, IP, email and URI subjectAltNames are not allowed");
                }
                if !has("client auth")
                    || !has("digital signature")
                    || !only(&["key encipherment", "digital signature", "client auth"])
                {
                    return refuse("usages did not match [key encipherment digital signature client auth]");
                }
                Ok(())
            }
            KUBELET_SERVING => {
                self.check_node()?;
                if self.names.is_empty() {
                    return refuse("DNS or IP subjectAltName is required");
                }
                if self.other_names > 0 {
                    return refuse("email and URI subjectAltNames are not allowed");
                }
                if !has("server auth")
                    || !has("digital signature")
                    || !only(&["key encipherment", "digital signature", "server auth"])
                {
                    return refuse("usages did not match [key encipherment digital signature server auth]");
                }
                Ok(())
            }
            other => Err(format!("unrecognized signerName: \"{other}\"")),
        }
    }

    fn check_node(&self) -> Result<(), String> {
        if self.organizations != ["system:nodes"] {
            return Err("subject organization is not system:nodes".to_owned());
        }
        if !self.common_name.starts_with("system:node:") {
            return Err("subject common name does not begin with system:node:".to_owned());
        }
        Ok(())
    }
}

fn text(value: &DnValue) -> String {
    match value {
        DnValue::Utf8String(text) => text.clone(),
        DnValue::PrintableString(text) => text.as_str().to_owned(),
        DnValue::Ia5String(text) => text.as_str().to_owned(),
        DnValue::TeletexString(text) => text.as_str().to_owned(),
        _ => String::new(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use rcgen::{CertificateParams, KeyPair};

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
        for (case, spec, granted) in [
            ("a kubelet's", spec(KUBELET_CLIENT, "system:node:a", "system:nodes", &[], &client), true),
            ("no node's name", spec(KUBELET_CLIENT, "admin", "system:nodes", &[], &client), false),
            ("another group", spec(KUBELET_CLIENT, "system:node:a", "system:masters", &[], &client), false),
            ("names for a client", spec(KUBELET_CLIENT, "system:node:a", "system:nodes", &["a"], &client), false),
            ("wrong usage", spec(KUBELET_CLIENT, "system:node:a", "system:nodes", &[], &server), false),
            ("serving", spec(KUBELET_SERVING, "system:node:a", "system:nodes", &["a", "10.0.0.1"], &server), true),
            ("serving nobody", spec(KUBELET_SERVING, "system:node:a", "system:nodes", &[], &server), false),
            ("a client's", spec(CLIENT, "jane", "team", &[], &client), true),
            ("of nobody we know", spec("example.com/x", "jane", "team", &[], &client), false),
        ] {
            let asked = Asked::read(&spec).unwrap();
            assert_eq!(asked.check(&spec).is_ok(), granted, "{case}: {:?}", asked.check(&spec));
        }
    }
}
