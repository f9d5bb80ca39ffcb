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

use crate::EventRecorder;
use crate::time::now_micro;

/// Candidates wait up to this many retry periods between attempts, so that they do not come all at once.
const LATEST_RETRY: f64 = 1.2;

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
    /// Who tells, in events on the lease, that the leader changed.
    pub component: String,
    pub lease: Duration,
    pub renew_deadline: Duration,
    pub retry: Duration,
}

impl LeaderElection {
    /// At a pace by which another has taken over 15 s after the holder was killed, at the latest.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>, identity: impl Into<String>) -> Self {
        let name = name.into();
        Self {
            namespace: namespace.into(),
            component: name.clone(),
            name,
            identity: identity.into(),
            lease: Duration::from_secs(10),
            renew_deadline: Duration::from_secs(7),
            retry: Duration::from_secs(2),
        }
    }

    /// Why nobody could safely lead at this pace, if so.
    pub fn mistake(&self) -> Option<&'static str> {
        if self.renew_deadline >= self.lease {
            return Some("the lease must last longer than the renew deadline");
        }
        if self.retry.is_zero() || self.renew_deadline <= self.retry.mul_f64(LATEST_RETRY) {
            return Some("the renew deadline must be longer than the retry period with its jitter, and that not zero");
        }
        None
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
        let recorder = EventRecorder::new(client.clone(), &self.component, None);
        let api: Api<Lease> = Api::namespaced(client, &self.namespace);
        let mut candidate = Candidate { election: self, seen: None };
        tokio::pin!(shutdown);
        let renewed = tokio::select! {
            renewed = candidate.acquire(&api) => renewed,
            () = &mut shutdown => return Ok(None),
        };
        tracing::info!(lease = %self.name, identity = %self.identity, "became the leader");
        candidate.tell(&recorder, "became leader");
        let outcome = {
            let work = work();
            tokio::pin!(work);
            tokio::select! {
                output = &mut work => Ok(Some(output)),
                () = &mut shutdown => Ok(None),
                () = candidate.keep(&api, renewed) => Err(LeaderError::Lost(self.name.clone())),
            }
        };
        candidate.tell(&recorder, "stopped leading");
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
    fn tell(&self, recorder: &EventRecorder, what: &str) {
        if let Some((lease, _)) = &self.seen {
            recorder.normal(lease, "LeaderElection", format!("{} {what}", self.election.identity));
        }
    }

    /// Tries until the lease is held; returns when the request that won it was sent.
    async fn acquire(&mut self, api: &Api<Lease>) -> Instant {
        loop {
            let started = Instant::now();
            // An answer that never comes must not keep it from trying again.
            match tokio::time::timeout(self.election.renew_deadline, self.try_once(api)).await {
                Ok(Ok(true)) => return started,
                Ok(Ok(false)) => {}
                Ok(Err(error)) => {
                    tracing::debug!(%error, lease = %self.election.name, "cannot acquire the lease yet");
                }
                Err(_) => tracing::debug!(lease = %self.election.name, "no answer on the lease"),
            }
            let wait = self.election.retry.mul_f64(rand::random_range(1.0..LATEST_RETRY));
            // A lease that runs out is taken then, not at the next turn.
            tokio::time::sleep(self.runs_out_in().map_or(wait, |left| left.min(wait))).await;
        }
    }

    /// How long another's lease stands unless it is renewed.
    fn runs_out_in(&self) -> Option<Duration> {
        let (lease, since) = self.seen.as_ref()?;
        // Never a busy loop: a lease that ran out and could not be taken is tried again after a moment.
        const SHORTEST: Duration = Duration::from_millis(50);
        Some(length(self.election, lease).saturating_sub(since.elapsed()).max(SHORTEST))
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
    holder.is_empty() || holder == election.identity || unchanged_for >= length(election, lease)
}

/// How long the holder of the lease may go without renewing it.
fn length(election: &LeaderElection, lease: &Lease) -> Duration {
    let seconds = lease.spec.as_ref().and_then(|spec| spec.lease_duration_seconds);
    seconds.map_or(election.lease, |seconds| Duration::from_secs(seconds.max(0) as u64))
}

/// What a lease says of its length: whole seconds, never less than it is.
fn whole_seconds(length: Duration) -> i32 {
    i32::try_from(length.as_millis().div_ceil(1000)).unwrap_or(i32::MAX)
}

fn next_spec(election: &LeaderElection, current: Option<&LeaseSpec>) -> LeaseSpec {
    let now = now_micro();
    let held = current.filter(|spec| spec.holder_identity.as_deref() == Some(&election.identity));
    let transitions = current.map_or(0, |spec| spec.lease_transitions.unwrap_or(0));
    LeaseSpec {
        holder_identity: Some(election.identity.clone()),
        lease_duration_seconds: Some(whole_seconds(election.lease)),
        acquire_time: held.and_then(|spec| spec.acquire_time.clone()).or_else(|| Some(now.clone())),
        renew_time: Some(now),
        lease_transitions: Some(if held.is_some() || current.is_none() { transitions } else { transitions + 1 }),
        ..LeaseSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Method, Request, Response, StatusCode};
    use kube::client::Body;
    use parking_lot::Mutex;
    use serde_json::{Value, json};

    /// What a candidate's requests meet on their way.
    #[derive(Clone, Copy, Debug)]
    enum Link {
        Up,
        Broken,
        /// Arrives this much later; by then the sender may have given up.
        Slow(Duration),
        Silent,
    }

    /// An API server that knows one lease.
    #[derive(Default)]
    struct Server {
        lease: Mutex<Option<Value>>,
        version: AtomicUsize,
    }

    impl Server {
        fn answer(&self, method: &Method, body: &[u8]) -> (StatusCode, Value) {
            let failure = |code: StatusCode, reason: &str| {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": reason, "reason": reason, "code": code.as_u16()});
                (code, status)
            };
            let mut lease = self.lease.lock();
            let current = lease.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
            if method == Method::GET {
                return lease
                    .clone()
                    .map_or_else(|| failure(StatusCode::NOT_FOUND, "NotFound"), |found| (StatusCode::OK, found));
            }
            let mut new: Value = serde_json::from_slice(body).unwrap();
            let expected = (method == Method::PUT).then(|| new["metadata"]["resourceVersion"].clone());
            if expected != current {
                return failure(StatusCode::CONFLICT, "Conflict");
            }
            let version = self.version.fetch_add(1, Ordering::SeqCst) + 1;
            new["metadata"]["resourceVersion"] = json!(version.to_string());
            *lease = Some(new.clone());
            (StatusCode::OK, new)
        }

        fn client(self: &Arc<Self>, link: Arc<Mutex<Link>>) -> Client {
            let server = Arc::clone(self);
            let service = tower::service_fn(move |request: Request<Body>| {
                let (server, link) = (Arc::clone(&server), *link.lock());
                async move {
                    let (parts, body) = request.into_parts();
                    let body = body.collect_bytes().await.unwrap();
                    let arrives = {
                        let server = Arc::clone(&server);
                        move || server.answer(&parts.method, &body)
                    };
                    let (code, answer) = match link {
                        Link::Up => arrives(),
                        Link::Broken => return Err(std::io::Error::other("no way")),
                        Link::Silent => std::future::pending().await,
                        Link::Slow(delay) => {
                            // On its way whether or not the sender still waits.
                            let late = async move {
                                tokio::time::sleep(delay).await;
                                arrives()
                            };
                            tokio::spawn(late).await.unwrap()
                        }
                    };
                    let body = Body::from(serde_json::to_vec(&answer).unwrap());
                    Ok(Response::builder().status(code).body(body).unwrap())
                }
            });
            Client::new(service, "default")
        }
    }

    /// How many lead now.
    struct Acting(Arc<AtomicUsize>);

    impl Acting {
        fn begin(count: &Arc<AtomicUsize>) -> Self {
            assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "two lead at once");
            Acting(Arc::clone(count))
        }
    }

    impl Drop for Acting {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// Competes for ever, as a process that is started again whenever it ends.
    async fn compete(server: Arc<Server>, link: Arc<Mutex<Link>>, identity: String, acting: Arc<AtomicUsize>) {
        let election = LeaderElection::new("kube-system", "test", identity);
        loop {
            let work = || async {
                let _acting = Acting::begin(&acting);
                std::future::pending::<()>().await
            };
            let _ = election.run(server.client(Arc::clone(&link)), std::future::pending(), work).await;
        }
    }

    async fn until_led(acting: &AtomicUsize) {
        while acting.load(Ordering::SeqCst) == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn never_two_lead_whatever_the_network_does() {
        use rand::{Rng, SeedableRng};
        for seed in 0..40 {
            let mut random = rand::rngs::StdRng::seed_from_u64(seed);
            let (server, acting) = (Arc::new(Server::default()), Arc::new(AtomicUsize::new(0)));
            let links: Vec<Arc<Mutex<Link>>> = (0..3).map(|_| Arc::new(Mutex::new(Link::Up))).collect();
            let mut candidates = tokio::task::JoinSet::new();
            for (number, link) in links.iter().enumerate() {
                candidates.spawn(compete(
                    Arc::clone(&server),
                    Arc::clone(link),
                    number.to_string(),
                    Arc::clone(&acting),
                ));
            }
            for _ in 0..100 {
                let link = match random.random_range(0..6) {
                    0 => Link::Broken,
                    1 => Link::Silent,
                    2 => Link::Slow(Duration::from_millis(random.random_range(10..20_000))),
                    _ => Link::Up,
                };
                *links[random.random_range(0..links.len())].lock() = link;
                tokio::time::sleep(Duration::from_millis(random.random_range(10..8000))).await;
                if let Some(Err(error)) = candidates.try_join_next() {
                    panic!("seed {seed}: {error}");
                }
            }
            for link in &links {
                *link.lock() = Link::Up;
            }
            until_led(&acting).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn another_takes_over_within_fifteen_seconds_of_a_kill() {
        for survived in 0..40 {
            let (server, acting) = (Arc::new(Server::default()), Arc::new(AtomicUsize::new(0)));
            let up = || Arc::new(Mutex::new(Link::Up));
            let first = tokio::spawn(compete(Arc::clone(&server), up(), "first".into(), Arc::clone(&acting)));
            until_led(&acting).await;
            let second = tokio::spawn(compete(Arc::clone(&server), up(), "second".into(), Arc::clone(&acting)));
            tokio::time::sleep(Duration::from_millis(15_000 + survived * 97)).await;
            first.abort();
            assert!(first.await.is_err_and(|error| error.is_cancelled()));
            let killed = Instant::now();
            until_led(&acting).await;
            assert!(killed.elapsed() < Duration::from_secs(15), "after {:?}", killed.elapsed());
            second.abort();
        }
    }

    #[test]
    fn a_pace_that_lets_two_lead_is_refused() {
        let election = LeaderElection::new("", "", "");
        assert_eq!(election.mistake(), None);
        assert!(LeaderElection { renew_deadline: election.lease, ..election.clone() }.mistake().is_some());
        assert!(LeaderElection { retry: election.renew_deadline, ..election.clone() }.mistake().is_some());
        for (length, seconds) in [(1000, 1), (1001, 2), (1500, 2), (10_000, 10)] {
            assert_eq!(whole_seconds(Duration::from_millis(length)), seconds);
        }
    }

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
