//! The eviction subresource: deletes a pod if its disruption budget allows it.

use http::Response;
use knarr_api::selector::LabelSelector;
use knarr_api::status::{GroupResource, Status};
use knarr_api::time;
use knarr_api::value::{Read, Write as _, has_condition};
use knarr_rules::common::conditions::set_condition;
use serde_json::{Value, json};

use super::{admit, change_stored, decode_created, success};
use crate::authorized_request::AuthorizedRequest;
use crate::persist::strategy::Phase;
use crate::persist::{delete, managed_fields};
use crate::resource_request::ResourceRequest;
use crate::response::Body;
use crate::route::accept::Format;
use crate::route::options::DeleteOptions;
use crate::route::query::Query;
use crate::stored;

/// Seconds.
const RETRY_AFTER: u32 = 10;
/// More unconfirmed evictions mean that no controller reconciles the budget.
const MAX_DISRUPTED: usize = 2000;

/// Handles an eviction.
pub async fn serve(
    call: &ResourceRequest<'_>,
    request: &AuthorizedRequest<'_>,
    format: &Format,
) -> Result<Response<Body>, Status> {
    let (mut eviction, options) = decode_created(call, request).await?;
    if eviction.text(&["metadata", "name"]) != call.target.name {
        return Err(Status::bad_request("name in URL does not match name in Eviction object"));
    }
    let mut deleting = match eviction.get("deleteOptions") {
        Some(given) if !given.is_null() => DeleteOptions::parse(&Query::default(), given)?,
        _ => DeleteOptions::default(),
    };
    deleting.dry_run |= options.dry_run;
    let kind = knarr_api::catalogue::GroupVersionKind::new("policy/v1", "Eviction");
    admit(call, &kind, Phase::Validate, &mut eviction, options.dry_run).await?;
    let pod = stored::parse(&*crate::persist::get(call).await?)?;
    if !ignores_budgets(&pod) {
        match decide(call, &pod)? {
            Verdict::Free => {}
            Verdict::UnlessChanged => {
                let version = pod.text(&["metadata", "resourceVersion"]).to_owned();
                deleting.resource_version.get_or_insert(version);
            }
            Verdict::Charge(budget) => charge(call, &budget, deleting.dry_run).await?,
        }
    }
    mark(call, &mut deleting).await?;
    delete::delete(call, &call.target.name, &deleting).await?;
    Ok(success(201, format))
}

/// The eviction of a pod that does no work is no disruption.
fn ignores_budgets(pod: &Value) -> bool {
    matches!(pod.text(&["status", "phase"]), "Succeeded" | "Failed" | "Pending")
        || pod.has(&["metadata", "deletionTimestamp"])
}

/// What a disruption budget says about an eviction.
enum Verdict {
    /// No budget selects the pod.
    Free,
    /// Allowed because the pod is unhealthy, as long as the pod does not change.
    UnlessChanged,
    /// It counts against the named budget.
    Charge(String),
}

fn decide(call: &ResourceRequest<'_>, pod: &Value) -> Result<Verdict, Status> {
    let budgets = call.backend.objects.read_all("policy", "poddisruptionbudgets", &call.target.namespace)?;
    let labels = pod.fields(&["metadata", "labels"]);
    let mut matching = budgets.iter().filter(|budget| {
        let selector = budget.at(&["spec", "selector"]);
        !selector.is_null() && LabelSelector::from_object(selector).is_ok_and(|selector| selector.matches(labels))
    });
    let Some(budget) = matching.next() else { return Ok(Verdict::Free) };
    if matching.next().is_some() {
        let text = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Err(Status::new(500, "", text));
    }
    if !has_condition(pod, "Ready") {
        let number = |field: &str| budget.integer(&["status", field]).unwrap_or(0);
        let enough = number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0;
        if budget.text(&["spec", "unhealthyPodEvictionPolicy"]) == "AlwaysAllow" || enough {
            return Ok(Verdict::UnlessChanged);
        }
    }
    Ok(Verdict::Charge(budget.text(&["metadata", "name"]).to_owned()))
}

/// Counts one disruption against the budget, or refuses.
async fn charge(call: &ResourceRequest<'_>, name: &str, dry_run: bool) -> Result<(), Status> {
    let kinds = call.backend.kinds.load();
    let budgets = kinds.resource("policy", "v1", "poddisruptionbudgets").ok_or_else(Status::no_such_resource)?;
    let missing = || Status::not_found(budgets.named(), name);
    let key = budgets.key(&call.target.namespace, name);
    let now = time::seconds(call.now);
    change_stored(call, budgets, &key, missing, dry_run, |budget| {
        let before = budget.clone();
        count_disruption(budget, &call.target.name, &now)?;
        managed_fields::record_status(budgets, &before, budget, call.now);
        Ok(())
    })
    .await?;
    Ok(())
}

fn count_disruption(budget: &mut Value, pod: &str, now: &str) -> Result<(), Status> {
    let name = budget.text(&["metadata", "name"]).to_owned();
    let of = GroupResource { group: "policy", name: "poddisruptionbudget" };
    let number = |field: &str| budget.integer(&["status", field]).unwrap_or(0);
    if number("observedGeneration") < budget.integer(&["metadata", "generation"]).unwrap_or(0) {
        let why = format!("The disruption budget {name} is still being processed by the server.");
        return Err(violates(why, RETRY_AFTER));
    }
    let allowed = number("disruptionsAllowed");
    if allowed < 0 {
        return Err(Status::forbidden(of, &name, "pdb disruptions allowed is negative"));
    }
    if budget.fields(&["status", "disruptedPods"]).is_some_and(|pods| pods.len() > MAX_DISRUPTED) {
        let why = "DisruptedPods map too big - too many evictions not confirmed by PDB controller";
        return Err(Status::forbidden(of, &name, why));
    }
    if allowed == 0 {
        return Err(violates(why_exhausted(budget), 0));
    }
    budget.set(&["status", "disruptionsAllowed"], allowed - 1);
    budget.set(&["status", "disruptedPods", pod], now);
    if allowed == 1 {
        let mut condition = json!({
            "type": "DisruptionAllowed", "status": "False", "reason": "InsufficientPods", "message": "",
        });
        if let Some(generation) = budget.integer(&["status", "observedGeneration"]).filter(|seen| *seen != 0) {
            condition["observedGeneration"] = generation.into();
        }
        set_condition(budget, condition, now);
    }
    Ok(())
}

/// The reason why a budget allows no disruption.
fn why_exhausted(budget: &Value) -> String {
    let name = budget.text(&["metadata", "name"]);
    let number = |field: &str| budget.integer(&["status", field]).unwrap_or(0);
    let refusing = budget.items(&["status", "conditions"]).iter().find(|condition| {
        condition.text(&["type"]) == "DisruptionAllowed"
            && condition.text(&["status"]) == "False"
            && !condition.text(&["message"]).is_empty()
    });
    let text = |field: &str| refusing.map_or("", |condition| condition.text(&[field]));
    match refusing {
        // If the sync of the budget failed, its numbers mean nothing.
        Some(_) if text("reason") == "SyncFailed" => format!(
            "The disruption budget {name} does not allow evicting pods currently because it failed sync: {}",
            text("message")
        ),
        _ if number("currentHealthy") <= number("desiredHealthy") => format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            number("desiredHealthy"),
            number("currentHealthy")
        ),
        Some(_) => format!(
            "The disruption budget {name} does not allow evicting pods currently ({}): {}",
            text("reason"),
            text("message")
        ),
        None => format!("The disruption budget {name} does not allow evicting pods currently"),
    }
}

fn violates(why: String, retry_after: u32) -> Status {
    Status::too_many_requests("Cannot evict pod as it would violate the pod's disruption budget.", retry_after)
        .with_cause("DisruptionBudget", why, "")
}

/// Sets the DisruptionTarget condition of the pod.
async fn mark(call: &ResourceRequest<'_>, deleting: &mut DeleteOptions) -> Result<(), Status> {
    if deleting.dry_run {
        return Ok(());
    }
    let now = time::seconds(call.now);
    let of = GroupResource { group: "", name: "Pod" };
    let (uid, version) = (deleting.uid.clone(), deleting.resource_version.clone());
    let pod = change_stored(call, call.resource, &call.key(), || call.not_found(), false, |pod| {
        let name = pod.text(&["metadata", "name"]);
        let own = pod.text(&["metadata", "uid"]);
        if let Some(uid) = uid.as_ref().filter(|uid| *uid != own) {
            let why = format!(
                "the UID in the precondition ({uid}) does not match the UID in record ({own}). The object might have been \
                 deleted and then recreated"
            );
            return Err(Status::conflict(of, name, &why));
        }
        let own = pod.text(&["metadata", "resourceVersion"]);
        if let Some(version) = version.as_ref().filter(|version| *version != own) {
            let why = format!(
                "the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record ({own}). \
                 The object might have been modified"
            );
            return Err(Status::conflict(of, name, &why));
        }
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI",
            "message": "Eviction API: evicting",
        });
        set_condition(pod, condition, &now);
        Ok(())
    })
    .await?;
    if deleting.resource_version.is_some() {
        deleting.resource_version = Some(pod.text(&["metadata", "resourceVersion"]).to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_tests::Cluster;

    #[tokio::test]
    async fn a_budget_that_cannot_be_read_allows_no_eviction() {
        let cluster = Cluster::new().await;
        let account = json!({"metadata": {"name": "default"}});
        cluster.json("POST", "/api/v1/namespaces/default/serviceaccounts", account).await;
        let pods = "/api/v1/namespaces/default/pods";
        let pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        assert_eq!(cluster.json("POST", pods, pod).await.0, 201);
        let running = json!({"status": {"phase": "Running"}});
        let status = format!("{pods}/p/status");
        assert_eq!(cluster.request("PATCH", &status, "application/merge-patch+json", running).await.0, 200);
        let key = "/registry/poddisruptionbudgets/default/b";
        let unreadable = cluster.server().backend.store.create(key, "k8s:enc:unknown".into(), None).await.unwrap();
        let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}});
        let path = format!("{pods}/p/eviction");
        let (code, refusal) = cluster.json("POST", &path, eviction.clone()).await;
        assert_eq!(code, 500, "{refusal}");
        cluster.server().backend.store.delete(key, unreadable.revision).await.unwrap();
        assert_eq!(cluster.json("POST", &path, eviction).await.0, 201);
    }

    #[test]
    fn a_budget_allows_disruptions_until_it_is_exhausted() {
        let mut budget = json!({"metadata": {"name": "b", "generation": 1},
            "status": {"observedGeneration": 1, "disruptionsAllowed": 1, "desiredHealthy": 2, "currentHealthy": 3}});
        count_disruption(&mut budget, "p", "now").unwrap();
        assert_eq!(budget["status"]["disruptionsAllowed"], 0);
        assert_eq!(budget["status"]["disruptedPods"], json!({"p": "now"}));
        let refusal = count_disruption(&mut budget, "q", "now").unwrap_err();
        assert_eq!(refusal.code, 429);
        let cause = &refusal.details.unwrap().causes[0];
        assert_eq!(cause.message, "The disruption budget b does not allow evicting pods currently");
        assert_eq!(budget["status"]["conditions"][0]["reason"], "InsufficientPods");
        budget["status"]["currentHealthy"] = 2.into();
        let expected = "The disruption budget b needs 2 healthy pods and has 2 currently";
        assert_eq!(why_exhausted(&budget), expected);
        budget["status"]["conditions"][0]["message"] = "m".into();
        budget["status"]["conditions"][0]["reason"] = "SyncFailed".into();
        assert!(why_exhausted(&budget).ends_with("because it failed sync: m"));
    }
}
