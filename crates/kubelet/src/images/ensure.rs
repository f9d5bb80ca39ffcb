//! Makes the image of a container available: decides whether the local one may be used, and pulls it otherwise.

use std::path::PathBuf;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use knarr_cri::containerd::HostLogin;
use knarr_cri::messages::{AuthConfig, Image, PodSandboxConfig};
use tokio::time::Instant;

use super::access::AccessDecision;
use super::credentials::{self, Credentials, PullSecret};
use super::pull::{self, PullFailure, Pulled};
use super::{INITIAL_BACKOFF, ImageFailure, Images};
use crate::image_reference::{default_policy, why_invalid, with_tag};
use crate::journey_events;
use crate::objects::Subscription;
use crate::pod;

/// A container whose image is needed.
struct ImageRequest<'a> {
    pod: &'a Pod,
    container: &'a Container,
    /// The image as the pod names it.
    reference: &'a str,
    objects: &'a Subscription,
    at: Instant,
}

impl ImageRequest<'_> {
    fn failure(&self, reason: &'static str, message: String) -> ImageFailure {
        ImageFailure { reason, message, retry_at: self.at + INITIAL_BACKOFF }
    }
}

impl Images {
    /// The image of a container. Pulls it if the policy or its absence requires that.
    pub async fn ensure(
        &self,
        pod: &Pod,
        container: &Container,
        objects: &Subscription,
        sandbox: PodSandboxConfig,
    ) -> Result<Image, ImageFailure> {
        let reference = container.image.as_deref().unwrap_or_default();
        let step = journey_events::image(pod, &container.name, reference);
        let request = ImageRequest { pod, container, reference, objects, at: Instant::now() };
        let obtained = self.obtain(&step, &request, sandbox).await;
        if let Err(failure) = &obtained {
            step.record("failed", failure.message.as_str());
        }
        obtained
    }

    async fn obtain(
        &self,
        step: &tracing::Span,
        request: &ImageRequest<'_>,
        sandbox: PodSandboxConfig,
    ) -> Result<Image, ImageFailure> {
        let reference = request.reference;
        let name = self.full_name(request)?;
        let present = self.inspect(request, &name).await?;
        let policy = request.container.image_pull_policy.as_deref().unwrap_or_else(|| default_policy(&name));
        let secrets = pull::secrets(&self.0.events, request.pod, request.objects).await;
        let mut provided = None;
        let usable = match &present {
            Some(image) if policy != "Always" => {
                self.may_use(request, image, &secrets, &mut provided).await.then_some(image)
            }
            _ => None,
        };
        self.count_request(policy, present.is_some(), usable.is_some());
        if let Some(image) = usable {
            self.record_use(&image.id);
            step.record("found", "was there");
            let message =
                format!("Container image \"{reference}\" already present on machine and can be accessed by the pod");
            self.event(request, false, "Pulled", message);
            return Ok(image.clone());
        }
        if policy == "Never" {
            let message = format!("Container image \"{reference}\" is not present with pull policy of Never");
            self.event(request, true, "ErrImageNeverPull", message.clone());
            return Err(request.failure("ErrImageNeverPull", message));
        }
        let key = (pod::uid(request.pod).to_string(), name.clone());
        if let Some((until, PullFailure { reason, message: why })) = self.backing_off(&key, request.at) {
            let message = format!("Back-off pulling image \"{reference}\"");
            self.event(request, false, "BackOff", message.clone());
            let message = format!("{message}: {reason}: {why}");
            return Err(ImageFailure { reason: "ImagePullBackOff", message, retry_at: until });
        }
        let pulled = self.pull_with_all_credentials(request, &name, &secrets, provided, sandbox).await?;
        self.record_outcome(step, request, key, pulled)
    }

    /// The name of the image with its tag.
    fn full_name(&self, request: &ImageRequest<'_>) -> Result<String, ImageFailure> {
        let reference = request.reference;
        with_tag(reference).ok_or_else(|| {
            let why = why_invalid(reference);
            let message = format!(
                "Failed to apply default image tag \"{reference}\": couldn't parse image name \"{reference}\": {why}"
            );
            self.event(request, true, "InspectFailed", message.clone());
            request.failure("InvalidImageName", message)
        })
    }

    /// The local image, if there is one.
    async fn inspect(&self, request: &ImageRequest<'_>, name: &str) -> Result<Option<Image>, ImageFailure> {
        self.find(name).await.map_err(|message| {
            self.event(request, true, "InspectFailed", message.clone());
            request.failure("ImageInspectError", message)
        })
    }

    fn count_request(&self, policy: &str, is_present: bool, is_usable: bool) {
        let must_pull = match (policy, is_present) {
            ("Never", false) => "unknown",
            _ if is_usable => "false",
            _ => "true",
        };
        let labels = [
            ("present_locally", if is_present { "true" } else { "false" }),
            ("pull_policy", &policy.to_lowercase()),
            ("pull_required", must_pull),
        ];
        self.0.metrics.count("kubelet_image_manager_ensure_image_requests_total", &labels);
    }

    /// Pulls the image, and records whose credentials that needed. The outer error is that nothing was pulled because it could not
    /// have been recorded.
    async fn pull_with_all_credentials(
        &self,
        request: &ImageRequest<'_>,
        name: &str,
        secrets: &[PullSecret],
        provided: Option<Vec<Credentials>>,
        sandbox: PodSandboxConfig,
    ) -> Result<Result<Pulled, String>, ImageFailure> {
        let reference = request.reference;
        self.event(request, false, "Pulling", format!("Pulling image \"{reference}\""));
        let intent = self.0.access.start_pull(reference).map_err(|error| {
            let message = format!(
                "Failed to record image pull intent for container image \"{reference}\": failed to record image pull intent: {error}"
            );
            request.failure("ErrImagePull", message)
        })?;
        let provided = match provided {
            Some(provided) => provided,
            None => self.provided(request.pod, reference).await,
        };
        let mut known = credentials::of_secrets(secrets, name);
        known.extend(self.of_node(name));
        known.extend(self.of_registries(name));
        known.extend(provided);
        let pulled = self.pull(request.pod, name, known, sandbox).await;
        match &pulled {
            Ok(pulled) => {
                if let Err(error) = intent.complete(&pulled.image.id, pulled.source.clone()) {
                    tracing::warn!(%error, image = reference, "cannot record how the image was pulled");
                }
            }
            Err(_) => drop(intent),
        }
        self.record_counts();
        Ok(pulled)
    }

    /// Records an attempt to pull the image: metrics, events, and the backoff of the next one.
    fn record_outcome(
        &self,
        step: &tracing::Span,
        request: &ImageRequest<'_>,
        key: (String, String),
        pulled: Result<Pulled, String>,
    ) -> Result<Image, ImageFailure> {
        let reference = request.reference;
        match pulled {
            Ok(Pulled { image, pulling, whole, .. }) => {
                self.0.failures.lock().remove(&key);
                self.record_use(&image.id);
                let labels = [("image_size_in_bytes", size_label(image.size))];
                self.0.metrics.observe("kubelet_image_pull_duration_seconds", &labels, pulling);
                step.record("found", "pulled");
                let message = format!(
                    "Successfully pulled image \"{reference}\" in {} ({} including waiting). Image size: {} bytes.",
                    rounded(pulling),
                    rounded(whole),
                    image.size
                );
                self.event(request, false, "Pulled", message);
                Ok(image)
            }
            Err(why) => {
                self.event(request, true, "Failed", format!("Failed to pull image \"{reference}\": {why}"));
                let failure = pull::classify(reference, why);
                let (reason, message) = (failure.reason, failure.message.clone());
                let retry_at = self.record_failure(key, failure, Instant::now());
                Err(ImageFailure { reason, message, retry_at })
            }
        }
    }

    fn event(&self, request: &ImageRequest<'_>, warning: bool, reason: &str, message: String) {
        self.0.events.about_container(request.pod, &request.container.name, warning, reason, message);
    }

    /// Whether the pod may use the local image without pulling it again. Credential providers are asked only if that can
    /// change the decision; what they provided is kept for the pull.
    async fn may_use(
        &self,
        request: &ImageRequest<'_>,
        image: &Image,
        secrets: &[PullSecret],
        provided: &mut Option<Vec<Credentials>>,
    ) -> bool {
        let reference = request.reference;
        let names: Vec<String> = image.repo_tags.iter().chain(&image.repo_digests).cloned().collect();
        let sources = |all: &[Credentials]| all.iter().filter_map(|one| one.source.clone()).collect::<Vec<_>>();
        let own = || sources(&credentials::of_secrets(secrets, reference));
        let mut decision = self.0.access.check(reference, &image.id, &names, own);
        if matches!(decision, Ok(AccessDecision::MustAuthenticate)) {
            let found = provided.insert(self.provided(request.pod, reference).await);
            let accounts = sources(found);
            if !accounts.is_empty() {
                decision = self.0.access.check(reference, &image.id, &names, || accounts);
            }
        }
        if let Err(error) = &decision {
            tracing::warn!(%error, image = reference, "cannot record who may use the image");
        }
        let label = decision.as_ref().map_or("error", |decision| decision.label());
        self.0.metrics.count("kubelet_imagemanager_image_mustpull_checks_total", &[("result", label)]);
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

    /// The credentials of the registries file: each is sent to its host only.
    fn of_registries(&self, reference: &str) -> Vec<Credentials> {
        let Some(current) = &self.0.settings.registries else { return Vec::new() };
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

    async fn pull(
        &self,
        pod: &Pod,
        name: &str,
        credentials: Vec<Credentials>,
        sandbox: PodSandboxConfig,
    ) -> Result<Pulled, String> {
        let queued_at = std::time::Instant::now();
        let pull_started = Instant::now();
        let pulled = pull::in_turn(&self.0.runtime, &self.0.pulls, name, credentials, sandbox, queued_at).await;
        let mut spans = self.0.pulling.lock();
        let span = spans.entry(pod::uid(pod).to_string()).or_insert((pull_started, pull_started));
        span.1 = Instant::now();
        pulled
    }

    /// The image if the runtime has it, possibly after the image archives are imported.
    async fn find(&self, name: &str) -> Result<Option<Image>, String> {
        let mut loaded = self.0.loaded.clone();
        loop {
            let was_loaded = *loaded.borrow_and_update();
            let found = self.0.runtime.image_status(name).await;
            let found =
                found.map_err(|error| format!("Failed to inspect image \"{name}\": {}", error.rpc_message()))?;
            // If the importer stops without a message, no more images will come.
            if found.is_some() || was_loaded || loaded.changed().await.is_err() {
                return Ok(found);
            }
        }
    }
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
