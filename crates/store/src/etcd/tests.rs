use super::*;
use crate::contract::Notice;
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

#[tokio::test]
async fn reloads_everything_after_missing_a_compaction() {
    let cluster = EtcdCluster::start(1);
    let store = cluster.connect("/registry/").await;
    let old = put(&store.client, "/registry/pods/a").await;
    // A process with an index of that time, which was disconnected while the store changed.
    let index = Arc::new(Index::new(Vec::new(), old - 1, old - 1));
    let mut watch = index.watch("/registry/pods/", old - 1).unwrap();
    put(&store.client, "/registry/pods/b").await;
    let newest = put(&store.client, "/registry/pods/b").await;
    store.sync().await.unwrap();
    store.compact(newest).await.unwrap();
    let feed = Feed { client: store.client.clone(), index: index.clone(), key_space: store.key_space.clone() };
    let feed = tokio::spawn(feed.run());
    assert!(matches!(watch.next().await, Some(Notice::Compacted)));
    // Catching up may have written the progress marker, which has a revision of its own.
    let loaded = index.revision();
    assert!(index.count("/registry/pods/") == 2 && loaded >= newest, "loaded {loaded}, newest {newest}");
    let mut watch = index.watch("/registry/pods/", loaded).unwrap();
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
