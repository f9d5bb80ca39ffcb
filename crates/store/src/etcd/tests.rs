use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::contract::{Notice, Page, Range, Scope, Store};
use etcd_server::EtcdCluster;

/// The tests of the whole contract start etcd in the same way; they see the crate from outside.
#[path = "../../tests/contract/etcd_server.rs"]
mod etcd_server;

async fn put(client: &Client, key: &str) -> Revision {
    let put = wire::PutRequest { key: key.as_bytes().to_vec(), value: Bytes::from("1"), lease: 0 };
    let put: wire::PutResponse = client.call(PUT, put).await.unwrap().body;
    wire::revision(&put.header)
}

#[tokio::test]
async fn others_transactions_change_several_keys_at_one_revision() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let mut watch = store.watch("/registry/", store.revision()).unwrap();
    let success = ["/registry/pods/a", "/registry/nodes/b", "/registry/pods/c"].map(|key| wire::Operation {
        request: Some(Request::Put(wire::PutRequest { key: key.into(), value: Bytes::from("1"), lease: 0 })),
    });
    let request = wire::TransactionRequest { success: success.to_vec(), ..Default::default() };
    let done: wire::TransactionResponse = store.client.call(TRANSACTION, request).await.unwrap().body;
    let Some(Notice::Events(events)) = watch.next().await else { panic!("no events") };
    let revision = wire::revision(&done.header);
    assert_eq!(events.iter().map(|event| event.revision).collect::<Vec<_>>(), [revision; 3]);
    assert_eq!((store.revision(), store.count("/registry/pods/")), (revision, 2));
}

#[tokio::test]
async fn others_keys_move_the_revision_but_are_no_entries() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let foreign = put(&store.client, "/elsewhere/a").await;
    assert!(store.sync().await.unwrap() >= foreign);
    assert_eq!(store.count(""), 0);
    assert!(matches!(store.create("/elsewhere/b", Bytes::new(), None).await, Err(Error::Unavailable(_))));
    assert_eq!(cluster.connect("/registry/").await.count(""), 0, "the marker is no entry either");
}

/// As kube-apiserver with `--etcd-prefix` and an egress selector.
#[tokio::test]
async fn keys_may_have_another_prefix_in_etcd_and_connections_another_way() {
    let cluster = EtcdCluster::start(1);
    let dialed = Arc::new(AtomicUsize::new(0));
    let dialer: Dialer = {
        let dialed = dialed.clone();
        Arc::new(move |host, port| {
            dialed.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                let stream = tokio::net::TcpStream::connect((host, port)).await?;
                Ok(Box::new(stream) as Box<dyn Connection>)
            })
        })
    };
    let options = || EtcdOptions {
        stored_root: Some("/other/".to_owned()),
        dialer: Some(dialer.clone()),
        ..EtcdOptions::default()
    };
    let store = cluster.connect_with(options).await;
    assert!(dialed.load(Ordering::SeqCst) > 0);
    let mut watch = store.watch("/registry/pods/", store.revision()).unwrap();
    let created =
        store.create("/registry/pods/a", Bytes::from_static(b"1"), Some(Duration::from_secs(600))).await.unwrap();
    let updated = store.update("/registry/pods/a", Bytes::from_static(b"2"), created.revision, None).await.unwrap();
    let mut seen = Vec::new();
    // They may come together.
    while seen.len() < 2 {
        let Some(Notice::Events(events)) = watch.next().await else { panic!("no event") };
        seen.extend(events.iter().filter_map(|event| event.current.clone()));
    }
    let seen: Vec<_> = seen.iter().map(|entry| (&*entry.key, entry.value())).collect();
    assert_eq!(seen, [("/registry/pods/a", "1".into()), ("/registry/pods/a", "2".into())]);
    // Others see it under the other prefix, and nothing under the usual one.
    assert_eq!(cluster.connect("/registry/").await.count(""), 0);
    let other = cluster.connect("/other/").await;
    assert_eq!(&other.peek("/other/pods/a").unwrap().value()[..], b"2");
    put(&other.client, "/other/pods/b").await;
    store.sync().await.unwrap();
    assert!(store.peek("/registry/pods/b").is_some());
    store.delete("/registry/pods/a", updated.revision).await.unwrap();
    assert!(store.peek("/registry/pods/a").is_none());
    assert_eq!(cluster.connect_with(options).await.count("/registry/pods/"), 1);
}

#[tokio::test]
async fn reloads_everything_after_missing_a_compaction() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let old = put(&store.client, "/registry/pods/a").await;
    // A process with an index of that time, which was disconnected while the store changed.
    let index = Arc::new(Index::new(Vec::new(), old - 1, old - 1));
    let mut watch = index.watch(Scope::Prefix("/registry/pods/"), old - 1).unwrap();
    put(&store.client, "/registry/pods/b").await;
    let newest = put(&store.client, "/registry/pods/b").await;
    store.sync().await.unwrap();
    store.compact(newest).await.unwrap();
    let (client, key_space, late) = (store.client.clone(), store.key_space.clone(), store.late.clone());
    let feed = Feed { client, index: index.clone(), key_space, late };
    let feed = tokio::spawn(feed.run());
    assert!(matches!(watch.next().await, Some(Notice::Compacted)));
    // Catching up may have written the progress marker, which has a revision of its own.
    let loaded = index.revision();
    assert!(index.count("/registry/pods/") == 2 && loaded >= newest, "loaded {loaded}, newest {newest}");
    let mut watch = index.watch(Scope::Prefix("/registry/pods/"), loaded).unwrap();
    let next = put(&store.client, "/registry/pods/c").await;
    assert!(matches!(watch.next().await, Some(Notice::Events(events)) if events[0].revision == next));
    feed.abort();
}

#[tokio::test]
async fn a_lease_that_etcd_dropped_is_replaced() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let hour = Duration::from_secs(3600);
    store.leases.lock().add(hour, 12345, store.clock.now());
    store.create("/registry/events/a", Bytes::from("1"), Some(hour)).await.unwrap();
    store.create("/registry/events/b", Bytes::from("1"), Some(hour)).await.unwrap();
    let mut leases = Vec::new();
    feed::pages(&store.client, &store.key_space, 0, true, |pair| leases.push(pair.lease)).await.unwrap();
    assert!(leases.len() == 2 && leases[0] == leases[1] && leases[0] != 12345, "{leases:?}");
}

#[tokio::test]
async fn more_than_a_page_is_loaded_at_one_revision() {
    let cluster = EtcdCluster::start(1);
    let store = Arc::new(cluster.connect("/registry/").await);
    for chunk in 0..21 {
        let success = (0..100).map(|number| wire::Operation {
            request: Some(Request::Put(wire::PutRequest {
                key: format!("/registry/pods/{chunk}-{number}").into_bytes(),
                value: Bytes::from("1"),
                lease: 0,
            })),
        });
        let request = wire::TransactionRequest { success: success.collect(), ..Default::default() };
        let _: Reply<wire::TransactionResponse> = store.client.call(TRANSACTION, request).await.unwrap();
    }
    let fresh = cluster.connect("/registry/").await;
    assert_eq!((fresh.count("/registry/pods/"), fresh.revision()), (2100, store.sync().await.unwrap()));
}

#[tokio::test]
async fn oversized_values_are_refused_as_too_large() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    for size in [1600 << 10, 2 << 20, 8 << 20] {
        let refused = store.create("/registry/pods/a", Bytes::from(vec![1; size]), None).await;
        assert!(matches!(refused, Err(Error::TooLarge { bytes, .. }) if bytes == size), "{size}: {refused:?}");
    }
}

#[tokio::test]
async fn writes_are_part_of_the_trace_of_their_request() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let tracer = knarr_traces::Tracer::without_collector(1_000_000);
    let request = tracer.span("request", knarr_traces::Kind::Server, knarr_traces::Parent::None).unwrap();
    let trace = request.context().trace;
    let written = async { store.create("/registry/pods/a", Bytes::from("1"), None).await.unwrap().revision };
    let revision = knarr_traces::within(request.place(), written).await;
    assert_eq!(tracer.waiting(), [("etcdserverpb.KV/Txn".to_owned(), trace)]);
    // Outside of a request, nothing is recorded.
    store.delete("/registry/pods/a", revision).await.unwrap();
    assert_eq!(tracer.waiting().len(), 1);
}

#[tokio::test]
async fn without_etcd_writes_fail_and_what_is_known_stays_readable() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let entry = store.create("/registry/pods/a", Bytes::from("1"), None).await.unwrap();
    cluster.kill(0);
    let (created, deleted, synced) = tokio::join!(
        store.create("/registry/pods/b", Bytes::from("1"), None),
        store.delete("/registry/pods/a", entry.revision),
        store.sync()
    );
    assert!(matches!(created, Err(Error::Unavailable(_))));
    assert!(matches!(deleted, Err(Error::Unavailable(_))));
    assert!(matches!(synced, Err(Error::Unavailable(_))));
    assert_eq!(store.peek("/registry/pods/a").unwrap().revision, entry.revision);
}

/// A single etcd that is stopped, given the contents of an embedded store, and started again.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_moves_into_etcd_with_its_revisions() {
    let parent = tempfile::tempdir().unwrap();
    let embedded = crate::Embedded::open(&parent.path().join("store"), crate::Options::default()).unwrap();
    let hour = Duration::from_secs(3600);
    for number in 0..300u32 {
        let value = Bytes::from(vec![b'x'; (number as usize % 7) * 2000]);
        let ttl = (number % 50 == 0).then_some(hour);
        embedded.create(&format!("/registry/pods/{number:03}"), value, ttl).await.unwrap();
    }
    let changed = embedded.peek("/registry/pods/007").unwrap();
    embedded.update("/registry/pods/007", Bytes::from("changed"), changed.revision, None).await.unwrap();
    let gone = embedded.peek("/registry/pods/299").unwrap();
    embedded.delete("/registry/pods/299", gone.revision).await.unwrap();
    let mut image = Vec::new();
    let revision = embedded.snapshot(&mut image).await.unwrap();
    for skip in [0, 1_000_000] {
        let mut cluster = EtcdCluster::start(1);
        cluster.connect("/registry/").await;
        cluster.kill(0);
        let now = SystemClock.now();
        let skipped = SkippedRevisions { seen: 0, after: skip };
        assert_eq!(import(image.as_slice(), &cluster.database(0), skipped, now).unwrap(), revision + skip);
        assert_eq!(revision_of(&cluster.database(0)).unwrap(), revision + skip);
        cluster.restart(0);
        let store = cluster.connect("/registry/").await;
        assert_eq!(store.revision(), revision + skip);
        let (was, is) = (embedded.peek_range(&Range::default()).unwrap(), store.peek_range(&Range::default()).unwrap());
        let all = |page: &Page| -> Vec<(Arc<str>, Bytes, Revision, Revision)> {
            page.entries.iter().map(|e| (e.key.clone(), e.value(), e.created, e.revision)).collect()
        };
        assert_eq!(all(&was), all(&is));
        let expiries = store.expiries(store.revision()).await.unwrap();
        assert_eq!(expiries.len(), 6);
        assert!(expiries.values().all(|expires| (3500..3700).contains(&((expires - now) / 1000))), "{expiries:?}");
        let newest = store.peek("/registry/pods/007").unwrap();
        assert!(matches!(
            store.update("/registry/pods/007", Bytes::new(), changed.revision, None).await,
            Err(Error::Conflict { .. })
        ));
        let updated = store.update("/registry/pods/007", Bytes::new(), newest.revision, None).await.unwrap();
        assert_eq!((updated.created, updated.revision), (newest.created, revision + skip + 1));
        // What was deleted can be created again, and everything survives a restart.
        store.create("/registry/pods/299", Bytes::from("new"), None).await.unwrap();
        cluster.kill(0);
        cluster.restart(0);
        assert_eq!(cluster.connect("/registry/").await.revision(), revision + skip + 2);
        // When it is restored once more, revisions do not go back.
        cluster.kill(0);
        let seen = revision_of(&cluster.database(0)).unwrap();
        assert_eq!(seen, revision + skip + 2);
        let skipped = SkippedRevisions { seen, after: 10 };
        assert_eq!(import(image.as_slice(), &cluster.database(0), skipped, now).unwrap(), seen + 10);
        cluster.restart(0);
        assert_eq!(cluster.connect("/registry/").await.revision(), seen + 10);
    }
}

/// Asks until etcd answers: it refuses while members lose sight of each other or elect a leader, as on a busy machine.
async fn eventually<T, F: Future<Output = Result<T, Error>>>(mut ask: impl FnMut() -> F) -> T {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(tokio::time::Instant::now() < deadline, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn members_are_listed_and_report_their_state() {
    let cluster = EtcdCluster::start(3);
    cluster.connect("/registry/").await;
    let administration = &EtcdAdministration::new(&cluster.endpoints, Some(&cluster.tls)).unwrap();
    let remove = async |id| {
        eventually(|| async move {
            match administration.members().await?.iter().any(|member| member.id == id) {
                true => administration.remove(id).await,
                false => Ok(()),
            }
        })
        .await;
    };
    let members = eventually(|| administration.members()).await;
    assert_eq!(members.iter().filter(|member| !member.is_learner).count(), 3);
    let status = eventually(|| administration.status(&cluster.endpoints[1])).await;
    assert!(members.iter().any(|member| member.id == status.id && member.name == "m1"), "{status:?}");
    assert!(status.leader == 0 || members.iter().any(|member| member.id == status.leader), "{status:?}");
    eventually(|| administration.defragment(&cluster.endpoints[1])).await;
    remove(members.iter().find(|member| member.name == "m2").unwrap().id).await;
    let learner = eventually(|| async {
        let known = administration.members().await?.into_iter().find(|member| member.is_learner);
        match known {
            Some(learner) => Ok(learner),
            None => administration.add_learner("http://127.0.0.9:2380").await,
        }
    })
    .await;
    assert!(learner.is_learner && !eventually(|| administration.promote(learner.id)).await, "it never started");
    remove(learner.id).await;
    assert_eq!(eventually(|| administration.members()).await.len(), 2);
}

/// Makes etcd refuse writes because this member is full.
async fn raise_space_alarm(store: &Etcd, member_id: u64) {
    let raise = wire::AlarmRequest { action: 1, member_id, alarm: administration::NO_SPACE };
    let _: Reply<wire::AlarmResponse> = store.client.call(administration::ALARM, raise).await.unwrap();
}

#[tokio::test]
async fn reads_wait_for_late_events_of_a_full_etcd() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let created = store.create("/registry/pods/a", Bytes::from("1"), None).await.unwrap();
    raise_space_alarm(&store, 4711).await;
    let (caught_up, deleted) = tokio::join!(store.catch_up(created.revision + 1), async {
        tokio::time::sleep(EVENT_DELAY * 4).await;
        store.delete("/registry/pods/a", created.revision).await
    });
    assert_eq!(deleted.unwrap(), created.revision + 1);
    caught_up.unwrap();
    store.sync().await.unwrap();
}

/// Whoever was removed clears no alarm.
#[tokio::test]
async fn the_alarm_of_a_member_that_is_none_any_more_can_be_cleared() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let administration = EtcdAdministration::new(&cluster.endpoints, Some(&cluster.tls)).unwrap();
    assert_eq!(administration.space_alarms().await.unwrap(), []);
    raise_space_alarm(&store, 4711).await;
    assert_eq!(administration.space_alarms().await.unwrap(), [4711]);
    let refused = store.create("/registry/pods/a", Bytes::from("1"), None).await.unwrap_err();
    assert!(matches!(refused, Error::SpaceExceeded), "{refused}");
    administration.clear_space_alarm(4711).await.unwrap();
    assert_eq!(administration.space_alarms().await.unwrap(), []);
    store.create("/registry/pods/a", Bytes::from("1"), None).await.unwrap();
}

/// A member that was paused executes a creation after its retry was acknowledged and the object deleted.
#[tokio::test]
async fn a_late_attempt_of_a_creation_does_not_bring_back_what_was_deleted() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let (pod, value) = ("/registry/pods/a", Bytes::from("1"));
    let put = wire::PutRequest { key: pod.into(), value: value.clone(), lease: 0 };
    let late = store.creation(put, *store.fence.lock().await);
    store.raise_fence(0).await.unwrap();
    let retry = store.create(pod, value.clone(), None).await.unwrap();
    store.delete(pod, retry.revision).await.unwrap();
    let late: wire::TransactionResponse = store.client.call(TRANSACTION, late).await.unwrap().body;
    assert!(!late.succeeded && store.peek(pod).is_none());
    // A server that does not know the fence learns where it is.
    let other = cluster.connect("/registry/").await;
    assert_eq!((*other.fence.lock().await, other.count("")), (0, 0), "the fence is no entry");
    other.create(pod, value.clone(), None).await.unwrap();
    assert_eq!(*other.fence.lock().await, *store.fence.lock().await);
    assert!(matches!(store.create(pod, value, None).await, Err(Error::Exists(_))));
}

/// The first attempt of a write was executed, another writer replaced the value, and then the second attempt is refused.
#[tokio::test]
async fn a_write_that_took_effect_is_not_reported_as_refused() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let before = store.revision();
    let first = store.create("/registry/pods/a", Bytes::from("ours"), None).await.unwrap();
    store.update("/registry/pods/a", Bytes::from("theirs"), first.revision, None).await.unwrap();
    let found = store.earlier_attempt("/registry/pods/a", &Bytes::from("ours"), before).unwrap();
    assert_eq!(found.map(|entry| entry.revision), Some(first.revision));
    assert!(store.earlier_attempt("/registry/pods/a", &Bytes::from("other"), before).unwrap().is_none());
    store.compact(store.revision()).await.unwrap();
    assert!(matches!(
        store.earlier_attempt("/registry/pods/a", &Bytes::from("ours"), before),
        Err(Error::Unavailable(_))
    ));
}
