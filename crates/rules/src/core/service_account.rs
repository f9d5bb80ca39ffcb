//! ServiceAccount: an identity for pods.

use jiff::Timestamp;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use crate::common::columns;
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const COLUMNS: &[Column] = &[columns::NAME, columns::AGE];
const MOUNTABLE: &str = "kubernetes.io/enforce-mountable-secrets";

/// The rules of ServiceAccount.
pub struct ServiceAccount;

impl KindRules for ServiceAccount {
    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        keep_names_of_secrets(object);
    }

    fn prepare_update(&self, object: &mut Value, _old: &Value, _context: &Context<'_>) {
        keep_names_of_secrets(object);
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        let is_set = |account: &Value| account.has(&["metadata", "annotations", MOUNTABLE]);
        if !is_set(object) || old.is_some_and(is_set) {
            return Vec::new();
        }
        vec![format!(
            "metadata.annotations[{MOUNTABLE}]: deprecated in v1.32+; prefer separate namespaces to isolate access to \
             mounted secrets"
        )]
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn columns(&self) -> &'static [Column] {
        COLUMNS
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![columns::name(object), columns::age(object, now)]
    }
}

/// Reduces references to secrets to their names; they are in the namespace of the account.
fn keep_names_of_secrets(account: &mut Value) {
    for secret in account.items_mut(&["secrets"]) {
        let name = secret.text(&["name"]);
        *secret = if name.is_empty() { json!({}) } else { json!({"name": name}) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::context;

    #[test]
    fn only_names_of_secrets_stay() {
        let mut account = json!({"secrets": [{"name": "a", "namespace": "b", "uid": "c"}]});
        ServiceAccount.prepare_create(&mut account, &context("v1"));
        assert_eq!(account, json!({"secrets": [{"name": "a"}]}));
    }
}
