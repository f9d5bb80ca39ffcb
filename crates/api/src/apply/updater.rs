//! Changes of the managers' field sets when an object changes.

use super::compare::{Comparison, compare};
use super::field_set::{field_set, with_named_fields};
use super::managers::{ManagerId, Managers, OwnedFields};
use super::merge::merge;
use super::reconcile::reconcile;
use super::remove::remove;
use super::set::Set;
use super::tracker::VersionConverter;
use super::typing::Type;
use serde_json::Value;
use std::borrow::Cow;
use std::collections::BTreeMap;

/// The version of the request, and the other versions that managers may have written in.
pub(super) struct Updater<'a> {
    pub kind: Type<'a>,
    pub api_version: &'a str,
    pub ignored: Option<&'a Set>,
    pub versions: &'a dyn VersionConverter,
}

#[derive(Debug)]
pub(super) enum UpdateError {
    /// The fields of each other manager that the configuration would change.
    Conflicts(BTreeMap<ManagerId, Set>),
    Failed(String),
}

impl From<String> for UpdateError {
    fn from(message: String) -> Self {
        UpdateError::Failed(message)
    }
}

impl<'a> Updater<'a> {
    /// Removes the changed fields from their owners and returns them.
    pub fn update(&self, live: &Value, new: &Value, managers: &mut Managers) -> Result<Set, String> {
        self.reconcile(managers);
        match self.disown(live, new, managers, None, true) {
            Ok(comparison) => Ok(comparison.into_changed()),
            Err(UpdateError::Failed(message)) => Err(message),
            Err(UpdateError::Conflicts(_)) => Ok(Set::default()),
        }
    }

    /// Merges a configuration and returns the resulting object.
    pub fn apply(
        &self,
        live: &Value,
        configuration: &Value,
        managers: &mut Managers,
        manager: &ManagerId,
        force: bool,
    ) -> Result<Value, UpdateError> {
        self.reconcile(managers);
        let merged =
            merge(live, configuration, self.kind).map_err(|error| format!("failed to merge config: {error}"))?;
        let mut set = field_set(configuration, self.kind);
        if let Some(ignored) = self.ignored {
            set = set.difference_below(ignored);
        }
        let last = managers.by_id.get(manager).cloned();
        let time = last.as_ref().and_then(|last| last.time.clone());
        managers.by_id.insert(manager.clone(), OwnedFields { set, api_version: self.api_version.to_owned(), time });
        let new = match last.filter(|last| !last.set.is_empty()) {
            Some(last) => self.prune(merged, managers, &last),
            None => merged,
        };
        self.disown(live, &new, managers, Some(manager), force)?;
        Ok(new)
    }

    /// Compares in each version that a manager wrote in, and removes the changed fields from their owners.
    fn disown(
        &self,
        live: &Value,
        new: &Value,
        managers: &mut Managers,
        except: Option<&ManagerId>,
        force: bool,
    ) -> Result<Comparison, UpdateError> {
        let failed = |error: String| format!("failed to compare objects: {error}");
        let comparison = compare(live, new, self.kind).map_err(failed)?.without(self.ignored);
        if managers.by_id.keys().all(|id| Some(id) == except) {
            managers.by_id.retain(|_, owned| !owned.set.is_empty());
            return Ok(comparison);
        }
        let changed = comparison.changed();
        let mut other_versions: BTreeMap<String, Option<(Set, Set)>> = BTreeMap::new();
        for owned in managers.by_id.iter().filter(|(id, _)| Some(*id) != except).map(|(_, owned)| owned) {
            let version = self.compared(&owned.api_version);
            if version != self.api_version && !other_versions.contains_key(version) {
                other_versions.insert(version.to_owned(), self.compare_in(live, new, version)?);
            }
        }
        // There may be thousands of managers, and each field may be gone: the sets of these are shared.
        let found_in = |version: &str| match self.compared(version) {
            version if version == self.api_version => Some((&changed, &comparison.removed)),
            version => other_versions.get(version)?.as_ref().map(|(changed, gone)| (changed, gone)),
        };
        let others = managers.by_id.iter().filter(|(id, _)| Some(*id) != except);
        let conflicts = others.filter_map(|(id, owned)| {
            let conflict = owned.set.intersection(found_in(&owned.api_version)?.0);
            (!conflict.is_empty()).then(|| (id.clone(), conflict))
        });
        let conflicts: BTreeMap<ManagerId, Set> = conflicts.collect();
        if !force && !conflicts.is_empty() {
            return Err(UpdateError::Conflicts(conflicts));
        }
        managers.by_id.retain(|id, owned| {
            if Some(id) != except {
                // The version is no longer served.
                let Some((_, gone)) = found_in(&owned.api_version) else { return false };
                if let Some(conflict) = conflicts.get(id) {
                    owned.set = owned.set.difference(conflict);
                }
                if !gone.is_empty() {
                    owned.set = owned.set.difference(gone);
                }
            }
            !owned.set.is_empty()
        });
        Ok(comparison)
    }

    /// The version in which fields of a version are compared. Those of custom resources are the same in all versions, which
    /// differ in their apiVersion only; and whoever writes the managed fields can name any number of versions.
    fn compared<'v>(&'v self, version: &'v str) -> &'v str {
        if self.versions.schema_changes() { self.api_version } else { version }
    }

    fn compare_in(&self, live: &Value, new: &Value, version: &str) -> Result<Option<(Set, Set)>, String> {
        let (Some((live, kind)), Some((new, _))) =
            (self.convert(live, self.api_version, version), self.convert(new, self.api_version, version))
        else {
            return Ok(None);
        };
        let comparison = compare(&live, &new, kind).map_err(|error| format!("failed to compare objects: {error}"))?;
        let comparison = comparison.without(self.versions.ignored(version));
        Ok(Some((comparison.changed(), comparison.removed)))
    }

    fn convert<'v>(&self, object: &'v Value, from: &str, to: &str) -> Option<(Cow<'v, Value>, Type<'a>)> {
        if from == to {
            let kind = if to == self.api_version { self.kind } else { Type::Node(self.versions.node(to)?) };
            return Some((Cow::Borrowed(object), kind));
        }
        let kind = if to == self.api_version { self.kind } else { Type::Node(self.versions.node(to)?) };
        Some((Cow::Owned(self.versions.convert(object, from, to)?), kind))
    }

    /// Removes the fields that the applier set last time, does not set now, and no other manager owns.
    fn prune(&self, merged: Value, managers: &Managers, last: &OwnedFields) -> Value {
        let version = self.compared(&last.api_version);
        let Some((converted, kind)) = self.convert(&merged, self.api_version, version) else { return merged };
        let mut pruned = remove(&converted, &with_named_fields(&last.set, Some(kind)), kind);

        let mut parts_in: BTreeMap<&str, Vec<Set>> = BTreeMap::new();
        for owned in managers.by_id.values() {
            parts_in.entry(self.compared(&owned.api_version)).or_default().push(owned.set.clone());
        }
        let mut owned_in: BTreeMap<&str, Set> =
            parts_in.into_iter().map(|(version, parts)| (version, Set::union_of(parts))).collect();
        // The version in which fields were pruned comes first: conversion may need the fields that it restores.
        let mut at = version.to_owned();
        let mut whole = converted.into_owned();
        let first = owned_in.remove_entry(version);
        for (version, owned) in first.into_iter().chain(owned_in) {
            let (Some((merged, kind)), Some((kept, _))) =
                (self.convert(&whole, &at, version), self.convert(&pruned, &at, version))
            else {
                continue;
            };
            let named = |set: &Set| with_named_fields(set, Some(kind));
            let keep = named(&field_set(&kept, kind)).union(&named(&owned));
            let dropped = named(&field_set(&merged, kind)).difference(&keep);
            pruned = remove(&merged, &dropped, kind);
            whole = merged.into_owned();
            at = version.to_owned();
        }
        let back =
            |object: Value, from: &str, to: &str| self.convert(&object, from, to).map(|(value, _)| value.into_owned());
        let (Some(whole), Some(pruned)) = (back(whole, &at, version), back(pruned, &at, version)) else {
            return merged;
        };
        // Fields without an owner stay as well.
        let named = |set: &Set| with_named_fields(set, Some(kind));
        let gone = named(&field_set(&whole, kind)).difference(&named(&field_set(&pruned, kind)));
        let pruned = remove(&whole, &gone.intersection(&named(&last.set)), kind);
        back(pruned, version, self.api_version).unwrap_or(merged)
    }

    /// Adapts the managers' sets to schemas that changed.
    fn reconcile(&self, managers: &mut Managers) {
        if !self.versions.schema_changes() {
            return;
        }
        for owned in managers.by_id.values_mut() {
            let kind = if owned.api_version == self.api_version {
                Some(self.kind)
            } else {
                self.versions.node(&owned.api_version).map(Type::Node)
            };
            if let Some(fitted) = kind.and_then(|kind| reconcile(&owned.set, kind)) {
                owned.set = fitted;
            }
        }
    }
}
