//! Joins this host to a cluster as a further server: trusts only the authority that the token pins, and receives what all
//! servers share.

use std::net::IpAddr;

use anyhow::{Context as _, bail};
use knarr_client::kube::{self, Client, Config};

use super::admission::{JoinRequest, PATH};
use super::bundle::Bundle;
use super::seal::Sealed;
use crate::join::{JoinToken, fetch_authority, until_reached};

/// Asks a server of the cluster for admission, until it responds.
pub async fn join(
    server: &http::Uri,
    token: &JoinToken,
    name: &str,
    address: IpAddr,
    needs_member: bool,
) -> anyhow::Result<Bundle> {
    if server.scheme_str() != Some("https") || server.host().is_none() {
        bail!("--server is {server}, expected the form https://HOST:6443");
    }
    let authority = until_reached(|| fetch_authority(server, token.pin)).await?;
    let mut config = Config::new(server.clone());
    config.root_cert = Some(vec![authority]);
    config.auth_info.token = Some(token.bootstrap.bearer().into());
    let client = Client::try_from(config).context("cannot create a client from the token")?;
    let token_id = token.bootstrap.id.clone();
    let request = JoinRequest { name: name.to_owned(), address, token_id, needs_member };
    let body = serde_json::to_vec(&request)?;
    let response = until_reached(|| async {
        let request = http::Request::post(PATH)
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body.clone())
            .context("cannot build a request")?;
        client.request_text(request).await.map_err(|error| explain(error, &token.bootstrap.id))
    })
    .await?;
    let sealed: Sealed = serde_json::from_str(&response).context("the server's response is invalid")?;
    serde_json::from_slice(&sealed.open(&token.bootstrap.secret)?).context("the server's response is invalid")
}

fn explain(error: kube::Error, token: &str) -> anyhow::Error {
    let advice = "create one with `knarr token create --role server --print-join-command` on a server";
    let context = match &error {
        kube::Error::Api(status) => match status.code {
            401 => format!("the server rejected the token {token}: it has expired or was deleted; {advice}"),
            403 => format!("the token {token} admits nodes, not servers; {advice}"),
            404 => "the server cannot admit further servers: is it a `knarr server` of this version?".to_owned(),
            400 | 409 => return anyhow::anyhow!("{}", status.message),
            _ => "cannot join".to_owned(),
        },
        _ => "cannot join".to_owned(),
    };
    anyhow::Error::new(error).context(context)
}
