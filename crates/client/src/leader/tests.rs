use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The state of the network between a candidate and the server.
#[derive(Clone, Copy, Debug)]
enum Link {
    Up,
    Broken,
    /// Requests arrive this much later; by then the sender may have given up.
    Slow(Duration),
    Silent,
}

/// A fake API server with one lease.
#[derive(Default)]
struct Server {
    lease: Mutex<Option<Value>>,
    version: AtomicUsize,
}

impl Server {
    fn handle(&self, method: &Method, body: &[u8]) -> (StatusCode, Value) {
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
                    move || server.handle(&parts.method, &body)
                };
                let (code, response) = match link {
                    Link::Up => arrives(),
                    Link::Broken => return Err(std::io::Error::other("connection refused")),
                    Link::Silent => std::future::pending().await,
                    Link::Slow(delay) => {
                        // Arrives whether or not the sender still waits.
                        let late = async move {
                            tokio::time::sleep(delay).await;
                            arrives()
                        };
                        tokio::spawn(late).await.unwrap()
                    }
                };
                let body = Body::from(serde_json::to_vec(&response).unwrap());
                Ok(Response::builder().status(code).body(body).unwrap())
            }
        });
        Client::new(service, "default")
    }
}

/// Counts the current leaders.
struct Leading(Arc<AtomicUsize>);

impl Leading {
    fn start(count: &Arc<AtomicUsize>) -> Self {
        assert_eq!(count.fetch_add(1, Ordering::SeqCst), 0, "two lead at once");
        Leading(Arc::clone(count))
    }
}

impl Drop for Leading {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Competes for ever, like a process that is restarted whenever it exits.
async fn compete(server: Arc<Server>, link: Arc<Mutex<Link>>, identity: String, leaders: Arc<AtomicUsize>) {
    let election = LeaderElection::new("kube-system", "test", identity);
    loop {
        let work = || async {
            let _leading = Leading::start(&leaders);
            std::future::pending::<()>().await
        };
        let _ = election.run(server.client(Arc::clone(&link)), std::future::pending(), work).await;
    }
}

async fn until_led(leaders: &AtomicUsize) {
    while leaders.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn never_two_leaders_whatever_the_network_does() {
    use rand::{Rng, SeedableRng};
    for seed in 0..40 {
        let mut random = rand::rngs::StdRng::seed_from_u64(seed);
        let (server, leaders) = (Arc::new(Server::default()), Arc::new(AtomicUsize::new(0)));
        let links: Vec<Arc<Mutex<Link>>> = (0..3).map(|_| Arc::new(Mutex::new(Link::Up))).collect();
        let mut candidates = tokio::task::JoinSet::new();
        for (number, link) in links.iter().enumerate() {
            candidates.spawn(compete(Arc::clone(&server), Arc::clone(link), number.to_string(), Arc::clone(&leaders)));
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
        until_led(&leaders).await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_takes_over_within_fifteen_seconds_of_a_kill() {
    for survived in 0..40 {
        let (server, leaders) = (Arc::new(Server::default()), Arc::new(AtomicUsize::new(0)));
        let up = || Arc::new(Mutex::new(Link::Up));
        let first = tokio::spawn(compete(Arc::clone(&server), up(), "first".into(), Arc::clone(&leaders)));
        until_led(&leaders).await;
        let second = tokio::spawn(compete(Arc::clone(&server), up(), "second".into(), Arc::clone(&leaders)));
        tokio::time::sleep(Duration::from_millis(15_000 + survived * 97)).await;
        first.abort();
        assert!(first.await.is_err_and(|error| error.is_cancelled()));
        let killed = Instant::now();
        until_led(&leaders).await;
        assert!(killed.elapsed() < Duration::from_secs(15), "after {:?}", killed.elapsed());
        second.abort();
    }
}

#[test]
fn a_pace_that_lets_two_lead_is_refused() {
    let election = LeaderElection::new("", "", "");
    assert_eq!(election.invalid_reason(), None);
    assert!(LeaderElection { renew_deadline: election.lease_duration, ..election.clone() }.invalid_reason().is_some());
    assert!(LeaderElection { retry_period: election.renew_deadline, ..election.clone() }.invalid_reason().is_some());
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
fn a_lease_is_acquired_only_after_observing_its_expiry() {
    let election = LeaderElection::new("kube-system", "kube-scheduler", "me");
    for (holder, unchanged_for, may) in
        [("me", 0, true), ("", 0, true), ("other", 0, false), ("other", 14, false), ("other", 15, true)]
    {
        assert_eq!(
            may_acquire(&election, &lease(holder, 0), Duration::from_secs(unchanged_for)),
            may,
            "{holder} {unchanged_for}"
        );
    }
    assert!(election.renew_deadline < election.lease_duration, "the loser stops first");
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

#[tokio::test(start_paused = true)]
async fn a_server_without_a_response_keeps_no_leader_from_stopping() {
    let (server, link) = (Arc::new(Server::default()), Arc::new(Mutex::new(Link::Up)));
    let (client, election) = (server.client(link.clone()), LeaderElection::new("kube-system", "lease", "a"));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (leads, leading) = tokio::sync::oneshot::channel();
    let running = tokio::spawn(async move {
        let work = || async move {
            leads.send(()).unwrap();
            std::future::pending::<()>().await;
        };
        election.run(client, async { stopped.await.unwrap() }, work).await
    });
    leading.await.unwrap();
    *link.lock() = Link::Silent;
    stop.send(()).unwrap();
    let outcome = tokio::time::timeout(Duration::from_secs(30), running).await;
    assert!(matches!(outcome.expect("it stops").unwrap(), Ok(None)));
}
