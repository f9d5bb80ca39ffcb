//! Accepts the names of a CustomResourceDefinition, unless another one has them, and sets its conditions.

use knarr_api::value::{Read, Write as _, has_condition};
use knarr_rules::common::conditions::set_condition;
use serde_json::{Value, json};

use crate::custom::definition::storage_version;

/// Sets the status of a definition, given the others of its group.
pub fn reconcile_status(definition: &mut Value, others: &[&Value], now: &str) {
    let (accepted, conflict) = accept(definition, others);
    definition.set(&["status", "acceptedNames"], accepted);
    let condition = match &conflict {
        None => {
            json!({"type": "NamesAccepted", "status": "True", "reason": "NoConflicts", "message": "no conflicts found"})
        }
        Some((reason, message)) => {
            json!({"type": "NamesAccepted", "status": "False", "reason": reason, "message": message})
        }
    };
    set_condition(definition, condition, now);
    let established = has_condition(definition, "Established");
    if conflict.is_none() {
        let condition = json!({
            "type": "Established", "status": "True", "reason": "InitialNamesAccepted",
            "message": "the initial names have been accepted",
        });
        set_condition(definition, condition, now);
    } else if !established {
        let condition = json!({
            "type": "Established", "status": "False", "reason": "NotAccepted", "message": "not all names are accepted",
        });
        set_condition(definition, condition, now);
    }
    let storage = storage_version(definition).to_owned();
    let mut stored = definition.items(&["status", "storedVersions"]).to_vec();
    if !storage.is_empty() && !stored.iter().any(|version| *version == storage.as_str()) {
        stored.push(storage.into());
    }
    definition.set(&["status", "storedVersions"], stored);
}

/// The accepted names, and the reason for the first conflict.
fn accept(definition: &Value, others: &[&Value]) -> (Value, Option<(&'static str, String)>) {
    let requested = definition.at(&["spec", "names"]);
    let mut accepted = definition.at(&["status", "acceptedNames"]).clone();
    if !accepted.is_object() {
        accepted = json!({});
    }
    let own_name = definition.text(&["metadata", "name"]);
    let used = |fields: &[&str], name: &str| {
        others.iter().filter(|other| other.text(&["metadata", "name"]) != own_name).any(|other| {
            let names = other.at(&["status", "acceptedNames"]);
            fields.iter().any(|field| match names.at(&[field]) {
                Value::String(text) => text == name,
                Value::Array(items) => items.iter().any(|item| item == name),
                _ => false,
            })
        })
    };
    const RESOURCES: [&str; 3] = ["plural", "singular", "shortNames"];
    const KINDS: [&str; 2] = ["kind", "listKind"];
    let mut conflict = None;
    let mut refuse = |reason: &'static str, name: &str| {
        conflict = Some((reason, format!("{name:?} is already in use")));
    };
    let singles = [
        ("plural", &RESOURCES[..], "PluralConflict"),
        ("singular", &RESOURCES[..], "SingularConflict"),
        ("kind", &KINDS[..], "KindConflict"),
        ("listKind", &KINDS[..], "ListKindConflict"),
    ];
    for (field, fields, reason) in singles {
        let name = requested.text(&[field]);
        if used(fields, name) {
            refuse(reason, name);
        } else if !name.is_empty() {
            accepted.set(&[field], name);
        }
    }
    let short = requested.items(&["shortNames"]);
    match short.iter().filter_map(Value::as_str).find(|name| used(&RESOURCES, name)) {
        Some(name) => refuse("ShortNamesConflict", name),
        None if short.is_empty() => drop(accepted.remove(&["shortNames"])),
        None => accepted.set(&["shortNames"], short.to_vec()),
    }
    match requested.items(&["categories"]) {
        [] => drop(accepted.remove(&["categories"])),
        categories => accepted.set(&["categories"], categories.to_vec()),
    }
    (accepted, conflict)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn definition(name: &str, kind: &str) -> Value {
        json!({"metadata": {"name": name}, "spec": {
            "names": {"plural": name, "singular": "s", "kind": kind, "listKind": format!("{kind}List")},
            "versions": [{"name": "v1", "storage": true, "served": true}],
        }})
    }

    #[test]
    fn free_names_establish_a_definition() {
        let mut ships = definition("ships", "Ship");
        reconcile_status(&mut ships, &[], "now");
        assert!(has_condition(&ships, "Established") && has_condition(&ships, "NamesAccepted"));
        assert_eq!(ships["status"]["storedVersions"], json!(["v1"]));
        let unchanged = ships.clone();
        reconcile_status(&mut ships, &[], "later");
        assert_eq!(ships, unchanged);
    }

    #[test]
    fn a_kind_of_another_definition_is_not_accepted() {
        let mut first = definition("ships", "Ship");
        reconcile_status(&mut first, &[], "now");
        let mut second = definition("boats", "Ship");
        second["spec"]["names"]["singular"] = json!("boat");
        reconcile_status(&mut second, &[&first], "now");
        assert!(!has_condition(&second, "Established"));
        let condition = &second["status"]["conditions"][0];
        assert_eq!(
            (condition["reason"].as_str(), condition["status"].as_str()),
            (Some("ListKindConflict"), Some("False"))
        );
    }
}
