//! Who may get devices for administration, and who may say which devices a claim has got.
//!
//! A request with `adminAccess` gets devices that others use, so it is for namespaces that are labelled for that. And the
//! right to write the status of claims is not the right to allocate devices, nor to report on those of any driver.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::authorize::{Authorizer, Decision, forbidden};
use crate::object_reader::ObjectReader;
use crate::request::{Target, User};

/// Not a plugin of Kubernetes, which does this when it stores claims.
pub const NAME: &str = "ResourceClaimAuthorization";

const GROUP: &str = "resource.k8s.io";
const ADMIN_LABEL: &str = "resource.kubernetes.io/admin-access";
const GRANULAR_GATE: &str = "DRAResourceClaimGranularStatusAuthorization";
const NODE_NAME: &str = "authentication.kubernetes.io/node-name";

pub struct ResourceClaimAuthorization(pub Arc<dyn Authorizer>);

#[async_trait]
impl Plugin for ResourceClaimAuthorization {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.creates(GROUP, "resourceclaims")
            || write.creates(GROUP, "resourceclaimtemplates")
            || (write.operation == Operation::Update
                && write.is_part_of(GROUP, "resourceclaims")
                && write.subresource == "status")
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let mut errors = Errors::new();
        match write.old {
            None => check_request(&mut errors, write, objects),
            Some(old) => {
                check_granted(&mut errors, write, old, objects);
                let features = write.call.map(|call| &call.backend.behaviour.features);
                if features.is_none_or(|features| features.is_on(GRANULAR_GATE)) {
                    self.check_binding(&mut errors, write, old).await;
                    self.check_devices(&mut errors, write, old).await;
                }
            }
        }
        if errors.is_empty() {
            return Ok(());
        }
        Err(Status::invalid(GroupResource { group: GROUP, name: write.kind }, write.known_name(), &errors))
    }
}

/// A claim or template whose request asks for administration.
fn check_request(errors: &mut Errors, write: &Write<'_>, objects: &dyn ObjectReader) {
    let spec = if write.resource == "resourceclaims" { &["spec"][..] } else { &["spec", "spec"] };
    let requests = write.object.at(spec).items(&["devices", "requests"]);
    if let Some(at) = requests.iter().position(|request| request.flag(&["exactly", "adminAccess"]) == Some(true)) {
        let path = Path::root("spec");
        let path = path.child("devices");
        check_namespace(errors, &path.item("requests", at).child("adminAccess"), write, objects);
    }
}

/// A status that grants administration, which the old one did not.
fn check_granted(errors: &mut Errors, write: &Write<'_>, old: &Value, objects: &dyn ObjectReader) {
    let granted = |claim: &Value| {
        let results = claim.items(&["status", "allocation", "devices", "results"]);
        results.iter().position(|result| result.flag(&["adminAccess"]) == Some(true))
    };
    if let (None, Some(at)) = (granted(old), granted(write.object)) {
        let path = Path::root("status");
        let path = path.child("allocation");
        let path = path.child("devices");
        check_namespace(errors, &path.item("results", at).child("adminAccess"), write, objects);
    }
}

fn check_namespace(errors: &mut Errors, path: &Path<'_>, write: &Write<'_>, objects: &dyn ObjectReader) {
    let unreadable = |why: &str| format!("could not retrieve namespace to verify admin access: {why}");
    match objects.read("", "namespaces", "", write.namespace) {
        Err(status) => errors.internal(path, unreadable(&status.message)),
        Ok(None) => errors.internal(path, unreadable(&format!("namespaces {:?} not found", write.namespace))),
        Ok(Some(namespace)) if namespace.text(&["metadata", "labels", ADMIN_LABEL]) == "true" => {}
        Ok(Some(_)) => errors.forbidden(
            path,
            format!("admin access to devices requires the `{ADMIN_LABEL}: true` label on the containing namespace"),
        ),
    }
}

impl ResourceClaimAuthorization {
    /// Allocating and reserving devices is for those who may bind claims anywhere.
    async fn check_binding(&self, errors: &mut Errors, write: &Write<'_>, old: &Value) {
        let is_same = |field: &str| old.at(&["status", field]) == write.object.at(&["status", field]);
        if is_same("allocation") && is_same("reservedFor") {
            return;
        }
        let target = Target { subresource: "binding".into(), ..target(write, verb(write)) };
        if let Err(why) = self.check(write.user, &target).await {
            let why = format!(
                "changing status.allocation or status.reservedFor requires resource=\"resourceclaims/binding\", \
                 verb=\"{}\" permission: {why}",
                target.verb
            );
            errors.forbidden(&Path::root("status").child("allocation"), why);
        }
    }

    /// Reporting on devices is for those who may act for their driver: on the node that has the devices, or on any.
    async fn check_devices(&self, errors: &mut Errors, write: &Write<'_>, old: &Value) {
        let allocation = write.object.at(&["status", "allocation"]);
        if allocation.is_null() {
            return;
        }
        let mut verbs = vec![format!("arbitrary-node:{}", verb(write))];
        if is_on_node(write.user, node_of(allocation)) {
            verbs.insert(0, format!("associated-node:{}", verb(write)));
        }
        for driver in changed_drivers(old, write.object) {
            let mut refusal = None;
            for verb in &verbs {
                let namespace = write.namespace.to_owned();
                let own = target(write, verb);
                let target = Target { subresource: "driver".into(), namespace, name: driver.to_owned(), ..own };
                match self.check(write.user, &target).await {
                    Ok(()) => {
                        refusal = None;
                        break;
                    }
                    Err(why) => refusal = refusal.or(Some(why)),
                }
            }
            if let Some(why) = refusal {
                let why = format!(
                    "changing status.devices requires resource=\"resourceclaims/driver\", verb=\"[{}]\" permission: {why}",
                    verbs.join(" ")
                );
                errors.forbidden(&Path::root("status").child("devices"), why);
            }
        }
    }

    async fn check(&self, user: &User, target: &Target) -> Result<(), String> {
        match self.0.authorize(user, target).await {
            Decision::Allow(_) => Ok(()),
            refused => Err(forbidden(user, target, refused.reason()).message),
        }
    }
}

/// The verb of the request: update or patch.
fn verb<'a>(write: &'a Write<'_>) -> &'a str {
    write.call.map_or("update", |call| call.target.verb.as_str())
}

fn target(write: &Write<'_>, verb: &str) -> Target {
    Target {
        verb: verb.into(),
        group: GROUP.into(),
        version: write.version.into(),
        resource: "resourceclaims".into(),
        ..Target::default()
    }
}

/// The drivers whose devices are reported differently.
fn changed_drivers<'a>(old: &'a Value, new: &'a Value) -> BTreeSet<&'a str> {
    let devices = |claim: &'a Value| -> BTreeMap<[&'a str; 4], &'a Value> {
        let reported = claim.items(&["status", "devices"]).iter();
        reported
            .map(|device| (["driver", "pool", "device", "shareID"].map(|field| device.text(&[field])), device))
            .collect()
    };
    let (old, new) = (devices(old), devices(new));
    let all = old.keys().chain(new.keys());
    all.filter(|key| old.get(*key) != new.get(*key)).map(|key| key[0]).collect()
}

/// The one node that an allocation is for; empty if it is for none or several.
fn node_of(allocation: &Value) -> &str {
    let [term] = allocation.items(&["nodeSelector", "nodeSelectorTerms"]) else { return "" };
    let [field] = term.items(&["matchFields"]) else { return "" };
    let [name] = field.items(&["values"]) else { return "" };
    let is_name = field.text(&["key"]) == "metadata.name" && field.text(&["operator"]) == "In";
    let is_all = term.items(&["matchExpressions"]).is_empty();
    name.as_str().filter(|_| is_name && is_all).unwrap_or_default()
}

/// Whether the token of a service account says that its pod runs on a node.
fn is_on_node(user: &User, node: &str) -> bool {
    let is_account = user.name.strip_prefix("system:serviceaccount:").is_some_and(|account| account.contains(':'));
    let on = user.extra.get(NODE_NAME).map(Vec::as_slice);
    is_account && names::dns_subdomain(node).is_empty() && matches!(on, Some([own]) if own == node)
}

#[cfg(test)]
mod tests {
    use super::super::tests::run_as;
    use super::*;
    use crate::authorize::Rbac;
    use crate::object_reader::tests::Fixed;
    use serde_json::json;

    const RBAC: &str = "rbac.authorization.k8s.io";

    /// The users `binder` and `reporter` have one right each; the reporter's only on its own node.
    fn cluster() -> (Fixed, ResourceClaimAuthorization) {
        let role = |name: &str, verb: &str, resource: &str| {
            let rules = json!([{"verbs": [verb], "apiGroups": [GROUP], "resources": [resource]}]);
            (RBAC, "clusterroles", json!({"metadata": {"name": name}, "rules": rules}))
        };
        let binding = |name: &str, user: &str| {
            let role = json!({"kind": "ClusterRole", "name": name});
            let subjects = json!([{"kind": "User", "name": user}]);
            (RBAC, "clusterrolebindings", json!({"metadata": {"name": name}, "roleRef": role, "subjects": subjects}))
        };
        let objects = || {
            let labels = json!({ADMIN_LABEL: "true"});
            Fixed::new(vec![
                ("", "namespaces", json!({"metadata": {"name": "plain"}})),
                ("", "namespaces", json!({"metadata": {"name": "admins", "labels": labels}})),
                role("bind", "update", "resourceclaims/binding"),
                role("report", "associated-node:update", "resourceclaims/driver"),
                binding("bind", "binder"),
                binding("report", "system:serviceaccount:n:driver"),
            ])
        };
        (objects(), ResourceClaimAuthorization(Arc::new(Rbac::new(Arc::new(objects())))))
    }

    #[tokio::test]
    async fn devices_of_others_are_for_namespaces_of_administrators() {
        let (objects, plugin) = cluster();
        let requests =
            |admin: bool| json!({"devices": {"requests": [{"name": "r", "exactly": {"adminAccess": admin}}]}});
        for (namespace, admin, refused) in [("plain", true, true), ("plain", false, false), ("admins", true, false)] {
            let metadata = json!({"name": "c", "namespace": namespace});
            for (resource, spec) in
                [("resourceclaims", requests(admin)), ("resourceclaimtemplates", json!({"spec": requests(admin)}))]
            {
                let object = json!({"kind": "ResourceClaim", "metadata": metadata, "spec": spec});
                let user = User::named("ann", &[]);
                let result = run_as(&user, &plugin, Operation::Create, (GROUP, resource), object, None, &objects).await;
                let expected = refused.then_some(
                    "ResourceClaim.resource.k8s.io \"c\" is invalid: spec.devices.requests[0].adminAccess: Forbidden: admin \
                     access to devices requires the `resource.kubernetes.io/admin-access: true` label on the containing \
                     namespace",
                );
                assert_eq!(result.err().as_deref(), expected, "{resource} in {namespace}");
            }
        }
    }

    #[tokio::test]
    async fn the_status_of_a_claim_is_written_by_those_who_may() {
        let (objects, plugin) = cluster();
        let claim = |status: Value| json!({"kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "plain"}, "status": status});
        let on = |node: &str| {
            let fields = json!([{"key": "metadata.name", "operator": "In", "values": [node]}]);
            json!({"nodeSelector": {"nodeSelectorTerms": [{"matchFields": fields}]}})
        };
        let device = json!([{"driver": "d", "pool": "p", "device": "1"}]);
        let allocated = claim(json!({"allocation": on("one")}));
        let reported = claim(json!({"allocation": on("one"), "devices": device}));
        let granted = claim(json!({"allocation": {"devices": {"results": [{"adminAccess": true}]}}}));
        let driver = |node: &str| {
            let mut user = User::named("system:serviceaccount:n:driver", &[]);
            user.extra.insert(NODE_NAME.to_owned(), vec![node.to_owned()]);
            user
        };
        for (user, old, new, error) in [
            (
                User::named("ann", &[]),
                claim(json!({})),
                allocated.clone(),
                "\"resourceclaims/binding\", verb=\"update\"",
            ),
            (User::named("binder", &[]), claim(json!({})), allocated.clone(), ""),
            (User::named("binder", &[]), claim(json!({})), granted, "admin access to devices requires"),
            (User::named("binder", &[]), allocated.clone(), reported.clone(), "verb=\"[arbitrary-node:update]\""),
            (driver("one"), allocated.clone(), reported.clone(), ""),
            (driver("two"), allocated.clone(), reported.clone(), "verb=\"[arbitrary-node:update]\""),
            (driver("one"), claim(json!({})), allocated, "\"resourceclaims/binding\", verb=\"update\""),
            (driver("one"), reported.clone(), reported, ""),
        ] {
            let at = (GROUP, "resourceclaims/status");
            let result = run_as(&user, &plugin, Operation::Update, at, new, Some(old), &objects).await;
            let message = result.err().unwrap_or_default();
            assert!(message.contains(error) && message.is_empty() == error.is_empty(), "{}: {message}", user.name);
        }
    }
}
