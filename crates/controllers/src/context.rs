//! What every controller is given.

use std::sync::Arc;

use knarr_client::{EventRecorder, Informers};
use kube::Client;

use crate::settings::Settings;

#[derive(Clone)]
pub struct Context {
    pub client: Client,
    pub informers: Informers,
    pub settings: Arc<Settings>,
}

impl Context {
    pub fn new(client: Client, settings: Settings) -> Self {
        Self { informers: Informers::new(client.clone()), client, settings: Arc::new(settings) }
    }

    /// Events as the named component, which is what people see in the event's source.
    pub fn recorder(&self, component: &str) -> EventRecorder {
        EventRecorder::new(self.client.clone(), component, None)
    }
}
