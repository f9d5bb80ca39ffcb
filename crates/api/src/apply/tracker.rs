//! Tracking of ownership for one request.

use super::conflict::Conflict;
use super::created::created_fields;
use super::element::equal_values;
use super::last_applied;
use super::managers::{ManagerId, Managers, Operation, Owned, encode_entry, entries_of, set_entries, take_entries};
use super::set::Set;
use super::typing::Type;
use super::updater::{UpdateError, Updater};
use super::validate::validate;
use crate::decode::zero;
use crate::schema::NodeRef;
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use thiserror::Error;

/// Who an update is put down to until it is known what changed.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// What nobody owns: it says which object this is, or is the server's.
static NOT_OWNED: LazyLock<Set> = LazyLock::new(|| {
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

/// The versions of a kind. Owners keep their sets in the version they wrote in.
pub trait Versions {
    /// The schema of another version; none where it is not (or no longer) served.
    fn node(&self, api_version: &str) -> Option<NodeRef<'_>>;
    fn convert(&self, object: &Value, from: &str, to: &str) -> Option<Value>;
    /// The fields that a request of this kind cannot set, in that version.
    fn ignored(&self, api_version: &str) -> Option<&Set>;
    /// Whether schemas may differ from what they were when sets were written (custom resources).
    fn schema_changes(&self) -> bool {
        false
    }
}

/// A kind with no version but the request's.
#[derive(Debug, Clone, Copy)]
pub struct OneVersion;

impl Versions for OneVersion {
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

/// What tracking must know of a request.
#[derive(Clone, Copy)]
pub struct Tracker<'a> {
    /// The kind's schema in the request's version.
    pub node: NodeRef<'a>,
    pub api_version: &'a str,
    pub kind: &'a str,
    /// Empty for the object itself.
    pub subresource: &'a str,
    /// The fields that such a request cannot set: `status` for the object itself, all else for its status.
    pub ignored: Option<&'a Set>,
    pub versions: &'a dyn Versions,
    /// RFC 3339 in UTC, with whole seconds.
    pub now: &'a str,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ApplyError {
    #[error("{}", super::conflict_message(.0))]
    Conflicts(Vec<Conflict>),
    #[error("{0}")]
    BadRequest(String),
    /// Kubernetes answers this with an error of the server.
    #[error("{0}")]
    Internal(String),
}

impl Tracker<'_> {
    /// Tracks a write that is no apply: whoever changes a field comes to own it. `live` is none when the object is new.
    pub fn update(&self, live: Option<&Value>, new: &mut Value, manager: &str) {
        let managers = self.managers_before(live, new);
        take_entries(new);
        if live.is_none()
            && managers.by_id.is_empty()
            && !self.versions.schema_changes()
            && let Some(fields) = created_fields(new, self.node, &NOT_OWNED, self.ignored)
        {
            return set_entries(new, self.created_entry(fields, manager));
        }
        let tracked = match live {
            Some(live) => self.tracked(live, new, managers, manager),
            None => self.tracked(&self.nothing(), new, managers, manager),
        };
        // Where objects cannot be compared nobody owns anything.
        set_entries(new, tracked.map(Managers::encode).unwrap_or_default());
    }

    /// Applies a configuration. The outcome must still be decoded, defaulted and normalised.
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
            Err(ApplyError::Conflicts(conflicts)) if manager == "kubectl" => {
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

    /// The entry of an object's maker; nobody's where nothing is owned.
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
    ) -> Result<Value, ApplyError> {
        let id = self.id(manager, Operation::Apply);
        let new =
            self.updater().apply(live, configuration, &mut managers, &id, force).map_err(|error| match error {
                UpdateError::Conflicts(conflicts) => ApplyError::Conflicts(conflicts),
                UpdateError::Failed(message) => ApplyError::Internal(message),
            })?;
        let changed = !equal_values(live, &new);
        if let Some(owned) = managers.by_id.get_mut(&id) {
            owned.set.subtract(&NOT_OWNED);
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

    /// The managers before the write: the ones the writer sent, or else the object's. Sending one that is empty, or no
    /// one in a list, starts over.
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
        set.subtract(&NOT_OWNED);
        if !set.is_empty() {
            let id = self.id(manager, Operation::Update);
            let before = managers.by_id.remove(&id).map(|owned| owned.set).unwrap_or_default();
            let owned = Owned {
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
            return Err(ApplyError::BadRequest(format!("invalid object type: {}", shown_kind(&api_version, &kind))));
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
                shown_kind(&api_version, &kind)
            ))
        })
    }

    /// Conflicts over what kubectl itself applied client-side are none.
    fn check_conflicts(&self, live: &Value, conflicts: Vec<Conflict>) -> Result<(), ApplyError> {
        let Some(own) = last_applied::still_as_applied(live, self.api_version, Type::Node(self.node)) else {
            return Err(ApplyError::Conflicts(conflicts));
        };
        let left: Vec<Conflict> = conflicts.into_iter().filter(|conflict| !own.has(&conflict.path)).collect();
        if left.is_empty() { Ok(()) } else { Err(ApplyError::Conflicts(left)) }
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

    /// An object of the kind in which nothing is set.
    fn nothing(&self) -> Value {
        let mut nothing = zero(self.node);
        if self.versions.schema_changes() {
            nothing = json!({"apiVersion": self.api_version, "kind": self.kind});
        }
        nothing
    }
}

/// `apps/v1, Kind=Deployment`; the core group is empty.
fn shown_kind(api_version: &str, kind: &str) -> String {
    if api_version.matches('/').count() > 1 {
        return "/, Kind=".to_owned();
    }
    let slash = if api_version.contains('/') { "" } else { "/" };
    format!("{slash}{api_version}, Kind={kind}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::conflict_message;
    use crate::schema::builtin;

    fn tracker(now: &str) -> Tracker<'_> {
        Tracker {
            node: builtin().kind("apps", "v1", "Deployment").expect("deployment"),
            api_version: "apps/v1",
            kind: "Deployment",
            subresource: "",
            ignored: None,
            versions: &OneVersion,
            now,
        }
    }

    fn configuration(metadata: Value, spec: Value) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    }

    /// A configuration that says nothing of the spec; an empty one would be owned.
    fn bare(metadata: Value) -> Value {
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata})
    }

    fn owners(object: &Value) -> Value {
        let entries = entries_of(object).unwrap_or_default().iter();
        entries.map(|entry| json!([entry["manager"], entry["operation"], entry["fieldsV1"]])).collect()
    }

    #[test]
    fn appliers_own_what_they_set_and_lose_it_when_they_stop() {
        let containers = json!([{"name": "c", "image": "x", "ports": [{"containerPort": 80}]}]);
        let first = configuration(
            json!({"name": "d"}),
            json!({"replicas": 2, "template": {"spec": {"containers": containers}}}),
        );
        let mut object = tracker("2026-01-01T00:00:00Z").apply(None, &first, "one", false).expect("applied");
        let one = json!({"f:spec": {"f:replicas": {}, "f:template": {"f:spec": {"f:containers": {"k:{\"name\":\"c\"}": {
            ".": {}, "f:image": {}, "f:name": {}, "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {
                ".": {}, "f:containerPort": {}}}}}}}}});
        assert_eq!(owners(&object), json!([["one", "Apply", one]]));
        object["metadata"]["uid"] = json!("u");

        let later = tracker("2026-01-02T00:00:00Z");
        let second = configuration(json!({"name": "d", "labels": {"k": "v"}}), json!({"replicas": 7}));
        let refused = later.apply(Some(&object), &second, "two", false).expect_err("conflict");
        assert_eq!(refused.to_string(), "Apply failed with 1 conflict: conflict with \"one\": .spec.replicas");
        let object = later.apply(Some(&object), &second, "two", true).expect("applied");
        assert_eq!(object["spec"]["replicas"], 7);
        assert_eq!(
            owners(&object)[1],
            json!(["two", "Apply", {"f:metadata": {"f:labels": {"f:k": {}}}, "f:spec": {"f:replicas": {}}}])
        );
        assert_eq!(owners(&object)[0][2]["f:spec"].get("f:replicas"), None);

        let object = later.apply(Some(&object), &bare(json!({"name": "d"})), "two", false).expect("applied");
        assert_eq!(object["spec"].get("replicas"), None);
        assert_eq!(owners(&object).as_array().map(Vec::len), Some(1));
        assert_eq!(object["spec"]["template"]["spec"]["containers"], containers);
    }

    #[test]
    fn shared_fields_stay_until_the_last_owner_leaves() {
        let labels = |labels: Value| bare(json!({"name": "d", "labels": labels}));
        let tracker = tracker("2026-01-01T00:00:00Z");
        let object = tracker.apply(None, &labels(json!({"a": "1", "b": "2"})), "one", false).expect("applied");
        let object = tracker.apply(Some(&object), &labels(json!({"a": "1"})), "two", false).expect("applied");
        let object = tracker.apply(Some(&object), &bare(json!({"name": "d"})), "one", false).expect("applied");
        assert_eq!(object["metadata"]["labels"], json!({"a": "1"}));
        assert_eq!(owners(&object).as_array().map(Vec::len), Some(1));
    }

    #[test]
    fn updaters_own_what_they_change() {
        let early = tracker("2026-01-01T00:00:00Z");
        let mut live = configuration(json!({"name": "d", "uid": "u", "labels": {"a": "1"}}), json!({"replicas": 1}));
        early.update(None, &mut live, "creator");
        let created = json!({"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {"f:replicas": {}}});
        assert_eq!(owners(&live), json!([["creator", "Update", created]]));

        let mut new = live.clone();
        new["spec"]["replicas"] = json!(3);
        tracker("2026-01-02T00:00:00Z").update(Some(&live), &mut new, "other");
        assert_eq!(
            owners(&new),
            json!([["creator", "Update", {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}}],
                ["other", "Update", {"f:spec": {"f:replicas": {}}}]])
        );

        let mut same = new.clone();
        tracker("2026-01-03T00:00:00Z").update(Some(&new), &mut same, "third");
        assert_eq!(same, new);

        let mut reset = new.clone();
        reset["metadata"]["managedFields"] = json!([{}]);
        early.update(Some(&new), &mut reset, "third");
        assert_eq!(owners(&reset), json!([]));
    }

    #[test]
    fn makers_own_what_a_comparison_with_nothing_finds() {
        let tracker = tracker("2026-01-01T00:00:00Z");
        let ignored = Set::of_fields(&[&["status"], &["spec", "paused"]]);
        let tracker = Tracker { ignored: Some(&ignored), ..tracker };
        for new in [
            json!({"metadata": {"name": "d"}}),
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d", "labels": {"a": "b"}, "annotations": {},
                "finalizers": ["x", "y"], "ownerReferences": [{"uid": "u", "name": "n"}]}, "spec": {"replicas": 0, "paused": true,
                "selector": {"matchLabels": {"a": "b"}}, "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "env": [{"name": "E"}, {"name": "E"}],
                    "ports": [{"containerPort": 80}], "resources": {"limits": {"cpu": "1"}}, "command": ["x"]}], "nodeSelector": {"x": "y"},
                    "volumes": [{"name": "v", "emptyDir": {}}], "securityContext": {}}}}, "status": {"replicas": 1}}),
            json!({"metadata": {}, "spec": {"selector": null, "strategy": {}, "template": {"metadata": {}, "spec": {"containers": null}}},
                "status": {}}),
        ] {
            let mut quick = new.clone();
            tracker.update(None, &mut quick, "m");
            let managers = tracker.tracked(&tracker.nothing(), &new, Managers::default(), "m").expect("comparable");
            let mut slow = new.clone();
            set_entries(&mut slow, managers.encode());
            assert_eq!(quick, slow);
        }
    }

    #[test]
    fn a_first_apply_puts_everything_before_down_to_one_owner() {
        let live = configuration(json!({"name": "d", "uid": "u"}), json!({"replicas": 1, "paused": true}));
        let given = configuration(json!({"name": "d"}), json!({"replicas": 2}));
        let conflicts = match tracker("2026-01-01T00:00:00Z").apply(Some(&live), &given, "me", false) {
            Err(ApplyError::Conflicts(conflicts)) => conflicts,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            conflict_message(&conflicts),
            "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas"
        );
    }

    #[test]
    fn ignored_fields_are_nobodys() {
        let status = Set::of_fields(&[&["status"]]);
        let tracker = Tracker { ignored: Some(&status), ..tracker("2026-01-01T00:00:00Z") };
        let mut new = json!({"metadata": {"name": "d"}, "spec": {"replicas": 1}, "status": {"replicas": 5}});
        tracker.update(None, &mut new, "m");
        assert_eq!(owners(&new), json!([["m", "Update", {"f:spec": {"f:replicas": {}}}]]));
    }

    #[test]
    fn kubectl_takes_over_from_its_client_side_apply() {
        let applied = configuration(json!({"name": "d"}), json!({"replicas": 1}));
        let annotation = json!({"kubectl.kubernetes.io/last-applied-configuration": applied.to_string()});
        let mut live =
            configuration(json!({"name": "d", "uid": "u", "annotations": annotation}), json!({"replicas": 1}));
        let tracker = tracker("2026-01-01T00:00:00Z");
        tracker.update(None, &mut live, "kubectl-client-side-apply");
        let given = configuration(json!({"name": "d"}), json!({"replicas": 2}));
        assert!(matches!(tracker.apply(Some(&live), &given, "other", false), Err(ApplyError::Conflicts(_))));
        let object = tracker.apply(Some(&live), &given, "kubectl", false).expect("taken over");
        assert_eq!(object["spec"]["replicas"], 2);
        assert_eq!(
            object["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"],
            format!("{given}\n")
        );
    }

    #[test]
    fn configurations_must_be_of_the_kind() {
        let tracker = tracker("2026-01-01T00:00:00Z");
        for (given, expected) in [
            (json!({"apiVersion": "v1", "kind": "Pod"}), "invalid object type: /v1, Kind=Pod"),
            (configuration(json!({"managedFields": []}), json!({})), "metadata.managedFields must be nil"),
            (
                configuration(json!({"name": "d"}), json!({"nonsense": 1})),
                "failed to create typed patch object (/d; apps/v1, Kind=Deployment): .spec.nonsense: field not declared \
                 in schema",
            ),
        ] {
            assert_eq!(tracker.apply(None, &given, "m", false).expect_err("refused").to_string(), expected);
        }
    }
}
