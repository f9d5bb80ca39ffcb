//! The built-in FlowSchemas and PriorityLevelConfigurations: created where they are missing, and updated where their
//! annotation allows it.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::Value;

use crate::bootstrap::flow_revision::{autoupdates, revise};
use crate::fairness::built_in;
use crate::fairness::{GROUP, LEVELS, SCHEMAS};
use crate::loopback;
use crate::state::ApiServer;

const INTERVAL: Duration = Duration::from_secs(60);

/// Updates the objects every minute until the server stops.
pub async fn run(server: Arc<ApiServer>) {
    let mut stopping = server.backend.stopping.clone();
    loop {
        tokio::select! {
            () = tokio::time::sleep(INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => return,
        }
        if let Err(error) = reconcile(&server).await {
            tracing::warn!(%error, "cannot update the built-in flow control objects");
        }
    }
}

/// Creates, updates and deletes built-in objects.
pub async fn reconcile(server: &Arc<ApiServer>) -> Result<(), Status> {
    create_missing(server).await?;
    let desired = built_in::all();
    for desired in &desired {
        if let Some(current) = server.backend.objects.get(GROUP, desired.resource, "", desired.name())
            && let Some(revised) = revise(&current, desired)
        {
            loopback::send(server, Method::PUT, &path(desired.resource, desired.name()), &revised).await?;
        }
    }
    for plural in [SCHEMAS, LEVELS] {
        for object in server.backend.objects.list(GROUP, plural, "") {
            let name = object.text(&["metadata", "name"]);
            let is_desired = desired.iter().any(|desired| desired.resource == plural && desired.name() == name);
            // A built-in object of another version of this server.
            if !is_desired && autoupdates(&object) == Some(true) {
                loopback::send(server, Method::DELETE, &path(plural, name), &Value::Null).await?;
            }
        }
    }
    Ok(())
}

/// Creates objects that were deleted. Priority levels come first, since schemas refer to them.
pub async fn create_missing(server: &Arc<ApiServer>) -> Result<(), Status> {
    for desired in built_in::all() {
        if server.backend.objects.get(GROUP, desired.resource, "", desired.name()).is_none() {
            loopback::send(server, Method::POST, &path(desired.resource, desired.name()), &desired.object).await?;
        }
    }
    Ok(())
}

fn path<'a>(plural: &'a str, name: &'a str) -> loopback::ObjectPath<'a> {
    loopback::ObjectPath { group: GROUP, version: "v1", plural, namespace: "", name }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::DesiredObject;
    use crate::bootstrap::flow_revision::{ANNOTATION, EXEMPT};
    use crate::request_tests::Cluster;
    use serde_json::json;

    fn desired(resource: &str, name: &str) -> DesiredObject {
        built_in::all().into_iter().find(|desired| desired.resource == resource && desired.name() == name).unwrap()
    }

    #[test]
    fn objects_are_updated_as_their_annotation_says() {
        for (name, annotation, generation, changed, updates) in [
            ("system-nodes", Some("true"), 5, true, Some("true")),
            ("system-nodes", Some("true"), 5, false, None),
            ("system-nodes", Some("false"), 1, true, None),
            ("system-nodes", None, 1, true, Some("true")),
            ("system-nodes", None, 2, true, Some("false")),
            ("system-nodes", Some("perhaps"), 2, true, Some("false")),
            ("catch-all", Some("false"), 3, true, Some("true")),
            ("catch-all", Some("false"), 3, false, Some("true")),
        ] {
            let desired = desired(SCHEMAS, name);
            let mut current = desired.object.clone();
            current["metadata"]["generation"] = json!(generation);
            current["metadata"]["annotations"] = annotation.map_or(json!({}), |value| json!({ANNOTATION: value}));
            if changed {
                current["spec"]["matchingPrecedence"] = json!(77);
            }
            let case = format!("{name} {annotation:?} {generation} {changed}");
            let revised = revise(&current, &desired);
            let annotation = revised.as_ref().map(|object| object.text(&["metadata", "annotations", ANNOTATION]));
            assert_eq!(annotation, updates, "{case}");
            if let Some(revised) = revised {
                let restored = revised["spec"] == desired.object["spec"];
                assert_eq!(restored, !changed || updates == Some("true"), "{case}");
            }
        }
    }

    #[test]
    fn the_shares_of_the_exempt_level_are_kept() {
        let desired = desired(LEVELS, EXEMPT);
        let mut current = desired.object.clone();
        current["spec"]["exempt"]["nominalConcurrencyShares"] = json!(9);
        assert_eq!(revise(&current, &desired), None);
    }

    #[tokio::test]
    async fn deleted_and_changed_objects_are_restored() {
        let cluster = Cluster::new().await;
        let at = |plural: &str, name: &str| format!("/apis/{GROUP}/v1/{plural}/{name}");
        for (plural, name) in [(SCHEMAS, "system-nodes"), (LEVELS, "system"), (SCHEMAS, "exempt")] {
            assert_eq!(cluster.json("DELETE", &at(plural, name), Value::Null).await.0, 200, "{name}");
        }
        let patch = json!({"spec": {"matchingPrecedence": 77}});
        let changed = at(SCHEMAS, "probes");
        assert_eq!(cluster.request("PATCH", &changed, "application/merge-patch+json", patch).await.0, 200);
        reconcile(cluster.server()).await.unwrap();
        for (plural, name) in [(SCHEMAS, "system-nodes"), (LEVELS, "system"), (SCHEMAS, "exempt")] {
            assert_eq!(cluster.json("GET", &at(plural, name), Value::Null).await.0, 200, "{name}");
        }
        assert_eq!(cluster.json("GET", &changed, Value::Null).await.1["spec"]["matchingPrecedence"], 2);
    }
}
