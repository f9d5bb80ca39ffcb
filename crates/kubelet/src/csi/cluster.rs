//! What a mount reads from the API: secrets, tokens and attachments.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, Secret, SecretReference};
use k8s_openapi::api::storage::v1::{TokenRequest, VolumeAttachment};
use kube::Api;
use serde_json::json;

use super::error::plugin_text;
use super::paths::attachment_name;
use super::volume::VolumeId;
use crate::api_text::api_text;
use crate::tokens::Tokens;

/// Tokens are valid this long unless the driver says otherwise.
const DEFAULT_TOKEN_SECONDS: i64 = 3600;

/// Values that must not be printed. It has no `Debug` on purpose.
#[derive(Clone, Default)]
pub struct Credentials(pub BTreeMap<String, String>);

/// The content of a secret, or nothing without a reference.
pub async fn secret(client: &kube::Client, reference: Option<&SecretReference>) -> Result<Credentials, String> {
    let Some(reference) = reference else { return Ok(Credentials::default()) };
    let name = reference.name.as_deref().unwrap_or_default();
    let namespace = reference.namespace.as_deref().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = secrets.get(name).await.map_err(|error| {
        let error = api_text(&error);
        plugin_text(format!("failed to find the secret {name} in the namespace {namespace} with error: {error}"))
    })?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok(Credentials(secret.data.into_iter().flatten().map(|(key, value)| (key, text(value.0))).collect()))
}

/// The pod's service account tokens that the driver asks for, by audience.
pub async fn tokens(tokens: &Tokens, pod: &Pod, requests: &[TokenRequest]) -> Result<Credentials, String> {
    if requests.is_empty() {
        return Ok(Credentials::default());
    }
    let mut by_audience = serde_json::Map::new();
    for request in requests {
        let seconds = request.expiration_seconds.unwrap_or(DEFAULT_TOKEN_SECONDS);
        let token = tokens.get(pod, &request.audience, seconds).await.map_err(|error| error.to_string())?;
        let expires = knarr_client::time::truncated(token.expires_at);
        by_audience.insert(request.audience.clone(), json!({ "token": token.value, "expirationTimestamp": expires }));
    }
    let text = serde_json::Value::Object(by_audience).to_string();
    Ok(Credentials([("csi.storage.k8s.io/serviceAccount.tokens".to_string(), text)].into()))
}

/// The result of attaching a volume, which the node passes on to the driver.
pub async fn attachment(client: &kube::Client, id: &VolumeId, node: &str) -> Result<BTreeMap<String, String>, String> {
    let name = attachment_name(&id.handle, &id.driver, node);
    let attachments: Api<VolumeAttachment> = Api::all(client.clone());
    let found = attachments.get(&name).await.map_err(|error| {
        format!("volume {} has GET error for volume attachment {name}: {}", id.handle, api_text(&error))
    })?;
    if found.metadata.deletion_timestamp.is_some() {
        return Err("volume attachment is being deleted".to_string());
    }
    let status = found.status.unwrap_or_default();
    match (status.attached, status.attach_error.and_then(|error| error.message)) {
        (true, _) => Ok(status.attachment_metadata.unwrap_or_default()),
        (false, Some(message)) => Err(message),
        (false, None) => Err(format!("volume {} is not attached for volume attachment {name}", id.handle)),
    }
}

/// The code of the error with which the driver did not attach the volume; none if it did, or if that is unknown.
pub async fn attach_error_code(client: &kube::Client, id: &VolumeId, node: &str) -> Option<i32> {
    let name = attachment_name(&id.handle, &id.driver, node);
    let attachments: Api<VolumeAttachment> = Api::all(client.clone());
    match attachments.get_opt(&name).await {
        Ok(found) => found?.status?.attach_error?.error_code,
        Err(error) => {
            tracing::debug!(error = api_text(&error), attachment = name, "cannot read a VolumeAttachment");
            None
        }
    }
}
