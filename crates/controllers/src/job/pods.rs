//! The pods a job creates.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod};
use knarr_client::{owner, pod};

use super::policy::Failure;
use super::view::{INDEX, INDEX_FAILURES, INDEX_IGNORED, TRACKING, View, annotated_count};

const ENVIRONMENT: &str = "JOB_COMPLETION_INDEX";

/// The pod for an index, or a plain one when the job is not indexed.
pub(super) fn new_pod(view: &View, index: Option<u32>) -> Pod {
    let job_name = view.job.metadata.name.as_deref().unwrap_or("");
    let mut pod = pod::from_template(&view.spec.template);
    let finalizers = pod.metadata.finalizers.get_or_insert_default();
    if !finalizers.iter().any(|finalizer| finalizer == TRACKING) {
        finalizers.push(TRACKING.to_owned());
    }
    pod.metadata.owner_references = Some(vec![owner::controller_reference::<Job>(view.job)]);
    pod.metadata.generate_name = Some(format!("{job_name}-"));
    let Some(index) = index else { return pod };
    pod.metadata.generate_name = Some(name_with_index(job_name, index));
    pod.metadata.annotations.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    pod.metadata.labels.get_or_insert_default().insert(INDEX.to_owned(), index.to_string());
    if let Some(spec) = &mut pod.spec {
        spec.hostname = Some(format!("{job_name}-{index}"));
        spec.init_containers.iter_mut().flatten().chain(&mut spec.containers).for_each(expose_index);
    }
    if view.backs_off_per_index() {
        let (failures, ignored) = failures_of_replaced(view, index);
        let annotations = pod.metadata.annotations.get_or_insert_default();
        annotations.insert(INDEX_FAILURES.to_owned(), failures.to_string());
        if ignored > 0 {
            annotations.insert(INDEX_IGNORED.to_owned(), ignored.to_string());
        }
    }
    pod
}

/// Generated names are truncated to leave room for their suffix; the index must stay.
fn name_with_index(job: &str, index: u32) -> String {
    const MAX_NAME_LENGTH: usize = 58;
    let end = format!("-{index}-");
    let room = MAX_NAME_LENGTH - end.len();
    format!("{}{end}", &job[..job.len().min(room)])
}

fn expose_index(container: &mut Container) {
    let environment = container.env.get_or_insert_default();
    if environment.iter().any(|variable| variable.name == ENVIRONMENT) {
        return;
    }
    let field = ObjectFieldSelector { field_path: format!("metadata.labels['{INDEX}']"), api_version: None };
    environment.push(EnvVar {
        name: ENVIRONMENT.to_owned(),
        value_from: Some(EnvVarSource { field_ref: Some(field), ..EnvVarSource::default() }),
        ..EnvVar::default()
    });
}

fn failures_of_replaced(view: &View, index: u32) -> (i32, i32) {
    let Some(replaced) = view.awaiting_replacement.get(&index) else { return (0, 0) };
    let (failures, ignored) = (annotated_count(replaced, INDEX_FAILURES), annotated_count(replaced, INDEX_IGNORED));
    if view.failure(replaced) == Failure::Ignore { (failures, ignored + 1) } else { (failures + 1, ignored) }
}
