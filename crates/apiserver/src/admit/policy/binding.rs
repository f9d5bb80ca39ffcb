//! Policy bindings: where a policy applies, and with which parameters.

use knarr_api::value::Read;
use serde_json::Value;

use crate::admit::dynamic::criteria::Criteria;

#[derive(Debug)]
pub struct Binding {
    pub name: String,
    /// `None` if it applies everywhere.
    pub criteria: Option<Criteria>,
    /// `Deny`, `Warn`, `Audit`.
    pub actions: Vec<String>,
    /// The reference to the parameters.
    pub reference: Option<Value>,
}

impl Binding {
    pub fn read(object: &Value) -> Binding {
        let present = |field: &str| Some(object.at(&["spec", field])).filter(|value| value.is_object());
        let actions = object.items(&["spec", "validationActions"]).iter();
        Binding {
            name: object.text(&["metadata", "name"]).to_owned(),
            criteria: present("matchResources").map(|resources| Criteria::read(resources, "resourceRules")),
            actions: actions.filter_map(Value::as_str).map(str::to_owned).collect(),
            reference: present("paramRef").cloned(),
        }
    }
}
