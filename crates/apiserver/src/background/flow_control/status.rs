//! Sets the Dangling condition of FlowSchemas and recompiles the classifier on every change.

use std::sync::Arc;

use jiff::Timestamp;
use knarr_api::time;
use knarr_api::value::Read;
use serde_json::{Value, json};

use super::ensure;
use crate::fairness::{GROUP, LEVELS, SCHEMAS};
use crate::state::ApiServer;
use crate::status_sync;

const MANAGER: &str = "api-priority-and-fairness-config-consumer-v1";

/// Reconciles on every change of FlowSchemas and priority levels until the server stops.
pub async fn run(server: Arc<ApiServer>) {
    let step = |server| async move { reconcile(&server).await };
    tokio::join!(
        status_sync::on_change(server.clone(), GROUP, SCHEMAS, step),
        status_sync::on_change(server.clone(), GROUP, LEVELS, step),
    );
}

async fn reconcile(server: &Arc<ApiServer>) -> bool {
    server.backend.fairness.load(&*server.backend.objects);
    let mut done = true;
    if let Err(error) = ensure::create_missing(server).await {
        tracing::warn!(%error, "cannot create the built-in flow control objects");
        done = false;
    }
    for schema in server.backend.objects.list(GROUP, SCHEMAS, "") {
        let level = schema.text(&["spec", "priorityLevelConfiguration", "name"]);
        let exists = server.backend.objects.get(GROUP, LEVELS, "", level).is_some();
        let Some(condition) = dangling(&schema, exists, Timestamp::now()) else { continue };
        let name = schema.text(&["metadata", "name"]);
        let configuration = json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": "FlowSchema", "metadata": {"name": name},
            "status": {"conditions": [condition]},
        });
        let path = format!("/apis/{GROUP}/v1/{SCHEMAS}/{name}");
        done &= status_sync::apply(server, &path, "system:apiserver", MANAGER, &configuration).await;
    }
    done
}

/// The condition to set on a schema; `None` if it is set already.
fn dangling(schema: &Value, exists: bool, now: Timestamp) -> Option<Value> {
    let level = schema.text(&["spec", "priorityLevelConfiguration", "name"]);
    let (status, reason, what) =
        if exists { ("False", "Found", "and it exists") } else { ("True", "NotFound", "but there is no such object") };
    let message = format!("This FlowSchema references the PriorityLevelConfiguration object named {level:?} {what}");
    let expected = (status, reason, message.as_str());
    let is_set = schema.items(&["status", "conditions"]).iter().any(|own| {
        own.text(&["type"]) == "Dangling"
            && (own.text(&["status"]), own.text(&["reason"]), own.text(&["message"])) == expected
    });
    let condition = || {
        json!({"type": "Dangling", "status": status, "reason": reason, "message": message,
            "lastTransitionTime": time::seconds(now)})
    };
    (!is_set).then(condition)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_without_a_level_dangle() {
        let mut schema = json!({"spec": {"priorityLevelConfiguration": {"name": "low"}}});
        let condition = dangling(&schema, false, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!((&condition["status"], &condition["reason"]), (&json!("True"), &json!("NotFound")));
        schema["status"] = json!({"conditions": [condition]});
        assert_eq!(dangling(&schema, false, Timestamp::UNIX_EPOCH), None);
        let found = dangling(&schema, true, Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(
            found["message"],
            "This FlowSchema references the PriorityLevelConfiguration object named \"low\" and it exists"
        );
    }
}
