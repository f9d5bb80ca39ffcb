//! Who may let a policy read parameters: whoever may read these objects. The expressions of a policy see them, and show in
//! their messages what they please.

use std::sync::Arc;

use async_trait::async_trait;
use knarr_api::field::{Errors, Path};
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::Read;
use serde_json::Value;

use super::{Operation, Plugin, Write};
use crate::authorize::{Authorizer, Decision};
use crate::object_reader::ObjectReader;
use crate::request::{GROUP_MASTERS, Target, User};

/// Not a plugin of Kubernetes, which does this when it stores policies.
pub const NAME: &str = "PolicyParameterAuthorization";

const GROUP: &str = "admissionregistration.k8s.io";
/// Policies and their bindings.
const RESOURCES: [(&str, &str); 2] = [
    ("validatingadmissionpolicies", "validatingadmissionpolicybindings"),
    ("mutatingadmissionpolicies", "mutatingadmissionpolicybindings"),
];

pub struct PolicyParameterAuthorization(pub Arc<dyn Authorizer>);

/// The group, version and resource of a parameter kind, as far as they are known; `*` for the others.
struct ParameterResource {
    group: String,
    version: String,
    resource: String,
    /// Why not all is known.
    unknown: Option<String>,
}

impl ParameterResource {
    fn of(write: &Write<'_>, kind: &Value) -> Self {
        let any = || "*".to_owned();
        let (api_version, name) = (kind.text(&["apiVersion"]), kind.text(&["kind"]));
        let described = format!("&ParamKind{{APIVersion:{api_version},Kind:{name},}}");
        if api_version.matches('/').count() > 1 {
            let unknown = Some(format!("unable to parse paramKind {described}"));
            return ParameterResource { group: any(), version: any(), resource: any(), unknown };
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let kinds = write.call.map(|call| call.backend.kinds.load());
        let plural = kinds
            .as_ref()
            .and_then(|kinds| kinds.catalogue.kind(group, version, name))
            .map(|kind| kind.plural.to_string());
        let unknown = plural.is_none().then(|| format!("unable to resolve paramKind {described}"));
        ParameterResource {
            group: group.to_owned(),
            version: version.to_owned(),
            resource: plural.unwrap_or_else(any),
            unknown,
        }
    }

    fn unknown(why: String) -> Self {
        let any = || "*".to_owned();
        ParameterResource { group: any(), version: any(), resource: any(), unknown: Some(why) }
    }

    fn target(&self, verb: &str, namespace: &str, name: &str) -> Target {
        Target {
            verb: verb.to_owned(),
            group: self.group.clone(),
            version: self.version.clone(),
            resource: self.resource.clone(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            ..Target::default()
        }
    }
}

#[async_trait]
impl Plugin for PolicyParameterAuthorization {
    fn name(&self) -> &'static str {
        NAME
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        matches!(write.operation, Operation::Create | Operation::Update)
            && RESOURCES.iter().any(|(policy, binding)| write.is(GROUP, policy) || write.is(GROUP, binding))
            && !write.user.is_in(GROUP_MASTERS)
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        let policies = RESOURCES.iter().find(|(_, binding)| *binding == write.resource).map(|(policies, _)| *policies);
        let (field, refused) = match policies {
            None => ("paramKind", self.check_policy(write).await),
            Some(policies) => ("paramRef", self.check_binding(write, policies, objects).await),
        };
        let Err(why) = refused else { return Ok(()) };
        let mut errors = Errors::new();
        errors.forbidden(&Path::root("spec").child(field), why);
        Err(Status::invalid(GroupResource { group: GROUP, name: write.kind }, write.known_name(), &errors))
    }
}

impl PolicyParameterAuthorization {
    async fn check_policy(&self, write: &Write<'_>) -> Result<(), String> {
        let kind = write.object.at(&["spec", "paramKind"]);
        if kind.is_null() || write.old.is_some_and(|old| old.at(&["spec", "paramKind"]) == kind) {
            return Ok(());
        }
        let target = ParameterResource::of(write, kind).target("get", "*", "*");
        match self.0.authorize(write.user, &target).await {
            Decision::Allow(_) => Ok(()),
            Decision::Failed { error, .. } => Err(error),
            _ => Err(format!(
                "user {} must have \"get\" permission on all objects of the referenced paramKind (kind={}, apiVersion={})",
                described(write.user),
                kind.text(&["kind"]),
                kind.text(&["apiVersion"])
            )),
        }
    }

    async fn check_binding(&self, write: &Write<'_>, policies: &str, objects: &dyn ObjectReader) -> Result<(), String> {
        let spec = write.object.at(&["spec"]);
        let is_same =
            |old: &Value| ["paramRef", "policyName"].iter().all(|field| old.at(&["spec", field]) == spec.at(&[field]));
        let reference = spec.at(&["paramRef"]);
        if reference.is_null() || write.old.is_some_and(is_same) {
            return Ok(());
        }
        let policy_name = spec.text(&["policyName"]);
        let resource = match objects.read(GROUP, policies, "", policy_name) {
            Ok(Some(policy)) if policy.has(&["spec", "paramKind"]) => {
                ParameterResource::of(write, policy.at(&["spec", "paramKind"]))
            }
            Ok(Some(_)) => ParameterResource { unknown: None, ..ParameterResource::unknown(String::new()) },
            _ => ParameterResource::unknown(format!("unable to get policy {policy_name}")),
        };
        let name = reference.text(&["name"]);
        let verb = if name.is_empty() { "list" } else { "get" };
        let user = described(write.user);
        match self.0.authorize(write.user, &resource.target(verb, reference.text(&["namespace"]), name)).await {
            Decision::Allow(_) => Ok(()),
            Decision::Failed { error, .. } => Err(format!("failed to authorize request: {error}")),
            _ => Err(match resource.unknown {
                Some(why) => format!(
                    "{why} to determine minimum required permissions and user {user} does not have \"{verb}\" permission \
                     for all groups, versions and resources"
                ),
                None => {
                    format!("user {user} does not have \"{verb}\" permission on the object referenced by paramRef")
                }
            }),
        }
    }
}

/// A user as Kubernetes' messages show it.
fn described(user: &User) -> String {
    let extra: Vec<String> = user.extra.iter().map(|(key, values)| format!("{key}:[{}]", values.join(" "))).collect();
    format!("&{{{} {} [{}] map[{}]}}", user.name, user.uid, user.groups.join(" "), extra.join(" "))
}

#[cfg(test)]
mod tests {
    use crate::request_tests::Cluster;
    use serde_json::{Value, json};

    const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1";

    /// A user who may write policies, and read config maps but no secrets.
    #[tokio::test]
    async fn policies_read_only_what_their_writers_may_read() {
        let cluster = Cluster::new().await;
        let group = "rbac.authorization.k8s.io";
        let rules = json!([
            {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "list"]},
        ]);
        let role = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": "r"}, "rules": rules});
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "apiGroup": group, "name": "ann"}],
        });
        for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
            let (code, response) = cluster.json("POST", &format!("/apis/{group}/v1/{plural}"), object).await;
            assert_eq!(code, 201, "{response}");
        }
        let object = |kind: &str, name: &str, spec: Value| {
            let version = "admissionregistration.k8s.io/v1";
            json!({"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec})
        };
        let policy = |name: &str, kind: &str| {
            let rules =
                json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]);
            let spec = json!({"paramKind": {"apiVersion": "v1", "kind": kind}, "matchConstraints": {"resourceRules": rules},
                "validations": [{"expression": "true"}]});
            object("ValidatingAdmissionPolicy", name, spec)
        };
        let binding = |name: &str, policy: &str| {
            let reference = json!({"name": "x", "namespace": "default", "parameterNotFoundAction": "Allow"});
            let spec = json!({"policyName": policy, "paramRef": reference, "validationActions": ["Deny"]});
            object("ValidatingAdmissionPolicyBinding", name, spec)
        };
        let policies = format!("{POLICIES}/validatingadmissionpolicies");
        let bindings = format!("{POLICIES}/validatingadmissionpolicybindings");
        assert_eq!(cluster.json("POST", &policies, policy("of-admin", "Secret")).await.0, 201);
        for (path, object, refusal) in [
            (&policies, policy("maps", "ConfigMap"), ""),
            (
                &policies,
                policy("secrets", "Secret"),
                "ValidatingAdmissionPolicy.admissionregistration.k8s.io \"secrets\" is invalid: spec.paramKind: Forbidden: user \
                 &{ann  [] map[]} must have \"get\" permission on all objects of the referenced paramKind (kind=Secret, \
                 apiVersion=v1)",
            ),
            (&bindings, binding("maps", "maps"), ""),
            (
                &bindings,
                binding("secrets", "of-admin"),
                "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io \"secrets\" is invalid: spec.paramRef: Forbidden: \
                 user &{ann  [] map[]} does not have \"get\" permission on the object referenced by paramRef",
            ),
            (
                &bindings,
                binding("missing", "absent"),
                "ValidatingAdmissionPolicyBinding.admissionregistration.k8s.io \"missing\" is invalid: spec.paramRef: Forbidden: \
                 unable to get policy absent to determine minimum required permissions and user &{ann  [] map[]} does not have \
                 \"get\" permission for all groups, versions and resources",
            ),
        ] {
            let (code, response) = cluster.json_as("ann", "POST", path, object).await;
            let message = response["message"].as_str().unwrap_or_default();
            assert_eq!((code, message), (if refusal.is_empty() { 201 } else { 422 }, refusal), "{response}");
        }
    }
}
