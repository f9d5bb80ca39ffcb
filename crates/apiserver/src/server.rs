//! The server: what a request passes through, from its bytes to its answer.

use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderName, HeaderValue, WARNING};
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use jiff::Timestamp;
use knarr_api::status::Status;
use knarr_store::Store;

use crate::admit::Chain;
use crate::aggregate::{self, Aggregation};
use crate::answer::{self, Body};
use crate::audit::{Audit, Record};
use crate::authenticate::{Authenticator, ServiceAccountTokens, impersonate, user_of_headers};
use crate::authorize::{Authorizer, Decision, NodeGraph, Rbac, forbidden};
use crate::deadline;
use crate::endpoint;
use crate::endpoint::metrics::Metrics;
use crate::fairness::{Class, Fairness};
use crate::kinds::Kinds;
use crate::objects::Objects;
use crate::outbound::Outbound;
use crate::request::{ANONYMOUS, Target, User};
use crate::route::accept::{self, Format, Offer};
use crate::route::query::Query;
use crate::route::target::{self, Routed};
use crate::service::Services;
use crate::subresource::connect::Kubelets;
use crate::trail::Passage;

/// The largest body that is read.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// A client that takes longer to send a body is not served.
const BODY_TIME: Duration = Duration::from_secs(60);

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// All that serving requests needs. Everything in it may be shared.
pub struct Server {
    pub store: Arc<dyn Store>,
    pub kinds: Arc<ArcSwap<Kinds>>,
    pub objects: Arc<dyn Objects>,
    pub admission: Chain,
    pub authenticator: Arc<Authenticator>,
    pub authorizer: Arc<dyn Authorizer>,
    /// What access reviews list rules from.
    pub rbac: Arc<Rbac>,
    /// Which node needs which object; kept up to date in the background.
    pub node_graph: Arc<NodeGraph>,
    pub service_accounts: Arc<ServiceAccountTokens>,
    pub services: Services,
    pub kubelets: Kubelets,
    /// PEM of the authority that signs client certificates.
    pub client_authority: String,
    /// Kinds that other parts of this process make the objects of.
    pub provided: crate::provided::Provided,
    /// PEM of the authority that signs the certificates of servers that authenticate users for this one.
    pub front_proxy_authority: String,
    /// What other servers of the cluster serve.
    pub aggregation: Aggregation,
    /// Where requests are recorded, when they are.
    pub audit: OnceLock<Audit>,
    /// How webhooks are called.
    pub outbound: Outbound,
    pub documents: endpoint::Documents,
    /// Paths that other parts of this process answer.
    pub pages: endpoint::page::Pages,
    pub metrics: Metrics,
    /// What health checks have told.
    pub health: endpoint::slis::Indicators,
    /// Which FlowSchema a request belongs to.
    pub fairness: Fairness,
    /// Turns true when the server begins to stop: watches end, and it is no longer ready.
    pub stopping: tokio::sync::watch::Receiver<bool>,
    /// Turns true once everything a new cluster needs is in place.
    pub ready: tokio::sync::watch::Receiver<bool>,
}

/// Where a request came from, as far as its connection tells.
#[derive(Clone, Debug)]
pub enum Sender {
    /// Over a network, with the user that a verified client certificate names.
    Remote(Option<Arc<User>>),
    /// Over a network, with a certificate that proves nothing: without other credentials it is nobody's request.
    Refused,
    /// Over a network, from a server that authenticated the user and names it in headers.
    FrontProxy,
    /// From this process, as a user that needs no proof.
    Trusted(Arc<User>),
}

/// A request that was let in.
pub struct Admitted<'a> {
    pub parts: &'a mut Parts,
    pub body: Bytes,
    pub user: &'a User,
    pub routed: &'a Routed,
    pub query: &'a Query,
    pub now: Timestamp,
    pub passage: Passage,
}

/// What is to be said of the token that came with a request.
#[derive(Clone, Copy)]
struct TokenWarning(&'static str);

/// An answer, and what is said about it in its head.
pub struct Answer {
    pub response: Response<Body>,
    pub warnings: Vec<String>,
}

impl From<Response<Body>> for Answer {
    fn from(response: Response<Body>) -> Answer {
        Answer { response, warnings: Vec::new() }
    }
}

impl Server {
    /// Answers one request.
    pub async fn handle<B>(self: &Arc<Self>, request: Request<B>, sender: &Sender) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Display + Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let begun = Instant::now();
        let (mut parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let routed = target::route(&parts.method, parts.uri.path(), &query);
        let running = {
            let kinds = self.kinds.load();
            let Target { group, version, resource, .. } = &routed.target;
            let resource = kinds.resource(group, version, resource);
            self.metrics.begin(&routed.target, resource.map(|resource| &*resource.kind))
        };
        let mut record = Record::begin(self.audit.get(), &parts, &routed.target, Timestamp::now());
        let answered = match deadline::limit(&routed.target, &query) {
            Err(status) => Err(status),
            Ok(None) => self.answer(&mut parts, body, &query, &routed, sender, &mut record).await,
            Ok(Some(limit)) => {
                let answering = self.answer(&mut parts, body, &query, &routed, sender, &mut record);
                tokio::time::timeout(limit, answering).await.unwrap_or_else(|_| Err(deadline::exceeded()))
            }
        };
        let mut answer = match answered {
            Ok(answer) => answer,
            Err(status) => failure(&parts.headers, &query, &status).into(),
        };
        answer.warnings.extend(parts.extensions.get::<TokenWarning>().map(|warning| warning.0.to_owned()));
        add_head(&mut answer, record.id());
        if let Some(class) = parts.extensions.get::<Arc<Class>>() {
            add_class(answer.response.headers_mut(), class);
        }
        record.answered(&mut answer.response, routed.target.verb == "watch", Timestamp::now());
        running.end(answer.response.status().as_u16(), begun.elapsed());
        if answer.response.body().length().is_some() {
            return answer::compress(answer.response, &parts.headers);
        }
        answer.response
    }

    async fn answer<B>(
        self: &Arc<Self>,
        parts: &mut Parts,
        body: B,
        query: &Query,
        routed: &Routed,
        sender: &Sender,
        record: &mut Record<'_>,
    ) -> Result<Answer, Status>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Display + Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let now = Timestamp::now();
        let mut passage = Passage::begin();
        let identified = self.identify(&parts.headers, sender, now);
        if let Ok((_, _, Some(warning))) = &identified {
            parts.extensions.insert(TokenWarning(warning));
        }
        match &identified {
            Ok((user, acting, _)) => record.identified(Some(user), acting.as_deref(), &routed.target, now),
            Err(_) => record.identified(None, None, &routed.target, now),
        }
        let allowed = identified.and_then(|(user, acting, _)| {
            passage.identified = Instant::now();
            let user = acting.unwrap_or(user);
            if let Some(class) = self.fairness.classify(&user, &routed.target) {
                parts.extensions.insert(class);
            }
            match self.authorizer.decide(&user, &routed.target) {
                Decision::Allow(reason) => record.allowed(&reason),
                Decision::NoOpinion(reason) => {
                    record.forbidden(&reason);
                    return Err(forbidden(&user, &routed.target, &reason));
                }
            }
            passage.authorized = Instant::now();
            Ok(user)
        });
        let user = match allowed {
            Ok(user) => user,
            Err(status) => {
                drain(body).await;
                return Err(status);
            }
        };
        let body = read(body).await?;
        record.received(&parts.headers, &body, &routed.target, &self.kinds.load());
        let mut request = Admitted { parts, body, user: &user, routed, query, now, passage };
        if let Some(remote) = self.aggregation.route(request.parts.uri.path()) {
            return Ok(aggregate::serve(self, &remote, &mut request).await.into());
        }
        if routed.target.is_resource() {
            crate::serve::resource(self, &mut request).await
        } else {
            endpoint::serve(self, &mut request).await
        }
    }

    /// Who sent a request, whom it acts as where that is somebody else, and what is to be said of the credentials.
    fn identify(
        &self,
        headers: &HeaderMap,
        sender: &Sender,
        now: Timestamp,
    ) -> Result<(Arc<User>, Option<Arc<User>>, Option<&'static str>), Status> {
        let known = |named: Option<&User>| -> Result<_, Status> {
            let (user, warning) = self.authenticator.request(headers, named, &*self.objects, now)?;
            Ok((Arc::new(user), warning))
        };
        let by_token = || match known(None)? {
            (user, _) if user.name == ANONYMOUS => Err(Status::unauthorized()),
            known => Ok(known),
        };
        let (user, warning) = match sender {
            Sender::Trusted(user) => (user.clone(), None),
            Sender::Remote(certificate) => known(certificate.as_deref())?,
            Sender::Refused => by_token()?,
            Sender::FrontProxy => match user_of_headers(headers).map_err(|_| Status::unauthorized())? {
                Some(user) => known(Some(&user))?,
                None => by_token()?,
            },
        };
        let acting = impersonate(&user, headers, &*self.authorizer)?.map(Arc::new);
        Ok((user, acting, warning))
    }

    /// Refuses what nobody allowed.
    pub fn authorize(&self, user: &User, target: &Target) -> Result<(), Status> {
        match self.authorizer.decide(user, target) {
            Decision::Allow(_) => Ok(()),
            Decision::NoOpinion(reason) => Err(forbidden(user, target, &reason)),
        }
    }
}

/// Reads a body whole, up to the limit.
async fn read<B>(body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Display + Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    let body = std::pin::pin!(Limited::new(body, BODY_LIMIT));
    let Ok(read) = tokio::time::timeout(BODY_TIME, body.collect()).await else {
        return Err(Status::new(408, "Timeout", "the body of the request did not come in time"));
    };
    match read {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            let text = format!("Request entity too large: limit is {BODY_LIMIT}");
            Err(Status::new(413, "RequestEntityTooLarge", text))
        }
        Err(error) => Err(Status::bad_request(format!("the body cannot be read: {error}"))),
    }
}

/// Reads a body that nobody wants, as far as it is short and comes at once: a connection with half a request in it could
/// not be used again.
async fn drain<B>(body: B)
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    const WORTHWHILE: usize = 256 * 1024;
    const PATIENCE: Duration = Duration::from_millis(500);
    if !body.is_end_stream() {
        let body = std::pin::pin!(Limited::new(body, WORTHWHILE));
        // Whatever remains ends the connection.
        let _ = tokio::time::timeout(PATIENCE, body.collect()).await;
    }
}

/// A failure in the encoding the client takes, or in JSON.
pub(crate) fn failure(headers: &HeaderMap, query: &Query, status: &Status) -> Response<Body> {
    let offer = Offer { custom: false, list: false, shapes: true };
    let format = accept::negotiate(headers, query, offer).unwrap_or(Format::JSON);
    answer::failure(status, &Format { shape: accept::Shape::Whole, ..format })
}

/// Names would tell how a cluster ranks its users; UIDs tell it only to those who may read the objects.
fn add_class(headers: &mut HeaderMap, class: &Class) {
    headers.insert(FLOW_SCHEMA, class.schema_uid.clone());
    headers.insert(PRIORITY_LEVEL, class.level_uid.clone());
}

fn add_head(answer: &mut Answer, id: &str) {
    let headers = answer.response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(AUDIT_ID, id);
    }
    let mut seen: Vec<&String> = Vec::new();
    for warning in &answer.warnings {
        if seen.contains(&warning) {
            continue;
        }
        seen.push(warning);
        let escaped = warning.replace('\\', "\\\\").replace('"', "\\\"").replace(['\n', '\r'], " ");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{escaped}\"")) {
            headers.append(WARNING, value);
        }
    }
}
