//! Field ownership for one write request: update and server-side apply.

#[cfg(test)]
mod hostile_tests;
#[cfg(test)]
mod tests;

use super::conflict::{Conflict, conflicts_of};
use super::created::created_fields;
use super::element::equal_values;
use super::last_applied;
use super::managers::{
    ManagerId, Managers, Operation, OwnedFields, encode_entry, entries_of, remove_entries, set_entries,
};
use super::set::Set;
use super::typing::Type;
use super::updater::{UpdateError, Updater};
use super::validate::validate;
use crate::decode::zero;
use crate::schema::NodeRef;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::sync::LazyLock;
use thiserror::Error;

/// The manager of all fields that existed before the first apply.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Fields without an owner: the identity of the object, and those that the server sets.
static UNOWNED_FIELDS: LazyLock<Set> = LazyLock::new(|| {
    let metadata = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let mut set = Set::of_fields(&[&["apiVersion"], &["kind"], &["metadata"]]);
    for name in metadata {
        set = set.union(&Set::of_fields(&[&["metadata", name]]));
    }
    set
});

/// The other versions of a kind. Each manager's fields are recorded in the version that it wrote.
pub trait VersionConverter {
    /// The schema of another version, or none if it is not served.
    fn node(&self, api_version: &str) -> Option<NodeRef<'_>>;
    /// Converts an object between versions; none if that is impossible.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Option<Value>;
    /// The fields that a request of this kind cannot set, in that version.
    fn ignored(&self, api_version: &str) -> Option<&Set>;
    /// Whether the schema can change after fields were recorded (custom resources).
    fn schema_changes(&self) -> bool {
        false
    }
}

/// A kind with a single version.
#[derive(Debug, Clone, Copy)]
pub struct SingleVersion;

impl VersionConverter for SingleVersion {
    fn node(&self, _: &str) -> Option<NodeRef<'_>> {
        None
    }

    fn convert(&self, _: &Value, _: &str, _: &str) -> Option<Value> {
        None
    }

    fn ignored(&self, _: &str) -> Option<&Set> {
        None
    }
}

/// Tracks field ownership for one request.
#[derive(Clone, Copy)]
pub struct Tracker<'a> {
    /// The kind's schema in the request's version.
    pub node: NodeRef<'a>,
    /// The version of the request.
    pub api_version: &'a str,
    /// The kind of the object.
    pub kind: &'a str,
    /// Empty for the main resource.
    pub subresource: &'a str,
    /// The fields that the request cannot set: `status` for the main resource, all others for its status.
    pub ignored: Option<&'a Set>,
    /// The other versions of the kind.
    pub versions: &'a dyn VersionConverter,
    /// RFC 3339 in UTC, with whole seconds.
    pub now: &'a str,
}

/// Why a configuration cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApplyError {
    #[error("{}", super::conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    #[error("{0}")]
    BadRequest(String),
    /// Kubernetes returns an internal error for this.
    #[error("{0}")]
    Internal(String),
}

impl From<UpdateError> for ApplyError {
    fn from(error: UpdateError) -> Self {
        match error {
            UpdateError::Conflicts(conflicts) => ApplyError::Conflicts(conflicts_of(&conflicts)),
            UpdateError::Failed(message) => ApplyError::Internal(message),
        }
    }
}

impl Tracker<'_> {
    /// Tracks an update: the manager owns the fields that it changes. `live` is none for a new object.
    pub fn update(&self, live: Option<&Value>, new: &mut Value, manager: &str) {
        let managers = self.managers_before(live, new);
        remove_entries(new);
        if live.is_none()
            && managers.by_id.is_empty()
            && !self.versions.schema_changes()
            && let Some(fields) = created_fields(new, self.node, &UNOWNED_FIELDS, self.ignored)
        {
            return set_entries(new, self.created_entry(fields, manager));
        }
        let tracked = match live {
            Some(live) => self.tracked(live, new, managers, manager),
            None => self.tracked(&self.nothing(), new, managers, manager),
        };
        // Without a comparison no field has an owner.
        set_entries(new, tracked.map(Managers::encode).unwrap_or_default());
    }

    /// Applies a configuration. The result must still be decoded, defaulted and normalized.
    pub fn apply(
        &self,
        live: Option<&Value>,
        configuration: &Value,
        manager: &str,
        force: bool,
    ) -> Result<Value, ApplyError> {
        self.check_configuration(configuration)?;
        let nothing;
        let live = match live {
            Some(live) => live,
            None => {
                nothing = self.nothing();
                &nothing
            }
        };
        let mut managers = Managers::decode(entries_of(live).unwrap_or_default())
            .map_err(|error| ApplyError::Internal(format!("failed to decode managed fields: {error}")))?;
        if managers.by_id.is_empty() {
            managers = self.tracked(&self.nothing(), live, managers, BEFORE_FIRST_APPLY).map_err(|error| {
                ApplyError::Internal(format!("failed to create manager for existing fields: {error}"))
            })?;
        }
        let outcome = self.applied(live, configuration, managers.clone(), manager, force);
        let mut object = match outcome {
            Err(UpdateError::Conflicts(conflicts)) if manager == "kubectl" => {
                self.check_conflicts(live, conflicts)?;
                self.applied(live, configuration, managers, manager, true)?
            }
            outcome => outcome?,
        };
        if manager == "kubectl" {
            last_applied::record(&mut object, configuration);
        }
        Ok(object)
    }

    /// The entry of the manager that created the object, or none if it owns no fields.
    fn created_entry(&self, fields: Map<String, Value>, manager: &str) -> Vec<Value> {
        if fields.is_empty() {
            return Vec::new();
        }
        let id = self.id(manager, Operation::Update);
        vec![encode_entry(id, self.api_version.to_owned(), Some(self.now.to_owned()), Value::Object(fields))]
    }

    fn applied(
        &self,
        live: &Value,
        configuration: &Value,
        mut managers: Managers,
        manager: &str,
        force: bool,
    ) -> Result<Value, UpdateError> {
        let id = self.id(manager, Operation::Apply);
        let new = self.updater().apply(live, configuration, &mut managers, &id, force)?;
        let changed = !equal_values(live, &new);
        if let Some(owned) = managers.by_id.get_mut(&id) {
            owned.set.subtract(&UNOWNED_FIELDS);
            if changed {
                owned.time = Some(self.now.to_owned());
            }
            if owned.set.is_empty() {
                managers.by_id.remove(&id);
            }
        }
        let mut object = if changed { new } else { live.clone() };
        set_entries(&mut object, managers.encode());
        Ok(object)
    }

    /// The managers before the write: those in the request, or else those of the object. An empty list, or a list of
    /// one empty entry, resets them.
    fn managers_before(&self, live: Option<&Value>, new: &Value) -> Managers {
        let of_live = || live.map(Managers::of).unwrap_or_default();
        if !self.subresource.is_empty() {
            return of_live();
        }
        match entries_of(new) {
            Some([]) => Managers::default(),
            Some([only]) if only.as_object().is_some_and(serde_json::Map::is_empty) => Managers::default(),
            Some(entries) => match Managers::decode(entries) {
                Ok(managers) if !managers.by_id.is_empty() => managers,
                _ => of_live(),
            },
            None => of_live(),
        }
    }

    fn tracked(&self, live: &Value, new: &Value, mut managers: Managers, manager: &str) -> Result<Managers, String> {
        let exists = live.get("metadata").and_then(|metadata| metadata.get("uid")).is_some();
        if managers.by_id.is_empty() && exists {
            return Ok(managers);
        }
        let mut set = self.updater().update(live, new, &mut managers)?;
        set.subtract(&UNOWNED_FIELDS);
        if !set.is_empty() {
            let id = self.id(manager, Operation::Update);
            let before = managers.by_id.remove(&id).map(|owned| owned.set).unwrap_or_default();
            let owned = OwnedFields {
                set: before.join(set),
                api_version: self.api_version.to_owned(),
                time: Some(self.now.to_owned()),
            };
            managers.by_id.insert(id, owned);
        }
        managers.cap();
        Ok(managers)
    }

    fn check_configuration(&self, configuration: &Value) -> Result<(), ApplyError> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let (api_version, kind) = (text(configuration.get("apiVersion")), text(configuration.get("kind")));
        if api_version != self.api_version || kind != self.kind {
            return Err(ApplyError::BadRequest(format!("invalid object type: {}", format_kind(&api_version, &kind))));
        }
        let metadata = configuration.get("metadata");
        if metadata.and_then(|metadata| metadata.get("managedFields")).is_some_and(|fields| !fields.is_null()) {
            return Err(ApplyError::BadRequest("metadata.managedFields must be nil".to_owned()));
        }
        validate(configuration, Type::Node(self.node)).map_err(|error| {
            let named = |name: &str| text(metadata.and_then(|metadata| metadata.get(name)));
            ApplyError::Internal(format!(
                "failed to create typed patch object ({}/{}; {}): {error}",
                named("namespace"),
                named("name"),
                format_kind(&api_version, &kind)
            ))
        })
    }

    /// Ignores conflicts over fields that kubectl applied client-side.
    fn check_conflicts(&self, live: &Value, mut conflicts: BTreeMap<ManagerId, Set>) -> Result<(), UpdateError> {
        if let Some(own) = last_applied::still_as_applied(live, self.api_version, Type::Node(self.node)) {
            conflicts.values_mut().for_each(|fields| fields.subtract(&own));
            conflicts.retain(|_, fields| !fields.is_empty());
        }
        if conflicts.is_empty() { Ok(()) } else { Err(UpdateError::Conflicts(conflicts)) }
    }

    fn updater(&self) -> Updater<'_> {
        Updater {
            kind: Type::Node(self.node),
            api_version: self.api_version,
            ignored: self.ignored,
            versions: self.versions,
        }
    }

    fn id(&self, manager: &str, operation: Operation) -> ManagerId {
        let manager = if manager.is_empty() { "unknown" } else { manager };
        ManagerId::new(manager, operation, self.api_version, self.subresource)
    }

    /// An object of the kind without any fields set.
    fn nothing(&self) -> Value {
        let mut nothing = zero(self.node);
        if self.versions.schema_changes() {
            nothing = json!({"apiVersion": self.api_version, "kind": self.kind});
        }
        nothing
    }
}

/// `apps/v1, Kind=Deployment`; the core group is empty.
fn format_kind(api_version: &str, kind: &str) -> String {
    if api_version.matches('/').count() > 1 {
        return "/, Kind=".to_owned();
    }
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={kind}")
}
