//! ValidatingWebhookConfiguration: webhooks that may reject objects.

use super::webhooks::WebhookRules;

/// The rules of ValidatingWebhookConfiguration.
pub static RULES: WebhookRules = WebhookRules { mutating: false };
