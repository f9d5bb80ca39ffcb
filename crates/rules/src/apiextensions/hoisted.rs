//! The spec of a definition as Kubernetes validates it internally: fields that are equal in all versions are hoisted to
//! the top level, and error messages name them there.

use knarr_api::value::Read;
use serde_json::Value;

const NOTHING: &Value = &Value::Null;

/// The spec of a definition with the fields that are hoisted to its top level.
pub struct Hoisted<'a> {
    pub spec: &'a Value,
    schema: Option<&'a Value>,
    subresources: Option<&'a Value>,
    columns: Option<&'a Value>,
    selectable: Option<&'a Value>,
}

impl<'a> Hoisted<'a> {
    pub fn new(spec: &'a Value) -> Self {
        let versions = spec.items(&["versions"]);
        let common = |field: &str| {
            let first = versions.first()?.get(field).unwrap_or(NOTHING);
            versions.iter().all(|version| version.get(field).unwrap_or(NOTHING) == first).then_some(first)
        };
        Hoisted {
            spec,
            schema: common("schema"),
            subresources: common("subresources"),
            columns: common("additionalPrinterColumns"),
            selectable: common("selectableFields"),
        }
    }

    pub fn versions(&self) -> &'a [Value] {
        self.spec.items(&["versions"])
    }

    /// Returns a field that is equal in all versions, or null.
    pub fn common(&self, field: &str) -> &'a Value {
        self.slot(field).unwrap_or(NOTHING)
    }

    /// Returns a field of one version, or null if it is equal in all versions.
    pub fn own(&self, version: &'a Value, field: &str) -> &'a Value {
        if self.slot(field).is_some() { NOTHING } else { version.get(field).unwrap_or(NOTHING) }
    }

    fn slot(&self, field: &str) -> Option<&'a Value> {
        match field {
            "schema" => self.schema,
            "subresources" => self.subresources,
            "additionalPrinterColumns" => self.columns,
            _ => self.selectable,
        }
    }

    /// Returns all schemas; a schema that all versions share is included once.
    pub fn schemas(&self) -> Vec<&'a Value> {
        let common = std::iter::once(self.common("schema"));
        let own = self.versions().iter().map(|version| self.own(version, "schema"));
        common.chain(own).map(|schema| &schema["openAPIV3Schema"]).filter(|schema| !schema.is_null()).collect()
    }
}
