//! AlwaysPullImages: every pod pulls its images, so that only users with their credentials can use private images of a
//! node. LimitPodHardAntiAffinityTopology: required anti-affinity is between nodes only.

use std::collections::HashSet;

use async_trait::async_trait;
use knarr_api::field::{Errors, Path};
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;

const LISTS: [&str; 3] = ["initContainers", "containers", "ephemeralContainers"];

pub struct AlwaysPullImages;

#[async_trait]
impl Plugin for AlwaysPullImages {
    fn name(&self) -> &'static str {
        "AlwaysPullImages"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update)
            && write.is("", "pods")
            && write.old.is_none_or(|old| has_new_image(write.object, old))
    }

    async fn admit(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        for list in LISTS {
            for container in write.object.items_mut(&["spec", list]) {
                container.set(&["imagePullPolicy"], "Always");
            }
        }
        for volume in write.object.items_mut(&["spec", "volumes"]) {
            if volume.has(&["image"]) {
                volume.set(&["image", "pullPolicy"], "Always");
            }
        }
        Ok(())
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let mut errors = Errors::new();
        let spec = Path::root("spec");
        for list in LISTS {
            for (index, container) in write.object.items(&["spec", list]).iter().enumerate() {
                check(
                    container.text(&["imagePullPolicy"]),
                    &spec.item(list, index).child("imagePullPolicy"),
                    &mut errors,
                );
            }
        }
        for (index, volume) in write.object.items(&["spec", "volumes"]).iter().enumerate() {
            if volume.has(&["image"]) {
                let volumes = spec.item("volumes", index);
                let image = volumes.child("image");
                check(volume.text(&["image", "pullPolicy"]), &image.child("pullPolicy"), &mut errors);
            }
        }
        let texts: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
        match texts.as_slice() {
            [] => Ok(()),
            [one] => Err(write.forbidden(one)),
            many => {
                let all: Vec<String> = many.iter().map(|text| write.forbidden(text).message).collect();
                let mut status = write.forbidden("");
                status.message = format!("[{}]", all.join(", "));
                Err(status)
            }
        }
    }
}

fn check(policy: &str, path: &Path<'_>, errors: &mut Errors) {
    if policy != "Always" {
        errors.not_supported(path, policy, &["Always"]);
    }
}

fn has_new_image(pod: &Value, old: &Value) -> bool {
    let images = |pod: &Value| -> HashSet<String> {
        let containers = LISTS.into_iter().flat_map(|list| pod.items(&["spec", list]));
        containers.map(|container| container.text(&["image"]).to_owned()).collect()
    };
    !images(pod).is_subset(&images(old))
}

pub struct LimitPodHardAntiAffinityTopology;

#[async_trait]
impl Plugin for LimitPodHardAntiAffinityTopology {
    fn name(&self) -> &'static str {
        "LimitPodHardAntiAffinityTopology"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update) && write.is("", "pods")
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        const HOST: &str = "kubernetes.io/hostname";
        let required = ["spec", "affinity", "podAntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution"];
        let wider = write.object.items(&required).iter().find(|term| term.text(&["topologyKey"]) != HOST);
        match wider.map(|term| term.text(&["topologyKey"])) {
            None => Ok(()),
            Some(key) => Err(write.forbidden(format!(
                "affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey {key} but only key {HOST} is allowed"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    #[tokio::test]
    async fn images_are_pulled_always() {
        let pod = |image: &str, policy: &str| {
            json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {
                "containers": [{"name": "c", "image": image, "imagePullPolicy": policy}],
                "volumes": [{"name": "v", "image": {"reference": "r"}}],
            }})
        };
        let none = Fixed::new(vec![]);
        let created =
            run(&AlwaysPullImages, Operation::Create, ("", "pods"), pod("a", "Never"), None, &none).await.unwrap();
        assert_eq!(created["spec"]["containers"][0]["imagePullPolicy"], "Always");
        assert_eq!(created["spec"]["volumes"][0]["image"]["pullPolicy"], "Always");
        for (image, policy) in [("a", "Never"), ("b", "Always")] {
            let old = Some(pod("a", "Never"));
            let updated =
                run(&AlwaysPullImages, Operation::Update, ("", "pods"), pod(image, "Never"), old, &none).await.unwrap();
            assert_eq!(updated["spec"]["containers"][0]["imagePullPolicy"], policy, "{image}");
        }
    }

    #[tokio::test]
    async fn anti_affinity_is_between_nodes() {
        let pod = |key: &str| {
            json!({"kind": "Pod", "metadata": {"name": "p"}, "spec": {"affinity": {"podAntiAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key}]}}}})
        };
        let none = Fixed::new(vec![]);
        let run = |key: &'static str| {
            let (pod, none) = (pod(key), &none);
            async move {
                run(&LimitPodHardAntiAffinityTopology, Operation::Create, ("", "pods"), pod, None, none).await.err()
            }
        };
        assert_eq!(run("kubernetes.io/hostname").await, None);
        assert_eq!(
            run("zone").await.as_deref(),
            Some(
                "pods \"p\" is forbidden: affinity.PodAntiAffinity.RequiredDuringScheduling has TopologyKey zone but only \
                 key kubernetes.io/hostname is allowed"
            )
        );
    }
}
