//! Publishes which pods are behind a service in one Endpoints object, for clients of that older API.

mod subsets;

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Endpoints, Pod, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_client::events::{EventType, reference};
use knarr_client::{Change, EventRecorder, Informer, WorkQueue};
use kube::Api;
use kube::api::{DeleteParams, PostParams};

use crate::Context;
use crate::common::Key;
use crate::common::key::name;
use crate::common::reconcile::{Reconcile, run_controller};
use crate::common::requests::replace;
use crate::common::service_pods::{
    HEADLESS, TRIGGER_TIME, TriggerTimes, index_pods_by_label, index_services, is_headless, pods_labelled,
    services_touched,
};
use crate::error::{Result, ignore_not_found, message, namespace_terminating};

pub(crate) use subsets::repack;
use subsets::{equal, of_service, truncate};

const MANAGED_BY: &str = "endpoints.kubernetes.io/managed-by";
const CONTROLLER: &str = "endpoint-controller";
const OVER_CAPACITY: &str = "endpoints.kubernetes.io/over-capacity";

pub async fn run(context: Context) {
    let services = context.informers.of::<Service>();
    let pods = context.informers.of::<Pod>();
    let endpoints = context.informers.of::<Endpoints>();
    index_services(&services);
    index_pods_by_label(&pods);
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let on_service = queue.clone();
    services.on_change(move |change| on_service.add(Key::of(&**change.latest())));
    let trigger_times = Arc::new(TriggerTimes::default());
    let (on_pod, selecting, observed) = (queue.clone(), services.clone(), trigger_times.clone());
    let period = context.settings.endpoints.batch_period;
    pods.on_change(move |change| {
        for key in services_touched(&selecting, change) {
            let delay = period.max(observed.batch_delay(&key));
            on_pod.add_after(key, delay);
        }
    });
    services.synced().await;
    pods.synced().await;
    endpoints.synced().await;
    // Endpoints whose service was deleted while the controller was not running.
    for left_over in endpoints.list() {
        let annotations = left_over.metadata.annotations.as_ref();
        if !annotations.is_some_and(|all| all.contains_key("control-plane.alpha.kubernetes.io/leader")) {
            queue.add(Key::of(&*left_over));
        }
    }
    // Others may change their Endpoints; only missing ones are created again.
    let on_endpoints = queue.clone();
    endpoints.on_change(move |change| {
        if let Change::Deleted(endpoints) = change {
            on_endpoints.add(Key::of(&**endpoints));
        }
    });
    let workers = context.settings.concurrent_syncs.of("concurrent-endpoint-syncs");
    let recorder = context.recorder(CONTROLLER);
    let controller = Arc::new(Controller { context, services, pods, endpoints, trigger_times, recorder });
    run_controller(&controller, &queue, workers).await;
}

struct Controller {
    context: Context,
    services: Arc<Informer<Service>>,
    pods: Arc<Informer<Pod>>,
    endpoints: Arc<Informer<Endpoints>>,
    trigger_times: Arc<TriggerTimes>,
    recorder: EventRecorder,
}

impl Reconcile<Key> for Controller {
    async fn reconcile(self: &Arc<Self>, key: Key) -> Result<()> {
        let api: Api<Endpoints> = Api::namespaced(self.context.client.clone(), &key.namespace);
        let present = self.endpoints.get(&key.namespace, &key.name);
        let Some(service) = self.services.get(&key.namespace, &key.name) else {
            self.trigger_times.forget(&key);
            if present.is_some() {
                ignore_not_found(api.delete(&key.name, &DeleteParams::default()).await)?;
            }
            return Ok(());
        };
        let Some(spec) = service.spec.as_ref().filter(|spec| spec.type_.as_deref() != Some("ExternalName")) else {
            return Ok(());
        };
        // Without a selector the endpoints are the user's.
        let Some(selector) = spec.selector.as_ref().filter(|selector| !selector.is_empty()) else { return Ok(()) };
        let pods = pods_labelled(&self.pods, &key.namespace, selector);
        let subsets = of_service(&service, spec, &pods);
        if present.as_ref().is_some_and(|present| is_right(present, &service, &subsets)) {
            return Ok(());
        }
        let trigger = self.trigger_times.earliest(&service, &pods);
        let desired = desired(present.as_deref(), &service, subsets, trigger);
        let result = match present {
            Some(_) => replace(&self.context.client, &desired).await,
            None => api.create(&PostParams::default(), &desired).await,
        };
        match result {
            Ok(_) => Ok(()),
            Err(error) if namespace_terminating(&error) => Ok(()),
            // Another writer was faster, or the cache is stale: no event.
            Err(error) if crate::error::has_code(&error, 409) => Err(error.into()),
            Err(error) => {
                let (reason, text) = match self.endpoints.get(&key.namespace, &key.name) {
                    None => (
                        "FailedToCreateEndpoint",
                        format!("Failed to create endpoint for service {key}: {}", message(&error)),
                    ),
                    Some(_) => {
                        ("FailedToUpdateEndpoint", format!("Failed to update endpoint {key}: {}", message(&error)))
                    }
                };
                let mut about = reference(&desired);
                if reason == "FailedToCreateEndpoint" {
                    // The object does not exist yet and has no namespace: Kubernetes records its events in the default one.
                    (about.namespace, about.resource_version) = (None, None);
                }
                self.recorder.about(about, EventType::Warning, reason, text);
                Err(error.into())
            }
        }
    }
}

fn is_right(present: &Endpoints, service: &Service, subsets: &[k8s_openapi::api::core::v1::EndpointSubset]) -> bool {
    let stored = present.subsets.clone().unwrap_or_default();
    let within = !present.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(OVER_CAPACITY));
    let mut labels = present.metadata.labels.clone().unwrap_or_default();
    let managed = labels.remove(MANAGED_BY).as_deref() == Some(CONTROLLER);
    let mut desired = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    desired.remove(HEADLESS);
    (equal(&stored, subsets) || equal(&repack(stored), subsets)) && within && managed && labels == desired
}

fn desired(
    present: Option<&Endpoints>,
    service: &Service,
    subsets: Vec<k8s_openapi::api::core::v1::EndpointSubset>,
    trigger: Option<Timestamp>,
) -> Endpoints {
    let metadata = || ObjectMeta {
        name: Some(name(service).to_owned()),
        namespace: service.metadata.namespace.clone(),
        ..ObjectMeta::default()
    };
    let mut desired =
        Endpoints { metadata: present.map_or_else(metadata, |present| present.metadata.clone()), subsets: None };
    let (subsets, over_capacity) = truncate(subsets);
    desired.subsets = (!subsets.is_empty()).then_some(subsets);
    let annotations = desired.metadata.annotations.get_or_insert_default();
    match trigger {
        Some(at) => annotations.insert(TRIGGER_TIME.to_owned(), at.to_string()),
        None => annotations.remove(TRIGGER_TIME),
    };
    match over_capacity {
        true => annotations.insert(OVER_CAPACITY.to_owned(), "truncated".to_owned()),
        false => annotations.remove(OVER_CAPACITY),
    };
    let mut labels = service.metadata.labels.clone().unwrap_or_default();
    labels.remove(HEADLESS);
    if service.spec.as_ref().is_none_or(is_headless) {
        labels.insert(HEADLESS.to_owned(), String::new());
    }
    labels.insert(MANAGED_BY.to_owned(), CONTROLLER.to_owned());
    desired.metadata.labels = Some(labels);
    desired
}
