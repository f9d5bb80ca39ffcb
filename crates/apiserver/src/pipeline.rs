//! The request pipeline: route, authenticate, classify, authorize, read the body, call the handler.
//!
//! Routing comes first, because metrics, audit, deadlines, fairness and authorization all depend on the target. Every
//! response passes through `ApiServer::handle`, which adds the headers that all responses share.

use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CACHE_CONTROL, HeaderName, HeaderValue, WARNING};
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use jiff::Timestamp;
use knarr_api::status::Status;

use crate::audit::Record;
use crate::authenticate::{impersonate, user_of_headers};
use crate::authorize::{Decision, forbidden};
use crate::authorized_request::AuthorizedRequest;
use crate::fairness::Class;
use crate::request::{ANONYMOUS, Sender, StageTimes, Target, User};
use crate::response::{self, Body, HandlerResponse};
use crate::route::query::Query;
use crate::route::target::{self, Routed};
use crate::state::ApiServer;
use crate::{aggregate, deadline, endpoint, resource_handler};

/// The largest body that is read.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// How long a client may take to send a body.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// A warning about the token that came with a request.
#[derive(Clone, Copy)]
struct TokenWarning(&'static str);

impl ApiServer {
    /// Handles one request.
    pub async fn handle<B>(self: &Arc<Self>, request: Request<B>, sender: &Sender) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Display + Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let started = Instant::now();
        let (mut parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let routed = target::route(&parts.method, parts.uri.path(), &query);
        let running = {
            let kinds = self.kinds.load();
            let Target { group, version, resource, .. } = &routed.target;
            let resource = kinds.resource(group, version, resource);
            self.telemetry.metrics.start_request(&routed.target, resource.map(|resource| &*resource.kind))
        };
        let mut record = Record::start(self.telemetry.audit.get(), &parts, &routed.target, Timestamp::now());
        let handled = match deadline::timeout(&routed.target, &query) {
            Err(status) => Err(status),
            Ok(None) => self.dispatch(&mut parts, body, &query, &routed, sender, &mut record).await,
            Ok(Some(limit)) => {
                let dispatched = self.dispatch(&mut parts, body, &query, &routed, sender, &mut record);
                tokio::time::timeout(limit, dispatched).await.unwrap_or_else(|_| Err(deadline::exceeded()))
            }
        };
        let mut handled = match handled {
            Ok(handled) => handled,
            Err(status) => response::negotiated_failure(&parts.headers, &query, &status).into(),
        };
        handled.warnings.extend(parts.extensions.get::<TokenWarning>().map(|warning| warning.0.to_owned()));
        add_headers(&mut handled, record.id());
        if let Some(class) = parts.extensions.get::<Arc<Class>>() {
            add_class(handled.response.headers_mut(), class);
        }
        record.responded(&mut handled.response, routed.target.verb == "watch", Timestamp::now());
        running.finish(handled.response.status().as_u16(), started.elapsed());
        if handled.response.body().length().is_some() {
            return response::compress(handled.response, &parts.headers);
        }
        handled.response
    }

    /// Authenticates and authorizes a request, and calls its handler.
    async fn dispatch<B>(
        self: &Arc<Self>,
        parts: &mut Parts,
        body: B,
        query: &Query,
        routed: &Routed,
        sender: &Sender,
        record: &mut Record<'_>,
    ) -> Result<HandlerResponse, Status>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Display + Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let now = Timestamp::now();
        let mut stage_times = StageTimes::start();
        let authenticated = self.authenticate(&parts.headers, sender, now);
        if let Ok((_, _, Some(warning))) = &authenticated {
            parts.extensions.insert(TokenWarning(warning));
        }
        match &authenticated {
            Ok((user, acting, _)) => record.identified(Some(user), acting.as_deref(), &routed.target, now),
            Err(_) => record.identified(None, None, &routed.target, now),
        }
        let allowed = authenticated.and_then(|(user, acting, _)| {
            stage_times.authenticated = Instant::now();
            let user = acting.unwrap_or(user);
            if let Some(class) = self.fairness.classify(&user, &routed.target) {
                parts.extensions.insert(class);
            }
            match self.security.authorizer.decide(&user, &routed.target) {
                Decision::Allow(reason) => record.allowed(&reason),
                Decision::NoOpinion(reason) => {
                    record.forbidden(&reason);
                    return Err(forbidden(&user, &routed.target, &reason));
                }
            }
            stage_times.authorized = Instant::now();
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
        let mut request = AuthorizedRequest { parts, body, user: &user, routed, query, now, stage_times };
        if let Some(remote) = self.discovery.aggregation.route(request.parts.uri.path()) {
            return Ok(aggregate::serve(self, &remote, &mut request).await.into());
        }
        if routed.target.is_resource() {
            resource_handler::handle(self, &mut request).await
        } else {
            endpoint::serve(self, &mut request).await
        }
    }

    /// The user who sent a request, the user it impersonates if any, and a warning about the credentials if any.
    fn authenticate(
        &self,
        headers: &HeaderMap,
        sender: &Sender,
        now: Timestamp,
    ) -> Result<(Arc<User>, Option<Arc<User>>, Option<&'static str>), Status> {
        let known = |named: Option<&User>| -> Result<_, Status> {
            let (user, warning) = self.security.authenticator.request(headers, named, &*self.objects, now)?;
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
        let acting = impersonate(&user, headers, &*self.security.authorizer)?.map(Arc::new);
        Ok((user, acting, warning))
    }

    /// Refuses a request that no authorizer allows.
    pub fn authorize(&self, user: &User, target: &Target) -> Result<(), Status> {
        match self.security.authorizer.decide(user, target) {
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
    let Ok(read) = tokio::time::timeout(BODY_TIMEOUT, body.collect()).await else {
        return Err(Status::new(408, "Timeout", "the body of the request did not arrive in time"));
    };
    match read {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            let text = format!("Request entity too large: limit is {BODY_LIMIT}");
            Err(Status::new(413, "RequestEntityTooLarge", text))
        }
        Err(error) => Err(Status::bad_request(format!("cannot read the body: {error}"))),
    }
}

/// Reads and drops the body of a refused request if it is short and arrives at once: a connection with half a request
/// in it could not be reused.
async fn drain<B>(body: B)
where
    B: http_body::Body<Data = Bytes> + Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    const MAX_DRAINED: usize = 256 * 1024;
    const DRAIN_TIMEOUT: Duration = Duration::from_millis(500);
    if !body.is_end_stream() {
        let body = std::pin::pin!(Limited::new(body, MAX_DRAINED));
        // If more remains, the connection is closed.
        let _ = tokio::time::timeout(DRAIN_TIMEOUT, body.collect()).await;
    }
}

/// Headers carry UIDs rather than names: names would reveal to anybody how a cluster ranks its users.
fn add_class(headers: &mut HeaderMap, class: &Class) {
    headers.insert(FLOW_SCHEMA, class.schema_uid.clone());
    headers.insert(PRIORITY_LEVEL, class.level_uid.clone());
}

fn add_headers(handled: &mut HandlerResponse, id: &str) {
    let headers = handled.response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    if let Ok(id) = HeaderValue::from_str(id) {
        headers.insert(AUDIT_ID, id);
    }
    let mut seen: Vec<&String> = Vec::new();
    for warning in &handled.warnings {
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
