//! Builds the API server from its settings and creates the objects that every cluster has.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use http::Method;
use jiff::Timestamp;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use knarr_store::{Error, Range, Store};
use knarr_supervisor::Registry;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::admit::{Chain, EnabledPlugins, QuotaWriter};
use crate::aggregate::Aggregation;
use crate::api_services;
use crate::authenticate::{Authenticator, External, RequestHeaders, ServiceAccountTokens, TokenFile};
use crate::authorize::{Authorizer, BuiltIn, NodeAuthorizer, NodeGraph, PreparedChain, Rbac, ReloadableChain, Rule};
use crate::background::kubernetes_service;
use crate::behaviour::Behaviour;
use crate::bootstrap::{self, DesiredObject};
use crate::documents::Documents;
use crate::encrypt::Encryption;
use crate::fairness::Fairness;
use crate::kinds::{Kinds, OpenDescriptions};
use crate::loopback::{self, OwnServer};
use crate::object_reader::ObjectReader;
use crate::outbound::WebhookClient;
use crate::outbound::kubelet_tls::Kubelets;
use crate::page::Pages;
use crate::persist::store_reader::StoreReader;
use crate::persist::{managed_fields, storage_events, store_error};
use crate::provided::{Provided, ProvidedKind, resource_metrics};
use crate::resource_request::Backend;
use crate::selection::topic;
use crate::service::ServiceAllocator;
use crate::state::{ApiServer, Discovery, Security, Telemetry};
use crate::stored;
use crate::token_use_recorder;

/// How many of the first objects are written concurrently, so that they share syncs of the disk.
const CONCURRENT_WRITES: usize = 64;

/// How often the system namespaces are checked.
const NAMESPACE_INTERVAL: Duration = Duration::from_secs(60);

/// The configuration of an API server.
pub struct Settings {
    /// The components of this process, for health checks and metrics.
    pub components: Registry,
    pub store: Arc<dyn Store>,
    pub token_file: TokenFile,
    pub service_accounts: Arc<ServiceAccountTokens>,
    pub descriptions: OpenDescriptions,
    /// PEM of the authority that signs client certificates.
    pub client_authority: String,
    /// PEM of the authority that signs the certificates of servers that authenticate users for this one.
    pub front_proxy_authority: String,
    /// Such as `10.96.0.0/12`; one per IP family.
    pub service_ranges: Vec<String>,
    /// The address and port at which clients reach this server.
    pub address: String,
    /// Kinds whose objects this process computes on request.
    pub provided: Vec<ProvidedKind>,
    /// Paths that other components of this process serve.
    pub pages: Pages,
    /// Admission plugins beyond those that always run.
    pub admission_plugins: EnabledPlugins,
    pub access: AccessSettings,
    pub behaviour: Behaviour,
}

/// Who may use the API beyond the cluster's own users, and who decides what users may do.
#[derive(Default)]
pub struct AccessSettings {
    pub authentication: External,
    pub authorization: PreparedChain,
    /// How values are encrypted in the store, where they are.
    pub encryption: Option<Encryption>,
    pub request_headers: RequestHeaders,
    /// The names that certificates of front proxies may have besides the cluster's own.
    pub proxy_names: Vec<String>,
}

/// A running server, with the switches that stop it and mark it as ready.
pub struct ServerHandle {
    pub server: Arc<ApiServer>,
    pub stop: watch::Sender<bool>,
    pub ready: watch::Sender<bool>,
}

/// Builds a server, which can handle requests at once. `prepare` then creates the objects that every cluster has.
pub fn start(settings: Settings) -> ServerHandle {
    knarr_metrics::register(crate::watch::FAMILIES);
    knarr_metrics::register(crate::request_metrics::FAMILIES);
    knarr_metrics::register(crate::metrics::FAMILIES);
    settings.store.index_topics(topic::PODS_BY_NODE);
    settings.store.index_topics(topic::NODES_BY_STATE);
    let provided = Provided::new(settings.provided);
    let catalogue = settings.behaviour.built_in.with_custom(provided.kinds().map(|(kind, _)| kind));
    let kinds = Arc::new(ArcSwap::from_pointee(Kinds::new(catalogue, &provided.by_path(), settings.descriptions)));
    settings.store.observe_changes(storage_events::observer(kinds.clone()));
    let objects: Arc<dyn ObjectReader> = Arc::new(StoreReader::new(settings.store.clone(), kinds.clone()));
    let rbac = Arc::new(Rbac::new(objects.clone()));
    let node_graph = Arc::new(NodeGraph::default());
    let nodes = NodeAuthorizer::new(node_graph.clone(), node_rules());
    let built_in = BuiltIn { node: Arc::new(nodes), rbac: rbac.clone() };
    let authorization = Arc::new(ReloadableChain::new(built_in, settings.access.authorization));
    let authorizer: Arc<dyn Authorizer> = authorization.clone();
    let own_server = OwnServer::default();
    let quotas = StoredQuotas { store: settings.store.clone(), kinds: kinds.clone() };
    let admission =
        Chain::new(authorizer.clone(), rbac.clone(), Arc::new(quotas), own_server.clone(), settings.admission_plugins);
    let services = Arc::new(ServiceAllocator::new(
        settings.store.clone(),
        kinds.clone(),
        objects.clone(),
        &settings.service_ranges,
        settings.behaviour.node_ports,
    ));
    let fairness = Fairness::new(settings.store.clone(), kinds.clone());
    let (stop, stopping) = watch::channel(false);
    let (ready, is_ready) = watch::channel(false);
    let kubelets = Kubelets::default();
    let aggregation = Aggregation::new(objects.clone(), kubelets.tunnels.clone());
    let webhook_client = WebhookClient::new(kubelets.tunnels.clone());
    let backend = Arc::new(Backend {
        store: settings.store,
        kinds,
        objects,
        authorizer,
        admission: Box::new(admission),
        hooks: services.clone(),
        webhook_client,
        fairness,
        behaviour: settings.behaviour,
        stopping,
    });
    let server = Arc::new(ApiServer {
        backend,
        services,
        kubelets,
        security: Security {
            authenticator: Arc::new(Authenticator::new(
                settings.token_file,
                settings.service_accounts.clone(),
                settings.access.authentication,
            )),
            authorization,
            rbac,
            node_graph,
            service_accounts: settings.service_accounts,
            encryption: settings.access.encryption,
            impersonation: Default::default(),
            request_headers: settings.access.request_headers,
            proxy_names: settings.access.proxy_names,
            sessions: Default::default(),
            saved_sessions: Default::default(),
            client_authority: settings.client_authority,
            front_proxy_authority: settings.front_proxy_authority,
        },
        discovery: Discovery {
            provided,
            aggregation,
            documents: Documents::new(settings.address),
            pages: settings.pages,
        },
        drain: Default::default(),
        telemetry: Telemetry { components: settings.components, ..Telemetry::default() },
        ready: is_ready,
    });
    own_server.set(&server);
    crate::definition_controller::load(&server);
    server.backend.fairness.load(&*server.backend.objects);
    ServerHandle { server, stop, ready }
}

/// Whether a resource is served: any of them can be disabled.
fn serves(server: &ApiServer, group: &str, version: &str, plural: &str) -> bool {
    server.backend.kinds.load().resource(group, version, plural).is_some()
}

/// Publishes the authority of client certificates, so that aggregated servers can authenticate their clients.
async fn publish_authorities(server: &Arc<ApiServer>) -> Result<(), PrepareError> {
    const NAME: &str = "extension-apiserver-authentication";
    const NAMESPACE: &str = "kube-system";
    if !serves(server, "", "v1", "configmaps") {
        return Ok(());
    }
    let mut object = match server.backend.objects.get("", "configmaps", NAMESPACE, NAME) {
        Some(existing) => (*existing).clone(),
        None => json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": NAMESPACE}}),
    };
    let headers = &server.security.request_headers;
    let own = crate::authenticate::FRONT_PROXY_CLIENT;
    let configured = server.security.proxy_names.iter().map(String::as_str).filter(|name| *name != own);
    let names: Vec<&str> = std::iter::once(own).chain(configured).collect();
    let data = json!({
        "client-ca-file": server.security.client_authority,
        "requestheader-allowed-names": json!(names).to_string(),
        "requestheader-client-ca-file": server.security.front_proxy_authority,
        "requestheader-extra-headers-prefix": json!(headers.extra_prefixes).to_string(),
        "requestheader-group-headers": json!(headers.group).to_string(),
        "requestheader-uid-headers": json!(headers.uid).to_string(),
        "requestheader-username-headers": json!(headers.username).to_string(),
    });
    if *object.at(&["data"]) == data {
        return Ok(());
    }
    let method = if object.has(&["metadata", "uid"]) { Method::PUT } else { Method::POST };
    object.set(&["data"], data);
    let path =
        loopback::ObjectPath { group: "", version: "v1", plural: "configmaps", namespace: NAMESPACE, name: NAME };
    loopback::send(server, method, &path, &object).await.map_err(|status| PrepareError {
        verb: "publish",
        resource: "configmaps",
        name: NAME.to_owned(),
        status: Box::new(status),
    })
}

/// Creates a missing object, or restores what an existing one lacks.
async fn ensure(server: &Arc<ApiServer>, desired: DesiredObject) -> Result<(), PrepareError> {
    if !serves(server, desired.group, desired.version, desired.resource) {
        return Ok(());
    }
    let path = loopback::ObjectPath {
        group: desired.group,
        version: desired.version,
        plural: desired.resource,
        namespace: desired.namespace(),
        name: desired.name(),
    };
    let existing = server.backend.objects.get(desired.group, desired.resource, desired.namespace(), desired.name());
    let written = match existing {
        None => loopback::send(server, Method::POST, &path, &desired.object).await,
        Some(existing) => match bootstrap::reconcile(&existing, &desired) {
            Some(revised) => loopback::send(server, Method::PUT, &path, &revised).await,
            None => Ok(()),
        },
    };
    written.map_err(|status| PrepareError {
        verb: "prepare",
        resource: desired.resource,
        name: desired.name().to_owned(),
        status: Box::new(status),
    })
}

/// The permissions of every node for objects that belong to no node in particular: the rules of its built-in role.
fn node_rules() -> Vec<Rule> {
    let all = bootstrap::desired_objects(&[]);
    let role = all.iter().find(|desired| desired.resource == "clusterroles" && desired.name() == "system:node");
    role.map(|role| role.object.items(&["rules"]).iter().map(Rule::from_value).collect()).unwrap_or_default()
}

/// Writes the used amounts of quotas to the store.
struct StoredQuotas {
    store: Arc<dyn Store>,
    kinds: Arc<ArcSwap<Kinds>>,
}

#[async_trait]
impl QuotaWriter for StoredQuotas {
    async fn write_used(&self, quota: &Value, used: Value) -> Result<bool, Status> {
        let kinds = self.kinds.load_full();
        let resource = kinds.stored("", "resourcequotas").ok_or_else(Status::no_such_resource)?;
        let (namespace, name) = (quota.text(&["metadata", "namespace"]), quota.text(&["metadata", "name"]));
        let revision = quota.text(&["metadata", "resourceVersion"]).parse().map_err(Status::internal)?;
        let mut charged = quota.clone();
        charged.set(&["status", "used"], used);
        managed_fields::record_status(resource, quota, &mut charged, Timestamp::now());
        let value = stored::encode(resource, &charged);
        match self.store.update(&resource.key(namespace, name), value, revision, None).await {
            Ok(_) => Ok(true),
            Err(Error::Conflict { .. }) => Ok(false),
            Err(error) => Err(store_error(error)),
        }
    }
}

/// An object that every cluster has cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {resource} {name}: {status}")]
pub struct PrepareError {
    verb: &'static str,
    resource: &'static str,
    name: String,
    status: Box<Status>,
}

/// Creates and restores the objects that every cluster has. `advertised` is the address by which the cluster reaches this
/// server.
pub async fn prepare(
    server: &Arc<ApiServer>,
    service_ranges: &[String],
    advertised: SocketAddr,
) -> Result<(), PrepareError> {
    // The server does not wait for keys of encrypted values where it reads for itself.
    server.backend.store.prepare_read(&Range { prefix: "/registry/", ..Range::default() }).await;
    server.services.repair(jiff::Timestamp::now()).await;
    // Namespaces come before the objects in them; beyond that the order is free.
    let (namespaces, mut others): (Vec<DesiredObject>, Vec<DesiredObject>) =
        bootstrap::desired_objects(service_ranges).into_iter().partition(|desired| desired.resource == "namespaces");
    if server.discovery.provided.serves(resource_metrics::GROUP) {
        others.extend(resource_metrics::policy());
    }
    for batch in [namespaces, others] {
        futures::stream::iter(batch)
            .map(Ok)
            .try_for_each_concurrent(CONCURRENT_WRITES, |desired| ensure(server, desired))
            .await?;
    }
    let (published, trust, since) = futures::join!(
        api_services::publish(server),
        publish_authorities(server),
        token_use_recorder::publish_tracking_start(server, jiff::Timestamp::now())
    );
    let () = published;
    trust?;
    since.map_err(|status| PrepareError {
        verb: "publish",
        resource: "configmaps",
        name: "kube-apiserver-legacy-service-account-token-tracking".to_owned(),
        status: Box::new(status),
    })?;
    kubernetes_service::publish(server, service_ranges, advertised).await.map_err(|status| PrepareError {
        verb: "publish",
        resource: "services",
        name: "kubernetes".to_owned(),
        status: Box::new(status),
    })?;
    server.backend.fairness.load(&*server.backend.objects);
    Ok(())
}

/// Creates or completes RBAC objects of this process's components, as the built-in ones.
pub async fn ensure_policy(server: &Arc<ApiServer>, objects: Vec<Value>) -> Result<(), PrepareError> {
    let desired = objects.into_iter().filter_map(bootstrap::policy_object);
    futures::stream::iter(desired)
        .map(Ok)
        .try_for_each_concurrent(CONCURRENT_WRITES, |desired| ensure(server, desired))
        .await
}

/// Restores the objects that every cluster has when they are deleted, until the server stops.
pub async fn maintain(server: Arc<ApiServer>, service_ranges: Vec<String>, advertised: SocketAddr) {
    tokio::join!(kubernetes_service::run(server.clone(), service_ranges, advertised), keep_namespaces(server),);
}

/// Creates the system namespaces again when they are gone.
async fn keep_namespaces(server: Arc<ApiServer>) {
    let mut stopping = server.backend.stopping.clone();
    loop {
        tokio::select! {
            () = tokio::time::sleep(NAMESPACE_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        for desired in bootstrap::desired_objects(&[]).into_iter().filter(|desired| desired.resource == "namespaces") {
            if let Err(error) = ensure(&server, desired).await {
                tracing::warn!(%error, "cannot create a system namespace");
            }
        }
    }
}
