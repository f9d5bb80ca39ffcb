//! Custom resources: from a definition to a kind that is served like any other.

use jiff::Timestamp;
use knarr_api::field::Errors;
use knarr_api::schema::{NodeRef, Schema, builtin};
use serde_json::{Value, json};

use crate::subresource::scale::Paths;

/// What serving one version of a custom resource needs.
pub struct CustomType {
    schema: Schema,
    root: knarr_api::schema::NodeId,
}

impl CustomType {
    pub fn node(&self) -> NodeRef<'_> {
        self.schema.node(self.root)
    }

    pub fn prepare_create(&self, _object: &mut Value) {}

    pub fn prepare_update(&self, _object: &mut Value, _old: &Value, _subresource: &str) {}

    pub fn set_defaults(&self, _object: &mut Value) {}

    pub fn validate(&self, _object: &Value, _old: Option<&Value>, _subresource: &str) -> Errors {
        Errors::new()
    }

    pub fn columns(&self) -> Value {
        json!([])
    }

    pub fn cells(&self, _object: &Value, _now: Timestamp) -> Vec<Value> {
        let _ = builtin();
        Vec::new()
    }

    pub fn scale(&self) -> Option<Paths> {
        None
    }
}

/// What changes in a definition that is being deleted while its objects are still there.
pub fn terminate(_object: &mut Value) {}
