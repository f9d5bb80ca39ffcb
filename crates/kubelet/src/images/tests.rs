//! Images with a runtime on a real socket. Time stands still except where a test lets it pass.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_client::EventRecorder;
use knarr_cri::Runtime;
use knarr_cri::messages::{AuthConfig, Image, PodSandboxConfig};

use super::credentials::Credentials;
use super::{ApiAccounts, ImageFailure, Images, Parts, Providers, pull};
use crate::counters::Counters;
use crate::events::Events;
use crate::objects::{ObjectCache, Subscription};
use crate::settings::Settings;
use crate::tokens::Tokens;
use crate::worker::fake_runtime::{Behaviour, FakeRuntime, Served, stop_time};

struct Rig {
    images: Images,
    runtime: Served,
    objects: Subscription,
    _directory: tempfile::TempDir,
    _hold: std::sync::mpsc::Sender<()>,
}

/// An API server without any object.
fn empty_api() -> kube::Client {
    let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        let mut response = http::Response::new(Empty::<Bytes>::new());
        *response.status_mut() = http::StatusCode::NOT_FOUND;
        Ok::<_, Infallible>(response)
    });
    kube::Client::new(service, "default")
}

impl Rig {
    async fn start() -> Self {
        let hold = stop_time();
        let directory = tempfile::tempdir().expect("a directory");
        let socket = directory.path().join("runtime.sock");
        let served = FakeRuntime::serve(&socket);
        while !socket.exists() {
            tokio::task::yield_now().await;
        }
        let endpoint = socket.to_string_lossy().into_owned();
        let settings = Settings::new("n", directory.path().join("data"), endpoint.clone());
        let (client, metrics) = (empty_api(), Arc::new(Counters::default()));
        let accounts = ApiAccounts { client: client.clone(), tokens: Tokens::new(client.clone()) };
        let parts = Parts {
            runtime: Runtime::connect(&endpoint).expect("an endpoint"),
            events: Events::new(EventRecorder::new(client.clone(), "kubelet", Some("n")), "n"),
            metrics: metrics.clone(),
            providers: Providers::open(None, Arc::new(accounts), metrics).expect("no providers"),
        };
        let images = Images::open(&settings, parts);
        let objects = ObjectCache::new(client).subscribe(Arc::new(|| {}));
        Self { images, runtime: served, objects, _directory: directory, _hold: hold }
    }

    async fn ensure(&self, image: &str, policy: &str) -> Result<Image, ImageFailure> {
        let container = Container {
            name: "c".into(),
            image: Some(image.into()),
            image_pull_policy: Some(policy.into()),
            ..Default::default()
        };
        let mut pod = Pod::default();
        pod.metadata.uid = Some("pod-uid".into());
        self.images.ensure(&pod, &container, &self.objects, PodSandboxConfig::default()).await
    }

    fn pulls(&self) -> usize {
        self.runtime.fake.account.lock().calls.iter().filter(|call| **call == "PullImage").count()
    }
}

fn reason(result: &Result<Image, ImageFailure>) -> &str {
    result.as_ref().map_or_else(|failure| failure.reason, |_| "")
}

#[tokio::test(start_paused = true)]
async fn images_are_pulled_as_the_policy_says() {
    for (image, policy, is_there, deviates, expected, pulls) in [
        ("a:1", "Never", false, false, "ErrImageNeverPull", 0),
        ("a:1", "Never", true, false, "", 0),
        ("a:1", "IfNotPresent", false, false, "", 1),
        ("a:1", "IfNotPresent", true, false, "", 0),
        ("a:1", "Always", true, false, "", 1),
        ("A:1", "Always", true, false, "InvalidImageName", 0),
        ("a:1", "IfNotPresent", true, true, "ImageInspectError", 0),
    ] {
        let rig = Rig::start().await;
        if is_there {
            rig.runtime.fake.add_image(image);
        }
        if deviates {
            rig.runtime.fake.will("ImageStatus", Behaviour::Fail);
        }
        let ensured = rig.ensure(image, policy).await;
        assert_eq!((reason(&ensured), rig.pulls()), (expected, pulls), "{image} {policy} {is_there}: {ensured:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_pull_is_retried_after_a_backoff_that_grows() {
    let rig = Rig::start().await;
    for backoff in [10, 20] {
        rig.runtime.fake.will("PullImage", Behaviour::Fail);
        assert_eq!(reason(&rig.ensure("a:1", "Always").await), "ErrImagePull");
        let pulls = rig.pulls();
        tokio::time::advance(Duration::from_secs(backoff - 1)).await;
        let waits = rig.ensure("a:1", "Always").await.expect_err("it backs off");
        assert_eq!((waits.reason, rig.pulls()), ("ImagePullBackOff", pulls));
        assert!(waits.message.starts_with("Back-off pulling image \"a:1\": ErrImagePull: "), "{}", waits.message);
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(reason(&rig.ensure("a:1", "Always").await), "");
    // A success ends the backoff; another pod has one of its own.
    rig.runtime.fake.will("PullImage", Behaviour::Fail);
    assert_eq!(reason(&rig.ensure("a:1", "Always").await), "ErrImagePull");
    rig.images.forget_pod("pod-uid");
    assert_eq!(reason(&rig.ensure("a:1", "Always").await), "");
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_hangs_is_not_tried_with_all_credentials() {
    let rig = Rig::start().await;
    // The turn ends when the first attempt that hangs does, whatever the next one would do.
    for (behaviours, expected) in [
        (vec![Behaviour::DoAndHang], (false, 1)),
        (vec![Behaviour::DoAndFail], (true, 2)),
        (vec![Behaviour::DoAndFail, Behaviour::DoAndHang], (false, 2)),
    ] {
        let before = rig.pulls();
        behaviours.iter().for_each(|behaviour| rig.runtime.fake.will("PullImage", *behaviour));
        let turns = tokio::sync::Semaphore::new(1);
        let credentials = (0..100).map(|_| Credentials { auth: AuthConfig::default(), source: None }).collect();
        let (runtime, sandbox) = (&rig.images.0.runtime, PodSandboxConfig::default());
        let mut pulling =
            std::pin::pin!(pull::in_turn(runtime, &turns, "a:1", credentials, sandbox, std::time::Instant::now()));
        let pulled = loop {
            tokio::select! {
                biased;
                pulled = &mut pulling => break pulled,
                () = pass_while_hanging(&rig) => {}
            }
        };
        assert_eq!((pulled.is_ok(), rig.pulls() - before), expected, "{behaviours:?}");
        while rig.runtime.fake.is_hanging() {
            pause().await;
        }
    }
}

/// Lets the runtime work, without that time passes.
async fn pause() {
    tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(1))).await.expect("a pause");
}

/// Lets time pass only while a call hangs.
async fn pass_while_hanging(rig: &Rig) {
    pause().await;
    if rig.runtime.fake.is_hanging() {
        tokio::time::advance(Duration::from_secs(60)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn images_that_were_used_long_ago_are_removed() {
    let rig = Rig::start().await;
    for image in ["old:1", "stuck:1"] {
        rig.ensure(image, "IfNotPresent").await.expect("it is pulled");
    }
    // Longer than an image must be unused.
    tokio::time::advance(Duration::from_secs(600)).await;
    rig.ensure("new:1", "IfNotPresent").await.expect("it is pulled");
    rig.runtime.fake.will("RemoveImage", Behaviour::Fail);
    let freed = rig.images.collect_garbage(true).await.expect("the runtime responds");
    let left = rig.runtime.fake.images();
    // One removal failed, which keeps the other from nothing.
    assert_eq!((freed, left.len()), (FakeRuntime::IMAGE_SIZE, 2), "{left:?}");
    assert!(left.contains(&"new:1".to_owned()));
    rig.images.collect_garbage(true).await.expect("the runtime responds");
    assert_eq!(rig.runtime.fake.images(), ["new:1"]);
    rig.runtime.fake.will("ListImages", Behaviour::Fail);
    assert!(rig.images.collect_garbage(true).await.is_err());
}

/// As `ctr` imports them: they are there before they are unpacked, and are pinned after that.
#[tokio::test(start_paused = true)]
async fn an_image_that_is_being_imported_is_not_removed_for_space() {
    let rig = Rig::start().await;
    rig.runtime.fake.add_image("before:1");
    rig.images.collect_garbage(true).await.expect("the runtime responds");
    assert!(rig.runtime.fake.images().is_empty(), "what was there before, and is not used, is removed");
    rig.runtime.fake.add_image("imported:1");
    rig.images.collect_garbage(true).await.expect("the runtime responds");
    tokio::time::advance(Duration::from_secs(119)).await;
    rig.images.collect_garbage(true).await.expect("the runtime responds");
    assert_eq!(rig.runtime.fake.images(), ["imported:1"]);
    tokio::time::advance(Duration::from_secs(1)).await;
    rig.images.collect_garbage(true).await.expect("the runtime responds");
    assert!(rig.runtime.fake.images().is_empty());
}
