//! Names, ordinals and construction of the pods.

use std::ops::Range;

use k8s_openapi::api::apps::v1::{StatefulSet, StatefulSetSpec};
use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod, PodTemplateSpec, Volume};
use knarr_client::{owner, pod};

use super::claims::claim_name;
use crate::common::history::REVISION_HASH;
use crate::common::key::{name, namespace};

const POD_NAME: &str = "statefulset.kubernetes.io/pod-name";
const POD_INDEX: &str = "apps.kubernetes.io/pod-index";

/// "web-3" is ordinal 3 of "web".
pub(super) fn parent_and_ordinal(pod: &str) -> Option<(&str, i32)> {
    let (parent, ordinal) = pod.rsplit_once('-')?;
    ordinal.bytes().all(|byte| byte.is_ascii_digit()).then_some(())?;
    Some((parent, ordinal.parse().ok()?))
}

pub(super) fn ordinal_of(pod: &Pod) -> Option<i32> {
    parent_and_ordinal(name(pod)).map(|(_, ordinal)| ordinal)
}

/// The ordinals that a set asks for; their sum may exceed what an ordinal can be.
pub(super) fn ordinals(spec: &StatefulSetSpec) -> Range<i64> {
    let first = i64::from(spec.ordinals.as_ref().and_then(|ordinals| ordinals.start).unwrap_or(0));
    first..first + i64::from(spec.replicas.unwrap_or(1))
}

pub(super) fn in_range(spec: &StatefulSetSpec, pod: &Pod) -> bool {
    ordinal_of(pod).is_some_and(|ordinal| ordinals(spec).contains(&i64::from(ordinal)))
}

pub(super) fn revision_of(pod: &Pod) -> &str {
    pod.metadata.labels.as_ref().and_then(|labels| labels.get(REVISION_HASH)).map_or("", String::as_str)
}

pub(super) fn new_pod(
    set: &StatefulSet,
    spec: &StatefulSetSpec,
    template: &PodTemplateSpec,
    revision: &str,
    ordinal: i32,
) -> Pod {
    let mut pod = pod::from_template(template);
    pod.metadata.name = Some(format!("{}-{ordinal}", name(set)));
    pod.metadata.generate_name = Some(format!("{}-", name(set)));
    pod.metadata.namespace = set.metadata.namespace.clone();
    pod.metadata.owner_references = Some(vec![owner::controller_reference(set)]);
    set_identity(&mut pod, ordinal);
    pod.metadata.labels.get_or_insert_default().insert(REVISION_HASH.to_owned(), revision.to_owned());
    let hostname = pod.metadata.name.clone();
    let pod_spec = pod.spec.get_or_insert_default();
    pod_spec.hostname = hostname;
    pod_spec.subdomain = spec.service_name.clone().filter(|service| !service.is_empty());
    set_storage(set, spec, &mut pod, ordinal);
    pod
}

fn set_identity(pod: &mut Pod, ordinal: i32) {
    let pod_name = name(pod).to_owned();
    let labels = pod.metadata.labels.get_or_insert_default();
    labels.insert(POD_NAME.to_owned(), pod_name);
    labels.insert(POD_INDEX.to_owned(), ordinal.to_string());
}

/// The pod's own claims replace volumes of the same name.
fn set_storage(set: &StatefulSet, spec: &StatefulSetSpec, pod: &mut Pod, ordinal: i32) {
    let templates = spec.volume_claim_templates.as_deref().unwrap_or_default();
    if templates.is_empty() {
        return;
    }
    let claimed = templates.iter().map(|template| Volume {
        name: name(template).to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim_name(set, template, ordinal),
            read_only: None,
        }),
        ..Volume::default()
    });
    let pod_spec = pod.spec.get_or_insert_default();
    let others = pod_spec.volumes.take().unwrap_or_default().into_iter();
    let others = others.filter(|volume| !templates.iter().any(|template| name(template) == volume.name));
    pod_spec.volumes = Some(claimed.chain(others).collect());
}

/// The pod with its labels and volumes corrected; `None` when they are right.
pub(super) fn corrected(set: &StatefulSet, spec: &StatefulSetSpec, pod: &Pod) -> Option<Pod> {
    let ordinal = ordinal_of(pod)?;
    let labelled =
        pod.metadata.labels.as_ref().and_then(|labels| labels.get(POD_NAME)).map(String::as_str) == Some(name(pod));
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let stored = spec.volume_claim_templates.iter().flatten().all(|template| {
        let claim = claim_name(set, template, ordinal);
        volumes.iter().any(|volume| {
            let source = volume.persistent_volume_claim.as_ref();
            volume.name == name(template) && source.is_some_and(|source| source.claim_name == claim)
        })
    });
    if labelled && stored && namespace(pod) == namespace(set) {
        return None;
    }
    let mut changed = pod.clone();
    set_identity(&mut changed, ordinal);
    if !stored {
        set_storage(set, spec, &mut changed, ordinal);
    }
    Some(changed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_contain_parent_and_ordinal() {
        for (pod, expected) in
            [("web-0", Some(("web", 0))), ("a-b-12", Some(("a-b", 12))), ("web", None), ("web-x", None), ("web-", None)]
        {
            assert_eq!(parent_and_ordinal(pod), expected);
        }
    }

    #[test]
    fn pods_carry_their_identity() {
        let set: StatefulSet = serde_json::from_value(json!({
            "metadata": {"name": "web", "namespace": "ns", "uid": "u"},
            "spec": {"selector": {}, "serviceName": "svc", "replicas": 2, "ordinals": {"start": 5},
                "template": {"spec": {"containers": [], "volumes": [{"name": "data", "emptyDir": {}}, {"name": "tmp"}]}},
                "volumeClaimTemplates": [{"metadata": {"name": "data"}}]}
        }))
        .unwrap();
        let spec = set.spec.as_ref().unwrap();
        let pod = new_pod(&set, spec, &spec.template, "web-abc", 6);
        assert_eq!(name(&pod), "web-6");
        let labels = pod.metadata.labels.clone().unwrap();
        assert_eq!(
            (labels[POD_NAME].as_str(), labels[POD_INDEX].as_str(), labels[REVISION_HASH].as_str()),
            ("web-6", "6", "web-abc")
        );
        let pod_spec = pod.spec.clone().unwrap();
        assert_eq!((pod_spec.hostname.as_deref(), pod_spec.subdomain.as_deref()), (Some("web-6"), Some("svc")));
        let volumes: Vec<_> =
            pod_spec.volumes.unwrap().into_iter().map(|v| (v.name, v.persistent_volume_claim.is_some())).collect();
        assert_eq!(volumes, [("data".to_owned(), true), ("tmp".to_owned(), false)]);
        assert!(in_range(spec, &pod));
        assert!(corrected(&set, spec, &pod).is_none());
        let mut bare = pod.clone();
        bare.metadata.labels = None;
        assert!(corrected(&set, spec, &bare).is_some());
    }
}
