//! What shows that this host is a server: the role label of its Node, and the Lease of its API server.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use knarr_client::k8s_openapi::api::coordination::v1::Lease;
use knarr_client::k8s_openapi::api::core::v1::Node;
use knarr_client::kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use knarr_client::kube::{self, Api, Client};
use knarr_client::node_identity::SERVING_NAMES;
use serde_json::json;
use sha2::{Digest, Sha256};

pub const ROLE_LABEL: &str = "node-role.kubernetes.io/control-plane";
const LABEL_INTERVAL: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(2);
const NAMESPACE: &str = "kube-system";
const MANAGER: &str = "kube-apiserver";
/// As in Kubernetes.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);
const LEASE_SECONDS: i32 = 3600;
const CLEAN_INTERVAL: Duration = Duration::from_secs(3600);
const IDENTITY_LABEL: &str = "apiserver.kubernetes.io/identity";

/// Gives the Node of this host the label of a server, whenever it lacks it. Kubelets may not do so themselves.
pub async fn label_node(client: Client, name: String) {
    let nodes: Api<Node> = Api::all(client);
    let patch = json!({"metadata": {"labels": {ROLE_LABEL: ""}}});
    loop {
        let labelled = match nodes.get_opt(&name).await {
            Ok(Some(node)) if is_labelled(&node) => Ok(true),
            Ok(Some(_)) => nodes.patch(&name, &PatchParams::default(), &Patch::Merge(&patch)).await.map(|_| true),
            Ok(None) => Ok(false),
            Err(error) => Err(error),
        };
        if let Err(error) = &labelled {
            tracing::debug!(%error, "cannot label the node of this server");
        }
        tokio::time::sleep(if labelled.unwrap_or(false) { LABEL_INTERVAL } else { RETRY }).await;
    }
}

fn is_labelled(node: &Node) -> bool {
    node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(ROLE_LABEL))
}

/// Renews the Lease that says that this API server runs and by which names it is reached, and deletes those of servers that are
/// gone.
pub async fn renew_identity(client: Client, names: Vec<String>) {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_owned();
    renew_identity_of(client, &host, &names.join(",")).await;
}

async fn renew_identity_of(client: Client, host: &str, names: &str) {
    let leases: Api<Lease> = Api::namespaced(client, NAMESPACE);
    let name = identity(host);
    let holder = format!("{name}_{}", uuid(rand::random()));
    let mut cleaned: Option<tokio::time::Instant> = None;
    loop {
        let now = Timestamp::now();
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": name, "namespace": NAMESPACE, "labels": {
                IDENTITY_LABEL: "kube-apiserver", "kubernetes.io/hostname": host,
            }, "annotations": {SERVING_NAMES: names}},
            "spec": {
                "holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": format!("{now:.6}"),
            },
        });
        let applied = leases.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(lease)).await;
        if let Err(error) = applied {
            tracing::debug!(%error, "cannot renew the Lease of this API server");
        }
        if cleaned.is_none_or(|at| at.elapsed() >= CLEAN_INTERVAL) {
            cleaned = Some(tokio::time::Instant::now());
            if let Err(error) = delete_expired(&leases, now).await {
                tracing::debug!(%error, "cannot delete Leases of API servers that are gone");
            }
        }
        tokio::time::sleep(RENEW_INTERVAL).await;
    }
}

async fn delete_expired(leases: &Api<Lease>, now: Timestamp) -> Result<(), kube::Error> {
    let selector = ListParams::default().labels(&format!("{IDENTITY_LABEL}=kube-apiserver"));
    for lease in leases.list(&selector).await?.items.into_iter().filter(|lease| is_expired(lease, now)) {
        let name = lease.metadata.name.unwrap_or_default();
        match leases.delete(&name, &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn is_expired(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let (Some(renewed), Some(seconds)) = (&spec.renew_time, spec.lease_duration_seconds) else { return false };
    renewed.0.as_second() + i64::from(seconds) < now.as_second()
}

/// The name of the Lease of the API server on a host, as in Kubernetes: the host's hash in base 32.
fn identity(host: &str) -> String {
    const ALPHABET: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    let hash = Sha256::digest(host.as_bytes());
    let bits: Vec<u8> = hash[..16].iter().flat_map(|byte| (0..8).rev().map(move |bit| (byte >> bit) & 1)).collect();
    let letters = bits.chunks(5).map(|chunk| {
        let value = chunk.iter().fold(0, |value, bit| (value << 1) | bit) << (5 - chunk.len());
        char::from(ALPHABET[usize::from(value)])
    });
    format!("apiserver-{}", letters.collect::<String>())
}

fn uuid(random: [u8; 16]) -> String {
    let hex: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// The holders of the Leases by which servers elect who does what, by Lease.
pub async fn leaders(client: &Client) -> Result<BTreeMap<String, String>, kube::Error> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), NAMESPACE);
    let mut holders = BTreeMap::new();
    for lease in super::LEASES {
        if let Some(found) = leases.get_opt(lease).await? {
            let holder = found.spec.and_then(|spec| spec.holder_identity).unwrap_or_default();
            holders.insert(lease.to_owned(), holder.split('_').next().unwrap_or_default().to_owned());
        }
    }
    Ok(holders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_client::k8s_openapi::api::coordination::v1::LeaseSpec;
    use knarr_client::k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    #[test]
    fn the_identity_is_the_hash_of_the_host() {
        let name = identity("node-1");
        assert_eq!(name.len(), "apiserver-".len() + 26);
        assert!(
            name["apiserver-".len()..].bytes().all(|byte| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte))
        );
        assert_ne!(name, identity("node-2"));
        // The hash of the empty text starts with e3b0c442 98fc1c14 9afbf4c8 996fb924.
        assert_eq!(identity(""), "apiserver-4oymiquy7qobjgx36tejs35zeq");
    }

    #[test]
    fn a_lease_expires_after_its_duration() {
        let now = Timestamp::now();
        let lease = |age: i64| Lease {
            spec: Some(LeaseSpec {
                renew_time: Some(MicroTime(Timestamp::from_second(now.as_second() - age).unwrap())),
                lease_duration_seconds: Some(60),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        assert!(!is_expired(&lease(60), now) && is_expired(&lease(61), now));
        assert!(!is_expired(&Lease::default(), now));
    }
}
