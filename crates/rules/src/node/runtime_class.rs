//! RuntimeClass: the container runtime handler for a pod.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::field::{Error, ErrorType, Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::columns::{self, AGE, NAME, text};
use crate::common::{checks, go_json, labels, node_labels};
use crate::core::pod::options::Options;
use crate::core::pod::validation::{resources, scheduling};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

/// The rules of RuntimeClass.
pub struct RuntimeClass;

impl KindRules for RuntimeClass {
    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let handler = Path::root("handler");
        checks::required_name(&mut errors, &handler, object.text(&["handler"]), names::dns_label);
        if object.has(&["overhead"]) {
            let fixed = object.at(&["overhead", "podFixed"]);
            resources::overhead(&mut errors, fixed, &Path::root("overhead"), &Options::default());
        }
        let path = Path::root("scheduling");
        labels::validate_labels(&mut errors, object.at(&["scheduling", "nodeSelector"]), &path.child("nodeSelector"));
        let tolerations = object.items(&["scheduling", "tolerations"]);
        validate_tolerations(&mut errors, &path.child("tolerations"), tolerations);
        if let Some(old) = old {
            checks::immutable(&mut errors, &handler, &object["handler"], &old["handler"]);
        }
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        let selector = object.fields(&["scheduling", "nodeSelector"]).into_iter().flatten();
        let messages = selector.filter_map(|(label, _)| node_labels::deprecation(label));
        messages.map(|message| format!("scheduling.nodeSelector: {message}")).collect()
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn allows_create_on_update(&self) -> bool {
        true
    }

    fn allows_unconditional_update(&self) -> bool {
        false
    }

    fn columns(&self) -> &'static [Column] {
        const { &[NAME, text("Handler", "string", ""), AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![columns::name(object), object.text(&["handler"]).into(), columns::age(object, now)]
    }
}

fn validate_tolerations(errors: &mut Errors, path: &Path<'_>, tolerations: &[Value]) {
    scheduling::tolerations(errors, tolerations, path, &Options::default());
    let key = |toleration: &Value| ["key", "operator", "value", "effect"].map(|field| toleration[field].to_string());
    let mut seen = BTreeSet::new();
    for (index, toleration) in tolerations.iter().enumerate() {
        if !seen.insert(key(toleration)) {
            let text = |field: &str| Value::from(toleration.text(&[field]));
            let rendered = go_json::struct_json(&[
                ("Key", text("key")),
                ("Operator", text("operator")),
                ("Value", text("value")),
                ("Effect", text("effect")),
                ("TolerationSeconds", toleration["tolerationSeconds"].clone()),
            ]);
            let field = path.index(index).to_string();
            errors.push(Error {
                field,
                error_type: ErrorType::Duplicate,
                bad_value: Some(rendered),
                detail: String::new(),
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn classes_need_a_handler_and_keep_it() {
        assert_eq!(messages(&RuntimeClass, &json!({}), None), ["handler: Required value"]);
        let class = |handler: &str| json!({"handler": handler, "overhead": {"podFixed": {"cpu": "10m"}}});
        assert!(messages(&RuntimeClass, &class("runc"), None).is_empty());
        assert_eq!(
            messages(&RuntimeClass, &class("kata"), Some(&class("runc"))),
            ["handler: Invalid value: \"kata\": field is immutable"]
        );
    }
}
