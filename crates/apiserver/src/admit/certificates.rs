//! Plugins for certificate requests and trust bundles: who may approve, sign and attest for which signer.

use std::sync::Arc;

use async_trait::async_trait;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_api::status::Status;
use knarr_api::value::Read;
use knarr_identity::Identity;

use super::{Operation, Plugin, Write};
use crate::authorize::{Authorizer, Decision};
use crate::object_reader::ObjectReader;
use crate::request::{Target, User};

const GROUP: &str = "certificates.k8s.io";
const REQUESTS: &str = "certificatesigningrequests";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Whether the user is authorized for this signer or for all signers of its domain.
fn may(authorizer: &dyn Authorizer, user: &User, verb: &str, signer: &str) -> bool {
    let domain = signer.split_once('/').map_or(signer, |(domain, _)| domain);
    [signer.to_owned(), format!("{domain}/*")].into_iter().any(|name| {
        let target = Target {
            verb: verb.into(),
            group: GROUP.into(),
            version: "*".into(),
            resource: "signers".into(),
            name,
            ..Target::default()
        };
        matches!(authorizer.decide(user, &target), Decision::Allow(_))
    })
}

pub struct CertificateApproval(pub Arc<dyn Authorizer>);

#[async_trait]
impl Plugin for CertificateApproval {
    fn name(&self) -> &'static str {
        "CertificateApproval"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Update && write.is_part_of(GROUP, REQUESTS) && write.subresource == "approval"
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let signer = write.old.map(|old| old.text(&["spec", "signerName"])).unwrap_or_default();
        if may(self.0.as_ref(), write.user, "approve", signer) {
            return Ok(());
        }
        Err(write.forbidden(format!("user not permitted to approve requests with signerName {signer:?}")))
    }
}

pub struct CertificateSigning(pub Arc<dyn Authorizer>);

#[async_trait]
impl Plugin for CertificateSigning {
    fn name(&self) -> &'static str {
        "CertificateSigning"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Update && write.is_part_of(GROUP, REQUESTS) && write.subresource == "status"
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let Some(old) = write.old else { return Ok(()) };
        let unchanged = ["certificate", "conditions"]
            .iter()
            .all(|field| old.at(&["status", field]) == write.object.at(&["status", field]));
        let signer = old.text(&["spec", "signerName"]);
        if unchanged || may(self.0.as_ref(), write.user, "sign", signer) {
            return Ok(());
        }
        Err(write.forbidden(format!("user not permitted to sign requests with signerName {signer:?}")))
    }
}

pub struct ClusterTrustBundleAttest(pub Arc<dyn Authorizer>);

#[async_trait]
impl Plugin for ClusterTrustBundleAttest {
    fn name(&self) -> &'static str {
        "ClusterTrustBundleAttest"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update) && write.is(GROUP, "clustertrustbundles")
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let signer = write.object.text(&["spec", "signerName"]);
        let same = write.old.is_some_and(|old| old.at(&["spec"]) == write.object.at(&["spec"]));
        if signer.is_empty() || same || may(self.0.as_ref(), write.user, "attest", signer) {
            return Ok(());
        }
        Err(write.forbidden(format!("user not permitted to attest for signerName {signer:?}")))
    }
}

/// Refuses certificate requests for members of `system:masters`.
pub struct CertificateSubjectRestriction;

#[async_trait]
impl Plugin for CertificateSubjectRestriction {
    fn name(&self) -> &'static str {
        "CertificateSubjectRestriction"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.creates(GROUP, REQUESTS)
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        if write.object.text(&["spec", "signerName"]) != CLIENT_SIGNER {
            return Ok(());
        }
        let identity = identity(write.object.text(&["spec", "request"]))
            .map_err(|why| write.forbidden(format!("failed to parse CSR: {why}")))?;
        if identity.groups.iter().any(|group| group == "system:masters") {
            let why = format!("use of {CLIENT_SIGNER} signer with system:masters group is not allowed");
            return Err(write.forbidden(why));
        }
        Ok(())
    }
}

/// The requested common name of a base64-encoded PEM request.
pub fn common_name(request: &str) -> Result<String, String> {
    identity(request).map(|identity| identity.name)
}

/// The requested identity of a base64-encoded PEM request.
fn identity(request: &str) -> Result<Identity, String> {
    let pem = STANDARD.decode(request).map_err(|error| error.to_string())?;
    knarr_identity::of_request(&pem).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use rcgen::{CertificateParams, DnType, KeyPair};
    use serde_json::json;

    fn request(organization: &str) -> String {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        let pem = params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap();
        STANDARD.encode(pem)
    }

    #[tokio::test]
    async fn requests_for_system_masters_are_refused() {
        let none = Fixed::new(vec![]);
        for (organization, refused) in [("devs", false), ("system:masters", true)] {
            let object = json!({"kind": "CertificateSigningRequest", "metadata": {"name": "c"},
                "spec": {"signerName": CLIENT_SIGNER, "request": request(organization)}});
            let at = (GROUP, REQUESTS);
            let result = run(&CertificateSubjectRestriction, Operation::Create, at, object, None, &none).await;
            assert_eq!(result.is_err(), refused, "{organization}");
        }
    }

    struct DenyAll;

    impl Authorizer for DenyAll {
        fn decide(&self, _user: &User, target: &Target) -> Decision {
            if target.name == "example.com/*" {
                Decision::Allow(String::new())
            } else {
                Decision::NoOpinion(String::new())
            }
        }
    }

    #[tokio::test]
    async fn approval_needs_the_right_for_the_signer() {
        let none = Fixed::new(vec![]);
        for (signer, refused) in [("example.com/x", false), ("other.com/x", true)] {
            let object = json!({"kind": "CertificateSigningRequest", "metadata": {"name": "c"},
                "spec": {"signerName": signer}});
            let at = (GROUP, "certificatesigningrequests/approval");
            let plugin = CertificateApproval(Arc::new(DenyAll));
            let result = run(&plugin, Operation::Update, at, object.clone(), Some(object), &none).await;
            assert_eq!(result.is_err(), refused, "{signer}");
        }
    }
}
