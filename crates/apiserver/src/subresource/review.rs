//! Reviews of tokens and permissions: TokenReview, SubjectAccessReview and the like.

use http::Response;
use knarr_api::status::{GroupResource, Status};
use knarr_api::value::{Read, Write as _};
use serde_json::{Map, Value, json};

use crate::authenticate::INVALID_TOKEN;
use crate::authorize::Decision;
use crate::authorized_request::AuthorizedRequest;
use crate::decode;
use crate::persist::managed_fields;
use crate::persist::strategy::{self, Phase};
use crate::request::{GROUP_AUTHENTICATED, Target, User};
use crate::resource_request::ResourceRequest;
use crate::response::{self, Body};
use crate::route::accept::Format;
use crate::route::options::{WriteKind, WriteOptions};
use crate::state::Security;

/// Handles a review.
pub async fn serve(
    security: &Security,
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
    format: &Format,
) -> Result<Response<Body>, Status> {
    let options = WriteOptions::parse(call.query, call.headers, WriteKind::Create)?;
    let mut review = decode::object(call, &request.body, options.field_validation)?;
    strategy::match_namespace(call, &mut review)?;
    managed_fields::record(call, None, &mut review, &options)?;
    for phase in [Phase::Mutate, Phase::Validate] {
        call.admit(phase, crate::request::Operation::Create, &mut review, None, options.dry_run).await?;
    }
    let kind = call.resource.kind.kind.as_str();
    if kind.ends_with("SubjectAccessReview") {
        check_access(call, &review)?;
    }
    let status = match kind {
        "TokenReview" => token(security, call, &review).await?,
        "SubjectAccessReview" | "LocalSubjectAccessReview" => access(call, &subject(&review), &review).await,
        "SelfSubjectAccessReview" => access(call, call.user, &review).await,
        "SelfSubjectRulesReview" => rules(call, &review)?,
        "SelfSubjectReview" => json!({"userInfo": user_info(call.user)}),
        other => return Err(Status::internal(format!("no handler for {other}"))),
    };
    // The responses of these two do not repeat the request.
    match kind {
        "SelfSubjectReview" => {
            review.set(&["metadata"], json!({"creationTimestamp": knarr_api::time::seconds(call.now)}));
        }
        "SelfSubjectRulesReview" => {
            review.set(&["metadata"], json!({}));
            review.set(&["spec"], json!({}));
        }
        _ => {}
    }
    review.set(&["status"], status);
    Ok(response::value(&review, 201, format))
}

fn user_info(user: &User) -> Value {
    let mut info = Map::new();
    info.insert("username".to_owned(), user.name.as_str().into());
    if !user.uid.is_empty() {
        info.insert("uid".to_owned(), user.uid.as_str().into());
    }
    if !user.groups.is_empty() {
        info.insert("groups".to_owned(), json!(user.groups));
    }
    if !user.extra.is_empty() {
        info.insert("extra".to_owned(), json!(user.extra));
    }
    Value::Object(info)
}

/// The user of a token.
async fn token(security: &Security, call: &ResourceRequest<'_>, review: &Value) -> Result<Value, Status> {
    let text = review.text(&["spec", "token"]);
    if text.is_empty() {
        return Err(Status::bad_request("token is required for TokenReview in authentication"));
    }
    let own = security.service_accounts.api_audiences();
    let requested: Vec<String> =
        review.items(&["spec", "audiences"]).iter().filter_map(Value::as_str).map(str::to_owned).collect();
    let audiences = if requested.is_empty() { own.to_vec() } else { requested.clone() };
    Ok(match Box::pin(security.authenticator.token(text, &audiences, &*call.backend.objects, call.now)).await {
        Ok(mut found) => {
            if !found.user.is_in(GROUP_AUTHENTICATED) {
                found.user.groups.push(GROUP_AUTHENTICATED.to_owned());
            }
            let mut status = json!({"authenticated": true, "user": user_info(&found.user)});
            if !found.audiences.is_empty() {
                status["audiences"] = json!(found.audiences);
            }
            status
        }
        // The other authenticators did not accept the token either.
        Err(why) if why != INVALID_TOKEN => json!({"user": {}, "error": format!("[{INVALID_TOKEN}, {why}]")}),
        Err(why) => json!({"user": {}, "error": why}),
    })
}

fn subject(review: &Value) -> User {
    let texts = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    User {
        name: review.text(&["spec", "user"]).to_owned(),
        uid: review.text(&["spec", "uid"]).to_owned(),
        groups: texts(review.at(&["spec", "groups"])),
        extra: review
            .fields(&["spec", "extra"])
            .into_iter()
            .flatten()
            .map(|(key, values)| (key.to_ascii_lowercase(), texts(values)))
            .collect(),
    }
}

/// Validates an access review. Error messages do not name its kind.
fn check_access(call: &ResourceRequest<'_>, review: &Value) -> Result<(), Status> {
    let errors = call.resource.rules.validate(review, None, &call.rules_context());
    let unnamed = GroupResource { group: &call.resource.kind.group, name: "" };
    if errors.is_empty() { Ok(()) } else { Err(Status::invalid(unnamed, "", &errors)) }
}

/// Whether a user has the permission that a review names.
async fn access(call: &ResourceRequest<'_>, user: &User, review: &Value) -> Value {
    let target = match review.at(&["spec", "resourceAttributes"]) {
        Value::Null => {
            let attributes = review.at(&["spec", "nonResourceAttributes"]);
            Target {
                verb: attributes.text(&["verb"]).to_owned(),
                path: attributes.text(&["path"]).to_owned(),
                ..Target::default()
            }
        }
        attributes => Target {
            verb: attributes.text(&["verb"]).to_owned(),
            group: attributes.text(&["group"]).to_owned(),
            version: attributes.text(&["version"]).to_owned(),
            resource: attributes.text(&["resource"]).to_owned(),
            subresource: attributes.text(&["subresource"]).to_owned(),
            namespace: attributes.text(&["namespace"]).to_owned(),
            name: attributes.text(&["name"]).to_owned(),
            field_selector: attributes.text(&["fieldSelector", "rawSelector"]).to_owned(),
            label_selector: attributes.text(&["labelSelector", "rawSelector"]).to_owned(),
            ..Target::default()
        },
    };
    let (mut status, reason) = match call.backend.authorizer.authorize(user, &target).await {
        Decision::Allow(reason) => (json!({"allowed": true}), reason),
        Decision::NoOpinion(reason) => (json!({"allowed": false}), reason),
        Decision::Deny(reason) => (json!({"allowed": false, "denied": true}), reason),
        Decision::Failed { error, .. } => (json!({"allowed": false, "evaluationError": error}), String::new()),
    };
    if !reason.is_empty() {
        status["reason"] = reason.into();
    }
    status
}

/// How many verbs, groups, resources, names and paths a review of rules lists. Whoever may bind roles chooses how long the
/// list of all would be.
const MAX_LISTED_VALUES: usize = 200_000;

/// All permissions of the user in a namespace.
fn rules(call: &ResourceRequest<'_>, review: &Value) -> Result<Value, Status> {
    let namespace = review.text(&["spec", "namespace"]);
    if namespace.is_empty() {
        return Err(Status::bad_request("no namespace on request"));
    }
    let found = call.backend.authorizer.rules(call.user, namespace);
    let (mut resources, mut paths) = (Vec::new(), Vec::new());
    let mut errors = found.missing_roles.clone();
    let mut listed = 0;
    for rule in found.all() {
        listed +=
            [&rule.verbs, &rule.groups, &rule.resources, &rule.names, &rule.paths].map(Vec::len).iter().sum::<usize>();
        if listed > MAX_LISTED_VALUES {
            errors.push("there are too many rules to list all of them".into());
            break;
        }
        if !rule.resources.is_empty() {
            let mut entry = Map::new();
            let lists = [
                ("verbs", &rule.verbs),
                ("apiGroups", &rule.groups),
                ("resources", &rule.resources),
                ("resourceNames", &rule.names),
            ];
            for (field, list) in lists.into_iter().filter(|(_, list)| !list.is_empty()) {
                entry.insert(field.to_owned(), json!(list));
            }
            resources.push(Value::Object(entry));
        }
        if !rule.paths.is_empty() {
            paths.push(json!({"verbs": rule.verbs, "nonResourceURLs": rule.paths}));
        }
    }
    let mut status = json!({"resourceRules": resources, "nonResourceRules": paths, "incomplete": !errors.is_empty()});
    if !errors.is_empty() {
        status["evaluationError"] = errors.join(", ").into();
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::request_tests::Cluster;

    #[tokio::test]
    async fn reviews_compare_resource_and_subresource_as_one_text() {
        let cluster = Cluster::new().await;
        let group = "rbac.authorization.k8s.io";
        let role = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": "r"},
            "rules": [{"apiGroups": ["m.example"], "resources": ["prometheuses/status"], "verbs": ["update"]}],
        });
        let binding = json!({
            "apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": "b"},
            "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "r"},
            "subjects": [{"kind": "User", "apiGroup": group, "name": "ann"}],
        });
        for (plural, object) in [("clusterroles", role), ("clusterrolebindings", binding)] {
            let (code, response) = cluster.json("POST", &format!("/apis/{group}/v1/{plural}"), object).await;
            assert_eq!(code, 201, "{response}");
        }
        for (resource, subresource, allowed) in [
            ("prometheuses/status", "", true),
            ("prometheuses", "status", true),
            ("prometheuses", "", false),
            ("prometheuses/status", "status", false),
            ("prometheuses/scale", "", false),
        ] {
            let attributes = json!({
                "group": "m.example", "resource": resource, "subresource": subresource, "verb": "update",
            });
            for (kind, plural, namespace) in [
                ("SubjectAccessReview", "subjectaccessreviews", ""),
                ("LocalSubjectAccessReview", "namespaces/default/localsubjectaccessreviews", "default"),
            ] {
                let mut review = json!({
                    "apiVersion": "authorization.k8s.io/v1", "kind": kind,
                    "spec": {"user": "ann", "resourceAttributes": attributes},
                });
                if !namespace.is_empty() {
                    review["metadata"] = json!({"namespace": namespace});
                    review["spec"]["resourceAttributes"]["namespace"] = namespace.into();
                }
                let path = format!("/apis/authorization.k8s.io/v1/{plural}");
                let (code, response) = cluster.json("POST", &path, review).await;
                assert_eq!(
                    (code, &response["status"]["allowed"]),
                    (201, &Value::from(allowed)),
                    "{resource} {response}"
                );
            }
        }
    }
}
