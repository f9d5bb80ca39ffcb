//! Pulls images before containers start, and removes unused ones.

mod access;
mod collect;
mod credentials;
mod glob;
mod providers;
mod pull;

pub use collect::collect_garbage;
pub use providers::{ApiAccounts, ProviderError, Providers};

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_cri::containerd::HostLogin;
use knarr_cri::messages::{AuthConfig, Image, PodSandboxConfig};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use crate::context::Context;
use crate::image_reference::{default_policy, why_invalid, with_tag};
use crate::journey_events;
use crate::objects::Subscription;
use crate::pod;
use crate::settings::Settings;
use access::{Access, AccessDecision};
use credentials::{Credentials, PullSecret};
use pull::{PullFailure, Pulled};

/// Why an image is not available: reason and message of the container's status, and when to retry.
#[derive(Debug, PartialEq, Eq)]
pub struct ImageFailure {
    pub reason: &'static str,
    pub message: String,
    pub retry_at: Instant,
}

#[derive(Clone)]
pub struct Images(Arc<Inner>);

struct Inner {
    pulls: Semaphore,
    failures: Mutex<HashMap<(String, String), Failure>>,
    /// When the first pull for a pod started and the last one finished, by the pod's uid.
    pulling: Mutex<HashMap<String, (Instant, Instant)>>,
    /// When an image was last used, for garbage collection.
    last_used: Mutex<HashMap<String, Instant>>,
    access: Access,
    providers: Providers,
    /// Directories of docker configuration files of the node.
    node_files: Vec<PathBuf>,
}

struct Failure {
    delay: Duration,
    at: Instant,
    failure: PullFailure,
}

const INITIAL_BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_secs(300);

impl Images {
    pub fn open(settings: &Settings, providers: Providers) -> Self {
        let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker"));
        let node_files = [Some(settings.plugin_root.clone()), home, Some(PathBuf::from("/.docker"))];
        Self(Arc::new(Inner {
            pulls: Semaphore::new(settings.images.max_parallel_pulls.max(1)),
            failures: Mutex::default(),
            pulling: Mutex::default(),
            last_used: Mutex::default(),
            access: Access::open(&settings.root, settings.images.verification.clone()),
            providers,
            node_files: node_files.into_iter().flatten().collect(),
        }))
    }

    /// The image of a container. Pulls it if the policy or its absence requires that.
    pub async fn ensure(
        &self,
        context: &Context,
        pod: &Pod,
        container: &Container,
        objects: &Subscription,
        sandbox: PodSandboxConfig,
    ) -> Result<Image, ImageFailure> {
        let step = journey_events::image(pod, &container.name, container.image.as_deref().unwrap_or_default());
        let obtained = self.obtain(&step, context, pod, container, objects, sandbox).await;
        if let Err(failure) = &obtained {
            step.record("failed", failure.message.as_str());
        }
        obtained
    }

    async fn obtain(
        &self,
        step: &tracing::Span,
        context: &Context,
        pod: &Pod,
        container: &Container,
        objects: &Subscription,
        sandbox: PodSandboxConfig,
    ) -> Result<Image, ImageFailure> {
        let now = Instant::now();
        let later = |delay: Duration| now + delay;
        let reference = container.image.as_deref().unwrap_or_default();
        let name = with_tag(reference).ok_or_else(|| {
            let why = why_invalid(reference);
            let message = format!(
                "Failed to apply default image tag \"{reference}\": couldn't parse image name \"{reference}\": {why}"
            );
            context.container_event(pod, &container.name, true, "InspectFailed", message.clone());
            ImageFailure { reason: "InvalidImageName", message, retry_at: later(INITIAL_BACKOFF) }
        })?;
        let inspected = find(context, &name).await;
        let present = inspected.map_err(|message| {
            context.container_event(pod, &container.name, true, "InspectFailed", message.clone());
            ImageFailure { reason: "ImageInspectError", message, retry_at: later(INITIAL_BACKOFF) }
        })?;
        let policy = container.image_pull_policy.as_deref().unwrap_or_else(|| default_policy(&name));
        let secrets = pull::secrets(context, pod, objects).await;
        let mut provided = None;
        let usable = match &present {
            Some(image) if policy != "Always" => {
                self.may_use(context, pod, reference, image, &secrets, &mut provided).await.then_some(image)
            }
            _ => None,
        };
        let must_pull = match (policy, &present) {
            ("Never", None) => "unknown",
            _ if usable.is_some() => "false",
            _ => "true",
        };
        let labels = [
            ("present_locally", if present.is_some() { "true" } else { "false" }),
            ("pull_policy", &policy.to_lowercase()),
            ("pull_required", must_pull),
        ];
        context.metrics.count("kubelet_image_manager_ensure_image_requests_total", &labels);
        if let Some(image) = usable {
            self.record_use(&image.id);
            step.record("found", "was there");
            let message =
                format!("Container image \"{reference}\" already present on machine and can be accessed by the pod");
            context.container_event(pod, &container.name, false, "Pulled", message);
            return Ok(image.clone());
        }
        if policy == "Never" {
            let message = format!("Container image \"{reference}\" is not present with pull policy of Never");
            context.container_event(pod, &container.name, true, "ErrImageNeverPull", message.clone());
            return Err(ImageFailure { reason: "ErrImageNeverPull", message, retry_at: later(INITIAL_BACKOFF) });
        }
        let key = (pod::uid(pod).to_string(), name.clone());
        if let Some((until, PullFailure { reason, message: why })) = self.backing_off(&key, now) {
            let message = format!("Back-off pulling image \"{reference}\"");
            context.container_event(pod, &container.name, false, "BackOff", message.clone());
            let message = format!("{message}: {reason}: {why}");
            return Err(ImageFailure { reason: "ImagePullBackOff", message, retry_at: until });
        }
        context.container_event(pod, &container.name, false, "Pulling", format!("Pulling image \"{reference}\""));
        let intent = self.0.access.start_pull(reference).map_err(|error| {
            let message = format!(
                "Failed to record image pull intent for container image \"{reference}\": failed to record image pull intent: {error}"
            );
            ImageFailure { reason: "ErrImagePull", message, retry_at: later(INITIAL_BACKOFF) }
        })?;
        let provided = match provided {
            Some(provided) => provided,
            None => self.provided(pod, reference).await,
        };
        let mut known = credentials::of_secrets(&secrets, &name);
        known.extend(self.of_node(&name));
        known.extend(of_registries(context, &name));
        known.extend(provided);
        let pulled = self.pull(context, pod, &name, known, sandbox).await;
        match &pulled {
            Ok(pulled) => {
                if let Err(error) = intent.complete(&pulled.image.id, pulled.source.clone()) {
                    tracing::warn!(%error, image = reference, "cannot record how the image was pulled");
                }
            }
            Err(_) => drop(intent),
        }
        self.record_counts(context);
        match pulled {
            Ok(Pulled { image, pulling, whole, .. }) => {
                self.0.failures.lock().remove(&key);
                self.record_use(&image.id);
                let labels = [("image_size_in_bytes", size_label(image.size))];
                context.metrics.observe("kubelet_image_pull_duration_seconds", &labels, pulling);
                step.record("found", "pulled");
                let message = format!(
                    "Successfully pulled image \"{reference}\" in {} ({} including waiting). Image size: {} bytes.",
                    rounded(pulling),
                    rounded(whole),
                    image.size
                );
                context.container_event(pod, &container.name, false, "Pulled", message);
                Ok(image)
            }
            Err(why) => {
                let message = format!("Failed to pull image \"{reference}\": {why}");
                context.container_event(pod, &container.name, true, "Failed", message);
                let failure = pull::classify(reference, why);
                let (reason, message) = (failure.reason, failure.message.clone());
                let retry_at = self.record_failure(key, failure, Instant::now());
                Err(ImageFailure { reason, message, retry_at })
            }
        }
    }

    pub async fn ensure_for_volume(
        &self,
        context: &Context,
        pod: &Pod,
        container: &Container,
        objects: &Subscription,
    ) -> Result<Image, String> {
        let ensured = self.ensure(context, pod, container, objects, PodSandboxConfig::default()).await;
        ensured.map_err(|failure| failure.message)
    }

    /// Whether the pod may use the local image without pulling it again. Credential providers are asked only if that can
    /// change the decision; what they provided is kept for the pull.
    async fn may_use(
        &self,
        context: &Context,
        pod: &Pod,
        reference: &str,
        image: &Image,
        secrets: &[PullSecret],
        provided: &mut Option<Vec<Credentials>>,
    ) -> bool {
        let names: Vec<String> = image.repo_tags.iter().chain(&image.repo_digests).cloned().collect();
        let sources = |all: &[Credentials]| all.iter().filter_map(|one| one.source.clone()).collect::<Vec<_>>();
        let own = || sources(&credentials::of_secrets(secrets, reference));
        let mut decision = self.0.access.check(reference, &image.id, &names, own);
        if matches!(decision, Ok(AccessDecision::MustAuthenticate)) {
            let found = provided.insert(self.provided(pod, reference).await);
            let accounts = sources(found);
            if !accounts.is_empty() {
                decision = self.0.access.check(reference, &image.id, &names, || accounts);
            }
        }
        if let Err(error) = &decision {
            tracing::warn!(%error, image = reference, "cannot record who may use the image");
        }
        let label = decision.as_ref().map_or("error", |decision| decision.label());
        context.metrics.count("kubelet_imagemanager_image_mustpull_checks_total", &[("result", label)]);
        decision.is_ok_and(|decision| decision != AccessDecision::MustAuthenticate)
    }

    /// The credentials of credential providers.
    async fn provided(&self, pod: &Pod, reference: &str) -> Vec<Credentials> {
        let repository = credentials::repository_of(reference);
        match self.0.providers.cover(&repository) {
            true => credentials::of_providers(self.0.providers.provide(pod, &repository).await, reference),
            false => Vec::new(),
        }
    }

    /// The credentials of the node's own docker configuration: of the first directory that has one.
    fn of_node(&self, reference: &str) -> Vec<Credentials> {
        let read = |path: PathBuf| std::fs::read(path).ok();
        let current = self.0.node_files.iter().find_map(|directory| read(directory.join("config.json")));
        let older = self.0.node_files.iter().find_map(|directory| read(directory.join(".dockercfg")));
        credentials::of_node(current.as_deref(), older.as_deref(), reference)
    }

    fn record_counts(&self, context: &Context) {
        let (intents, records) = self.0.access.counts();
        context.metrics.set("kubelet_imagemanager_ondisk_pullintents", &[], intents as f64);
        context.metrics.set("kubelet_imagemanager_ondisk_pulledrecords", &[], records as f64);
    }

    async fn pull(
        &self,
        context: &Context,
        pod: &Pod,
        name: &str,
        credentials: Vec<Credentials>,
        sandbox: PodSandboxConfig,
    ) -> Result<Pulled, String> {
        let queued_at = std::time::Instant::now();
        let pull_started = Instant::now();
        let pulled = pull::in_turn(context, &self.0.pulls, name, credentials, sandbox, queued_at).await;
        let mut spans = self.0.pulling.lock();
        let span = spans.entry(pod::uid(pod).to_string()).or_insert((pull_started, pull_started));
        span.1 = Instant::now();
        pulled
    }

    fn backing_off(&self, key: &(String, String), now: Instant) -> Option<(Instant, PullFailure)> {
        let failures = self.0.failures.lock();
        let failure = failures.get(key)?;
        let until = failure.at + failure.delay;
        (until > now).then(|| (until, failure.failure.clone()))
    }

    fn record_failure(&self, key: (String, String), failure: PullFailure, now: Instant) -> Instant {
        let mut failures = self.0.failures.lock();
        let delay = failures.get(&key).map_or(INITIAL_BACKOFF, |known| (known.delay * 2).min(MAX_BACKOFF));
        failures.insert(key, Failure { delay, at: now, failure });
        // The status shows the failure briefly before it shows the back-off.
        now + Duration::from_millis(1500)
    }

    /// Removes the pull records of images that are gone.
    pub(crate) fn remove_stale_records<'a>(&self, context: &Context, there: impl Iterator<Item = &'a str>) {
        self.0.access.keep_only(there);
        self.record_counts(context);
    }

    pub fn record_use(&self, id: &str) {
        self.0.last_used.lock().insert(id.to_string(), Instant::now());
    }

    pub(crate) fn last_used(&self, id: &str) -> Option<Instant> {
        self.0.last_used.lock().get(id).copied()
    }

    /// How long a pod's images took to pull.
    pub fn time_pulling(&self, uid: &str) -> Duration {
        let span = self.0.pulling.lock().get(uid).copied();
        span.map_or(Duration::ZERO, |(from, to)| to.saturating_duration_since(from))
    }

    pub fn forget_pod(&self, uid: &str) {
        self.0.pulling.lock().remove(uid);
        self.0.failures.lock().retain(|(owner, _), _| owner != uid);
    }
}

/// The image if the runtime has it, possibly after the image archives are imported.
async fn find(context: &Context, name: &str) -> Result<Option<Image>, String> {
    let mut loaded = context.settings.images_loaded.clone();
    loop {
        let was_loaded = *loaded.borrow_and_update();
        let found = context.runtime.image_status(name).await;
        let found = found.map_err(|error| format!("Failed to inspect image \"{name}\": {}", error.rpc_message()))?;
        // If the importer stops without a message, no more images will come.
        if found.is_some() || was_loaded || loaded.changed().await.is_err() {
            return Ok(found);
        }
    }
}

/// The credentials of the registries file: each is sent to its host alone.
fn of_registries(context: &Context, reference: &str) -> Vec<Credentials> {
    let Some(current) = &context.settings.images.registries else { return Vec::new() };
    let repository = credentials::repository_of(reference);
    let logins = current.borrow().logins(repository.split('/').next().unwrap_or_default());
    let auth = |login: HostLogin| AuthConfig {
        username: login.username,
        password: login.password,
        identity_token: login.identity_token,
        server_address: format!("https://{}", login.host),
        ..Default::default()
    };
    logins.into_iter().map(|login| Credentials { auth: auth(login), source: None }).collect()
}

/// The size label of the pull duration metric.
fn size_label(size: u64) -> &'static str {
    const GIGABYTE: u64 = 1 << 30;
    const BOUNDS: [(u64, &str); 11] = [
        (10 << 20, "0-10MB"),
        (100 << 20, "10MB-100MB"),
        (500 << 20, "100MB-500MB"),
        (GIGABYTE, "500MB-1GB"),
        (5 * GIGABYTE, "1GB-5GB"),
        (10 * GIGABYTE, "5GB-10GB"),
        (20 * GIGABYTE, "10GB-20GB"),
        (30 * GIGABYTE, "20GB-30GB"),
        (40 * GIGABYTE, "30GB-40GB"),
        (60 * GIGABYTE, "40GB-60GB"),
        (100 * GIGABYTE, "60GB-100GB"),
    ];
    if size == 0 {
        return "N/A";
    }
    BOUNDS.iter().find(|(bound, _)| size < *bound).map_or("GT100GB", |(_, label)| label)
}

fn rounded(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        format!("{}ms", duration.as_millis())
    } else {
        format!("{:.3}s", duration.as_secs_f64())
    }
}
