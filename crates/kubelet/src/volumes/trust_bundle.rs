//! The certificates of cluster trust bundles in projected volumes.

use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::ClusterTrustBundleProjection;
use kube::Api;
use kube::api::ListParams;

use super::VolumeError;
use crate::api_text::api_text;
use crate::context::Context;

/// The certificates of one bundle by name, or of all bundles of a signer.
pub async fn trust_bundle(context: &Context, source: &ClusterTrustBundleProjection) -> Result<String, VolumeError> {
    let bundles: Api<ClusterTrustBundle> = Api::all(context.client.clone());
    let failed = |error: kube::Error| VolumeError::Path(format!("cluster trust bundle: {}", api_text(&error)));
    let optional = source.optional == Some(true);
    let mut found: Vec<String> = if let Some(name) = source.name.as_deref().filter(|name| !name.is_empty()) {
        bundles.get_opt(name).await.map_err(failed)?.into_iter().map(|bundle| bundle.spec.trust_bundle).collect()
    } else {
        let signer = source.signer_name.as_deref().unwrap_or_default();
        let parameters = ListParams::default().fields(&format!("spec.signerName={signer}"));
        let selector = knarr_client::selector::of_option(source.label_selector.as_ref())
            .map_err(|error| VolumeError::Path(error.to_string()))?;
        let all = bundles.list(&parameters).await.map_err(failed)?;
        all.items
            .into_iter()
            .filter(|bundle| selector.matches(bundle.metadata.labels.as_ref()))
            .map(|bundle| bundle.spec.trust_bundle)
            .collect()
    };
    if found.is_empty() && !optional {
        let name = source.name.clone().or_else(|| source.signer_name.clone()).unwrap_or_default();
        return Err(VolumeError::Missing { kind: "clustertrustbundle", name });
    }
    found.sort();
    found.dedup();
    Ok(found.join("\n"))
}
