//! The managers of an object's fields (`metadata.managedFields`).

use super::fields_v1;
use super::set::Set;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The maximum number of entries for updates; beyond it the oldest are combined.
const MAX_UPDATERS: usize = 10;

/// The manager name of the combined entries.
const ANCIENT: &str = "ancient-changes";

/// How a manager came to own its fields.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Operation {
    Apply,
    Update,
}

/// The identity of an entry of managedFields.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ManagerId {
    /// The name of the field manager.
    pub manager: String,
    /// How the manager came to own its fields.
    pub operation: Operation,
    /// Empty for apply: an applier that changes its version keeps its entry.
    pub api_version: String,
    /// The subresource that was written, or empty.
    pub subresource: String,
}

/// The fields that one manager owns.
#[derive(Clone, PartialEq, Debug)]
pub struct OwnedFields {
    /// The owned fields.
    pub set: Set,
    /// The version in which the fields were written.
    pub api_version: String,
    /// As in the object, RFC 3339 in UTC, so that texts sort as times do.
    pub time: Option<String>,
}

/// All managers of an object.
#[derive(Clone, Default, Debug)]
pub struct Managers {
    /// The entries by their identity.
    pub by_id: BTreeMap<ManagerId, OwnedFields>,
}

impl Operation {
    /// The name in managedFields.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Apply => "Apply",
            Operation::Update => "Update",
        }
    }
}

impl ManagerId {
    /// The identity of a manager; the version counts for updates only.
    pub fn new(manager: &str, operation: Operation, api_version: &str, subresource: &str) -> Self {
        let api_version = if operation == Operation::Apply { "" } else { api_version };
        ManagerId {
            manager: manager.to_owned(),
            operation,
            api_version: api_version.to_owned(),
            subresource: subresource.to_owned(),
        }
    }
}

impl Managers {
    /// Decodes managedFields, or returns why an entry is invalid.
    pub fn decode(entries: &[Value]) -> Result<Self, String> {
        let mut managers = Managers::default();
        for (at, entry) in entries.iter().enumerate() {
            let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
            let operation = match text("operation") {
                "Apply" => Operation::Apply,
                "Update" => Operation::Update,
                _ => return Err("operation must be `Apply` or `Update`".to_owned()),
            };
            if text("apiVersion").is_empty() {
                return Err("apiVersion must not be empty".to_owned());
            }
            match text("fieldsType") {
                "FieldsV1" => {}
                "" => return Err(format!("missing fieldsType in managed fields entry {at}")),
                other => return Err(format!("invalid fieldsType {other:?} in managed fields entry {at}")),
            }
            let set = fields_v1::decode(entry.get("fieldsV1").unwrap_or(&Value::Null))?;
            let owned = OwnedFields {
                set,
                api_version: text("apiVersion").to_owned(),
                time: entry.get("time").and_then(Value::as_str).map(str::to_owned),
            };
            let id = ManagerId::new(text("manager"), operation, text("apiVersion"), text("subresource"));
            managers.by_id.insert(id, owned);
        }
        Ok(managers)
    }

    /// The managers of an object, or none if its managedFields are invalid.
    pub fn of(object: &Value) -> Self {
        Self::decode(entries_of(object).unwrap_or_default()).unwrap_or_default()
    }

    /// Encodes managedFields: appliers first, then by time, name, version and subresource.
    pub fn encode(self) -> Vec<Value> {
        let mut entries: Vec<(ManagerId, OwnedFields)> = self.by_id.into_iter().collect();
        entries.sort_by(|(a, a_owned), (b, b_owned)| {
            (a.operation, &a_owned.time, &a.manager, &a_owned.api_version, &a.subresource).cmp(&(
                b.operation,
                &b_owned.time,
                &b.manager,
                &b_owned.api_version,
                &b.subresource,
            ))
        });
        let entry = |(id, owned): (ManagerId, OwnedFields)| {
            let fields = fields_v1::encode(&owned.set);
            encode_entry(id, owned.api_version, owned.time, fields)
        };
        entries.into_iter().map(entry).collect()
    }

    /// Combines the oldest entries for updates if there are too many.
    pub fn cap(&mut self) {
        let mut updaters: Vec<(Option<String>, ManagerId)> = self
            .by_id
            .iter()
            .filter(|(id, _)| id.operation == Operation::Update)
            .map(|(id, owned)| (owned.time.clone(), id.clone()))
            .collect();
        let mut count = updaters.len();
        if count <= MAX_UPDATERS {
            return;
        }
        updaters.sort();
        let mut first_of_version: BTreeMap<String, ManagerId> = BTreeMap::new();
        // Put together at the end: there may be thousands, of which each would copy those before it.
        let mut parts: BTreeMap<ManagerId, Vec<Set>> = BTreeMap::new();
        for (_, id) in updaters {
            if count <= MAX_UPDATERS {
                break;
            }
            let Some(version) = self.by_id.get(&id).map(|owned| owned.api_version.clone()) else { continue };
            let Some(first) = first_of_version.get(&version) else {
                first_of_version.insert(version, id);
                continue;
            };
            let bucket = ManagerId::new(ANCIENT, Operation::Update, &version, "");
            if !self.by_id.contains_key(&bucket)
                && let Some(owned) = self.by_id.remove(first)
            {
                self.by_id.insert(bucket.clone(), owned);
            }
            if id == bucket {
                continue;
            }
            if let Some(owned) = self.by_id.remove(&id)
                && let Some(together) = self.by_id.get_mut(&bucket)
            {
                together.time = owned.time;
                parts.entry(bucket).or_default().push(owned.set);
                count -= 1;
            }
        }
        for (bucket, sets) in parts {
            if let Some(together) = self.by_id.get_mut(&bucket) {
                together.set = Set::union_of(sets.into_iter().chain([std::mem::take(&mut together.set)]));
            }
        }
    }
}

pub(super) fn encode_entry(id: ManagerId, api_version: String, time: Option<String>, fields: Value) -> Value {
    let mut entry = Map::new();
    let mut put = |name: &str, text: String| {
        if !text.is_empty() {
            entry.insert(name.to_owned(), Value::String(text));
        }
    };
    put("manager", id.manager);
    put("operation", id.operation.name().to_owned());
    put("apiVersion", api_version);
    put("subresource", id.subresource);
    put("time", time.unwrap_or_default());
    put("fieldsType", "FieldsV1".to_owned());
    entry.insert("fieldsV1".to_owned(), fields);
    Value::Object(entry)
}

/// The object's managedFields, or none if they are absent.
pub(super) fn entries_of(object: &Value) -> Option<&[Value]> {
    object.get("metadata")?.get("managedFields")?.as_array().map(Vec::as_slice)
}

/// Sets the object's managedFields, or removes them if the list is empty.
pub(super) fn set_entries(object: &mut Value, entries: Vec<Value>) {
    let Value::Object(fields) = object else { return };
    if entries.is_empty() {
        if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
            metadata.remove("managedFields");
        }
        return;
    }
    let metadata = fields.entry("metadata").or_insert_with(|| json!({}));
    if let Value::Object(metadata) = metadata {
        metadata.insert("managedFields".to_owned(), Value::Array(entries));
    }
}

/// Removes the object's managedFields.
pub(super) fn remove_entries(object: &mut Value) {
    set_entries(object, Vec::new());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, operation: &str, time: &str, fields: Value) -> Value {
        json!({"manager": manager, "operation": operation, "apiVersion": "v1", "time": time,
            "fieldsType": "FieldsV1", "fieldsV1": fields})
    }

    #[test]
    fn entries_are_read_and_written_in_order() {
        let early = entry("z", "Update", "2026-01-01T00:00:00Z", json!({"f:a": {}}));
        let late = entry("a", "Update", "2026-01-02T00:00:00Z", json!({"f:b": {}}));
        let apply = entry("x", "Apply", "2026-01-03T00:00:00Z", json!({"f:c": {}}));
        let read = Managers::decode(&[late.clone(), apply.clone(), early.clone()]).expect("managers");
        assert_eq!(read.encode(), [apply, early, late]);
    }

    #[test]
    fn broken_entries_are_refused() {
        for (entry, expected) in [
            (json!({}), "operation must be `Apply` or `Update`"),
            (json!({"operation": "Update"}), "apiVersion must not be empty"),
            (json!({"operation": "Update", "apiVersion": "v1"}), "missing fieldsType in managed fields entry 0"),
            (
                json!({"operation": "Update", "apiVersion": "v1", "fieldsType": "X"}),
                "invalid fieldsType \"X\" in managed fields entry 0",
            ),
        ] {
            assert_eq!(Managers::decode(&[entry]).map(|_| ()), Err(expected.to_owned()));
        }
    }

    #[test]
    fn the_oldest_updaters_are_put_together() {
        let entries: Vec<Value> = (0..12)
            .map(|at| {
                entry(
                    &format!("m{at:02}"),
                    "Update",
                    &format!("2026-01-{:02}T00:00:00Z", at + 1),
                    json!({format!("f:{at}"): {}}),
                )
            })
            .collect();
        let mut managers = Managers::decode(&entries).expect("managers");
        managers.cap();
        let written = managers.encode();
        assert_eq!(written.len(), 10);
        assert_eq!(written[0]["manager"], "ancient-changes");
        assert_eq!(written[0]["time"], "2026-01-03T00:00:00Z");
        assert_eq!(written[0]["fieldsV1"], json!({"f:0": {}, "f:1": {}, "f:2": {}}));
    }
}
