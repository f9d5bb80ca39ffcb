//! NamespaceExists and NamespaceAutoProvision: objects need a namespace, or get one. AlwaysAdmit and AlwaysDeny.

use async_trait::async_trait;
use http::Method;
use knarr_api::status::{GroupResource, Status};
use serde_json::json;

use super::{Operation, Plugin, Write};
use crate::loopback::{self, ObjectPath, OwnServer};
use crate::object_reader::ObjectReader;

pub struct NamespaceExists;

#[async_trait]
impl Plugin for NamespaceExists {
    fn name(&self) -> &'static str {
        "NamespaceExists"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation != Operation::Connect && !write.namespace.is_empty() && !write.is_part_of("", "namespaces")
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        match objects.read("", "namespaces", "", write.namespace)? {
            Some(_) => Ok(()),
            None => Err(Status::not_found(GroupResource { group: "", name: "namespaces" }, write.namespace)),
        }
    }
}

/// Creates missing namespaces.
pub struct NamespaceAutoProvision(pub OwnServer);

#[async_trait]
impl Plugin for NamespaceAutoProvision {
    fn name(&self) -> &'static str {
        "NamespaceAutoProvision"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.operation == Operation::Create
            && !write.dry_run
            && !write.namespace.is_empty()
            && !write.is_part_of("", "namespaces")
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        if objects.read("", "namespaces", "", write.namespace)?.is_some() {
            return Ok(());
        }
        let Some(server) = self.0.get() else {
            return Err(write.forbidden("not yet ready to handle request"));
        };
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": write.namespace}});
        let path = ObjectPath { group: "", version: "v1", plural: "namespaces", namespace: "", name: write.namespace };
        let created = loopback::send(&server, Method::POST, &path, &object).await;
        created.map_err(|status| write.forbidden(status.message))
    }
}

/// Does nothing; older configurations name it.
pub struct AlwaysAdmit;

#[async_trait]
impl Plugin for AlwaysAdmit {
    fn name(&self) -> &'static str {
        "AlwaysAdmit"
    }

    fn handles(&self, _write: &Write<'_>) -> bool {
        false
    }
}

/// Refuses everything.
pub struct AlwaysDeny;

#[async_trait]
impl Plugin for AlwaysDeny {
    fn name(&self) -> &'static str {
        "AlwaysDeny"
    }

    fn handles(&self, _write: &Write<'_>) -> bool {
        true
    }

    async fn admit(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        Err(write.forbidden("admission control is denying all modifications"))
    }

    async fn validate(&self, write: &mut Write<'_>, _objects: &dyn ObjectReader) -> Result<(), Status> {
        Err(write.forbidden("admission control is denying all modifications"))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;

    #[tokio::test]
    async fn objects_need_a_namespace() {
        let objects = Fixed::new(vec![("", "namespaces", json!({"metadata": {"name": "there"}}))]);
        let pod = |namespace: &str| json!({"kind": "Pod", "metadata": {"name": "p", "namespace": namespace}});
        let create = |namespace: &'static str| {
            let objects = &objects;
            async move { run(&NamespaceExists, Operation::Create, ("", "pods"), pod(namespace), None, objects).await.err() }
        };
        assert_eq!(create("there").await, None);
        assert_eq!(create("none").await.as_deref(), Some(r#"namespaces "none" not found"#));
        let denied = run(&AlwaysDeny, Operation::Create, ("", "pods"), pod("there"), None, &objects).await;
        let message = r#"pods "p" is forbidden: admission control is denying all modifications"#;
        assert_eq!(denied.err().as_deref(), Some(message));
        assert!(run(&AlwaysAdmit, Operation::Create, ("", "pods"), pod("none"), None, &objects).await.is_ok());
    }

    #[tokio::test]
    async fn missing_namespaces_are_created() {
        use crate::request_tests::Cluster;
        let plugins = super::super::EnabledPlugins::new(&["NamespaceAutoProvision".to_owned()], &[], None).unwrap();
        let cluster = Cluster::with_plugins(plugins).await;
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        let (code, response) = cluster.json("POST", "/api/v1/namespaces/fresh/configmaps", map).await;
        assert_eq!(code, 201, "{response}");
        let (code, _) = cluster.json("GET", "/api/v1/namespaces/fresh", json!(null)).await;
        assert_eq!(code, 200);
    }
}
