//! Storage plugins: the default class, protection of objects in use, and expansion of claims.

use async_trait::async_trait;
use knarr_api::quantity::Quantity;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::defaults::newest_default;
use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;

const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

/// Sets the default class of a claim without a class.
pub struct DefaultStorageClass;

#[async_trait]
impl Plugin for DefaultStorageClass {
    fn name(&self) -> &'static str {
        "DefaultStorageClass"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.creates("", "persistentvolumeclaims")
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        if has_class(write.object) {
            return Ok(());
        }
        let classes = objects.read_all("storage.k8s.io", "storageclasses", "")?;
        let marks = ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
        if let Some(name) = newest_default(&classes, &marks) {
            write.object.set(&["spec", "storageClassName"], name);
        }
        Ok(())
    }
}

/// Whether a class is set. An empty name is an explicit choice of no class.
fn has_class(claim: &Value) -> bool {
    claim.has(&["spec", "storageClassName"]) || claim.at(&["metadata", "annotations"]).get(CLASS_ANNOTATION).is_some()
}

fn class_name(claim: &Value) -> &str {
    match claim.at(&["metadata", "annotations"]).text(&[CLASS_ANNOTATION]) {
        "" => claim.text(&["spec", "storageClassName"]),
        name => name,
    }
}

/// Adds finalizers so that volumes, claims and attributes classes are deleted only once unused; controllers remove them.
pub struct StorageObjectInUseProtection;

#[async_trait]
impl Plugin for StorageObjectInUseProtection {
    fn name(&self) -> &'static str {
        "StorageObjectInUseProtection"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create && write.subresource.is_empty() && finalizer(write).is_some()
    }

    async fn admit(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        let Some(finalizer) = finalizer(write) else { return Ok(()) };
        let mut finalizers = write.object.items(&["metadata", "finalizers"]).to_vec();
        if !finalizers.iter().any(|own| own == finalizer) {
            finalizers.push(finalizer.into());
            write.object.set(&["metadata", "finalizers"], finalizers);
        }
        Ok(())
    }
}

fn finalizer(write: &Write<'_>) -> Option<&'static str> {
    match (write.group, write.resource) {
        ("", "persistentvolumes") => Some("kubernetes.io/pv-protection"),
        ("", "persistentvolumeclaims") => Some("kubernetes.io/pvc-protection"),
        ("storage.k8s.io", "volumeattributesclasses") => Some("kubernetes.io/vac-protection"),
        _ => None,
    }
}

/// Allows expansion only of bound claims whose class allows it.
pub struct PersistentVolumeClaimResize;

#[async_trait]
impl Plugin for PersistentVolumeClaimResize {
    fn name(&self) -> &'static str {
        "PersistentVolumeClaimResize"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Update && write.is("", "persistentvolumeclaims")
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let Some(old) = write.old else { return Ok(()) };
        let size = |claim: &Value| {
            claim.text(&["spec", "resources", "requests", "storage"]).parse::<Quantity>().unwrap_or_default()
        };
        if size(write.object) <= size(old) {
            return Ok(());
        }
        if old.text(&["status", "phase"]) != "Bound" {
            return Err(write.forbidden("Only bound persistent volume claims can be expanded"));
        }
        let (class, old_class) = (class_name(write.object), class_name(old));
        let expands = !class.is_empty()
            && class == old_class
            && objects
                .get("storage.k8s.io", "storageclasses", "", class)
                .is_some_and(|class| class.flag(&["allowVolumeExpansion"]) == Some(true));
        if expands {
            return Ok(());
        }
        Err(write.forbidden(
            "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support \
             resize",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    const CLAIMS: (&str, &str) = ("", "persistentvolumeclaims");

    fn claim(class: Option<&str>, size: &str, phase: &str) -> Value {
        let mut claim = json!({"kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "n"},
            "spec": {"resources": {"requests": {"storage": size}}}, "status": {"phase": phase}});
        if let Some(class) = class {
            claim.set(&["spec", "storageClassName"], class);
        }
        claim
    }

    #[tokio::test]
    async fn a_claim_without_a_class_gets_the_default() {
        let class = json!({"metadata": {"name": "fast",
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}});
        let objects = Fixed::new(vec![("storage.k8s.io", "storageclasses", class)]);
        for (given, expected) in [(None, "fast"), (Some(""), ""), (Some("slow"), "slow")] {
            let object = claim(given, "1Gi", "");
            let made = run(&DefaultStorageClass, Operation::Create, CLAIMS, object, None, &objects).await.unwrap();
            assert_eq!(made.text(&["spec", "storageClassName"]), expected);
        }
    }

    #[tokio::test]
    async fn claims_grow_when_their_class_lets_them() {
        let class = json!({"metadata": {"name": "fast"}, "allowVolumeExpansion": true});
        let objects = Fixed::new(vec![("storage.k8s.io", "storageclasses", class)]);
        for (class, old_size, new_size, phase, refused) in [
            ("fast", "1Gi", "2Gi", "Bound", false),
            ("fast", "1Gi", "2Gi", "Pending", true),
            ("slow", "1Gi", "2Gi", "Bound", true),
            ("slow", "1Gi", "1024Mi", "Bound", false),
        ] {
            let (new, old) = (claim(Some(class), new_size, phase), claim(Some(class), old_size, phase));
            let result = run(&PersistentVolumeClaimResize, Operation::Update, CLAIMS, new, Some(old), &objects).await;
            assert_eq!(result.is_err(), refused, "{class} {new_size} {phase}");
        }
    }
}
