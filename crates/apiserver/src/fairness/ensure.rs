//! The built-in FlowSchemas and PriorityLevelConfigurations: created where they are missing, and updated where their
//! annotation allows it.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use serde_json::Value;

use super::{GROUP, LEVELS, SCHEMAS};
use crate::bootstrap::{self, Wanted};
use crate::startup::write;
use crate::state::ApiServer;

pub const EXEMPT: &str = "exempt";
pub const CATCH_ALL: &str = "catch-all";
const ANNOTATION: &str = "apf.kubernetes.io/autoupdate-spec";
const INTERVAL: Duration = Duration::from_secs(60);

pub fn built_in() -> Vec<Wanted> {
    bootstrap::flow_control()
}

/// Whether requests would have no place to go without an object of this name. Users cannot change these.
pub fn is_mandatory(name: &str) -> bool {
    name == EXEMPT || name == CATCH_ALL
}

/// Updates the objects every minute until the server stops.
pub async fn run(server: Arc<ApiServer>) {
    let mut stopping = server.stopping.clone();
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

/// Brings all objects to what they should be.
pub async fn reconcile(server: &Arc<ApiServer>) -> Result<(), Status> {
    create_missing(server).await?;
    let wanted = built_in();
    for wanted in &wanted {
        if let Some(current) = server.objects.get(GROUP, wanted.resource, "", wanted.name())
            && let Some(revised) = revise(&current, wanted)
        {
            write::send(server, Method::PUT, &path(wanted.resource, wanted.name()), &revised).await?;
        }
    }
    for plural in [SCHEMAS, LEVELS] {
        for object in server.objects.list(GROUP, plural, "") {
            let name = object.text(&["metadata", "name"]);
            let is_wanted = wanted.iter().any(|wanted| wanted.resource == plural && wanted.name() == name);
            // A built-in object of another version of this server.
            if !is_wanted && annotated(&object) == Some(true) {
                write::send(server, Method::DELETE, &path(plural, name), &Value::Null).await?;
            }
        }
    }
    Ok(())
}

/// Creates objects that somebody deleted. Those of priority levels come first, since schemas refer to them.
pub async fn create_missing(server: &Arc<ApiServer>) -> Result<(), Status> {
    for wanted in built_in() {
        if server.objects.get(GROUP, wanted.resource, "", wanted.name()).is_none() {
            write::send(server, Method::POST, &path(wanted.resource, wanted.name()), &wanted.object).await?;
        }
    }
    Ok(())
}

fn path<'a>(plural: &'a str, name: &'a str) -> write::Path<'a> {
    write::Path { group: GROUP, version: "v1", plural, namespace: "", name }
}

/// The object to write in place of an existing one; `None` when it is as it should be.
pub fn revise(current: &Value, wanted: &Wanted) -> Option<Value> {
    let updates = is_mandatory(wanted.name()) || updates_spec(current);
    let mut revised = current.clone();
    if updates {
        let mut spec = wanted.object.at(&["spec"]).clone();
        if wanted.resource == LEVELS && wanted.name() == EXEMPT && current.has(&["spec", "exempt"]) {
            // How many seats the exempt level counts for is the administrator's choice.
            for field in ["nominalConcurrencyShares", "lendablePercent"] {
                spec.set(&["exempt", field], current.at(&["spec", "exempt", field]).clone());
            }
        }
        revised.set(&["spec"], spec);
    }
    if annotated(current) != Some(updates) {
        revised.set(&["metadata", "annotations", ANNOTATION], if updates { "true" } else { "false" });
    }
    (revised != *current).then_some(revised)
}

/// Without a clear word of the administrator, an object that was never changed is kept up to date.
fn updates_spec(current: &Value) -> bool {
    annotated(current).unwrap_or_else(|| current.integer(&["metadata", "generation"]) == Some(1))
}

fn annotated(object: &Value) -> Option<bool> {
    match object.text(&["metadata", "annotations", ANNOTATION]) {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_tests::Cluster;
    use serde_json::json;

    fn wanted(resource: &str, name: &str) -> Wanted {
        built_in().into_iter().find(|wanted| wanted.resource == resource && wanted.name() == name).unwrap()
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
            let wanted = wanted(SCHEMAS, name);
            let mut current = wanted.object.clone();
            current["metadata"]["generation"] = json!(generation);
            current["metadata"]["annotations"] = annotation.map_or(json!({}), |value| json!({ANNOTATION: value}));
            if changed {
                current["spec"]["matchingPrecedence"] = json!(77);
            }
            let case = format!("{name} {annotation:?} {generation} {changed}");
            let revised = revise(&current, &wanted);
            let shown = revised.as_ref().map(|object| object.text(&["metadata", "annotations", ANNOTATION]));
            assert_eq!(shown, updates, "{case}");
            if let Some(revised) = revised {
                let restored = revised["spec"] == wanted.object["spec"];
                assert_eq!(restored, !changed || updates == Some("true"), "{case}");
            }
        }
    }

    #[test]
    fn the_shares_of_the_exempt_level_are_the_administrators() {
        let wanted = wanted(LEVELS, EXEMPT);
        let mut current = wanted.object.clone();
        current["spec"]["exempt"]["nominalConcurrencyShares"] = json!(9);
        assert_eq!(revise(&current, &wanted), None);
    }

    #[tokio::test]
    async fn deleted_and_changed_objects_come_back() {
        let cluster = Cluster::new().await;
        let at = |plural: &str, name: &str| format!("/apis/{GROUP}/v1/{plural}/{name}");
        for (plural, name) in [(SCHEMAS, "system-nodes"), (LEVELS, "system"), (SCHEMAS, "exempt")] {
            assert_eq!(cluster.json("DELETE", &at(plural, name), Value::Null).await.0, 200, "{name}");
        }
        let patch = json!({"spec": {"matchingPrecedence": 77}});
        let changed = at(SCHEMAS, "probes");
        assert_eq!(cluster.ask("PATCH", &changed, "application/merge-patch+json", patch).await.0, 200);
        reconcile(cluster.server()).await.unwrap();
        for (plural, name) in [(SCHEMAS, "system-nodes"), (LEVELS, "system"), (SCHEMAS, "exempt")] {
            assert_eq!(cluster.json("GET", &at(plural, name), Value::Null).await.0, 200, "{name}");
        }
        assert_eq!(cluster.json("GET", &changed, Value::Null).await.1["spec"]["matchingPrecedence"], 2);
    }
}
