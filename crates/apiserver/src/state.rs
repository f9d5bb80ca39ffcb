//! The state that all requests share.

use std::sync::{Arc, OnceLock};

use knarr_metrics::Indicators;
use knarr_supervisor::Registry;
use knarr_traces::Tracer;

use crate::aggregate::Aggregation;
use crate::audit::Audit;
use crate::authenticate::{
    Authenticator, Impersonation, RequestHeaders, SavedSessions, ServiceAccountTokens, Sessions,
};
use crate::authorize::{NodeGraph, Rbac, ReloadableChain};
use crate::documents::Documents;
use crate::drain::Drain;
use crate::encrypt::Encryption;
use crate::outbound::kubelet_tls::Kubelets;
use crate::page::Pages;
use crate::provided::Provided;
use crate::request_metrics::Metrics;
use crate::resource_request::Backend;
use crate::service::ServiceAllocator;

/// An API server. `startup` builds it, `pipeline` handles requests with it, `background` keeps it up to date.
pub struct ApiServer {
    pub backend: Arc<Backend>,
    /// Allocates cluster IPs and node ports.
    pub services: Arc<ServiceAllocator>,
    /// How kubelets are connected to.
    pub kubelets: Kubelets,
    pub security: Security,
    pub discovery: Discovery,
    /// Refuses requests while the server stops.
    pub drain: Drain,
    pub telemetry: Telemetry,
    /// Turns true once everything a new cluster needs is in place.
    pub ready: tokio::sync::watch::Receiver<bool>,
}

/// Authentication and authorization.
pub struct Security {
    pub authenticator: Arc<Authenticator>,
    /// The authorizer, whose configuration can be replaced.
    pub authorization: Arc<ReloadableChain>,
    /// The rules that access reviews list.
    pub rbac: Arc<Rbac>,
    /// Which node needs which object; kept up to date in the background.
    pub node_graph: Arc<NodeGraph>,
    pub service_accounts: Arc<ServiceAccountTokens>,
    /// How values are encrypted in the store, where they are.
    pub encryption: Option<Encryption>,
    pub impersonation: Impersonation,
    /// How front proxies name users.
    pub request_headers: RequestHeaders,
    /// The names that certificates of front proxies may have; none for any.
    pub proxy_names: Vec<String>,
    /// Sessions of browsers that show the page.
    pub sessions: Sessions,
    /// Those of the previous process, where there is a file for them.
    pub saved_sessions: OnceLock<SavedSessions>,
    /// PEM of the authority that signs client certificates.
    pub client_authority: String,
    /// PEM of the authority that signs the certificates of servers that authenticate users for this one.
    pub front_proxy_authority: String,
}

/// What is served besides stored objects, and the documents that describe everything served.
pub struct Discovery {
    /// Kinds whose objects this process computes on request instead of storing them.
    pub provided: Provided,
    /// Groups that other servers of the cluster serve.
    pub aggregation: Aggregation,
    /// Cached discovery and OpenAPI documents.
    pub documents: Documents,
    /// Paths that other components of this process serve.
    pub pages: Pages,
}

/// What the server records about itself and its requests.
#[derive(Default)]
pub struct Telemetry {
    pub metrics: Arc<Metrics>,
    /// The results of health checks, as metrics.
    pub health: Indicators,
    /// Where requests are recorded; unset without an audit policy.
    pub audit: OnceLock<Arc<Audit>>,
    /// The components of this process.
    pub components: Registry,
    /// Where spans of requests go; unset without a configuration for traces.
    pub tracer: OnceLock<Tracer>,
}
