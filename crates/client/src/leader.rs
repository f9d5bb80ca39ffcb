//! Leadership held on a Lease: of several processes, at most one acts.
//!
//! A candidate judges a lease by how long it has itself seen it unchanged, so clocks need not agree. The holder stops its
//! work when it could not renew for the renew deadline, which is shorter than the lease: by the time another may take the
//! lease, the former holder's work has been dropped.

use std::future::Future;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::PostParams;
use kube::{Api, Client};
use tokio::time::Instant;

use crate::time::now_micro;

#[derive(Debug, thiserror::Error)]
pub enum LeaderError {
    #[error("leadership of {0} was lost")]
    Lost(String),
}

/// Who competes for which lease, and at what pace.
#[derive(Clone, Debug)]
pub struct LeaderElection {
    pub namespace: String,
    pub name: String,
    /// Unique among the candidates.
    pub identity: String,
    pub lease: Duration,
    pub renew_deadline: Duration,
    pub retry: Duration,
}

impl LeaderElection {
    /// The pace Kubernetes' own components keep.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity.into(),
            lease: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }

    /// Waits to become the leader, then works until the work ends, `shutdown` comes (the lease is released) or leadership
    /// is lost (the work is dropped). Everything the work starts must end when its future is dropped.
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
        let api: Api<Lease> = Api::namespaced(client, &self.namespace);
        let mut candidate = Candidate { election: self, seen: None };
        tokio::pin!(shutdown);
        let renewed = tokio::select! {
            renewed = candidate.acquire(&api) => renewed,
            () = &mut shutdown => return Ok(None),
        };
        tracing::info!(lease = %self.name, identity = %self.identity, "became the leader");
        let outcome = {
            let work = work();
            tokio::pin!(work);
            tokio::select! {
                output = &mut work => Ok(Some(output)),
                () = &mut shutdown => Ok(None),
                () = candidate.keep(&api, renewed) => Err(LeaderError::Lost(self.name.clone())),
            }
        };
        if outcome.is_ok() {
            candidate.release(&api).await;
        }
        outcome
    }
}

struct Candidate<'a> {
    election: &'a LeaderElection,
    /// The lease as last seen, and since when it has been seen like this.
    seen: Option<(Lease, Instant)>,
}

impl Candidate<'_> {
    /// Tries until the lease is held; returns when the request that won it was sent.
    async fn acquire(&mut self, api: &Api<Lease>) -> Instant {
        loop {
            let started = Instant::now();
            match self.try_once(api).await {
                Ok(true) => return started,
                Ok(false) => {}
                Err(error) => tracing::debug!(%error, lease = %self.election.name, "cannot acquire the lease yet"),
            }
            tokio::time::sleep(self.election.retry.mul_f64(rand::random_range(1.0..1.2))).await;
        }
    }

    /// Renews until that has failed for the renew deadline.
    async fn keep(&mut self, api: &Api<Lease>, mut renewed: Instant) {
        let (retry, deadline) = (self.election.retry, self.election.renew_deadline);
        loop {
            tokio::time::sleep(retry).await;
            let started = Instant::now();
            match tokio::time::timeout_at(renewed + deadline, self.try_once(api)).await {
                Ok(Ok(true)) => renewed = started,
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
        let Some((mut lease, _)) = self.seen.take() else { return };
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
        if let Err(error) = api.replace(&self.election.name, &PostParams::default(), &lease).await {
            tracing::debug!(%error, lease = %self.election.name, "the lease will run out instead of being released");
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
        let unchanged = self.seen.as_ref().filter(|(seen, _)| seen.spec == current.spec).map(|(_, since)| *since);
        let since = unchanged.unwrap_or_else(Instant::now);
        self.seen = Some((current.clone(), since));
        if !may_take(self.election, &current, since.elapsed()) {
            return Ok(false);
        }
        let lease = Lease { spec: Some(next_spec(self.election, current.spec.as_ref())), ..current };
        self.written(api.replace(name, &PostParams::default(), &lease).await)
    }

    /// A conflict means that somebody else was faster.
    fn written(&mut self, answer: Result<Lease, kube::Error>) -> Result<bool, kube::Error> {
        match answer {
            Ok(lease) => {
                self.seen = Some((lease, Instant::now()));
                Ok(true)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {
                self.seen = None;
                Err(kube::Error::Api(status))
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether the lease is ours, nobody's, or has not been renewed for its whole length while we looked.
fn may_take(election: &LeaderElection, lease: &Lease, unchanged_for: Duration) -> bool {
    let Some(spec) = &lease.spec else { return true };
    let holder = spec.holder_identity.as_deref().unwrap_or("");
    let length = spec.lease_duration_seconds.map_or(election.lease, |s| Duration::from_secs(s.max(0) as u64));
    holder.is_empty() || holder == election.identity || unchanged_for >= length
}

fn next_spec(election: &LeaderElection, current: Option<&LeaseSpec>) -> LeaseSpec {
    let now = now_micro();
    let held = current.filter(|spec| spec.holder_identity.as_deref() == Some(&election.identity));
    let transitions = current.map_or(0, |spec| spec.lease_transitions.unwrap_or(0));
    LeaseSpec {
        holder_identity: Some(election.identity.clone()),
        lease_duration_seconds: Some(election.lease.as_secs() as i32),
        acquire_time: held.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(if held.is_some() || current.is_none() { transitions } else { transitions + 1 }),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, transitions: i32) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            lease_transitions: Some(transitions),
            ..LeaseSpec::default()
        };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    #[test]
    fn a_lease_is_taken_only_when_it_ran_out_before_our_eyes() {
        let election = LeaderElection::new("kube-system", "kube-scheduler", "me");
        for (holder, seen_for, may) in
            [("me", 0, true), ("", 0, true), ("other", 0, false), ("other", 14, false), ("other", 15, true)]
        {
            assert_eq!(
                may_take(&election, &lease(holder, 0), Duration::from_secs(seen_for)),
                may,
                "{holder} {seen_for}"
            );
        }
        assert!(election.renew_deadline < election.lease, "the loser stops first");
    }

    #[test]
    fn transitions_count_changes_of_the_holder() {
        let election = LeaderElection::new("kube-system", "kube-scheduler", "me");
        for (current, transitions) in [(None, 0), (Some(lease("me", 3)), 3), (Some(lease("other", 3)), 4)] {
            let spec = next_spec(&election, current.as_ref().and_then(|lease| lease.spec.as_ref()));
            assert_eq!(spec.lease_transitions, Some(transitions));
            assert_eq!(spec.holder_identity.as_deref(), Some("me"));
        }
    }
}
