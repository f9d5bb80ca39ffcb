//! Certificate signing requests: approves those of nodes, signs approved ones, deletes old ones.
//!
//! [`request`] parses a request and checks a signer's rules, [`serving`] decides whether a node may serve under the names
//! it requests, [`network`] whether it requests a certificate for its own network components, [`mod@reserved`] lists the
//! names that no node may have, [`sign`] creates certificates.

mod der;
mod network;
mod request;
mod reserved;
mod serving;
mod sign;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::ByteString;
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestCondition};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::{Change, WorkQueue, node_identity, path_name, run_workers, time};
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};

use crate::common::key::name;
use crate::error::{Error, Result, ignore_not_found};
use crate::{Context, Settings};

use request::{CLIENT, KUBELET_CLIENT, KUBELET_SERVING, RequestedCertificate};
use reserved::Reserved;
use sign::Authority;

type Request = CertificateSigningRequest;

/// Parses a certificate request as every signer does, for fuzzing. All parsers must read the same identity.
#[doc(hidden)]
pub fn fuzz_request(der: &[u8]) {
    let label = "CERTIFICATE REQUEST";
    let text = format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", STANDARD.encode(der));
    for signer in request::SIGNERS {
        let spec = k8s_openapi::api::certificates::v1::CertificateSigningRequestSpec {
            request: ByteString(text.clone().into_bytes()),
            signer_name: signer.to_owned(),
            ..Default::default()
        };
        let read = RequestedCertificate::read(&spec);
        let identity = knarr_identity::of_request(&spec.request.0);
        assert_eq!(read.as_ref().ok().map(|read| &read.identity), identity.as_ref().ok());
        if let Ok(read) = read {
            let _ = (read.check(&spec), read.node().len(), read.names().count());
        }
    }
}

pub async fn run_approver(context: Context) {
    watch(context, |context, request| Box::pin(approve(context, request))).await;
}

pub async fn run_signer(context: Context) {
    let authorities = authorities(&context.settings);
    if authorities.is_empty() {
        tracing::info!("no signing authority is set; certificate requests are not signed");
        return;
    }
    let authorities = Arc::new(authorities);
    watch(context, move |context, request| {
        let authorities = authorities.clone();
        Box::pin(async move {
            match authorities.get(request.spec.signer_name.as_str()) {
                Some(authority) => issue(context, authority, request).await,
                None => Ok(()),
            }
        })
    })
    .await;
}

/// The authority of each signer that has one. A signer whose authority cannot be used signs nothing.
fn authorities(settings: &Settings) -> BTreeMap<&'static str, Authority> {
    let mut usable = BTreeMap::new();
    for signer in request::SIGNERS {
        let Some(authority) = settings.signers.get(signer).or(settings.signing.as_ref()) else { continue };
        match Authority::new(&authority.certificate, &authority.key) {
            Ok(authority) => drop(usable.insert(signer, authority)),
            Err(error) => {
                tracing::error!(%error, signer, "the signing authority cannot be used; its requests are not signed");
            }
        }
    }
    usable
}

pub async fn run_cleaner(context: Context) {
    let requests = context.informers.of::<Request>();
    requests.synced().await;
    let mut ticks = tokio::time::interval(Duration::from_secs(3600));
    loop {
        ticks.tick().await;
        let api: Api<Request> = Api::all(context.client.clone());
        let now = context.clock.now();
        for request in requests.list().into_iter().filter(|request| is_old(request, now)) {
            let preconditions = Preconditions { uid: request.metadata.uid.clone(), resource_version: None };
            let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
            if let Err(error) = ignore_not_found(api.delete(&path_name(name(&*request)), &params).await) {
                tracing::debug!(%error, "cannot delete an old certificate request; retrying in the next interval");
            }
        }
    }
}

/// Passes every request without a certificate to `handle`.
async fn watch<F>(context: Context, handle: F)
where
    F: Fn(Context, Arc<Request>) -> futures::future::BoxFuture<'static, Result<()>> + Clone + Send + Sync + 'static,
{
    let requests = context.informers.of::<Request>();
    let queue: Arc<WorkQueue<String>> = WorkQueue::new();
    let on_request = queue.clone();
    requests.on_change(move |change| {
        if !matches!(change, Change::Deleted(_)) && !is_issued(change.latest()) {
            on_request.add(name(&**change.latest()).to_owned());
        }
    });
    requests.synced().await;
    run_workers(queue, 5, move |key: String| {
        let (context, request, handle) = (context.clone(), requests.get("", &key), handle.clone());
        async move {
            match request.filter(|request| !is_issued(request)) {
                Some(request) => handle(context, request).await,
                None => Ok(()),
            }
        }
    })
    .await;
}

fn is_issued(request: &Request) -> bool {
    request
        .status
        .as_ref()
        .and_then(|status| status.certificate.as_ref())
        .is_some_and(|certificate| !certificate.0.is_empty())
}

fn condition<'a>(request: &'a Request, kind: &str) -> Option<&'a CertificateSigningRequestCondition> {
    request.status.as_ref()?.conditions.as_ref()?.iter().find(|condition| condition.type_ == kind)
}

/// Approves requests of kubelets for themselves, if the requester is authorized.
async fn approve(context: Context, request: Arc<Request>) -> Result<()> {
    if condition(&request, "Approved").is_some() || condition(&request, "Denied").is_some() {
        return Ok(());
    }
    let Ok(requested) = RequestedCertificate::read(&request.spec) else { return Ok(()) };
    if requested.check(&request.spec).is_err() {
        return Ok(());
    }
    match request.spec.signer_name.as_str() {
        KUBELET_CLIENT => approve_client(&context, &request, &requested).await,
        CLIENT if network::is_own(&request.spec, &requested) => approve_network(&context, &request).await,
        KUBELET_SERVING if context.settings.approve_kubelet_serving => {
            let nodes = context.informers.of::<Node>();
            nodes.synced().await;
            let reserved = reserved(&context).await?;
            serving::is_own(&request.spec, &requested, &nodes.list(), &reserved).map_err(Error::Later)?;
            add_approval(&context, &request, "Auto approving kubelet serving certificate for the node's own addresses.")
                .await
        }
        _ => Ok(()),
    }
}

/// A client certificate of a kubelet.
async fn approve_client(context: &Context, request: &Request, requested: &RequestedCertificate) -> Result<()> {
    let is_own = request.spec.username.as_deref() == Some(&requested.identity.name);
    if !is_own && context.settings.keep_nodes_apart {
        let nodes = context.informers.of::<Node>();
        nodes.synced().await;
        if nodes.get("", requested.node()).is_some() {
            // With the right to add nodes one would otherwise become any node that there is. An administrator may approve it.
            return Err(Error::Later(format!(
                "the node {:?} exists already, and did not request this",
                requested.node()
            )));
        }
    }
    let mut ways = vec![("nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview.")];
    if is_own {
        ways.insert(0, ("selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."));
    }
    for (way, message) in ways {
        if may(context, request, way).await? {
            return add_approval(context, request, message).await;
        }
    }
    Err(Error::Later("the requester may not have the certificate approved".to_owned()))
}

/// A client certificate of a node's network components.
async fn approve_network(context: &Context, request: &Request) -> Result<()> {
    match may(context, request, node_identity::APPROVAL).await? {
        true => add_approval(context, request, "Auto approving the client certificate of a node's own network.").await,
        false => Err(Error::Later("the node may not have the certificate of its network approved".to_owned())),
    }
}

async fn add_approval(context: &Context, request: &Request, message: &str) -> Result<()> {
    let mut changed = request.clone();
    let approved = new_condition("Approved", "AutoApproved", message, context.clock.now());
    changed.status.get_or_insert_default().conditions.get_or_insert_default().push(approved);
    let api: Api<Request> = Api::all(context.client.clone());
    ignore_not_found(
        api.replace_subresource("approval", &path_name(name(&changed)), &PostParams::default(), &changed).await,
    )?;
    Ok(())
}

async fn may(context: &Context, request: &Request, way: &str) -> Result<bool> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: request.spec.username.clone(),
            uid: request.spec.uid.clone(),
            groups: request.spec.groups.clone(),
            extra: request.spec.extra.clone(),
            resource_attributes: Some(ResourceAttributes {
                group: Some("certificates.k8s.io".to_owned()),
                resource: Some("certificatesigningrequests".to_owned()),
                subresource: Some(way.to_owned()),
                verb: Some("create".to_owned()),
                version: Some("*".to_owned()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(context.client.clone());
    let result = api.create(&PostParams::default(), &review).await?;
    Ok(result.status.is_some_and(|status| status.allowed))
}

async fn issue(context: Context, authority: &Authority, request: Arc<Request>) -> Result<()> {
    let failed = condition(&request, "Failed").is_some();
    if condition(&request, "Approved").is_none() || condition(&request, "Denied").is_some() || failed {
        return Ok(());
    }
    let mut changed = (*request).clone();
    let status = changed.status.get_or_insert_default();
    let requested = RequestedCertificate::read(&request.spec).map_err(|error| error.to_string());
    let reserved = reserved(&context).await?;
    match requested.and_then(|requested| check(&requested, &request, &reserved)).err() {
        Some(reason) => {
            let failed = new_condition("Failed", "SignerValidationFailure", &reason, context.clock.now());
            status.conditions.get_or_insert_default().push(failed);
        }
        None => {
            let length = lifetime(&request, context.settings.signing_duration);
            let signed = authority.sign(&request.spec, length, context.clock.now());
            let signed = signed.map_err(|error| Error::Later(format!("cannot sign: {error}")))?;
            status.certificate = Some(ByteString(signed.into_bytes()));
        }
    }
    let api: Api<Request> = Api::all(context.client.clone());
    ignore_not_found(
        api.replace_subresource("status", &path_name(name(&changed)), &PostParams::default(), &changed).await,
    )?;
    Ok(())
}

/// The names and addresses of all API servers. Without them nothing is approved or signed.
async fn reserved(context: &Context) -> Result<Reserved> {
    let slices = context.informers.of::<EndpointSlice>();
    slices.synced().await;
    // The controller's own account may not list Leases in Kubernetes' roles; whoever runs the informers may.
    let leases: Api<Lease> = Api::namespaced(context.informers.client().clone(), "kube-system");
    let of_api_servers = ListParams::default().labels("apiserver.kubernetes.io/identity=kube-apiserver");
    let leases = leases.list(&of_api_servers).await?.items;
    Ok(Reserved::new(&context.settings, &slices.list(), &leases))
}

/// Whether the request may be signed. Approval does not let a node have a certificate of the API server.
fn check(requested: &RequestedCertificate, request: &Request, reserved: &Reserved) -> Result<(), String> {
    requested.check(&request.spec)?;
    if request.spec.signer_name != KUBELET_SERVING {
        return Ok(());
    }
    let refusal = requested.names().find_map(|name| reserved.refuse(name, &request.spec, requested.node()));
    refusal.map_or(Ok(()), Err)
}

/// The requested duration, but at least ten minutes and at most the configured limit.
fn lifetime(request: &Request, max: Duration) -> Duration {
    const MIN_LIFETIME: Duration = Duration::from_secs(600);
    let requested = request.spec.expiration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    requested.map_or(max, |seconds| Duration::from_secs(seconds).clamp(MIN_LIFETIME.min(max), max))
}

fn new_condition(kind: &str, reason: &str, message: &str, now: Timestamp) -> CertificateSigningRequestCondition {
    CertificateSigningRequestCondition {
        type_: kind.to_owned(),
        status: "True".to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_update_time: Some(time::truncated(now)),
        last_transition_time: Some(time::truncated(now)),
    }
}

/// Decided requests are kept for an hour, others for a day; expired certificates not at all.
fn is_old(request: &Request, now: Timestamp) -> bool {
    let older = |since: Option<&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time>, hours: i64| {
        since.is_some_and(|since| time::since(now, since) > SignedDuration::from_hours(hours))
    };
    let decided =
        |kind: &str, hours: i64| condition(request, kind).is_some_and(|c| older(c.last_update_time.as_ref(), hours));
    let undecided = request.status.as_ref().and_then(|status| status.conditions.as_ref()).is_none_or(Vec::is_empty);
    let certificate = request.status.as_ref().and_then(|status| status.certificate.as_ref());
    decided("Denied", 1)
        || decided("Failed", 1)
        || decided("Approved", if is_issued(request) { 1 } else { 24 })
        || undecided && older(request.metadata.creation_timestamp.as_ref(), 24)
        || certificate.is_some_and(|certificate| sign::has_expired(&certificate.0, now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn request(spec: Value, status: Value) -> Request {
        let mut full = json!({"request": "", "signerName": KUBELET_CLIENT});
        for (key, value) in spec.as_object().cloned().unwrap() {
            full[key] = value;
        }
        serde_json::from_value(json!({"metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"}, "spec": full, "status": status}))
            .unwrap()
    }

    #[test]
    fn lifetimes_stay_within_bounds() {
        let max = Duration::from_secs(3600);
        for (requested, given) in [(Value::Null, 3600), (json!(1200), 1200), (json!(10), 600), (json!(99999), 3600)] {
            assert_eq!(lifetime(&request(json!({"expirationSeconds": requested}), json!({})), max).as_secs(), given);
        }
    }

    #[test]
    fn a_node_is_not_signed_into_the_api_server_s_place() {
        let reserved =
            Reserved::new(&reserved::tests::settings(), &reserved::tests::slices(), &reserved::tests::leases());
        for (name, is_signed) in [
            ("10.0.0.7", true),
            ("kubernetes.default.svc", false),
            ("10.96.0.1", false),
            ("192.0.2.9", false),
            ("lb.example", false),
        ] {
            let usages = ["digital signature", "server auth"];
            let spec = request::tests::spec(KUBELET_SERVING, "system:node:x", "system:nodes", &[name], &usages);
            let requested = RequestedCertificate::read(&spec).unwrap();
            let request = Request { spec, ..Request::default() };
            assert_eq!(check(&requested, &request, &reserved).is_ok(), is_signed, "{name}");
        }
    }

    #[test]
    fn requests_grow_old() {
        let decided = |kind: &str| json!({"conditions": [{"type": kind, "status": "True", "lastUpdateTime": "2026-01-01T00:00:00Z"}]});
        for (status, hour, old) in [
            (json!({}), 23, false),
            (json!({}), 25, true),
            (decided("Denied"), 2, true),
            (decided("Approved"), 2, false),
            (decided("Approved"), 25, true),
        ] {
            let now = Timestamp::from_second(1_767_225_600 + hour * 3600).unwrap();
            assert_eq!(is_old(&request(json!({}), status.clone()), now), old, "{status} after {hour} h");
        }
    }
}
