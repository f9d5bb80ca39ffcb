//! What handling a request for a resource needs of the server.

use std::sync::Arc;

use arc_swap::ArcSwap;
use knarr_api::status::Status;
use knarr_store::Store;

use super::{Admission, WriteHooks};
use crate::authorize::{Authorizer, refusal};
use crate::behaviour::Behaviour;
use crate::custom::WebhookCaller;
use crate::fairness::Fairness;
use crate::kinds::Kinds;
use crate::object_reader::ObjectReader;
use crate::outbound::WebhookClient;
use crate::request::{Target, User};

/// The store, and what decides how objects are written to it and read from it. All requests share it.
pub struct Backend {
    pub store: Arc<dyn Store>,
    pub kinds: Arc<ArcSwap<Kinds>>,
    pub objects: Arc<dyn ObjectReader>,
    pub authorizer: Arc<dyn Authorizer>,
    pub admission: Box<dyn Admission>,
    pub hooks: Arc<dyn WriteHooks>,
    /// The client that calls webhooks.
    pub webhook_client: WebhookClient,
    /// Which FlowSchema a request belongs to.
    pub fairness: Fairness,
    /// What flags change.
    pub behaviour: Behaviour,
    /// Turns true when the server starts to stop: watches end, and it is no longer ready.
    pub stopping: tokio::sync::watch::Receiver<bool>,
}

impl Backend {
    /// Refuses a request that no authorizer allows.
    pub async fn authorize(&self, user: &User, target: &Target) -> Result<(), Status> {
        let decision = self.authorizer.authorize(user, target).await;
        refusal(user, target, decision).map_or(Ok(()), Err)
    }

    /// How conversion webhooks are called.
    pub fn webhook_caller(&self) -> WebhookCaller<'_> {
        WebhookCaller { client: &self.webhook_client, services: &*self.objects }
    }
}
