//! The request pipeline: route, authenticate, classify, authorize, read the body, call the handler.
//!
//! Routing comes first, because metrics, audit, deadlines, fairness and authorization all depend on the target. Every
//! response passes through `ApiServer::handle`, which adds the headers that all responses share.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{CACHE_CONTROL, HeaderName, HeaderValue, RETRY_AFTER, WARNING};
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use jiff::Timestamp;
use knarr_api::status::Status;
use knarr_listen::BoxError;

use crate::audit::Record;
use crate::authorize::{Decision, refusal};
use crate::authorized_request::AuthorizedRequest;
use crate::endpoint::request_trace;
use crate::fairness::{Class, Permit, Refused};
use crate::request::{ANONYMOUS, Sender, StageTimes, Target, User};
use crate::request_body::{AnyBody, any_body, drain, read};
use crate::request_metrics::InFlightRequest;
use crate::response::{self, Body, HandlerResponse};
use crate::route::query::Query;
use crate::route::target::{self, Routed};
use crate::state::ApiServer;
use crate::{aggregate, deadline, endpoint, page_reader, panics, resource_handler, shared_headers, ui, warnings};

/// The largest body that is read.
pub const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// The largest body of a request without credentials: a code for signing in. Anybody can send many at once.
const PUBLIC_BODY_LIMIT: usize = 4096;

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const FLOW_SCHEMA: HeaderName = HeaderName::from_static("x-kubernetes-pf-flowschema-uid");
const PRIORITY_LEVEL: HeaderName = HeaderName::from_static("x-kubernetes-pf-prioritylevel-uid");

/// A warning about the token that came with a request.
#[derive(Clone, Copy)]
struct TokenWarning(&'static str);

/// A request before its sender is known.
struct Arrival<'a> {
    query: &'a Query,
    routed: &'a Routed,
    sender: &'a Sender,
    received: Instant,
    timeout: Option<Duration>,
    running: &'a InFlightRequest,
}

impl ApiServer {
    /// Handles one request.
    pub fn handle<'a, B>(self: &'a Arc<Self>, request: Request<B>, sender: &'a Sender) -> BoxFuture<'a, Response<Body>>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        Box::pin(self.handle_any(request.map(any_body), sender))
    }

    /// Not generic, so that the way of a request is compiled once.
    async fn handle_any(self: &Arc<Self>, request: Request<AnyBody>, sender: &Sender) -> Response<Body> {
        if !ui::forward::is_forwarded(request.uri().path()) {
            return self.handle_directly(request, sender).await;
        }
        let response = match ui::forward::resolve(self, request) {
            Ok((request, sender)) => Box::pin(self.handle_directly(request, &sender)).await,
            Err(response) => *response,
        };
        ui::forward::secured(response)
    }

    async fn handle_directly(self: &Arc<Self>, request: Request<AnyBody>, sender: &Sender) -> Response<Body> {
        let started = Instant::now();
        let (mut parts, body) = request.into_parts();
        if let Some(refusal) = self.drain.refuse(&parts, sender) {
            return refusal;
        }
        if let Some(preflight) = shared_headers::preflight(&self.backend.behaviour.responses, &parts) {
            return preflight;
        }
        let _active = self.drain.start_request();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let routed = target::route(&parts.method, parts.uri.path(), &query);
        let running = {
            let (kinds, target) = (self.backend.kinds.load(), &routed.target);
            let resource = kinds.resource(&target.group, &target.version, &target.resource);
            InFlightRequest::start(&self.telemetry.metrics, &parts, target, &query, resource, started)
        };
        let mut record = Record::start(self.telemetry.audit.get().cloned(), &parts, &routed.target, Timestamp::now());
        let timeout = deadline::timeout(&routed.target, &query, self.backend.behaviour.requests.timeout);
        let deadline = timeout.as_ref().ok().copied().flatten().map(|limit| started + limit);
        let mut permit = None;
        let handled = match timeout {
            Err(status) => Err(status),
            Ok(timeout) => {
                let arrival =
                    Arrival { query: &query, routed: &routed, sender, received: started, timeout, running: &running };
                // On the heap: it is large, and would be moved around on the stack.
                let dispatched = Box::pin(self.dispatch(&mut parts, body, &arrival, &mut record, &mut permit));
                let dispatched = panics::caught(dispatched, &running);
                match timeout {
                    Some(limit) => tokio::time::timeout(limit, dispatched).await.unwrap_or_else(|_| {
                        running.terminated(504);
                        Err(deadline::exceeded())
                    }),
                    None => dispatched.await,
                }
            }
        };
        let mut handled = match handled {
            Ok(handled) => handled,
            Err(status) => response::negotiated_failure(&parts.headers, &query, &status).into(),
        };
        handled.warnings.extend(parts.extensions.get::<TokenWarning>().map(|warning| warning.0.to_owned()));
        add_headers(&mut handled, record.id());
        shared_headers::add(&self.backend.behaviour.responses, &parts, &mut handled.response);
        if let Some(class) = parts.extensions.get::<Arc<Class>>() {
            add_class(handled.response.headers_mut(), class);
        }
        record.responded(&mut handled.response, Timestamp::now());
        // The response is there: only the arrival of a request can fail it.
        let _ = record.write().await;
        let response = response::compress(handled.response, &parts.headers);
        let response = response::hold(response, permit, deadline.map(tokio::time::Instant::from_std));
        response::measure(response, running)
    }

    /// Authenticates and authorizes a request, and calls its handler.
    async fn dispatch(
        self: &Arc<Self>,
        parts: &mut Parts,
        body: AnyBody,
        arrival: &Arrival<'_>,
        record: &mut Record,
        permit: &mut Option<Permit>,
    ) -> Result<HandlerResponse, Status> {
        let Arrival { query, routed, sender, received, timeout, running } = *arrival;
        let now = Timestamp::now();
        let mut stage_times = StageTimes::start();
        if let Some(public) = ui::public_request(&parts.method, parts.uri.path()) {
            let body = read(body, PUBLIC_BODY_LIMIT).await?;
            return Ok(ui::serve_public(&self.security, public, parts, &body)?.into());
        }
        let session = ui::resolve_session(&self.security, parts);
        let sender = session.as_ref().unwrap_or(sender);
        let authenticated = self.authenticate(&parts.headers, parts.uri.path(), sender, now).await;
        if let Ok((_, Some(warning))) = &authenticated {
            parts.extensions.insert(TokenWarning(warning));
        }
        record.identified(authenticated.as_ref().ok().map(|(user, _)| &**user), &routed.target, now);
        if let Err(error) = record.write().await {
            drain(body).await;
            return Ok(response::internal_error(parts, &error).into());
        }
        let acting = match authenticated {
            Err(status) => Err(status),
            Ok((user, _)) => self.impersonate(user, &parts.headers, &routed.target, record).await,
        };
        let allowed = match acting {
            Err(status) => Err(status),
            Ok(user) => {
                stage_times.authenticated = Instant::now();
                if let Some(tracer) = self.telemetry.tracer.get() {
                    running.trace(request_trace::start(tracer, parts, &routed.target, &user, record.id()));
                }
                let class = self.backend.fairness.classify(&user, &routed.target);
                let seats = self
                    .backend
                    .fairness
                    .wait_for_seats(class.as_ref(), &user, &routed.target, query, received, timeout)
                    .await;
                running.waited(stage_times.authenticated.elapsed());
                if let Some(class) = class {
                    parts.extensions.insert(class);
                }
                match seats {
                    Ok(seats) => *permit = seats,
                    Err(refused) => {
                        running.terminated(429);
                        drain(body).await;
                        return Ok(too_many_requests(&refused).into());
                    }
                }
                self.authorize_and_record(&user, parts, &routed.target, record).await.map(|()| user)
            }
        };
        stage_times.authorized = Instant::now();
        let user = match allowed {
            Ok(user) => user,
            Err(status) => {
                drain(body).await;
                return Err(status);
            }
        };
        let body = read(body, BODY_LIMIT).await?;
        record.received(&parts.headers, &body, &routed.target, &self.backend.kinds.load());
        let mut request =
            AuthorizedRequest { parts, body, user: &user, routed, query, now, stage_times, permit, running };
        if let Some(remote) = self.discovery.aggregation.route(request.parts.uri.path()) {
            let (aggregation, of_users) = (&self.discovery.aggregation, &self.security.request_headers);
            return Ok(aggregate::serve(aggregation, of_users, &remote, &mut request).await.into());
        }
        // Pinned here, so that a request has the future of its handler once, traced or not.
        let handled = std::pin::pin!(async {
            match routed.target.is_resource() {
                true => resource_handler::handle(self, &mut request).await,
                false => endpoint::serve(self, &mut request).await,
            }
        });
        match self.telemetry.tracer.get().and_then(|_| running.place()) {
            Some(place) => knarr_traces::within(place, handled).await,
            None => handled.await,
        }
    }

    /// Decides whether the user may send a request, for which the page has more rights than others, and records why.
    async fn authorize_and_record(
        &self,
        user: &User,
        parts: &Parts,
        target: &Target,
        record: &mut Record,
    ) -> Result<(), Status> {
        match self.backend.authorizer.authorize(user, target).await {
            Decision::Allow(reason) => record.allowed(&reason),
            Decision::NoOpinion(_) if ui::is_open_to(user, parts.uri.path()) => {
                record.allowed("every signed-in user may use the page");
            }
            Decision::NoOpinion(_) if page_reader::is_open_to(user, parts) => {
                record.allowed("every signed-in user sees journeys of objects that they may get");
            }
            decision => {
                record.forbidden(decision.reason());
                return Err(refusal(user, target, decision).unwrap_or_else(Status::unauthorized));
            }
        }
        Ok(())
    }

    /// The user who sent a request, and a warning about the credentials if any.
    async fn authenticate(
        &self,
        headers: &HeaderMap,
        path: &str,
        sender: &Sender,
        now: Timestamp,
    ) -> Result<(Arc<User>, Option<&'static str>), Status> {
        let proxied;
        let (named, needs_proof) = match sender {
            Sender::Trusted(user) => return Ok((user.clone(), None)),
            Sender::Remote(certificate) => (certificate.as_deref(), false),
            Sender::Refused => (None, true),
            Sender::FrontProxy => {
                proxied = self.security.request_headers.user(headers).map_err(|_| Status::unauthorized())?;
                (proxied.as_ref(), proxied.is_none())
            }
        };
        let (user, warning) =
            self.security.authenticator.request(headers, path, named, &*self.backend.objects, now).await?;
        if needs_proof && user.name == ANONYMOUS {
            return Err(Status::unauthorized());
        }
        Ok((Arc::new(user), warning))
    }

    /// The user that a request is handled for: the one it impersonates, or the one who sent it.
    async fn impersonate(
        &self,
        user: Arc<User>,
        headers: &HeaderMap,
        target: &Target,
        record: &mut Record,
    ) -> Result<Arc<User>, Status> {
        let security = &self.security;
        match security.impersonation.impersonate(&user, headers, target, &*self.backend.authorizer).await? {
            None => Ok(user),
            Some(impersonated) => {
                record.impersonated(&impersonated);
                Ok(Arc::new(impersonated.user))
            }
        }
    }

    /// Refuses a request that no authorizer allows.
    pub async fn authorize(&self, user: &User, target: &Target) -> Result<(), Status> {
        self.backend.authorize(user, target).await
    }
}

/// The response to a request for which there is no room.
fn too_many_requests(refused: &Refused) -> Response<Body> {
    let mut response = response::text(429, "Too many requests, please try again later.\n");
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(refused.retry_after));
    response.headers_mut().insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    response
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
    for warning in warnings::headers(&handled.warnings) {
        headers.append(WARNING, warning);
    }
}
