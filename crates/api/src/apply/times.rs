//! Writes that change only the times in managedFields.

use super::managers::entries_of;
use serde_json::{Map, Value};

/// Restores the old times in managedFields if nothing else changed, so that the object is not written.
pub fn keep_times_if_unchanged(old: &Value, new: &mut Value) {
    let (Some(old_entries), Some(new_entries)) = (entries_of(old), entries_of(new)) else { return };
    let same_entries = old_entries.len() == new_entries.len()
        && old_entries.iter().zip(new_entries).all(|(old, new)| same_without(old, new, "time"));
    if !same_entries || old_entries == new_entries || !same_objects(old, new) {
        return;
    }
    let times: Vec<Option<Value>> = old_entries.iter().map(|entry| entry.get("time").cloned()).collect();
    let Some(Value::Array(entries)) = new.get_mut("metadata").and_then(|metadata| metadata.get_mut("managedFields"))
    else {
        return;
    };
    for (entry, time) in entries.iter_mut().zip(times) {
        if let (Value::Object(entry), Some(time)) = (entry, time) {
            entry.insert("time".to_owned(), time);
        }
    }
}

fn same_objects(old: &Value, new: &Value) -> bool {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return false };
    let same = |name: &str, old: &Value, new: &Value| match name {
        "metadata" => same_without(old, new, "managedFields"),
        _ => old == new,
    };
    old.len() == new.len() && old.iter().all(|(name, old)| new.get(name).is_some_and(|new| same(name, old, new)))
}

fn same_without(old: &Value, new: &Value, ignored: &str) -> bool {
    let (Value::Object(old), Value::Object(new)) = (old, new) else { return old == new };
    let count = |fields: &Map<String, Value>| fields.keys().filter(|name| *name != ignored).count();
    count(old) == count(new) && old.iter().all(|(name, old)| name == ignored || new.get(name) == Some(old))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_stay_only_when_nothing_else_changed() {
        let object = |time: &str, replicas: i64| {
            json!({"metadata": {"name": "x", "managedFields": [{"manager": "m", "time": time}]},
                "spec": {"replicas": replicas}})
        };
        let old = object("early", 1);
        for (mut new, expected) in [(object("late", 1), "early"), (object("late", 2), "late")] {
            keep_times_if_unchanged(&old, &mut new);
            assert_eq!(new["metadata"]["managedFields"][0]["time"], expected);
        }
    }
}
