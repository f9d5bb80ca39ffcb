//! Admits new servers: verifies their token, adds their etcd member and sends them the files that all servers share, encrypted.
//!
//! The request is authenticated and authorized like any other: only tokens made with `--role server` are in the group that
//! may send it.

use std::net::IpAddr;
use std::sync::{Arc, LazyLock, OnceLock};

use anyhow::{Context as _, anyhow};
use async_trait::async_trait;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use knarr_apiserver::page::{Page, Pages};
use knarr_apiserver::response::Body;
use knarr_apiserver::route::query::Query;
use knarr_client::k8s_openapi::api::core::v1::Secret;
use knarr_client::kube::{Api, Client};
use knarr_store::{EtcdAdministration, EtcdMember};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::ThisServer;
use super::bundle::Bundle;
use super::member::{peer_url, server_name};
use super::seal::Sealed;
use crate::cluster::Cluster;
use crate::join::SERVER_GROUP;

/// The path of the request.
pub const PATH: &str = knarr_apiserver::admit::SERVER_JOIN_PATH;
const PAGE: &str = "server-join";

static ADMISSION: LazyLock<Arc<Admission>> = LazyLock::new(Arc::default);

/// The request of a new server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct JoinRequest {
    pub name: String,
    pub address: IpAddr,
    pub token_id: String,
    /// Whether it runs an etcd member; otherwise it uses an etcd that it was given.
    pub needs_member: bool,
}

/// The parts of the running server that admission uses.
pub struct Host {
    pub client: Client,
    pub this: ThisServer,
    pub cluster: Cluster,
    /// The members of etcd, if Knarr runs it.
    pub members: Option<Arc<EtcdAdministration>>,
}

/// The page of the API server, and what it needs once the server runs.
#[derive(Default)]
struct Admission {
    host: OnceLock<Host>,
}

/// The page for joining servers.
pub fn pages() -> Pages {
    let page: Arc<dyn Page> = ADMISSION.clone();
    Pages::from([(PAGE, page), super::rollout::page()])
}

/// Starts to admit servers.
pub fn open(host: Host) {
    // A process has one server.
    let _ = ADMISSION.host.set(host);
}

/// Why a server is not admitted.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("{0}")]
    Invalid(String),
    #[error("{0}")]
    Conflict(String),
    /// The new server should retry.
    #[error("{0}")]
    NotYet(String),
    #[error("{0:#}")]
    Internal(#[from] anyhow::Error),
}

#[async_trait]
impl Page for Admission {
    async fn serve(&self, head: &Parts, _: &Query, body: &Bytes) -> Response<Body> {
        if head.method != Method::POST {
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "a server joins with POST");
        }
        let admitted = match (self.host.get(), serde_json::from_slice::<JoinRequest>(body)) {
            (None, _) => Err(Refusal::NotYet("this server is still starting".to_owned())),
            (_, Err(error)) => Err(Refusal::Invalid(format!("not a request to join: {error}"))),
            (Some(host), Ok(request)) => host.admit(&request).await,
        };
        match admitted {
            Ok(sealed) => respond(StatusCode::OK, json!(sealed)),
            Err(error) => {
                tracing::warn!(%error, "a server was not admitted");
                let status = match &error {
                    Refusal::Invalid(_) => StatusCode::BAD_REQUEST,
                    Refusal::Conflict(_) => StatusCode::CONFLICT,
                    Refusal::NotYet(_) => StatusCode::SERVICE_UNAVAILABLE,
                    Refusal::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
                };
                refusal(status, &error.to_string())
            }
        }
    }
}

impl Host {
    async fn admit(&self, request: &JoinRequest) -> Result<Sealed, Refusal> {
        let secret = self.token_secret(&request.token_id).await?;
        let initial_cluster = match (&self.members, request.needs_member) {
            (Some(members), true) => Some(add_member(members, request).await?),
            (None, false) => None,
            (Some(_), false) => {
                return Err(Refusal::Invalid("this cluster runs its own etcd: join without --datastore".to_owned()));
            }
            (None, true) if self.this.datastore.is_empty() => {
                return Err(Refusal::Invalid(
                    "the first server keeps its objects in a store that it cannot share: \
                     restart it with `knarr server --cluster-init` once, then join"
                        .to_owned(),
                ));
            }
            (None, true) => {
                return Err(Refusal::Invalid(format!(
                    "this cluster uses an etcd of its own: join with --datastore {} and its --etcd-* flags",
                    self.this.datastore.join(",")
                )));
            }
        };
        // Only now: keys that are being replaced wait for a member that was added.
        let mut bundle = Bundle::collect(&self.this, &self.cluster)?;
        bundle.initial_cluster = initial_cluster;
        tracing::info!(server = request.name, address = %request.address, "a server joins");
        let text = serde_json::to_vec(&bundle).map_err(anyhow::Error::from)?;
        Ok(Sealed::new(&secret, text)?)
    }

    /// The secret of a token for servers.
    async fn token_secret(&self, id: &str) -> Result<String, Refusal> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), "kube-system");
        let found = secrets.get_opt(&format!("bootstrap-token-{id}")).await.context("cannot read the token")?;
        let data = found.and_then(|secret| secret.data).unwrap_or_default();
        let text =
            |key: &str| data.get(key).map(|value| String::from_utf8_lossy(&value.0).into_owned()).unwrap_or_default();
        let is_for_servers = text("auth-extra-groups").split(',').any(|group| group.trim() == SERVER_GROUP);
        if !is_for_servers || text("token-secret").is_empty() {
            return Err(Refusal::Invalid(
                "the token does not admit servers: make one with \
                 `knarr token create --role server --print-join-command`"
                    .to_owned(),
            ));
        }
        Ok(text("token-secret"))
    }
}

/// How the member of a new server is added, given the existing ones.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Add,
    /// It was added before, and never started.
    Reuse,
    /// It replaces this existing member at the same address, if that no longer responds.
    Replace(u64),
    /// Another member has the name.
    NameTaken,
    /// Another server, with this name or address, has not finished joining.
    Wait(String),
}

fn plan(members: &[EtcdMember], name: &str, peer: &str) -> Plan {
    let is_at = |member: &&EtcdMember| member.peer_urls.iter().any(|url| url == peer);
    if members.iter().any(|member| member.name == name && !is_at(&member)) {
        return Plan::NameTaken;
    }
    let joining = || members.iter().find(|member| member.is_learner);
    match members.iter().find(is_at) {
        Some(member) if member.name.is_empty() => Plan::Reuse,
        Some(member) => Plan::Replace(member.id),
        None => joining().map_or(Plan::Add, |member| Plan::Wait(server_name(member))),
    }
}

/// Whether other hosts can reach an address.
fn can_be_reached(address: IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified() && !address.is_multicast()
}

/// Adds the member of a new server, unless it has been added before. Returns all members in etcd's notation.
async fn add_member(members: &EtcdAdministration, request: &JoinRequest) -> Result<String, Refusal> {
    let (name, peer) = (request.name.as_str(), peer_url(request.address));
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) {
        return Err(Refusal::Invalid(format!("{name:?} is not the name of a server")));
    }
    if !can_be_reached(request.address) {
        // A member that never starts would keep all others from joining.
        let message = format!("the servers of this cluster cannot reach {}: set --node-ip", request.address);
        return Err(Refusal::Invalid(message));
    }
    let failed = |error: knarr_store::Error| Refusal::NotYet(error.to_string());
    let known = members.members().await.map_err(failed)?;
    match plan(&known, name, &peer) {
        Plan::Add => drop(members.add_learner(&peer).await.map_err(failed)?),
        Plan::Reuse => {}
        Plan::Replace(id) => {
            let old = known.iter().find(|member| member.id == id);
            for url in old.iter().flat_map(|member| &member.client_urls) {
                if members.status(url).await.is_ok() {
                    return Err(Refusal::Conflict(format!("a server at {} is running already", request.address)));
                }
            }
            members.remove(id).await.map_err(failed)?;
            members.add_learner(&peer).await.map_err(failed)?;
        }
        Plan::NameTaken => {
            return Err(Refusal::Conflict(format!(
                "there is a server {name} already: choose another --node-name, or, if it is gone, remove it with \
                 `knarr server remove {name}` on another server"
            )));
        }
        Plan::Wait(other) => {
            return Err(Refusal::NotYet(format!(
                "server {other} has not finished joining: if it is gone, remove it with `knarr server remove {other}` on a \
                 server that runs"
            )));
        }
    }
    let all = members.members().await.map_err(failed)?;
    let pairs: Vec<String> = all
        .iter()
        .filter_map(|member| {
            let url = member.peer_urls.first()?;
            Some(format!("{}={url}", if *url == peer { name } else { &member.name }))
        })
        .collect();
    if pairs.is_empty() {
        return Err(Refusal::Internal(anyhow!("etcd has no members")));
    }
    Ok(pairs.join(","))
}

pub fn respond(status: StatusCode, content: serde_json::Value) -> Response<Body> {
    let mut response = Response::new(Body::full(content.to_string()));
    *response.status_mut() = status;
    let kind = http::HeaderValue::from_static("application/json");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}

pub fn refusal(status: StatusCode, message: &str) -> Response<Body> {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "code": status.as_u16(),
    });
    respond(status, body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(id: u64, name: &str, peer: &str, is_learner: bool) -> EtcdMember {
        let (name, peer_urls) = (name.to_owned(), vec![peer.to_owned()]);
        EtcdMember { id, name, peer_urls, client_urls: vec![], is_learner }
    }

    #[test]
    fn a_server_has_an_address_of_its_own() {
        for (address, expected) in [
            ("10.0.0.1", true),
            ("fd00::1", true),
            ("127.0.0.1", false),
            ("::1", false),
            ("0.0.0.0", false),
            ("::", false),
            ("224.0.0.1", false),
            ("ff02::1", false),
        ] {
            assert_eq!(can_be_reached(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn a_member_is_added_once() {
        let one = member(1, "one", "https://10.0.0.1:2380", false);
        let new = "https://10.0.0.2:2380";
        for (members, name, expected) in [
            (vec![one.clone()], "two", Plan::Add),
            (vec![one.clone()], "one", Plan::NameTaken),
            (vec![one.clone(), member(2, "", new, true)], "two", Plan::Reuse),
            (vec![one.clone(), member(2, "two", new, false)], "two", Plan::Replace(2)),
            (vec![one.clone(), member(2, "two", new, false)], "one", Plan::NameTaken),
            (vec![one.clone(), member(3, "three", "https://10.0.0.3:2380", true)], "two", Plan::Wait("three".into())),
            (vec![one.clone(), member(3, "", "https://10.0.0.3:2380", true)], "two", Plan::Wait("10.0.0.3".into())),
        ] {
            assert_eq!(plan(&members, name, new), expected, "{members:?}");
        }
    }
}
