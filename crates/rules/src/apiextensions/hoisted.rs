//! A definition's spec as Kubernetes looks at it: what all versions have in common counts as said once for all, and errors
//! name it so.

use knarr_api::value::Read;
use serde_json::Value;

const NOTHING: &Value = &Value::Null;

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

    /// What is said once for all versions; null where nothing is.
    pub fn common(&self, field: &str) -> &'a Value {
        self.slot(field).unwrap_or(NOTHING)
    }

    /// What one version says for itself; null where it says the same as all.
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

    /// All schemas, each once.
    pub fn schemas(&self) -> Vec<&'a Value> {
        let common = std::iter::once(self.common("schema"));
        let own = self.versions().iter().map(|version| self.own(version, "schema"));
        common.chain(own).map(|schema| &schema["openAPIV3Schema"]).filter(|schema| !schema.is_null()).collect()
    }
}
