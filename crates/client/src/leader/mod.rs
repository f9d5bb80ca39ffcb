//! Leader election by a Lease: of several processes, at most one leads.
//!
//! A candidate measures how long it has itself observed the lease unchanged, so clocks need not agree. The holder stops its
//! work when renewals have failed for the renew deadline, which is shorter than the lease duration: before another
//! candidate may acquire the lease, the former holder's work has been dropped.

mod fence;

use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;

pub use fence::Fence;

use crate::EventRecorder;
use crate::time::now_micro;

/// Candidates wait up to this many retry periods between attempts, so that they do not all retry at once.
const MAX_JITTER: f64 = 1.2;

/// Why leading ended.
#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    /// The lease could not be renewed in time, or another candidate holds it.
    #[error("leadership of {0} was lost")]
    Lost(String),
}

/// The configuration of a candidate for a lease.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    /// The namespace of the lease.
    pub namespace: String,
    /// The name of the lease.
    pub name: String,
    /// Unique among the candidates.
    pub identity: String,
    /// The source of the events about leader changes.
    pub component: String,
    /// How long the lease is valid after a renewal.
    pub lease_duration: Duration,
    /// How long the holder retries a renewal before it stops leading.
    pub renew_deadline: Duration,
    /// How often a candidate tries to acquire or renew the lease.
    pub retry_period: Duration,
    /// Open while the lease is held.
    pub fence: Fence,
}

impl LeaderElection {
    /// With durations by which another candidate leads at the latest 15 s after the holder was killed.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            namespace: namespace.into(),
            component: name.clone(),
            name,
            identity: identity.into(),
            lease_duration: Duration::from_secs(10),
            renew_deadline: Duration::from_secs(7),
            retry_period: Duration::from_secs(2),
            fence: Fence::default(),
        }
    }

    /// Why these durations are not safe; `None` when they are valid.
    pub fn invalid_reason(&self) -> Option<&'static str> {
        if self.renew_deadline >= self.lease_duration {
            return Some("the lease must last longer than the renew deadline");
        }
        if self.retry_period.is_zero() || self.renew_deadline <= self.retry_period.mul_f64(MAX_JITTER) {
            return Some("the renew deadline must be longer than the retry period with its jitter, and that not zero");
        }
        None
    }

    /// Waits to become the leader, then runs `work` until it finishes, `shutdown` resolves (the lease is released) or
    /// leadership is lost (the work is dropped). Everything the work starts must stop when its future is dropped.
    pub async fn run<W, F>(
        &self,
        client: Client,
        shutdown: impl Future<Output = ()>,
        work: W,
    ) -> Result<Option<F::Output>, LeaderError>
    where
        W: FnOnce() -> F,
        F: Future,
    {
        let recorder = EventRecorder::new(client.clone(), &self.component, None);
        let api: Api<Lease> = Api::namespaced(client, &self.namespace);
        let mut candidate = Candidate { election: self, observed: None };
        tokio::pin!(shutdown);
        let renewed = tokio::select! {
            renewed = candidate.acquire(&api) => renewed,
            () = &mut shutdown => return Ok(None),
        };
        tracing::info!(lease = %self.name, identity = %self.identity, "became the leader");
        candidate.record_event(&recorder, "became leader");
        self.fence.open_until(renewed + self.renew_deadline);
        let outcome = {
            let work = work();
            tokio::pin!(work);
            tokio::select! {
                output = &mut work => Ok(Some(output)),
                () = &mut shutdown => Ok(None),
                () = candidate.renew(&api, renewed) => Err(LeaderError::Lost(self.name.clone())),
            }
        };
        self.fence.close();
        candidate.record_event(&recorder, "stopped leading");
        if outcome.is_ok() {
            candidate.release(&api).await;
        }
        outcome
    }
}

struct Candidate<'a> {
    election: &'a LeaderElection,
    /// The lease as last observed, and since when it has been unchanged.
    observed: Option<(Lease, Instant)>,
}

impl Candidate<'_> {
    fn record_event(&self, recorder: &EventRecorder, message: &str) {
        if let Some((lease, _)) = &self.observed {
            recorder.normal(lease, "LeaderElection", format!("{} {message}", self.election.identity));
        }
    }

    /// Tries until the lease is held; returns when the request that won it was sent.
    async fn acquire(&mut self, api: &Api<Lease>) -> Instant {
        loop {
            let started = Instant::now();
            // A response that never arrives must not block the next attempt.
            match tokio::time::timeout(self.election.renew_deadline, self.try_once(api)).await {
                Ok(Ok(true)) => return started,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::debug!(%error, lease = %self.election.name, "cannot acquire the lease yet");
                }
                Err(_) => tracing::debug!(lease = %self.election.name, "no response for the lease"),
            }
            let wait = self.election.retry_period.mul_f64(rand::random_range(1.0..MAX_JITTER));
            // An expiring lease is acquired when it expires, not at the next retry.
            tokio::time::sleep(self.expires_in().map_or(wait, |left| left.min(wait))).await;
        }
    }

    /// When the lease of another holder expires unless it is renewed.
    fn expires_in(&self) -> Option<Duration> {
        let (lease, since) = self.observed.as_ref()?;
        // Prevents a busy loop when an expired lease could not be acquired.
        const MIN_WAIT: Duration = Duration::from_millis(50);
        Some(duration_of(self.election, lease).saturating_sub(since.elapsed()).max(MIN_WAIT))
    }

    /// Renews until renewals have failed for the renew deadline.
    async fn renew(&mut self, api: &Api<Lease>, mut renewed: Instant) {
        let (retry, deadline) = (self.election.retry_period, self.election.renew_deadline);
        loop {
            tokio::time::sleep(retry).await;
            let started = Instant::now();
            match tokio::time::timeout_at(renewed + deadline, self.try_once(api)).await {
                Ok(Ok(true)) => {
                    renewed = started;
                    self.election.fence.open_until(renewed + deadline);
                }
                Ok(Ok(false)) => return,
                Ok(Err(error)) => tracing::debug!(%error, lease = %self.election.name, "cannot renew the lease"),
                Err(_) => return,
            }
            if renewed.elapsed() >= deadline {
                return;
            }
        }
    }

    async fn release(&mut self, api: &Api<Lease>) {
        let Some((mut lease, _)) = self.observed.take() else { return };
        let now = now_micro();
        let transitions = lease.spec.as_ref().and_then(|spec| spec.lease_transitions);
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(String::new()),
            lease_duration_seconds: Some(1),
            acquire_time: Some(now.clone()),
            renew_time: Some(now),
            lease_transitions: transitions,
            ..LeaseSpec::default()
        });
        // A server that does not respond must not keep the process from stopping.
        let params = PostParams::default();
        let replaced = api.replace(&self.election.name, &params, &lease);
        match tokio::time::timeout(self.election.renew_deadline, replaced).await {
            Ok(Ok(_)) => {}
            Ok(Err(error)) => {
                tracing::debug!(%error, lease = %self.election.name, "releasing the lease failed; it will expire");
            }
            Err(_) => tracing::debug!(lease = %self.election.name, "no response to the release of the lease"),
        }
    }

    /// Whether the lease is ours after one attempt.
    async fn try_once(&mut self, api: &Api<Lease>) -> Result<bool, kube::Error> {
        let name = &self.election.name;
        let Some(current) = api.get_opt(name).await? else {
            let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
            let lease = Lease { metadata, spec: Some(next_spec(self.election, None)) };
            return self.written(api.create(&PostParams::default(), &lease).await);
        };
        let unchanged =
            self.observed.as_ref().filter(|(observed, _)| observed.spec == current.spec).map(|(_, since)| *since);
        let since = unchanged.unwrap_or_else(Instant::now);
        self.observed = Some((current.clone(), since));
        if !may_acquire(self.election, &current, since.elapsed()) {
            return Ok(false);
        }
        let lease = Lease { spec: Some(next_spec(self.election, current.spec.as_ref())), ..current };
        self.written(api.replace(name, &PostParams::default(), &lease).await)
    }

    /// A conflict means that another candidate was faster.
    fn written(&mut self, result: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
        match result {
            Ok(lease) => {
                self.observed = Some((lease, Instant::now()));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.observed = None;
                Err(kube::Error::Api(status))
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether the lease is ours, has no holder, or was observed without renewal for its whole duration.
fn may_acquire(election: &LeaderElection, lease: &Lease, unchanged_for: Duration) -> bool {
    let Some(spec) = &lease.spec else { return true };
    let holder = spec.holder_identity.as_deref().unwrap_or("");
    holder.is_empty() || holder == election.identity || unchanged_for >= duration_of(election, lease)
}

/// How long the holder of the lease may go without renewing it.
fn duration_of(election: &LeaderElection, lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    seconds.map_or(election.lease_duration, |seconds| Duration::from_secs(seconds.max(0) as u64))
}

/// Rounds up to whole seconds, as a lease stores its duration.
fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_millis().div_ceil(1000)).unwrap_or(i32::MAX)
}

fn next_spec(election: &LeaderElection, current: Option<&LeaseSpec>) -> LeaseSpec {
    let now = now_micro();
    let held = current.filter(|spec| spec.holder_identity.as_deref() == Some(&election.identity));
    let transitions = current.map_or(0, |spec| spec.lease_transitions.unwrap_or(0));
    LeaseSpec {
        holder_identity: Some(election.identity.clone()),
        lease_duration_seconds: Some(whole_seconds(election.lease_duration)),
        acquire_time: held.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(if held.is_some() || current.is_none() { transitions } else { transitions + 1 }),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests;
