//! Grants nodes read access to the TLS Secrets of Ingresses. A Role in each namespace lists exactly the Secrets that Ingresses
//! reference; nodes can read no others.

use std::collections::BTreeSet;
use std::sync::Arc;

use k8s_openapi::api::networking::v1::{Ingress, IngressClass};
use k8s_openapi::api::rbac::v1::{Role, RoleBinding};
use knarr_client::kube::api::{Api, DeleteParams, Patch, PatchParams};
use knarr_client::kube::{self, Client};
use knarr_client::{Informer, Informers, WorkQueue, run_workers};
use serde_json::{Value, json};

use crate::certificates::watched_secrets;
use crate::routes::is_ours;

/// Name of the Role and RoleBinding in every namespace with such an Ingress.
const NAME: &str = "knarr:ingress";
const MANAGER: &str = "knarr-ingress";
const GROUP: &str = "rbac.authorization.k8s.io";

/// Keeps the Roles in sync until dropped; `readers` is the user group of the nodes.
pub async fn run(informers: Informers, client: Client, readers: String) {
    let own = format!("metadata.name={NAME}");
    let sources = Arc::new(Sources {
        ingresses: informers.of(),
        classes: informers.of(),
        roles: informers.selected(&own, ""),
        bindings: informers.selected(&own, ""),
    });
    let queue = WorkQueue::<String>::new();
    let add = Arc::clone(&queue);
    sources.ingresses.on_change(move |change| {
        add.add(change.latest().metadata.namespace.clone().unwrap_or_default());
    });
    let (add, all) = (Arc::clone(&queue), Arc::downgrade(&sources));
    sources.classes.on_change(move |_| {
        if let Some(all) = all.upgrade() {
            all.ingresses.for_each(|ingress| add.add(ingress.metadata.namespace.clone().unwrap_or_default()));
        }
    });
    let add = Arc::clone(&queue);
    sources.roles.on_change(move |change| add.add(change.latest().metadata.namespace.clone().unwrap_or_default()));
    let add = Arc::clone(&queue);
    sources.bindings.on_change(move |change| add.add(change.latest().metadata.namespace.clone().unwrap_or_default()));
    sources.ingresses.synced().await;
    sources.classes.synced().await;
    sources.roles.synced().await;
    sources.bindings.synced().await;
    run_workers(queue, 1, move |namespace| {
        let plan = sources.plan(&namespace, &readers);
        let (client, readers) = (client.clone(), readers.clone());
        async move { carry_out(client, &namespace, &readers, plan).await }
    })
    .await;
}

struct Sources {
    ingresses: Arc<Informer<Ingress>>,
    classes: Arc<Informer<IngressClass>>,
    roles: Arc<Informer<Role>>,
    bindings: Arc<Informer<RoleBinding>>,
}

#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Nothing,
    Grant(BTreeSet<String>),
    Revoke,
}

impl Sources {
    fn plan(&self, namespace: &str, readers: &str) -> Plan {
        let classes = self.classes.list();
        let mut ours = self.ingresses.in_namespace(namespace);
        ours.retain(|ingress| is_ours(ingress, &classes));
        let desired: BTreeSet<String> = watched_secrets(&ours).into_iter().map(|(_, name)| name).collect();
        let role = self.roles.get(namespace, NAME);
        let binding = self.bindings.get(namespace, NAME);
        plan(desired, role.as_deref(), binding.map(|binding| binds(&binding, readers)))
    }
}

/// Whether the binding's subjects are exactly these readers: an earlier version bound another group.
fn binds(binding: &RoleBinding, readers: &str) -> bool {
    match binding.subjects.as_deref() {
        Some([subject]) => subject.kind == "Group" && subject.name == readers,
        _ => false,
    }
}

/// `bound`: whether an existing binding is correct; `None` if there is none.
fn plan(desired: BTreeSet<String>, role: Option<&Role>, bound: Option<bool>) -> Plan {
    let granted = role.map(|role| {
        let rules = role.rules.iter().flatten();
        rules.flat_map(|rule| rule.resource_names.iter().flatten().cloned()).collect::<BTreeSet<String>>()
    });
    match granted {
        None if desired.is_empty() && bound.is_none() => Plan::Nothing,
        Some(granted) if granted == desired && bound == Some(true) => Plan::Nothing,
        _ if desired.is_empty() => Plan::Revoke,
        _ => Plan::Grant(desired),
    }
}

async fn carry_out(client: Client, namespace: &str, readers: &str, plan: Plan) -> Result<(), kube::Error> {
    let roles = Api::<Role>::namespaced(client.clone(), namespace);
    let bindings = Api::<RoleBinding>::namespaced(client, namespace);
    match plan {
        Plan::Nothing => Ok(()),
        Plan::Grant(names) => {
            let by_us = PatchParams::apply(MANAGER).force();
            unless_gone(roles.patch(NAME, &by_us, &Patch::Apply(role(&names))).await.map(drop))?;
            unless_gone(bindings.patch(NAME, &by_us, &Patch::Apply(binding(readers))).await.map(drop))
        }
        Plan::Revoke => {
            unless_gone(bindings.delete(NAME, &DeleteParams::default()).await.map(drop))?;
            unless_gone(roles.delete(NAME, &DeleteParams::default()).await.map(drop))
        }
    }
}

/// Ignores errors about objects that are gone or in a terminating namespace.
fn unless_gone(result: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 || is_terminating(&status.message) => Ok(()),
        result => result,
    }
}

fn is_terminating(message: &str) -> bool {
    message.contains("because it is being terminated")
}

fn role(names: &BTreeSet<String>) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "Role", "metadata": {"name": NAME},
        "rules": [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["get", "list", "watch"]}],
    })
}

fn binding(readers: &str) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/v1"), "kind": "RoleBinding", "metadata": {"name": NAME},
        "roleRef": {"apiGroup": GROUP, "kind": "Role", "name": NAME},
        "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": readers}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_can_read_exactly_the_secrets_that_ingresses_reference() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<String>>();
        let granting = |desired: &[&str]| serde_json::from_value::<Role>(role(&names(desired))).unwrap();
        let (one, two) = (granting(&["a"]), granting(&["a", "b"]));
        let given: RoleBinding = serde_json::from_value(binding("network")).unwrap();
        let (right, wrong) = (Some(binds(&given, "network")), Some(binds(&given, "nodes")));
        assert_eq!((right, wrong), (Some(true), Some(false)));
        for (desired, role, bound, expected) in [
            (vec![], None, None, Plan::Nothing),
            (vec!["a"], None, None, Plan::Grant(names(&["a"]))),
            (vec!["a"], Some(&one), right, Plan::Nothing),
            (vec!["a"], Some(&one), wrong, Plan::Grant(names(&["a"]))),
            (vec!["a"], Some(&one), None, Plan::Grant(names(&["a"]))),
            (vec!["a"], Some(&two), right, Plan::Grant(names(&["a"]))),
            (vec![], Some(&one), right, Plan::Revoke),
            (vec![], None, right, Plan::Revoke),
        ] {
            assert_eq!(plan(names(&desired), role, bound), expected, "{desired:?}");
        }
    }
}
