//! ServiceAccount: sets the service account of each pod and mounts its token, unless disabled.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use knarr_rules::core::pod::references::secret_names;
use rand::seq::IndexedRandom;
use serde_json::{Value, json};

use super::{Operation, Plugin, Write};
use crate::object_reader::ObjectReader;

const DEFAULT: &str = "default";
const MOUNT_PATH: &str = "/var/run/secrets/kubernetes.io/serviceaccount";
const VOLUME_PREFIX: &str = "kube-api-access-";
const MIRROR: &str = "kubernetes.io/config.mirror";
const ENFORCE: &str = "kubernetes.io/enforce-mountable-secrets";
/// How often to retry while the default account of a new namespace does not exist yet.
const DEFAULT_TRIES: usize = 20;
const DEFAULT_INTERVAL: Duration = Duration::from_millis(50);

pub struct ServiceAccount;

#[async_trait]
impl Plugin for ServiceAccount {
    fn name(&self) -> &'static str {
        "ServiceAccount"
    }

    fn handles(&self, write: &Write<'_>) -> bool {
        write.creates("", "pods")
            || (write.operation == Operation::Update
                && write.is_part_of("", "pods")
                && write.subresource == "ephemeralcontainers")
    }

    async fn admit(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        if write.operation != Operation::Create {
            return Ok(());
        }
        if is_mirror(write.object) {
            return refuse_mirror(write);
        }
        if write.object.text(&["spec", "serviceAccountName"]).is_empty() {
            write.object.set(&["spec", "serviceAccountName"], DEFAULT);
        }
        // The deprecated field has the same value.
        let name = write.object.text(&["spec", "serviceAccountName"]).to_owned();
        write.object.set(&["spec", "serviceAccount"], name.as_str());
        let account = find(write, objects).await?;
        let automount = write.object.flag(&["spec", "automountServiceAccountToken"]);
        if automount.or(account.flag(&["automountServiceAccountToken"])).unwrap_or(true) {
            mount_token(write.object);
        }
        let secrets = account.items(&["imagePullSecrets"]);
        if write.object.items(&["spec", "imagePullSecrets"]).is_empty() && !secrets.is_empty() {
            write.object.set(&["spec", "imagePullSecrets"], secrets.to_vec());
        }
        Ok(())
    }

    async fn validate(&self, write: &mut Write<'_>, objects: &dyn ObjectReader) -> Result<(), Status> {
        if is_mirror(write.object) {
            return refuse_mirror(write);
        }
        if write.object.text(&["spec", "serviceAccountName"]).is_empty() {
            let name = write.object.text(&["metadata", "name"]);
            return Err(write.forbidden(format!("no service account specified for pod {}/{name}", write.namespace)));
        }
        let account = find(write, objects).await?;
        let enforced = account.at(&["metadata", "annotations"]).text(&[ENFORCE]);
        if matches!(enforced, "true" | "True" | "TRUE" | "1" | "t" | "T")
            && let Some(why) = unlisted_secret(&account, write.object, write.operation)
        {
            return Err(write.forbidden(why));
        }
        Ok(())
    }
}

fn is_mirror(pod: &Value) -> bool {
    pod.at(&["metadata", "annotations"]).get(MIRROR).is_some()
}

/// A mirror pod must not be changed, so nothing can be mounted into it; it may not request a token or secrets either.
fn refuse_mirror(write: &Write<'_>) -> Result<(), Status> {
    let pod = &*write.object;
    if !pod.text(&["spec", "serviceAccountName"]).is_empty() {
        return Err(write.forbidden("a mirror pod may not reference service accounts"));
    }
    if secret_names(pod).next().is_some() {
        return Err(write.forbidden("a mirror pod may not reference secrets"));
    }
    let projects_token = pod
        .items(&["spec", "volumes"])
        .iter()
        .flat_map(|volume| volume.items(&["projected", "sources"]))
        .any(|source| source.has(&["serviceAccountToken"]));
    if projects_token {
        return Err(write.forbidden("a mirror pod may not use ServiceAccountToken volume projections"));
    }
    Ok(())
}

async fn find(write: &Write<'_>, objects: &dyn ObjectReader) -> Result<Arc<Value>, Status> {
    let name = write.object.text(&["spec", "serviceAccountName"]);
    let tries = if name == DEFAULT { DEFAULT_TRIES } else { 1 };
    for round in 0..tries {
        if round > 0 {
            tokio::time::sleep(DEFAULT_INTERVAL).await;
        }
        if let Some(account) = objects.read("", "serviceaccounts", write.namespace, name)? {
            return Ok(account);
        }
    }
    let namespace = write.namespace;
    let why = format!("error looking up service account {namespace}/{name}: serviceaccount {name:?} not found");
    Err(write.forbidden(why))
}

fn mount_token(pod: &mut Value) {
    let volumes = pod.items(&["spec", "volumes"]);
    let existing = volumes.iter().map(|volume| volume.text(&["name"])).find(|name| name.starts_with(VOLUME_PREFIX));
    let has_volume = existing.is_some();
    let name = existing.map_or_else(|| format!("{VOLUME_PREFIX}{}", random_suffix()), str::to_owned);
    let mut mounted = false;
    for list in ["initContainers", "containers"] {
        for container in pod.items_mut(&["spec", list]) {
            let mounts = container.items(&["volumeMounts"]);
            if mounts.iter().any(|mount| mount.text(&["mountPath"]) == MOUNT_PATH) {
                continue;
            }
            let mount = json!({"name": name, "readOnly": true, "mountPath": MOUNT_PATH});
            append(container, "volumeMounts", mount);
            mounted = true;
        }
    }
    if mounted
        && !has_volume
        && let Some(spec) = pod.find(&["spec"])
    {
        append(spec, "volumes", token_volume(&name));
    }
}

fn append(object: &mut Value, list: &str, item: Value) {
    match object.find(&[list]).and_then(Value::as_array_mut) {
        Some(items) => items.push(item),
        None => object.set(&[list], vec![item]),
    }
}

fn token_volume(name: &str) -> Value {
    json!({"name": name, "projected": {"defaultMode": 420, "sources": [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}},
        ]}},
    ]}})
}

fn random_suffix() -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    (0..5).filter_map(|_| ALPHABET.choose(&mut random)).map(|byte| char::from(*byte)).collect()
}

/// For accounts that restrict secrets to their own list, returns the first other secret that the pod uses.
fn unlisted_secret(account: &Value, pod: &Value, operation: Operation) -> Option<String> {
    let of = account.text(&["metadata", "name"]);
    let listed = |list: &str, name: &str| account.items(&[list]).iter().any(|secret| secret.text(&["name"]) == name);
    let because = format!("is not allowed because service account {of} does not reference that secret");
    if operation == Operation::Create {
        for volume in pod.items(&["spec", "volumes"]) {
            let name = volume.text(&["secret", "secretName"]);
            if !name.is_empty() && !listed("secrets", name) {
                return Some(format!("volume with secret.secretName={name:?} {because}"));
            }
        }
    }
    let lists: &[(&str, &str)] = match operation {
        Operation::Create => &[("initContainers", "init container"), ("containers", "container")],
        _ => &[("ephemeralContainers", "ephemeral container")],
    };
    for (list, title) in lists {
        for container in pod.items(&["spec", list]) {
            let container_name = container.text(&["name"]);
            for variable in container.items(&["env"]) {
                let name = variable.text(&["valueFrom", "secretKeyRef", "name"]);
                if !name.is_empty() && !listed("secrets", name) {
                    let env = variable.text(&["name"]);
                    return Some(format!(
                        "{title} {container_name} with envVar {env} referencing secret.secretName={name:?} {because}"
                    ));
                }
            }
            for from in container.items(&["envFrom"]) {
                let name = from.text(&["secretRef", "name"]);
                if !name.is_empty() && !listed("secrets", name) {
                    return Some(format!(
                        "{title} {container_name} with envFrom referencing secret.secretName={name:?} {because}"
                    ));
                }
            }
        }
    }
    if operation == Operation::Create {
        for (index, secret) in pod.items(&["spec", "imagePullSecrets"]).iter().enumerate() {
            let name = secret.text(&["name"]);
            if !listed("imagePullSecrets", name) {
                return Some(format!(
                    "imagePullSecrets[{index}].name={name:?} is not allowed because service account {of} does not \
                     reference that imagePullSecret"
                ));
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::super::tests::run;
    use super::*;
    use crate::object_reader::tests::Fixed;

    fn pod(spec: Value) -> Value {
        json!({"kind": "Pod", "metadata": {"name": "p", "namespace": "n"}, "spec": spec})
    }

    fn accounts(account: Value) -> Fixed {
        Fixed::new(vec![("", "serviceaccounts", account)])
    }

    #[tokio::test]
    async fn a_pod_gets_its_account_and_a_token() {
        let objects = accounts(json!({"metadata": {"name": "default", "namespace": "n"},
            "imagePullSecrets": [{"name": "pull"}]}));
        let made =
            run(&ServiceAccount, Operation::Create, ("", "pods"), pod(json!({"containers": [{}]})), None, &objects);
        let made = made.await.unwrap();
        assert_eq!(made.text(&["spec", "serviceAccountName"]), "default");
        assert_eq!(made["spec"]["imagePullSecrets"], json!([{"name": "pull"}]));
        assert_eq!(made["spec"]["containers"][0]["volumeMounts"][0]["mountPath"], MOUNT_PATH);
        assert_eq!(made["spec"]["containers"][0]["volumeMounts"][0]["name"], made["spec"]["volumes"][0]["name"]);

        let opted_out = pod(json!({"containers": [{}], "automountServiceAccountToken": false}));
        let made = run(&ServiceAccount, Operation::Create, ("", "pods"), opted_out, None, &objects).await.unwrap();
        assert!(!made.has(&["spec", "volumes"]));
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_account_is_refused() {
        let objects = Fixed::new(vec![]);
        for name in ["default", "other"] {
            let pod = pod(json!({"serviceAccountName": name, "containers": [{}]}));
            let refused = run(&ServiceAccount, Operation::Create, ("", "pods"), pod, None, &objects).await.unwrap_err();
            let expected = format!(
                "pods \"p\" is forbidden: error looking up service account n/{name}: serviceaccount \"{name}\" not found"
            );
            assert_eq!(refused, expected);
        }
    }
}
