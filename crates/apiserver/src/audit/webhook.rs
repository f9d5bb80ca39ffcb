//! The audit webhook: a server that receives lists of events.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Value, json};

use super::backend::{NotStored, Sink};
use crate::outbound::{ConfiguredWebhook, WebhookFailure};

const ATTEMPTS: u32 = 5;
const BACKOFF_FACTOR: f64 = 1.5;

/// Sends events to a webhook, and again if that fails.
pub struct AuditWebhook {
    webhook: ConfiguredWebhook,
    initial_backoff: Duration,
}

impl AuditWebhook {
    pub fn new(webhook: ConfiguredWebhook, initial_backoff: Duration) -> AuditWebhook {
        AuditWebhook { webhook, initial_backoff }
    }
}

#[async_trait]
impl Sink for AuditWebhook {
    async fn send(&self, events: Vec<Value>) -> Result<(), NotStored> {
        let count = events.len();
        let body = json!({"kind": "EventList", "apiVersion": "audit.k8s.io/v1", "metadata": {}, "items": events});
        let body = Bytes::from(body.to_string());
        let mut backoff = self.initial_backoff;
        for attempt in 1..=ATTEMPTS {
            match self.webhook.post(body.clone()).await {
                Ok(_) => return Ok(()),
                Err(error) if attempt < ATTEMPTS && may_succeed_later(&error) => {
                    tokio::time::sleep(backoff).await;
                    backoff = backoff.mul_f64(BACKOFF_FACTOR);
                }
                Err(error) => {
                    tracing::error!(%error, events = count, "audit events could not be sent to the webhook");
                    return Err(NotStored);
                }
            }
        }
        Err(NotStored)
    }
}

/// Unlike other webhooks, this one is asked again after any failure of the network.
fn may_succeed_later(error: &WebhookFailure) -> bool {
    matches!(error, WebhookFailure::NoResponse(_)) || error.is_temporary()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbound::test_kubeconfig;
    use crate::outbound::test_server::TestServer;
    use knarr_api::value::Read;

    #[tokio::test]
    async fn events_are_sent_as_a_list_and_failures_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let server = TestServer::start(|_, _| json!({})).await;
        let file = test_kubeconfig(directory.path(), &server, "/audit", "{}");
        let read = || ConfiguredWebhook::read(&file, Duration::from_secs(5)).unwrap();
        let webhook = AuditWebhook::new(read(), Duration::from_millis(1));
        assert_eq!(webhook.send(vec![json!({"auditID": "1"}), json!({"auditID": "2"})]).await, Ok(()));
        let received = server.received();
        let list: Value = serde_json::from_slice(&received[0].body).unwrap();
        assert_eq!((list.text(&["kind"]), list.items(&["items"]).len()), ("EventList", 2));
        drop(server);
        let webhook = AuditWebhook::new(read(), Duration::from_millis(1));
        assert_eq!(webhook.send(vec![json!({})]).await, Err(NotStored));
    }
}
