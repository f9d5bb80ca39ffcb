//! The selector and the labels that connect a Job with its pods.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::selector::LabelSelector;
use knarr_api::value::{Read, Write};
use serde_json::{Map, Value};

use crate::common::label_selector;

const UID_LABEL: &str = "batch.kubernetes.io/controller-uid";
const NAME_LABEL: &str = "batch.kubernetes.io/job-name";
const OLD_UID_LABEL: &str = "controller-uid";
const OLD_NAME_LABEL: &str = "job-name";

/// Copies the labels of the template to a Job without labels.
pub(super) fn copy_template_labels(job: &mut Value) {
    let of_template = job.at(&["spec", "template", "metadata", "labels"]);
    if !of_template.is_null() && job.fields(&["metadata", "labels"]).is_none_or(Map::is_empty) {
        let labels = of_template.clone();
        job.set(&["metadata", "labels"], labels);
    }
}

/// Generates the selector, and the labels of the template that it matches.
pub(super) fn generate_selector(job: &mut Value) {
    let name = job.text(&["metadata", "name"]).to_owned();
    let uid = job.text(&["metadata", "uid"]).to_owned();
    let (own, of_template) = (job.at(&["metadata", "labels"]), job.at(&["spec", "template", "metadata", "labels"]));
    // Labels that the Job copied from its template include the generated ones. A Job without labels copies them when
    // it is stored, after they were validated.
    let shared = own == of_template && (!own.is_null() || names::label_value(&name).is_empty());
    for (label, value) in [(OLD_NAME_LABEL, &name), (NAME_LABEL, &name), (OLD_UID_LABEL, &uid), (UID_LABEL, &uid)] {
        job.set_default(&["spec", "template", "metadata", "labels", label], value.as_str());
    }
    if shared {
        let labels = job.at(&["spec", "template", "metadata", "labels"]).clone();
        job.set(&["metadata", "labels"], labels);
    }
    job.set_default(&["spec", "selector", "matchLabels", UID_LABEL], uid);
}

pub(super) fn validate_generated_selector(errors: &mut Errors, job: &Value, old: Option<&Value>) {
    let selector = job.at(&["spec", "selector"]);
    if job.flag(&["spec", "manualSelector"]) == Some(true) || selector.is_null() {
        return;
    }
    let (name, uid) = (job.text(&["metadata", "name"]), job.text(&["metadata", "uid"]));
    if uid.is_empty() {
        errors.required(&Path::root("metadata.uid"), "");
    }
    let labels = job.at(&["spec", "template", "metadata", "labels"]);
    let prefixed = old.is_none_or(|old| {
        let had = |label: &str| old.has(&["spec", "template", "metadata", "labels", label]);
        had(NAME_LABEL) && had(UID_LABEL)
    });
    let mut expected = vec![(OLD_UID_LABEL, uid), (OLD_NAME_LABEL, name)];
    if prefixed {
        expected.extend([(UID_LABEL, uid), (NAME_LABEL, name)]);
    }
    for (label, value) in &expected {
        let path = Path::root("spec.template.metadata.labels");
        match labels.get(label).and_then(Value::as_str) {
            None => errors.required(&path.key(label), format!("must be '{value}'")),
            Some(actual) if actual != *value => {
                errors.invalid(&path.key(label), labels.clone(), format!("must be '{value}'"));
            }
            Some(_) => {}
        }
    }
    let expected: Map<String, Value> = expected.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect();
    if LabelSelector::from_object(selector).is_ok_and(|read| !read.matches(Some(&expected))) {
        label_selector::invalid(errors, &Path::root("spec.selector"), selector, "`selector` not auto-generated");
    }
}
