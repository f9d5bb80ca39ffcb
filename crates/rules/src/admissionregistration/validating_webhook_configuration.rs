//! ValidatingWebhookConfiguration: webhooks that may reject objects.

use jiff::Timestamp;
use knarr_api::field::Errors;
use serde_json::Value;

use super::{name_warnings, webhooks};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of ValidatingWebhookConfiguration.
pub struct ValidatingWebhookConfiguration;

impl KindRules for ValidatingWebhookConfiguration {
    fn requires_known_finalizers(&self) -> bool {
        false
    }

    fn set_defaults(&self, object: &mut Value, _version: &str) {
        webhooks::set_defaults(object, false);
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        webhooks::validate(&mut errors, object, old, false);
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        name_warnings(object)
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 0, as_create: 2 }
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn increments_generation(&self, object: &Value, old: &Value) -> bool {
        object["webhooks"] != old["webhooks"]
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        webhooks::COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        webhooks::cells(object, now)
    }
}
