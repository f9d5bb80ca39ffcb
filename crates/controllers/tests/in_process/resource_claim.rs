//! Resource claims of pods: created from templates, named in the pod's status.

use serde_json::{Value, json};

use super::support::{Cluster, name_of};

const CONTROLLERS: &[&str] = &["resourceclaim-controller"];

/// The claim that the status names for an entry.
fn claim_of<'a>(pod: &'a Value, entry: &str) -> Option<&'a str> {
    let statuses = pod["status"]["resourceClaimStatuses"].as_array();
    let status = statuses.into_iter().flatten().find(|status| status["name"] == entry)?;
    status["resourceClaimName"].as_str()
}

#[tokio::test(start_paused = true)]
async fn each_entry_has_one_claim_and_keeps_its_name() {
    let cluster = Cluster::start(CONTROLLERS).await;
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
    cluster
        .create(json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"name": "t"},
            "spec": {"spec": {"devices": {"requests": [request]}}}}))
        .await;
    let claims =
        json!([{"name": "a", "resourceClaimTemplateName": "t"}, {"name": "b", "resourceClaimTemplateName": "t"}]);
    cluster
        .create(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
            "spec": {"containers": [{"name": "c", "image": "image:1"}], "resourceClaims": claims}}))
        .await;
    let has_both = |pod: &Value| claim_of(pod, "a").is_some() && claim_of(pod, "b").is_some();
    let pod = cluster.until("Pod", "p", has_both).await;
    cluster.until_quiet().await;
    assert_eq!(cluster.list("ResourceClaim").await.len(), 2, "one for each entry");
    let (first, second) = (claim_of(&pod, "a").unwrap().to_owned(), claim_of(&pod, "b").unwrap().to_owned());

    cluster.delete("ResourceClaim", &second, "Background").await;
    let replaced = |pod: &Value| has_both(pod) && claim_of(pod, "b") != Some(&second);
    let pod = cluster.until("Pod", "p", replaced).await;
    assert_eq!(claim_of(&pod, "a"), Some(first.as_str()), "the other entry keeps its claim");
    cluster.until_quiet().await;
    let left = cluster.list("ResourceClaim").await;
    let mut named = [claim_of(&pod, "a").unwrap(), claim_of(&pod, "b").unwrap()];
    named.sort_unstable();
    assert_eq!(left.iter().map(name_of).collect::<Vec<_>>(), named);
}
