//! What a kind may say about itself.

use std::collections::BTreeMap;

use jiff::Timestamp;
use knarr_api::field::Errors;
use knarr_api::names::{self, Check};
use serde_json::Value;

/// What the request is, as far as a kind's rules depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The version the request speaks: `v1`, `v2` …
    pub version: &'a str,
    /// Empty for the object itself, else the subresource that is written: `status`, `ephemeralcontainers`, `resize` …
    pub subresource: &'a str,
    /// The acting user's name; CertificateSigningRequests record it.
    pub user: &'a str,
    pub groups: &'a [String],
    pub uid: &'a str,
    pub extra: Option<&'a BTreeMap<String, Vec<String>>>,
    pub now: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
}

/// A column of a kind's table; kubectl shows rank 0 always and rank 1 with `-o wide`.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    pub name: &'static str,
    pub kind: &'static str,
    pub format: &'static str,
    pub description: Description,
    pub rank: Rank,
}

/// What a column's description says.
#[derive(Clone, Copy, Debug)]
pub enum Description {
    Text(&'static str),
    /// The documentation of a field of a type: `("io.k8s.api.core.v1.PodSpec", "nodeName")`.
    Field(&'static str, &'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rank {
    Always,
    Wide,
}

/// How often the rules of a kind judge the metadata of an update, beside what holds for all kinds alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataRounds {
    /// As a change of what was there.
    pub as_change: usize,
    /// As if the object were new.
    pub as_new: usize,
}

/// The rules of one built-in kind. Every method has the answer that fits a kind with nothing special.
///
/// The API server calls them in this order. Create: `set_defaults`, `prepare_create`, admission, `validate`,
/// `warnings`. Update and patch: `set_defaults`, `prepare_update`, admission, `validate` and `validate_update`.
/// Metadata (names, labels, owner references, immutable fields) is checked by `metadata` for all kinds alike.
pub trait KindRules: Sync {
    /// Sets what Kubernetes sets when it reads an object of this version. Also runs on objects read from the store and
    /// on apply configurations' results, so it must be idempotent.
    fn set_defaults(&self, _object: &mut Value, _version: &str) {}

    /// Clears what a client may not set on create (status, observed fields) and sets what the server does.
    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        if self.has_status() {
            reset_status(object, self.empty_status());
        }
    }

    /// Takes from the old object what this write may not change. `context.subresource` says which part is written. By
    /// default a write to the object keeps the old status and a write to `status` keeps all but status and metadata's
    /// labels, annotations, finalizers and owner references.
    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        match context.subresource {
            "" if self.has_status() => keep(object, old, "status"),
            "status" => {
                keep_all_but_status(object, old);
                if self.status_keeps_metadata() {
                    keep_metadata(object, old);
                }
            }
            _ => {}
        }
    }

    /// Whether a write to the status leaves labels, annotations, finalizers and owner references as they were.
    fn status_keeps_metadata(&self) -> bool {
        false
    }

    /// All that is wrong with the object on its own, on create and on update. `old` is given on update, where some
    /// checks are laxer for what was there before.
    fn validate(&self, _object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        Errors::new()
    }

    /// What an update may not do, beyond what `validate` says of the new object.
    fn validate_update(&self, _object: &Value, _old: &Value, _context: &Context<'_>) -> Errors {
        Errors::new()
    }

    /// Texts for Warning headers.
    fn warnings(&self, _object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        Vec::new()
    }

    /// Which names objects of this kind may have.
    fn name_check(&self) -> Check {
        names::dns_subdomain
    }

    /// Whether there is a status that only the status subresource writes.
    fn has_status(&self) -> bool {
        false
    }

    /// The status of a new object: empty but for the fields that are always there.
    fn empty_status(&self) -> Value {
        Value::Object(serde_json::Map::new())
    }

    /// Whether objects begin at `metadata.generation` 1.
    fn has_generation(&self) -> bool {
        false
    }

    /// Whether this update raises the generation; by default any change beside metadata and status does, for then there
    /// is something new for controllers to do.
    fn counts_change(&self, object: &Value, old: &Value) -> bool {
        self.has_generation() && body_changed(object, old)
    }

    /// Whether a PUT to a name that does not exist creates it.
    fn creates_on_update(&self) -> bool {
        false
    }

    /// Whether an update must carry the resource version it was made from.
    fn allows_unconditional_update(&self) -> bool {
        true
    }

    /// Whether finalizers without a domain must be among those that Kubernetes knows.
    fn knows_finalizers(&self) -> bool {
        true
    }

    /// How often the kind's own rules judge the metadata of an update again; see `metadata::validate_update`.
    fn metadata_rounds(&self) -> MetadataRounds {
        MetadataRounds { as_change: 1, as_new: 0 }
    }

    /// The seconds an object of this kind lingers when it is deleted (`requested` by the client); `None` when it goes
    /// at once. Only pods linger.
    fn grace_period(&self, _object: &Value, _requested: Option<i64>) -> Option<i64> {
        None
    }

    /// Whether a delete that names no propagation policy leaves the dependents; then what it is warned with.
    fn orphans_by_default(&self) -> Option<&'static str> {
        None
    }

    /// Field labels that field selectors may name beside `metadata.name` and `metadata.namespace`.
    fn selectable_fields(&self) -> &'static [&'static str] {
        &[]
    }

    /// The value of one selectable field.
    fn selectable_field(&self, object: &Value, field: &str) -> String {
        let mut at = object;
        for part in field.split('.') {
            match at.get(part) {
                Some(next) => at = next,
                None => return String::new(),
            }
        }
        match at {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }

    /// The table's columns; the default is Name and Created At as a kind without a printer has them.
    fn columns(&self) -> &'static [Column] {
        DEFAULT_COLUMNS
    }

    /// One object's cells, one a column. `now` is for ages.
    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let name = object["metadata"]["name"].clone();
        let created = object["metadata"]["creationTimestamp"].clone();
        vec![name, created]
    }

    /// What a table's row says of its object beside the cells, as a list of conditions.
    fn row_conditions(&self, _object: &Value) -> Option<Value> {
        None
    }

    /// Turns an object of one version of the kind into another. Only kinds served in several versions do anything.
    fn convert(&self, _object: &mut Value, _from: &str, _to: &str) {}
}

const DEFAULT_COLUMNS: &[Column] = &[
    Column {
        name: "Name",
        kind: "string",
        format: "name",
        description: Description::Field(OBJECT_META, "name"),
        rank: Rank::Always,
    },
    Column {
        name: "Created At",
        kind: "date",
        format: "",
        description: Description::Field(OBJECT_META, "creationTimestamp"),
        rank: Rank::Always,
    },
];

pub const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

fn body_changed(object: &Value, old: &Value) -> bool {
    let skip = |key: &str| matches!(key, "metadata" | "status" | "kind" | "apiVersion");
    let (Some(new_fields), Some(old_fields)) = (object.as_object(), old.as_object()) else { return false };
    new_fields.iter().any(|(key, value)| !skip(key) && old_fields.get(key) != Some(value))
        || old_fields.keys().any(|key| !skip(key) && !new_fields.contains_key(key))
}

/// Makes a field of the new object what it was in the old one.
pub fn keep(object: &mut Value, old: &Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        match old.get(field) {
            Some(value) => fields.insert(field.to_owned(), value.clone()),
            None => fields.remove(field),
        };
    }
}

/// Takes from the old object the metadata that clients write.
pub fn keep_metadata(object: &mut Value, old: &Value) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences"] {
        keep(&mut object["metadata"], &old["metadata"], field);
    }
}

fn reset_status(object: &mut Value, status: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert("status".to_owned(), status);
    }
}

/// A status write leaves the rest of the object as it was, but for what the status strategy lets through.
pub fn keep_all_but_status(object: &mut Value, old: &Value) {
    let Some(new_fields) = object.as_object_mut() else { return };
    let status = new_fields.remove("status");
    let metadata = new_fields.remove("metadata");
    let mut kept = old.clone();
    if let Some(fields) = kept.as_object_mut() {
        match status {
            Some(status) => fields.insert("status".to_owned(), status),
            None => fields.remove("status"),
        };
        if let Some(metadata) = metadata {
            fields.insert("metadata".to_owned(), metadata);
        }
    }
    *object = kept;
}
