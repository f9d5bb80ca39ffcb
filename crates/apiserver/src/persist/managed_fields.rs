//! Field ownership: keeps `metadata.managedFields` up to date with every write.

use bytes::Bytes;
use jiff::Timestamp;
use knarr_api::apply::{self, ApplyError, Set, SingleVersion, Tracker, VersionConverter};
use knarr_api::decode::{self, StrictProblem};
use knarr_api::schema::{NodeRef, builtin};
use knarr_api::status::Status;
use knarr_api::time;
use knarr_api::value::{Read, Write as _};
use serde_json::{Map, Value, json};

use super::{patch, strategy};
use crate::decode::{Expected, list_items, normalize, set_defaults};
use crate::kinds::Resource;
use crate::resource_request::ResourceRequest;
use crate::route::options::{FieldValidation, WriteOptions};
use crate::stored;

pub use apply::keep_times_if_unchanged;

/// Records the writer as the manager of the fields it set. Both objects are in the served version.
pub fn record(
    call: &ResourceRequest<'_>,
    live: Option<&Value>,
    object: &mut Value,
    options: &WriteOptions,
) -> Result<(), Status> {
    with_tracker(call, |tracker| {
        tracker.update(live, object, &options.manager);
        Ok(())
    })?;
    normalize(call.resource, object);
    Ok(())
}

/// Records the manager of a scale, whose number of replicas the object holds at `path`. A scale to zero omits the number,
/// so it has no manager then; and while it has none, updates are not recorded.
pub fn record_scale(
    call: &ResourceRequest<'_>,
    live: &Value,
    object: &mut Value,
    path: &[&str],
    options: &WriteOptions,
) -> Result<(), Status> {
    if is_owned(live, path) {
        let mut recorded = object.clone();
        if object.integer(path) == Some(0) {
            recorded.remove(path);
        }
        record(call, Some(live), &mut recorded, options)?;
        object.set(&["metadata", "managedFields"], recorded["metadata"]["managedFields"].take());
        remove_times_of_scale(object);
    }
    normalize(call.resource, object);
    Ok(())
}

fn is_owned(object: &Value, path: &[&str]) -> bool {
    let names: Vec<String> = path.iter().map(|name| format!("f:{name}")).collect();
    let names: Vec<&str> = ["fieldsV1"].into_iter().chain(names.iter().map(String::as_str)).collect();
    object.items(&["metadata", "managedFields"]).iter().any(|entry| entry.has(&names))
}

/// Entries of scales have no time, and so sort before others of the same operation.
fn remove_times_of_scale(object: &mut Value) {
    let Some(entries) = object.find(&["metadata", "managedFields"]).and_then(Value::as_array_mut) else { return };
    for entry in entries.iter_mut().filter(|entry| entry.text(&["subresource"]) == "scale") {
        entry.remove(&["time"]);
    }
    let order = |entry: &Value| {
        ["operation", "time", "manager", "apiVersion", "subresource"].map(|part| entry.text(&[part]).to_owned())
    };
    entries.sort_by_cached_key(order);
}

/// The applied configuration of a server-side apply.
pub struct Configuration {
    value: Value,
    /// Its duplicate keys.
    problems: Vec<StrictProblem>,
}

impl Configuration {
    pub fn read(body: &Bytes) -> Result<Configuration, Status> {
        let undecodable = |why: &str| Status::bad_request(format!("error decoding YAML: {why}"));
        let decoded = decode::untyped_yaml(body)
            .map_err(|error| undecodable(&format!("error converting YAML to JSON: {error}")))?;
        let value = match decoded.value {
            Value::Null => Value::Object(Map::new()),
            value @ Value::Object(_) => value,
            other => {
                let found = knarr_api::value::json_type(&other);
                return Err(undecodable(&format!(
                    "error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} into Go value of type \
                     map[string]interface {{}}"
                )));
            }
        };
        list_items::check(&value)?;
        Ok(Configuration { value, problems: decoded.problems })
    }

    /// The object that results from applying to the live one.
    pub fn apply(
        &self,
        call: &ResourceRequest<'_>,
        live: Option<&Value>,
        options: &WriteOptions,
    ) -> Result<Value, Status> {
        let name = self.value.text(&["metadata", "name"]);
        if !name.is_empty() {
            patch::check_name(call, &self.value)?;
        }
        let applied = with_tracker(call, |tracker| {
            tracker.apply(live, &self.value, &options.manager, options.force).map_err(apply_status)
        })?;
        self.check_duplicates(call, options)?;
        self.finished(call, &applied, live)
    }

    /// The result of an apply, decoded as an object of its kind.
    fn finished(&self, call: &ResourceRequest<'_>, applied: &Value, live: Option<&Value>) -> Result<Value, Status> {
        list_items::check(applied)?;
        let expected = Expected::of(call.resource)?;
        let mut object = expected.decode_value(applied).map_err(|error| Status::new(500, "", error.to_string()))?.value;
        object["kind"] = expected.kind.kind.as_str().into();
        object["apiVersion"] = expected.kind.api_version().into();
        if object.text(&["metadata", "name"]).is_empty() {
            object.set(&["metadata", "name"], call.target.name.as_str());
        }
        if live.is_none() {
            let uid = object.text(&["metadata", "uid"]);
            if !uid.is_empty() {
                let why =
                    format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
                return Err(Status::conflict(call.resource.named(), &call.target.name, &why));
            }
            strategy::wipe_system_fields(&mut object);
        }
        set_defaults(call.resource, &mut object)?;
        normalize(call.resource, &mut object);
        strategy::deduplicate_owners(call, &mut object, false);
        Ok(object)
    }

    /// Checks the configuration of a subresource that has its own kind.
    pub fn check_as(&self, call: &ResourceRequest<'_>, expected: &Expected<'_>) -> Result<(), Status> {
        let (api_version, now) = (expected.kind.api_version(), time::seconds(call.now));
        let tracker = Tracker {
            node: expected.node,
            api_version: &api_version,
            kind: &expected.kind.kind,
            subresource: "",
            ignored: None,
            versions: &SingleVersion,
            now: &now,
        };
        tracker.apply(None, &self.value, "", true).map(drop).map_err(apply_status)
    }

    /// Applies the configuration of a scale to the field of the object that holds the number of replicas.
    pub fn apply_replicas(
        &self,
        call: &ResourceRequest<'_>,
        live: &Value,
        path: &[String],
        options: &WriteOptions,
    ) -> Result<Value, Status> {
        let kind = &call.resource.kind;
        let own = kind.api_version();
        let mut part = json!({"apiVersion": own, "kind": kind.kind, "metadata": {"name": call.target.name}});
        if let Some(replicas) = self.value.integer(&["spec", "replicas"]) {
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            part.set(&path, replicas);
        }
        let as_scale = |text: &str| {
            let field = format!(".{}", path.join("."));
            text.replace(&format!("using {own}"), "using autoscaling/v1").replace(&field, ".spec.replicas")
        };
        let applied = with_tracker(call, |tracker| {
            tracker.apply(Some(live), &part, &options.manager, options.force).map_err(|error| {
                let mut status = apply_status(error);
                status.message = as_scale(&status.message);
                for cause in status.details.iter_mut().flat_map(|details| &mut details.causes) {
                    (cause.message, cause.field) = (as_scale(&cause.message), as_scale(&cause.field));
                }
                status
            })
        })?;
        self.check_duplicates(call, options)?;
        let mut object = self.finished(call, &applied, Some(live))?;
        remove_times_of_scale(&mut object);
        Ok(object)
    }

    /// Refuses or warns about duplicate keys. Called after the apply, whose errors come first.
    fn check_duplicates(&self, call: &ResourceRequest<'_>, options: &WriteOptions) -> Result<(), Status> {
        match (self.problems.first(), options.field_validation) {
            (Some(problem), FieldValidation::Strict) => {
                let why = format!("error strict decoding YAML: error converting YAML to JSON: {problem}");
                Err(Status::bad_request(why))
            }
            (Some(problem), FieldValidation::Warn) => {
                call.warnings.lock().extend(problem.warnings());
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn apply_status(error: ApplyError) -> Status {
    let text = error.to_string();
    match error {
        ApplyError::Conflicts(conflicts) => {
            let mut status = Status::new(409, "Conflict", text);
            for conflict in &conflicts {
                status = status.with_cause("FieldManagerConflict", conflict.message.as_str(), &conflict.field);
            }
            status
        }
        ApplyError::BadRequest(_) => Status::bad_request(text),
        ApplyError::Internal(_) => Status::new(500, "", text),
    }
}

/// Records the fields of an object of a subresource that has its own kind.
pub fn record_as(call: &ResourceRequest<'_>, expected: &Expected<'_>, object: &mut Value, options: &WriteOptions) {
    let (api_version, now) = (expected.kind.api_version(), time::seconds(call.now));
    let tracker = Tracker {
        node: expected.node,
        api_version: &api_version,
        kind: &expected.kind.kind,
        subresource: &call.target.subresource,
        ignored: None,
        versions: &SingleVersion,
        now: &now,
    };
    tracker.update(None, object, &options.manager);
}

/// Records the server itself as the manager of a stored object's status.
pub fn record_status(resource: &Resource, live: &Value, object: &mut Value, now: Timestamp) {
    if let Some(node) = resource.schema() {
        tracking(resource, node, "status", now, |tracker| tracker.update(Some(live), object, "kube-apiserver"));
    }
}

fn with_tracker<T>(
    call: &ResourceRequest<'_>,
    track: impl FnOnce(&Tracker<'_>) -> Result<T, Status>,
) -> Result<T, Status> {
    let node = call.resource.schema().ok_or_else(|| Status::internal("the kind has no schema"))?;
    tracking(call.resource, node, &call.target.subresource, call.now, track)
}

fn tracking<T>(
    resource: &Resource,
    node: NodeRef<'_>,
    subresource: &str,
    now: Timestamp,
    track: impl FnOnce(&Tracker<'_>) -> T,
) -> T {
    let ignored = ignored(resource, subresource);
    let versions = ResourceVersions { resource, ignored: ignored.as_ref() };
    let now = time::seconds(now);
    let api_version = resource.kind.api_version();
    track(&Tracker {
        node,
        api_version: &api_version,
        kind: &resource.kind.kind,
        subresource,
        ignored: ignored.as_ref(),
        versions: &versions,
        now: &now,
    })
}

/// The fields that a write to the object, or to one of its subresources, leaves as they were.
fn ignored(resource: &Resource, subresource: &str) -> Option<Set> {
    let (group, plural) = (resource.kind.group.as_str(), resource.kind.plural.as_str());
    let fields: &[&[&str]] = match (subresource, group, plural) {
        ("", "certificates.k8s.io", "certificatesigningrequests") => &[&["spec"], &["status"]],
        ("", _, _) if resource.kind.subresource("status").is_some() => &[&["status"]],
        ("", _, _) => return None,
        ("status", "", "pods") => &[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]],
        ("status", "apps", "deployments") => &[&["spec"], &["metadata", "labels"]],
        ("status", "certificates.k8s.io", _) => &[&["spec"], &["status", "conditions"]],
        ("status", "flowcontrol.apiserver.k8s.io", _)
        | ("status", "storage.k8s.io", "volumeattachments")
        | ("status", "networking.k8s.io", "servicecidrs")
        | ("status", "resource.k8s.io", "resourceclaims")
        | ("status", "admissionregistration.k8s.io", "validatingadmissionpolicies") => &[&["metadata"], &["spec"]],
        ("status", _, _) if resource.custom.is_some() => &[&["metadata"], &["spec"]],
        ("status", _, _) => &[&["spec"]],
        ("approval", _, _) => &[&["spec"], &["status", "certificate"]],
        ("finalize" | "scale" | "resize" | "ephemeralcontainers", _, _) => &[&["status"]],
        _ => return None,
    };
    Some(Set::of_fields(fields))
}

/// The other versions in which managers may have written.
struct ResourceVersions<'a> {
    resource: &'a Resource,
    ignored: Option<&'a Set>,
}

impl VersionConverter for ResourceVersions<'_> {
    fn node(&self, api_version: &str) -> Option<NodeRef<'_>> {
        if api_version == self.resource.kind.api_version() || self.resource.custom.is_some() {
            return self.resource.schema();
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        builtin().kind(group, version, &self.resource.kind.kind)
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Option<Value> {
        let mut object = object.clone();
        if self.resource.custom.is_none() {
            stored::convert_between(self.resource, &mut object, from, to);
        }
        object["apiVersion"] = to.into();
        Some(object)
    }

    fn ignored(&self, _api_version: &str) -> Option<&Set> {
        self.ignored
    }

    fn schema_changes(&self) -> bool {
        self.resource.custom.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(manager: &str, subresource: &str, time: &str, fields: Value) -> Value {
        let mut entry = json!({"manager": manager, "operation": "Update", "apiVersion": "apps/v1", "fieldsV1": fields});
        for (part, value) in [("subresource", subresource), ("time", time)] {
            if !value.is_empty() {
                entry.set(&[part], value);
            }
        }
        entry
    }

    #[test]
    fn entries_of_scales_come_first_and_without_a_time() {
        let with = |times: [&str; 3]| {
            let [creator, scaler, status] = times;
            let entries = [
                entry("creator", "", creator, json!({})),
                entry("scaler", "scale", scaler, json!({})),
                entry("a", "status", status, json!({})),
            ];
            json!({"metadata": {"managedFields": entries}})
        };
        let mut object = with(["2026-01-01T00:00:00Z", "2026-01-03T00:00:00Z", "2026-01-02T00:00:00Z"]);
        remove_times_of_scale(&mut object);
        let found: Vec<_> = object
            .items(&["metadata", "managedFields"])
            .iter()
            .map(|entry| (entry.text(&["manager"]), entry.has(&["time"])))
            .collect();
        assert_eq!(found, [("scaler", false), ("creator", true), ("a", true)]);
    }

    #[test]
    fn replicas_are_owned_if_a_manager_set_them() {
        let path = ["spec", "replicas"];
        for (fields, owned) in [
            (json!({"f:spec": {"f:replicas": {}}}), true),
            (json!({"f:spec": {"f:paused": {}}}), false),
            (json!({"f:replicas": {}}), false),
        ] {
            let object = json!({"metadata": {"managedFields": [entry("m", "", "", fields)]}});
            assert_eq!(is_owned(&object, &path), owned, "{object}");
        }
        assert!(!is_owned(&json!({}), &path));
    }
}
