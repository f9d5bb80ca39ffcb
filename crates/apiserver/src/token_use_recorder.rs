//! Records on Secrets when their service account tokens were last used.

use std::sync::Arc;

use http::Method;
use jiff::Timestamp;
use knarr_api::value::Read;
use serde_json::json;

use crate::authenticate::day;
use crate::loopback;
use crate::state::ApiServer;

/// Records uses of tokens on their Secrets until the server stops.
pub async fn record_token_uses(server: Arc<ApiServer>) {
    let mut stopping = server.backend.stopping.clone();
    let uses = &server.security.service_accounts.uses;
    loop {
        let pending = tokio::select! {
            pending = uses.unrecorded() => pending,
            _ = stopping.wait_for(|stopping| *stopping) => return,
        };
        for ((namespace, name), patch) in pending {
            let path = loopback::ObjectPath {
                group: "",
                version: "v1",
                plural: "secrets",
                namespace: &namespace,
                name: &name,
            };
            // The next use of the token retries.
            if let Err(status) = loopback::send(&server, Method::PATCH, &path, &patch).await {
                tracing::warn!(namespace, name, %status, "cannot record the use of a token on its secret");
            }
        }
    }
}

/// Publishes since when uses of tokens are tracked: a token without a recorded use may have been used before that day.
pub async fn publish_tracking_start(server: &Arc<ApiServer>, now: Timestamp) -> Result<(), knarr_api::status::Status> {
    const NAME: &str = "kube-apiserver-legacy-service-account-token-tracking";
    const NAMESPACE: &str = "kube-system";
    let existing = server.backend.objects.get("", "configmaps", NAMESPACE, NAME);
    let since = existing.as_ref().map_or("", |existing| existing.text(&["data", "since"]));
    if since.parse::<jiff::civil::Date>().is_ok() {
        return Ok(());
    }
    let path =
        loopback::ObjectPath { group: "", version: "v1", plural: "configmaps", namespace: NAMESPACE, name: NAME };
    let data = json!({"since": day(now)});
    match existing {
        Some(_) => loopback::send(server, Method::PATCH, &path, &json!({"data": data})).await,
        None => {
            let metadata = json!({"name": NAME, "namespace": NAMESPACE});
            let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data});
            loopback::send(server, Method::POST, &path, &object).await
        }
    }
}
