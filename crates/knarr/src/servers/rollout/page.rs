//! The path at which administrators start rollouts and read their progress. No role names it: it is for those who may use all
//! paths.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock, OnceLock};

use anyhow::Context as _;
use async_trait::async_trait;
use bytes::Bytes;
use http::request::Parts;
use http::{Method, Response, StatusCode};
use jiff::Timestamp;
use knarr_apiserver::page::Page;
use knarr_apiserver::response::Body;
use knarr_apiserver::route::query::Query;
use knarr_store::Error;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::task::Rollouts;
use super::{Kind, Rollout, authority, encryption};
use crate::servers::admission::{refusal, respond};
use crate::servers::seal::Sealed;

/// The path of requests.
pub const PATH: &str = "/server-rollout";

static PAGE: LazyLock<Arc<RolloutPage>> = LazyLock::new(Arc::default);

/// The request to start a rollout.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    pub kind: Kind,
    /// Does not wait for nodes that still use the old authority.
    #[serde(default)]
    pub is_forced: bool,
}

/// The progress of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    pub kind: Kind,
    /// The number of the current step, from 1.
    pub step: usize,
    pub steps: usize,
    pub applied: BTreeMap<String, usize>,
    /// The server whose turn it is.
    pub waiting_for_server: Option<String>,
    /// Nodes that still use the old authority.
    pub waiting_for_nodes: Vec<String>,
}

#[derive(Default)]
struct RolloutPage {
    rollouts: OnceLock<Rollouts>,
}

/// The page, under the first segment of its path.
pub fn page() -> (&'static str, Arc<dyn Page>) {
    ("server-rollout", PAGE.clone())
}

/// Starts to accept requests.
pub fn open(rollouts: Rollouts) {
    // A process has one server.
    let _ = PAGE.rollouts.set(rollouts);
}

#[async_trait]
impl Page for RolloutPage {
    async fn serve(&self, head: &Parts, _: &Query, body: &Bytes) -> Response<Body> {
        let Some(rollouts) = self.rollouts.get() else {
            return refusal(StatusCode::SERVICE_UNAVAILABLE, "this server is still starting");
        };
        let handled = match head.method {
            Method::GET => progress(rollouts).await,
            Method::POST => match serde_json::from_slice(body) {
                Ok(request) => start(rollouts, &request).await,
                Err(error) => return refusal(StatusCode::BAD_REQUEST, &error.to_string()),
            },
            _ => return refusal(StatusCode::METHOD_NOT_ALLOWED, "use GET or POST"),
        };
        match handled {
            Ok(progress) => respond(StatusCode::OK, json!(progress)),
            Err(error) => refusal(StatusCode::CONFLICT, &format!("{error:#}")),
        }
    }
}

async fn progress(rollouts: &Rollouts) -> anyhow::Result<Option<Progress>> {
    let Some((rollout, _)) = rollouts.load().await? else { return Ok(None) };
    let servers = rollouts.servers().await?;
    let waiting_for_server = rollout.waiting_for(&servers).cloned();
    let waits_for_nodes = rollout.kind == Kind::Authority && rollout.step == 1 && waiting_for_server.is_none();
    let waiting_for_nodes = if waits_for_nodes { rollouts.nodes_behind(&rollout.authority).await? } else { Vec::new() };
    Ok(Some(Progress {
        kind: rollout.kind,
        step: rollout.step + 1,
        steps: rollout.steps.len(),
        applied: rollout.applied,
        waiting_for_server,
        waiting_for_nodes,
    }))
}

/// Starts a rollout. If one of the same kind is in progress, it continues.
async fn start(rollouts: &Rollouts, request: &Request) -> anyhow::Result<Option<Progress>> {
    loop {
        match rollouts.load().await? {
            Some((mut rollout, revision)) => {
                anyhow::ensure!(rollout.kind == request.kind, "other keys are being replaced at present");
                if request.is_forced && !rollout.is_forced {
                    rollout.is_forced = true;
                    rollouts.save(&rollout, revision).await?;
                }
                break;
            }
            None => match rollouts.start(&create(rollouts, request)?).await {
                Ok(()) => break,
                // Another request started a rollout meanwhile, possibly of other keys: reads it.
                Err(Error::Exists(_)) => {}
                Err(error) => return Err(error).context("cannot start"),
            },
        }
    }
    progress(rollouts).await
}

fn create(rollouts: &Rollouts, request: &Request) -> anyhow::Result<Rollout> {
    let now = Timestamp::now();
    let read = |path: std::path::PathBuf| {
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let (steps, authority) = match request.kind {
        Kind::Authority => {
            let pki = rollouts.data.join("pki");
            authority::steps(&read(pki.join("ca.crt"))?, &read(pki.join("ca.key"))?, now)?
        }
        Kind::Encryption => {
            let current = rollouts.encryption.exists().then(|| read(rollouts.encryption.clone())).transpose()?;
            (encryption::steps(current.as_deref(), now)?, String::new())
        }
    };
    let secret = rollouts.secret()?;
    let sealed = steps.iter().map(|files| Sealed::new(&secret, serde_json::to_vec(files)?));
    Ok(Rollout {
        kind: request.kind,
        steps: sealed.collect::<anyhow::Result<_>>()?,
        step: 0,
        applied: BTreeMap::new(),
        authority,
        is_forced: request.is_forced,
    })
}
