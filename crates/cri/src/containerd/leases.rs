//! Deletes the leases that a killed containerd left behind. A lease protects the files of work in progress from garbage
//! collection; after a kill it stays and keeps incomplete files for a day.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::client::Runtime;
use crate::error::CallError;
use crate::messages::{Empty, Timestamp};

/// The label of leases that expire if nobody deletes them.
const EXPIRES: &str = "containerd.io/gc.expire";
/// The prefix of labels that name resources a lease protects for a longer use.
const REFERENCE_PREFIX: &str = "containerd.io/gc.ref.";

/// containerd.services.leases.v1.
#[derive(Clone, PartialEq, prost::Message)]
struct Lease {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    created_at: Option<Timestamp>,
    #[prost(map = "string, string", tag = "3")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    leases: Vec<Lease>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DeleteRequest {
    #[prost(string, tag = "1")]
    id: String,
    /// Whether the response waits until the lease's resources are deleted.
    #[prost(bool, tag = "2")]
    sync: bool,
}

/// Deletes the leases of work that a previous containerd process started before `time`, with their resources.
pub async fn delete_before(runtime: &Runtime, time: SystemTime) -> Result<(), CallError> {
    let path = "/containerd.services.leases.v1.Leases/List";
    let all: ListResponse = runtime.call_containerd("Leases.List", path, Empty {}).await?;
    let time = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for lease in all.leases.into_iter().filter(|lease| is_lost(lease, time)) {
        tracing::info!(lease = lease.id, "deleting the lease of work that a previous containerd did not finish");
        let request = DeleteRequest { id: lease.id, sync: true };
        let path = "/containerd.services.leases.v1.Leases/Delete";
        runtime.call_containerd::<_, Empty>("Leases.Delete", path, request).await?;
    }
    Ok(())
}

/// `time` is the duration since 1970.
fn is_lost(lease: &Lease, time: Duration) -> bool {
    let created = lease.created_at.and_then(|at| {
        let (seconds, nanos) = (u64::try_from(at.seconds).ok()?, u32::try_from(at.nanos).ok()?);
        Some(Duration::new(seconds, nanos))
    });
    let is_used = lease.labels.keys().any(|label| label.starts_with(REFERENCE_PREFIX));
    lease.labels.contains_key(EXPIRES) && !is_used && created.is_some_and(|created| created < time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leases_of_interrupted_work_are_lost() {
        let held = "containerd.io/gc.ref.snapshot.overlayfs";
        for (title, seconds, labels, expected) in [
            ("of an interrupted pull", 99, vec![EXPIRES], true),
            ("of a pull of this process", 101, vec![EXPIRES], false),
            ("of a mounted image", 99, vec![EXPIRES, held], false),
            ("without expiry, whose owner deletes it", 99, vec![], false),
        ] {
            let lease = Lease {
                id: "l".into(),
                created_at: Some(Timestamp { seconds, nanos: 5 }),
                labels: labels.into_iter().map(|label| (label.to_owned(), String::new())).collect(),
            };
            assert_eq!(is_lost(&lease, Duration::from_secs(100)), expected, "{title}");
        }
    }
}
