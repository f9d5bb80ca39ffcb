//! NamespaceLifecycle: refuses to create objects in missing or terminating namespaces, and to delete the system namespaces.

use async_trait::async_trait;
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;

const IMMORTAL: [&str; 3] = ["default", "kube-system", "kube-public"];

pub struct NamespaceLifecycle;

#[async_trait]
impl Plugin for NamespaceLifecycle {
    fn name(&self) -> &'static str {
        "NamespaceLifecycle"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Connect
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        if write.is_part_of("", "namespaces") {
            if write.operation == Operation::Delete && IMMORTAL.contains(&write.name) {
                let resource = GroupResource { group: "", name: "namespaces" };
                return Err(Status::forbidden(resource, write.name, "this namespace may not be deleted"));
            }
            return Ok(());
        }
        // An access review must not reveal whether a namespace exists.
        let is_review = write.is_part_of("authorization.k8s.io", "localsubjectaccessreviews");
        if write.namespace.is_empty() || write.operation == Operation::Delete || is_review {
            return Ok(());
        }
        let Some(namespace) = objects.read("", "namespaces", "", write.namespace)? else {
            return Err(Status::not_found(GroupResource { group: "", name: "namespaces" }, write.namespace));
        };
        if write.operation == Operation::Create && namespace.text(&["status", "phase"]) == "Terminating" {
            let name = write.namespace;
            let why = format!("unable to create new content in namespace {name} because it is being terminated");
            let cause = format!("namespace {name} is being terminated");
            return Err(write.forbidden(why).with_cause("NamespaceTerminating", cause, "metadata.namespace"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;
    use serde_json::{Value, json};

    #[tokio::test]
    async fn objects_need_a_living_namespace() {
        let namespace = |name: &str, phase: &str| json!({"metadata": {"name": name}, "status": {"phase": phase}});
        let objects = Fixed::new(vec![
            ("", "namespaces", namespace("living", "Active")),
            ("", "namespaces", namespace("dying", "Terminating")),
        ]);
        let pod = |namespace: &str| json!({"kind": "Pod", "metadata": {"name": "p", "namespace": namespace}});
        for (operation, pod, refusal) in [
            (Operation::Create, pod("living"), None),
            (Operation::Create, pod("none"), Some(r#"namespaces "none" not found"#)),
            (
                Operation::Create,
                pod("dying"),
                Some(
                    r#"pods "p" is forbidden: unable to create new content in namespace dying because it is being terminated"#,
                ),
            ),
            (Operation::Update, pod("dying"), None),
        ] {
            let result = run(&NamespaceLifecycle, operation, ("", "pods"), pod.clone(), None, &objects).await;
            assert_eq!(result.err().as_deref(), refusal, "{pod}");
        }
        let old = namespace("default", "Active");
        let result =
            run(&NamespaceLifecycle, Operation::Delete, ("", "namespaces"), Value::Null, Some(old), &objects).await;
        assert_eq!(result.unwrap_err(), r#"namespaces "default" is forbidden: this namespace may not be deleted"#);
    }
}
