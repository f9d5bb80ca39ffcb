//! One contract for all stores: the same cases and the same random histories run on the model, the embedded store and
//! etcd.

mod etcd_server;
mod model;
mod property;
mod proxy;
mod suite;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use etcd_server::EtcdCluster;
use knarr_store::{Embedded, Error, Etcd, EtcdOptions, Notice, Options, Range, Store, restore};
use model::Model;
use proptest::test_runner::{Config, TestRunner};

#[tokio::test(flavor = "multi_thread")]
async fn the_model_keeps_the_contract() {
    suite::run(Arc::new(Model::new(1)), "/registry/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_store_keeps_the_contract() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = Embedded::open(directory.path(), Options::default()).expect("the store opens");
    suite::run(Arc::new(store), "/registry/").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_keeps_the_contract() {
    let cluster = EtcdCluster::start(1);
    suite::run(Arc::new(cluster.connect("/registry/").await), "/registry/").await;
}

/// Compares random histories, all in one runtime.
fn compare<S: property::Subject>(cases: u32, runtime: &tokio::runtime::Runtime, mut subject: impl FnMut() -> S) {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let subject = std::cell::RefCell::new(&mut subject);
    TestRunner::new(config)
        .run(&property::steps(), |steps| {
            let subject = (subject.borrow_mut())();
            runtime.block_on(property::compare(subject, steps))
        })
        .unwrap_or_else(|error| panic!("{error}"));
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

struct EmbeddedSubject {
    directory: tempfile::TempDir,
    store: Option<Arc<Embedded>>,
}

impl EmbeddedSubject {
    fn open(path: PathBuf) -> Option<Arc<Embedded>> {
        let options = Options { segment_bytes: 2000, ..Options::default() };
        Some(Arc::new(Embedded::open(&path, options).expect("the store opens")))
    }
}

#[async_trait::async_trait]
impl property::Subject for EmbeddedSubject {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone().expect("it is open")
    }

    fn root(&self) -> &str {
        "/registry/"
    }

    async fn reopen(&mut self) {
        self.store = None;
        self.store = Self::open(self.directory.path().to_owned());
    }
}

#[test]
fn random_histories_of_the_embedded_store_are_those_of_the_model() {
    compare(200, &runtime(), || {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = EmbeddedSubject::open(directory.path().to_owned());
        EmbeddedSubject { directory, store }
    });
}

struct EtcdSubject {
    store: Arc<Etcd>,
    root: String,
}

#[async_trait::async_trait]
impl property::Subject for EtcdSubject {
    fn store(&self) -> Arc<dyn Store> {
        self.store.clone()
    }

    fn root(&self) -> &str {
        &self.root
    }

    /// A process that reconnects has no history, so there is nothing to compare.
    async fn reopen(&mut self) {
        self.store.sync().await.expect("a sync");
    }
}

#[test]
fn random_histories_of_etcd_are_those_of_the_model() {
    let (cluster, runtime, case) = (EtcdCluster::start(1), runtime(), AtomicUsize::new(0));
    compare(25, &runtime, || {
        let root = format!("/case-{}/", case.fetch_add(1, Ordering::Relaxed));
        EtcdSubject { store: Arc::new(runtime.block_on(cluster.connect(&root))), root }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn etcd_asks_for_a_certificate_and_shows_its_own() {
    let cluster = EtcdCluster::start(1);
    drop(cluster.connect("/registry/").await);
    let other = EtcdCluster::start(1);
    let anonymous = knarr_store::Tls { identity: None, ..cluster.tls.clone() };
    let connects = [None, Some(anonymous), Some(other.tls.clone())]
        .map(|tls| Etcd::connect(&cluster.endpoints, tls, EtcdOptions::default()));
    for refused in futures::future::join_all(connects).await {
        assert!(matches!(refused.err(), Some(Error::Open(_))));
    }
}

/// A server runs for longer than its certificate is valid.
#[tokio::test(flavor = "multi_thread")]
async fn renewed_credentials_are_used_for_new_connections() {
    let mut cluster = EtcdCluster::start(1);
    let (tls, renewals) = tokio::sync::watch::channel(cluster.tls.clone());
    let options = || EtcdOptions { tls: Some(renewals.clone()), ..EtcdOptions::default() };
    let store = cluster.connect_with(options).await;
    store.create("/registry/pods/a", Bytes::from("1"), None).await.expect("a create");
    cluster.kill(0);
    cluster.renew_certificates();
    cluster.restart(0);
    drop(cluster.connect("/registry/").await);
    let refused = store.create("/registry/pods/b", Bytes::from("1"), None).await;
    assert!(matches!(refused, Err(Error::Unavailable(_))), "the old credentials are worth nothing");
    tls.send_replace(cluster.tls.clone());
    while let Err(error) = store.create("/registry/pods/b", Bytes::from("1"), None).await {
        assert!(matches!(error, Error::Unavailable(_)), "{error}");
    }
    assert_eq!(store.count("/registry/pods/"), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_on_one_etcd_see_each_others_writes() {
    let cluster = EtcdCluster::start(1);
    let (one, other) = (cluster.connect("/registry/").await, cluster.connect("/registry/").await);
    let mut entry = one.create("/registry/pods/a", Bytes::from("0"), None).await.expect("a create");
    for number in 1..50 {
        let (writer, reader) = if number % 2 == 0 { (&one, &other) } else { (&other, &one) };
        entry = writer
            .update("/registry/pods/a", Bytes::from(number.to_string()), entry.revision, None)
            .await
            .expect("an update");
        assert!(reader.sync().await.expect("a sync") >= entry.revision);
        assert_eq!(reader.peek("/registry/pods/a").expect("the entry").revision, entry.revision);
    }
    let stale = other.update("/registry/pods/a", Bytes::new(), entry.created, None).await;
    assert!(matches!(stale, Err(Error::Conflict { current: Some(current), .. }) if current.revision == entry.revision));
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_with_a_time_to_live_end_in_etcd() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect_with(|| EtcdOptions { clock: Arc::new(StoppedClock), ..EtcdOptions::default() }).await;
    let mut watch = store.watch("/registry/events/", store.revision()).expect("a watch");
    for name in ["a", "b"] {
        let ttl = Some(Duration::from_secs(5));
        store.create(&format!("/registry/events/{name}"), Bytes::from("1"), ttl).await.expect("a create");
    }
    let events = suite::events(&mut *watch, 4).await;
    assert!(events[2..].iter().all(|event| event.current.is_none() && event.previous.is_some()));
    assert_eq!(events[2].revision, events[3].revision, "they share a lease, so they end together");
    assert_eq!(store.count("/registry/events/"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_of_etcd_becomes_an_embedded_store() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    store.create("/registry/pods/a", Bytes::from("1"), None).await.expect("a create");
    store.create("/registry/events/e", Bytes::from("2"), Some(Duration::from_secs(3600))).await.expect("a create");
    let mut image = Vec::new();
    let revision = store.snapshot(&mut image).await.expect("a snapshot");
    let directory = tempfile::tempdir().expect("a temporary directory");
    assert_eq!(restore(image.as_slice(), directory.path(), 0).expect("a restore"), revision);
    let clock = Arc::new(LateClock);
    let restored = Embedded::open(directory.path(), Options { clock, ..Options::default() }).expect("the store opens");
    assert_eq!((restored.count(""), restored.revision()), (2, revision));
    let mut watch = restored.watch("", revision).expect("a watch");
    restored.expire();
    let events = suite::events(&mut *watch, 1).await;
    assert_eq!(events[0].previous.as_ref().expect("the event").key.as_ref(), "/registry/events/e");
}

/// However long a busy machine takes between two writes, they happen at the same time.
struct StoppedClock;

impl knarr_store::Clock for StoppedClock {
    fn now(&self) -> u64 {
        1
    }
}

/// Two hours after the host's clock.
struct LateClock;

impl knarr_store::Clock for LateClock {
    fn now(&self) -> u64 {
        knarr_store::SystemClock.now() + 2 * 3_600_000
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_response_was_lost_is_neither_failed_nor_made_twice() {
    let cluster = EtcdCluster::start(1);
    drop(cluster.connect("/registry/").await);
    let mut proxy = proxy::Proxy::start(&cluster.endpoints[0]).await;
    let endpoints = [proxy.endpoint.clone()];
    let options = EtcdOptions::default();
    let store = Etcd::connect(&endpoints, Some(cluster.tls.clone()), options).await.expect("etcd responds");
    let start = store.revision();
    let mut watch = store.watch("/registry/", start).expect("a watch");
    proxy.lose_next_answer();
    let created = store.create("/registry/pods/a", Bytes::from("1"), None).await.expect("a create");
    proxy.lose_next_answer();
    let updated = store.update("/registry/pods/a", Bytes::from("2"), created.revision, None).await.expect("an update");
    assert_eq!(updated.created, created.revision);
    proxy.lose_next_answer();
    let deleted = store.delete("/registry/pods/a", updated.revision).await.expect("a delete");
    let revisions: Vec<_> = suite::events(&mut *watch, 3).await.iter().map(|event| event.revision).collect();
    assert_eq!(revisions, [created.revision, updated.revision, deleted]);
    watch.request_progress();
    store.sync().await.expect("a sync");
    assert!(matches!(watch.next().await, Some(Notice::Progress(_))), "nothing else was written");
    assert_eq!(proxy.lost(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_of_three_may_die() {
    let cluster = EtcdCluster::start(3);
    let store = Arc::new(cluster.connect("/registry/").await);
    let start = store.revision();
    let mut watch = store.watch("/registry/", start).expect("a watch");
    let written = Arc::new(AtomicUsize::new(0));
    let writers = (0..8).map(|writer| {
        let (store, written) = (store.clone(), written.clone());
        tokio::spawn(async move {
            let mut keys = Vec::new();
            while written.load(Ordering::SeqCst) < 600 {
                let key = format!("/registry/pods/{writer}-{}", keys.len());
                let entry =
                    store.create(&key, Bytes::from(key.clone()), None).await.expect("a write while a member is dead");
                keys.push((entry.revision, key));
                written.fetch_add(1, Ordering::SeqCst);
            }
            keys
        })
    });
    let writers: Vec<_> = writers.collect();
    store.reach(start + 200, Duration::from_secs(60)).await.expect("two hundred writes");
    // The one the client speaks to.
    cluster.kill(0);
    let mut keys: Vec<_> =
        futures::future::join_all(writers).await.into_iter().flat_map(|keys| keys.expect("a writer")).collect();
    keys.sort_unstable();
    let seen: Vec<_> = suite::events(&mut *watch, keys.len())
        .await
        .iter()
        .map(|event| (event.revision, model::key_of(event).to_owned()))
        .collect();
    assert_eq!(seen, keys, "the watch lost, repeated or reordered something");
    let fresh = cluster.connect("/registry/").await;
    let page = fresh.peek_range(&Range { prefix: "/registry/pods/", ..Range::default() }).expect("a page");
    assert_eq!(page.entries.len(), keys.len());
    watch.request_progress();
    assert!(matches!(watch.next().await, Some(Notice::Progress(_))));
}
