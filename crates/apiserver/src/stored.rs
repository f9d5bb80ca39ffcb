//! The stored form of objects, and how they are served from it without being parsed.
//!
//! A stored object is compact JSON that starts with its kind and apiVersion, then its metadata without resourceVersion.
//! Its revision is inserted after the opening brace of the metadata whenever it is served:
//! `{"kind":"Pod","apiVersion":"v1","metadata":{` + `"resourceVersion":"7",` + `"name":"one",…}`.

use std::sync::Arc;

use bytes::Bytes;
use knarr_api::status::Status;
use knarr_store::Entry;
use serde_json::{Map, Value};

use crate::kinds::Resource;

/// Encodes an object in the version it is stored in. The resource version is left out.
pub fn encode(resource: &Resource, object: &Value) -> Bytes {
    encode_after(resource.head(), object)
}

/// Encodes an object of a kind that is not built in, in the version it has.
pub fn encode_custom(api_version: &str, kind: &str, object: &Value) -> Bytes {
    let mut head = b"{\"apiVersion\":".to_vec();
    write_json(&mut head, api_version);
    head.extend_from_slice(b",\"kind\":");
    write_json(&mut head, kind);
    head.extend_from_slice(b",\"metadata\":{");
    encode_after(&head, object)
}

fn encode_after(head: &[u8], object: &Value) -> Bytes {
    let mut bytes = Vec::with_capacity(1024);
    bytes.extend_from_slice(head);
    let empty = Map::new();
    let fields = object.as_object().unwrap_or(&empty);
    let mut first = true;
    for (key, value) in fields.get("metadata").and_then(Value::as_object).unwrap_or(&empty) {
        if key != "resourceVersion" {
            write_field(&mut bytes, &mut first, key, value);
        }
    }
    bytes.push(b'}');
    first = false;
    for (key, value) in fields {
        if !matches!(key.as_str(), "kind" | "apiVersion" | "metadata") {
            write_field(&mut bytes, &mut first, key, value);
        }
    }
    bytes.push(b'}');
    Bytes::from(bytes)
}

fn write_field(bytes: &mut Vec<u8>, first: &mut bool, key: &str, value: &Value) {
    if !std::mem::take(first) {
        bytes.push(b',');
    }
    write_json(bytes, key);
    bytes.push(b':');
    write_json(bytes, value);
}

fn write_json(bytes: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    // Writing to memory cannot fail, and JSON values and texts always have a JSON form.
    let _ = serde_json::to_writer(bytes, value);
}

/// Starts what stands in place of a value that cannot be decrypted: nothing reads it as an object.
const UNREADABLE: &[u8] = b"k8s:unreadable:";

/// The value in place of one that cannot be decrypted.
pub fn unreadable(why: &str) -> Bytes {
    Bytes::from([UNREADABLE, why.as_bytes()].concat())
}

/// Why the value of an entry cannot be read, if it cannot be decrypted.
pub fn why_unreadable(entry: &Entry) -> Option<String> {
    // Such a value was not stored, so the store has not packed it.
    let value = (!entry.is_packed()).then(|| entry.value())?;
    value.strip_prefix(UNREADABLE).map(|why| String::from_utf8_lossy(why).into_owned())
}

/// Refuses entries of a list if one cannot be decrypted: a list without it would be taken for all there is.
pub fn check_readable<'e>(entries: impl IntoIterator<Item = &'e Arc<Entry>>) -> Result<(), Status> {
    match entries.into_iter().find_map(|entry| Some((&entry.key, why_unreadable(entry)?))) {
        None => Ok(()),
        Some((key, why)) => Err(Status::internal(format!("unable to transform key {:?}: {why}", &**key))),
    }
}

/// Parses a stored object and sets its resource version. It stays in the version it is stored in.
pub fn parse(entry: &Entry) -> Result<Value, Status> {
    if let Some(why) = why_unreadable(entry) {
        return Err(Status::internal(why));
    }
    let mut object = read(&entry.value())
        .map_err(|error| Status::internal(format!("stored object {:?} cannot be read: {error}", &*entry.key)))?;
    set_revision(&mut object, entry.revision);
    Ok(object)
}

/// Parses stored bytes. `serde_json` is the fastest parser, but refuses more than 127 levels of nesting, which our own
/// parser accepts when an object is written.
pub fn read(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(bytes).or_else(|error| match knarr_api::decode::untyped_json(bytes) {
        Ok(decoded) => Ok(decoded.value),
        Err(_) => Err(error),
    })
}

/// Parses a stored object and converts it to the served version.
pub fn parse_served(resource: &Resource, entry: &Entry) -> Result<Value, Status> {
    let mut object = parse(entry)?;
    if let Some(custom) = resource.custom.as_ref().filter(|custom| entry.revision < custom.fits_since) {
        custom.schema.fit_stored(&mut object);
    }
    to_served(resource, &mut object);
    if resource.custom.is_some() {
        // It may have been stored when another version was the stored one.
        object["apiVersion"] = resource.kind.api_version().into();
    }
    Ok(object)
}

/// Converts an object from the stored version to the served one.
pub fn to_served(resource: &Resource, object: &mut Value) {
    if !resource.is_stored_version() {
        convert_between(resource, object, &stored_api_version(resource), &resource.kind.api_version());
    }
}

/// The version objects are stored in, with its group.
pub fn stored_api_version(resource: &Resource) -> String {
    match resource.storage() {
        Some(storage) if storage.group.is_empty() => storage.version.clone(),
        Some(storage) => format!("{}/{}", storage.group, storage.version),
        None => resource.kind.api_version(),
    }
}

/// Converts an object between two versions of its kind; both are named with their groups.
pub fn convert_between(resource: &Resource, object: &mut Value, from: &str, to: &str) {
    if from == to {
        return;
    }
    // Rules name versions without their group, unless the groups differ.
    let same_group = from.rsplit_once('/').map(|(group, _)| group) == to.rsplit_once('/').map(|(group, _)| group);
    let short = |version: &str| version.rsplit('/').next().unwrap_or(version).to_owned();
    if same_group {
        resource.rules.convert(object, &short(from), &short(to));
    } else {
        resource.rules.convert(object, from, to);
    }
    object["apiVersion"] = to.into();
}

/// Sets the resource version of an object.
pub fn set_revision(object: &mut Value, revision: u64) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), revision.to_string().into());
    }
}

/// The bytes of an object, if it can be served from them.
pub fn spliceable(resource: &Resource, entry: &Entry) -> Option<Bytes> {
    let value = resource.is_stored_version().then(|| entry.value())?;
    has_head(resource, entry, &value).then_some(value)
}

/// Whether the stored bytes have the form that this server writes; bytes of another program may not.
fn has_head(resource: &Resource, entry: &Entry, value: &[u8]) -> bool {
    // An object stored under an older schema is checked before it is served.
    let fits = resource.custom.as_ref().is_none_or(|custom| entry.revision >= custom.fits_since);
    fits && value.starts_with(resource.head()) && value.get(resource.head().len()) == Some(&b'"')
}

/// Appends an object in the served version.
pub fn append_object(out: &mut Vec<u8>, resource: &Resource, entry: &Entry) -> Result<(), Status> {
    append_object_at(out, resource, entry, entry.revision)
}

/// Like `append_object`, for a deleted object: its last state, at the revision of its deletion.
pub fn append_object_at(out: &mut Vec<u8>, resource: &Resource, entry: &Entry, revision: u64) -> Result<(), Status> {
    if let Some(value) = spliceable(resource, entry) {
        out.extend_from_slice(resource.head());
        append_rest(out, resource, &value, revision);
        return Ok(());
    }
    let mut object = parse_served(resource, entry)?;
    set_revision(&mut object, revision);
    write_json(out, &object);
    Ok(())
}

/// Appends an object as an item of a list: built-in kinds omit kind and apiVersion there.
pub fn append_item(out: &mut Vec<u8>, resource: &Resource, entry: &Entry) -> Result<(), Status> {
    if resource.kind.custom {
        return append_object(out, resource, entry);
    }
    if let Some(value) = spliceable(resource, entry) {
        out.extend_from_slice(b"{\"metadata\":{");
        append_rest(out, resource, &value, entry.revision);
        return Ok(());
    }
    let mut object = parse_served(resource, entry)?;
    if let Some(fields) = object.as_object_mut() {
        fields.remove("kind");
        fields.remove("apiVersion");
    }
    write_json(out, &object);
    Ok(())
}

/// The length of an object as an item of a list, if it is known without parsing or unpacking.
pub fn item_length(resource: &Resource, entry: &Entry) -> Option<usize> {
    if entry.is_packed() {
        return None;
    }
    spliceable(resource, entry)?;
    let head = if resource.kind.custom { resource.head().len() } else { b"{\"metadata\":{".len() };
    let digits = entry.revision.checked_ilog10().unwrap_or(0) as usize + 1;
    let version = b"\"resourceVersion\":\"\",".len() + digits;
    Some(head + version + entry.value_len() - resource.head().len())
}

fn append_rest(out: &mut Vec<u8>, resource: &Resource, value: &[u8], revision: u64) {
    append_version(out, revision);
    out.extend_from_slice(&value[resource.head().len()..]);
}

/// Appends the resource version as the first field of the metadata.
pub fn append_version(out: &mut Vec<u8>, revision: u64) {
    out.extend_from_slice(b"\"resourceVersion\":\"");
    append_number(out, revision);
    out.extend_from_slice(b"\",");
}

/// Appends a number in decimal.
pub fn append_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use knarr_api::catalogue::Catalogue;
    use serde_json::json;

    use super::*;
    use crate::kinds::{Kinds, no_descriptions};

    #[test]
    fn an_object_gets_its_revision_without_being_parsed() {
        let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
        let resource = kinds.resource("", "v1", "configmaps").unwrap();
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "1"},
            "metadata": {"name": "m", "resourceVersion": "3"}});
        let value = encode(resource, &object);
        assert_eq!(&value[..], br#"{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"m"},"data":{"a":"1"}}"#);
        let entry = Entry::new(Arc::from("k"), value, 7, 18_446_744_073_709_551_615);
        let (mut whole, mut item) = (Vec::new(), Vec::new());
        append_object(&mut whole, resource, &entry).unwrap();
        append_item(&mut item, resource, &entry).unwrap();
        let read: Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!(read, parse(&entry).unwrap());
        assert_eq!(read["metadata"]["resourceVersion"], "18446744073709551615");
        assert_eq!(item_length(resource, &entry), Some(item.len()));
        assert!(item.starts_with(br#"{"metadata":{"resourceVersion":"18446744073709551615","name":"m"}"#));
    }

    #[test]
    fn objects_that_others_wrote_are_served_too() {
        let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
        let resource = kinds.resource("", "v1", "configmaps").unwrap();
        let value = Bytes::from_static(br#"{"apiVersion":"v1","metadata":{"name":"m"},"kind":"ConfigMap"}"#);
        let mut out = Vec::new();
        append_object(&mut out, resource, &Entry::new(Arc::from("k"), value, 1, 2)).unwrap();
        let read: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(read["metadata"]["resourceVersion"], "2");
    }
}
