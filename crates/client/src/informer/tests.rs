use super::*;
use k8s_openapi::api::core::v1::ConfigMap;
use watcher::Event;

fn object(name: &str, uid: &str, version: &str) -> ConfigMap {
    let metadata = ObjectMeta {
        name: Some(name.into()),
        namespace: Some("ns".into()),
        uid: Some(uid.into()),
        resource_version: Some(version.into()),
        ..ObjectMeta::default()
    };
    ConfigMap { metadata, ..ConfigMap::default() }
}

fn rendered(change: &Change<ConfigMap>) -> String {
    let at = |object: &ConfigMap| {
        format!(
            "{}@{}",
            object.metadata.name.as_deref().unwrap_or(""),
            object.metadata.resource_version.as_deref().unwrap_or("")
        )
    };
    match change {
        Change::Added(object) => format!("+{}", at(object)),
        Change::Updated { old, new } => format!("{}>{}", at(old), at(new)),
        Change::Deleted(object) => format!("-{}", at(object)),
    }
}

#[tokio::test]
async fn handlers_see_differences_across_a_new_list() {
    let (sender, receiver) = mpsc::unbounded_channel();
    let stream = Mutex::new(Some(tokio_stream::wrappers::UnboundedReceiverStream::new(receiver)));
    let informer = Informer::start(move || stream.lock().take().expect("one start").boxed(), Ok);
    let mut changes = informer.subscribe();
    for event in [
        Event::Init,
        Event::InitApply(object("a", "1", "1")),
        Event::InitApply(object("b", "2", "2")),
        Event::InitDone,
        Event::Apply(object("a", "1", "3")),
        Event::Apply(object("c", "3", "4")),
        Event::Delete(object("c", "3", "5")),
        // The watch fell behind: meanwhile a changed, b vanished, and d was created, deleted and created again.
        Event::Apply(object("d", "4", "6")),
        Event::Init,
        Event::InitApply(object("a", "1", "7")),
        Event::InitApply(object("d", "5", "8")),
        Event::InitDone,
    ] {
        sender.send(Ok(event)).unwrap();
    }
    let mut observed = Vec::new();
    while observed.len() < 10 {
        observed.push(rendered(&changes.recv().await.unwrap()));
    }
    observed[..2].sort();
    observed[6..].sort();
    assert_eq!(observed, ["+a@1", "+b@2", "a@1>a@3", "+c@4", "-c@5", "+d@6", "+d@8", "-b@2", "-d@6", "a@3>a@7"]);
    informer.synced().await;
    assert_eq!(informer.len(), 2);
    assert_eq!(informer.get("ns", "d").unwrap().metadata.uid.as_deref(), Some("5"));
    assert!(informer.get("ns", "b").is_none());
    let mut late = informer.subscribe();
    let mut names = vec![rendered(&late.recv().await.unwrap()), rendered(&late.recv().await.unwrap())];
    names.sort();
    assert_eq!(names, ["+a@7", "+d@8"], "a late subscriber first gets all cached objects");
}

fn too_large() -> watcher::Error {
    let status = serde_json::json!({"kind": "Status", "status": "Failure", "code": 504, "reason": "Timeout",
        "message": "Timeout: Too large resource version: 9, current: 5",
        "details": {"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]}});
    watcher::Error::WatchStartFailed(kube::Error::Api(serde_json::from_value(status).unwrap()))
}

#[tokio::test(start_paused = true)]
async fn a_restored_server_is_listed_again() {
    let opened = Arc::new(Mutex::new(0));
    let streams = opened.clone();
    let informer = Informer::start(
        move || {
            *streams.lock() += 1;
            let first = *streams.lock() == 1;
            let name = if first { "newer" } else { "restored" };
            let listed = [Ok(Event::Init), Ok(Event::InitApply(object(name, "1", "9"))), Ok(Event::InitDone)];
            let retries = std::iter::repeat_with(|| Err(too_large())).take(if first { usize::MAX } else { 0 });
            futures::stream::iter(listed.into_iter().chain(retries)).chain(futures::stream::pending()).boxed()
        },
        Ok,
    );
    let mut changes = informer.subscribe();
    let mut seen = Vec::new();
    while seen.len() < 3 {
        seen.push(rendered(&changes.recv().await.unwrap()));
    }
    seen[1..].sort();
    assert_eq!(seen, ["+newer@9", "+restored@9", "-newer@9"]);
    assert_eq!(*opened.lock(), 2);
}

#[tokio::test(start_paused = true)]
async fn after_an_object_that_cannot_be_decoded_the_kind_is_listed_again() {
    let opened = Arc::new(Mutex::new(0));
    let streams = opened.clone();
    let decoded = opened.clone();
    let informer = Informer::start(
        move || {
            *streams.lock() += 1;
            let (a, b) = (object("a", "1", "1"), object("b", "2", "2"));
            let events = match *streams.lock() {
                1 => vec![Event::Init, Event::InitApply(a), Event::InitDone, Event::Apply(b)],
                _ => vec![Event::Init, Event::InitApply(a), Event::InitApply(b), Event::InitDone],
            };
            futures::stream::iter(events.into_iter().map(Ok)).chain(futures::stream::pending()).boxed()
        },
        move |object: ConfigMap| match object.metadata.name.as_deref() {
            Some("b") if *decoded.lock() == 1 => serde_json::from_str("{"),
            _ => Ok(object),
        },
    );
    let mut changes = informer.subscribe();
    assert_eq!(rendered(&changes.recv().await.unwrap()), "+a@1");
    assert_eq!(rendered(&changes.recv().await.unwrap()), "+b@2");
    assert_eq!(*opened.lock(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_panicking_handler_restarts_its_component_only() {
    use knarr_supervisor::{Registry, Supervisor};
    let (sender, receiver) = mpsc::unbounded_channel();
    let stream = Mutex::new(Some(tokio_stream::wrappers::UnboundedReceiverStream::new(receiver)));
    let start = move || stream.lock().take().expect("one start").boxed();
    let informer = Arc::new(Informer::start(start, Ok));
    let mut other = informer.subscribe();
    let supervisor = Supervisor::new(&Registry::default());
    let handled: Arc<Mutex<Vec<String>>> = Arc::default();
    let (own, seen) = (informer.clone(), handled.clone());
    supervisor.restart("component", move || {
        let seen = seen.clone();
        own.on_change(move |change| {
            seen.lock().push(rendered(change));
            assert!(seen.lock().len() != 1, "the first change");
        });
        std::future::pending::<()>()
    });
    tokio::time::sleep(Duration::from_millis(1)).await;
    for event in [Event::Init, Event::InitApply(object("a", "1", "1")), Event::InitDone] {
        sender.send(Ok(event)).unwrap();
    }
    assert_eq!(rendered(&other.recv().await.unwrap()), "+a@1");
    // Restarted after its backoff, it gets all objects again.
    tokio::time::sleep(Duration::from_secs(1)).await;
    sender.send(Ok(Event::Apply(object("a", "1", "2")))).unwrap();
    assert_eq!(rendered(&other.recv().await.unwrap()), "a@1>a@2");
    assert_eq!(*handled.lock(), ["+a@1", "+a@1", "a@1>a@2"]);
    let report = supervisor.registry().report();
    assert_eq!((report[0].restarts, report[0].failure.clone()), (1, None));
}
