//! [`KindRules`]: the interface between the API server, which handles every kind alike, and the rules of one kind.
//!
//! To add a kind: write one file with a unit struct that implements [`KindRules`], return it from `rules_of` in the
//! `mod.rs` of its group, and, for a new group, add the group to `registry.rs`. `coordination/lease.rs` is a short
//! example. The schema and the REST paths of a kind are not here but in the catalogue of `knarr-api`.

mod column;
mod keep;

pub use column::{Column, ColumnPriority, Description, OBJECT_META};
pub use keep::{keep_all_but_status, keep_field, keep_metadata};

use std::collections::BTreeMap;

use jiff::Timestamp;
use knarr_api::field::Errors;
use knarr_api::names::{self, Check};
use serde_json::{Map, Value};

use crate::features::Features;

/// The request, as far as the rules of a kind depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// The version that the object has by now, which is the version it is stored in: `v1`, `v2`.
    pub version: &'a str,
    /// The subresource that is written (`status`, `ephemeralcontainers`, `resize`); empty for the object itself.
    pub subresource: &'a str,
    /// The name of the user who sends the request.
    pub user: &'a str,
    /// The groups of that user.
    pub groups: &'a [String],
    /// The UID of that user.
    pub uid: &'a str,
    /// The extra attributes of that user.
    pub extra: Option<&'a BTreeMap<String, Vec<String>>>,
    /// The time of the request. Rules never read the clock.
    pub now: Timestamp,
    /// The feature gates of the server.
    pub features: &'a Features,
}

/// How many times a kind validates the metadata of an update itself; see [`KindRules::metadata_passes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetadataPasses {
    /// Passes of the rules for a change (upstream: `ValidateObjectMetaUpdate`).
    pub as_update: usize,
    /// Passes of the rules for a new object (upstream: `ValidateObjectMeta`).
    pub as_create: usize,
}

/// The rules of one built-in kind. Upstream spreads them over the kind's REST strategy, its defaults, its validation,
/// its conversions and its printer; each method names its counterpart.
///
/// Every method has a default that suits a kind with nothing special, so an implementation states only what differs.
/// Rules are pure: they see the object and the [`Context`], never the store or another object.
///
/// # When they are called
///
/// Create (`POST`, or `PUT` and apply of a name that does not exist):
/// 1. The body is decoded, and [`set_defaults`](Self::set_defaults) runs on it, in the version of the request.
/// 2. The object is converted to the stored version with [`convert`](Self::convert), if that differs. All steps below
///    see the stored version.
/// 3. Mutating admission: plugins, policies, webhooks. An object that a webhook or policy changed gets `set_defaults`
///    again.
/// 4. The server sets the UID and the creation timestamp and generates the name.
/// 5. [`prepare_create`](Self::prepare_create). For Services it runs twice, once before and once after the allocation
///    of cluster IPs and node ports, so it must be idempotent. The server then sets `metadata.generation`.
/// 6. Validation: `metadata::validate_create`, then [`validate`](Self::validate). All errors go into one response.
/// 7. [`warnings`](Self::warnings), if there was no error.
/// 8. Validating admission, then the object is stored.
///
/// Steps 4 to 8 run again with another name if a generated name was not free.
///
/// Update (`PUT`, `PATCH`, apply, and writes to subresources):
/// 1. The new object is decoded or computed from the current one, and `set_defaults` runs on it.
/// 2. `convert`, if the stored version differs.
/// 3. Mutating admission, then the check of the resource version.
/// 4. [`prepare_update`](Self::prepare_update); for Services twice, as above. The server then sets
///    `metadata.generation`, see [`increments_generation`](Self::increments_generation).
/// 5. Validation: `metadata::validate_update`, `validate` and [`validate_update`](Self::validate_update).
/// 6. `warnings`, if there was no error.
/// 7. Validating admission, then the object is stored. If another writer was faster, everything from step 1 on runs
///    again with the newer object.
///
/// Admission thus sees an object before it is prepared, and validation sees what admission made of it.
///
/// If validation fails and the client had sent empty lists or maps, which decoding drops, validation runs a second time
/// with these in place, so that messages show the object as it was sent.
pub trait KindRules: Sync {
    /// Sets the defaults of an object in `version`, the version of the request.
    ///
    /// Called whenever an object comes from outside: on request bodies, on results of patches and applies, on objects
    /// that webhooks and policies changed, and for audit records. So it must be idempotent and must not fail on objects
    /// that are invalid. It may add any field that is absent; it must not depend on who sends the request or when.
    ///
    /// Upstream: `SetDefaults_…`, and the parts of conversion that fill in fields.
    fn set_defaults(&self, _object: &mut Value, _version: &str) {}

    /// Prepares a new object: removes what clients may not set, and sets what the server decides.
    ///
    /// Called after mutating admission and before validation, without the fields of disabled features
    /// ([`Features::drop_disabled`]). It may change anything but the name, namespace, UID and
    /// creation timestamp. By default it replaces the status by [`empty_status`](Self::empty_status) if the kind has
    /// one; an implementation that overrides it must do so itself.
    ///
    /// Upstream: `PrepareForCreate`.
    fn prepare_create(&self, object: &mut Value, _context: &Context<'_>) {
        if self.has_status() {
            reset_status(object, self.empty_status());
        }
    }

    /// Prepares a changed object: restores from `old`, the stored object, whatever this write may not change.
    ///
    /// Called after mutating admission and before validation; `context.subresource` says what is written. By default a
    /// write to the object keeps the stored status. A write to `status` keeps everything else, except the metadata
    /// unless [`status_update_keeps_metadata`](Self::status_update_keeps_metadata).
    ///
    /// Upstream: `PrepareForUpdate` of the strategy, of the status strategy and of those of other subresources.
    fn prepare_update(&self, object: &mut Value, old: &Value, context: &Context<'_>) {
        match context.subresource {
            "" if self.has_status() => keep_field(object, old, "status"),
            "status" => {
                keep_all_but_status(object, old);
                if self.status_update_keeps_metadata() {
                    keep_metadata(object, old);
                }
            }
            _ => {}
        }
    }

    /// Whether a write to `status` also leaves labels, annotations, finalizers and owner references unchanged.
    ///
    /// Asked by the default `prepare_update` only. Upstream: strategies that call `ResetObjectMetaForStatus`.
    fn status_update_keeps_metadata(&self) -> bool {
        false
    }

    /// Returns all errors of an object on its own.
    ///
    /// Called on create with no `old`, and on update with the stored object, so that a check may tolerate what the
    /// stored object already has. Also called for review objects, which are never stored. Metadata is validated
    /// separately, for all kinds alike. The order of the errors and their messages are what clients of Kubernetes see:
    /// both must be upstream's.
    ///
    /// Upstream: `Validate`, and the part of `ValidateUpdate` that validates the new object.
    fn validate(&self, _object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Errors {
        Errors::new()
    }

    /// Returns the errors of a change: fields that are immutable, transitions that are not allowed.
    ///
    /// Called on update, after [`validate`](Self::validate); its errors follow those of `validate` in the response.
    ///
    /// Upstream: the part of `ValidateUpdate` that compares the two objects.
    fn validate_update(&self, _object: &Value, _old: &Value, _context: &Context<'_>) -> Errors {
        Errors::new()
    }

    /// Returns the texts of `Warning` headers for a valid object. `old` is the stored object of an update.
    ///
    /// Upstream: `WarningsOnCreate` and `WarningsOnUpdate`.
    fn warnings(&self, _object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        Vec::new()
    }

    /// The check that names of objects of this kind must pass; `generateName` must pass it as a prefix.
    ///
    /// Called by the validation of metadata. Upstream: the kind's `ValidateNameFunc`.
    fn name_check(&self) -> Check {
        names::dns_subdomain
    }

    /// Whether the kind has a status that only writes to the subresource `status` change.
    ///
    /// Asked by the default `prepare_create` and `prepare_update` only.
    fn has_status(&self) -> bool {
        false
    }

    /// The status of a new object. Kinds whose status has fields that are never omitted return these.
    fn empty_status(&self) -> Value {
        Value::Object(Map::new())
    }

    /// Whether the server maintains `metadata.generation`: 1 after `prepare_create`, then see
    /// [`increments_generation`](Self::increments_generation).
    ///
    /// Upstream: strategies that set `Generation` in `PrepareForCreate`.
    fn has_generation(&self) -> bool {
        false
    }

    /// Whether an update increments `metadata.generation`. By default any change outside metadata and status does,
    /// because it gives controllers something to do.
    ///
    /// Called after `prepare_update`, except on writes to `status`. Upstream: part of `PrepareForUpdate`.
    fn increments_generation(&self, object: &Value, old: &Value) -> bool {
        self.has_generation() && keep::body_changed(object, old)
    }

    /// Whether a `PUT` of a name that does not exist creates the object. Upstream: `AllowCreateOnUpdate`.
    fn allows_create_on_update(&self) -> bool {
        false
    }

    /// Whether an update may omit the resource version and then replaces whatever is stored.
    ///
    /// Upstream: `AllowUnconditionalUpdate`.
    fn allows_unconditional_update(&self) -> bool {
        true
    }

    /// Whether finalizers without a domain must be among the names that Kubernetes reserves.
    ///
    /// Asked by the validation of metadata. Upstream: kinds that use core's `ValidateObjectMeta` or
    /// `ValidateFinalizerName` instead of the generic ones.
    fn requires_known_finalizers(&self) -> bool {
        true
    }

    /// How many times the kind itself validates the metadata of an update, in addition to the pass for all kinds.
    ///
    /// Upstream validates metadata in `rest.BeforeUpdate` and again, once or twice, in most kinds' `ValidateUpdate`.
    /// Each pass adds its errors to the response, so the count is visible to clients. See `metadata::validate_update`.
    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 0 }
    }

    /// The grace period in seconds of a delete, of which the client `requested` this many; `None` deletes at once.
    ///
    /// Called on delete, again for an object that is being deleted already. Only pods have a grace period.
    ///
    /// Upstream: `CheckGracefulDelete`.
    fn grace_period(&self, _object: &Value, _requested: Option<i64>) -> Option<i64> {
        None
    }

    /// Whether a delete without a propagation policy orphans the dependents instead of having them deleted.
    ///
    /// Upstream: kinds whose `DefaultGarbageCollectionPolicy` is `OrphanDependents`.
    fn orphans_by_default(&self) -> bool {
        false
    }

    /// The warning for a delete without a propagation policy. Upstream: added by the storage of Jobs.
    fn orphan_warning(&self) -> Option<&'static str> {
        None
    }

    /// The columns of the kind's table. By default Name and Created At.
    ///
    /// Upstream: the kind's `TableHandler` in `printersinternal`, or the default table convertor.
    fn columns(&self) -> &'static [Column] {
        column::DEFAULT_COLUMNS
    }

    /// The cells of one object, one for each column, in the version of the request. `now` is for ages.
    ///
    /// Upstream: the kind's print function in `printersinternal`.
    fn cells(&self, object: &Value, _now: Timestamp) -> Vec<Value> {
        let name = object["metadata"]["name"].clone();
        let created = object["metadata"]["creationTimestamp"].clone();
        vec![name, created]
    }

    /// The conditions of an object's table row, with which kubectl recognizes completed pods.
    ///
    /// Upstream: `TableRow.Conditions`.
    fn row_conditions(&self, _object: &Value) -> Option<Value> {
        None
    }

    /// Converts an object between two versions of the kind, in place; the caller sets `apiVersion`.
    ///
    /// `from` and `to` are versions (`v1`), or `group/version` if the groups differ. Called on writes before admission,
    /// and on reads of a version that is not the stored one. It must not lose anything on the way there and back.
    ///
    /// Upstream: `Convert_…`, which goes through the internal version.
    fn convert(&self, _object: &mut Value, _from: &str, _to: &str) {}
}

fn reset_status(object: &mut Value, status: Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.insert("status".to_owned(), status);
    }
}
