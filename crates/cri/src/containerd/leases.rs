//! What containerd holds for work under way. Whoever works with its files takes a lease first, so that nothing is cleared
//! away meanwhile; of a containerd that is killed it stays, and holds what was half made for a day.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use crate::client::{CallError, Runtime};
use crate::messages::{Empty, Moment};

/// On leases that end by themselves, should nobody end them.
const EXPIRES: &str = "containerd.io/gc.expire";
/// Begins the labels that name what a lease holds beyond what was made under it: somebody uses that for longer.
const HOLDS: &str = "containerd.io/gc.ref.";

/// containerd.services.leases.v1.
#[derive(Clone, PartialEq, prost::Message)]
struct Lease {
    #[prost(string, tag = "1")]
    id: String,
    #[prost(message, optional, tag = "2")]
    created_at: Option<Moment>,
    #[prost(map = "string, string", tag = "3")]
    labels: HashMap<String, String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListAnswer {
    #[prost(message, repeated, tag = "1")]
    leases: Vec<Lease>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct DeleteRequest {
    #[prost(string, tag = "1")]
    id: String,
    /// Whether the answer waits until what the lease held is cleared away.
    #[prost(bool, tag = "2")]
    sync: bool,
}

/// Ends the leases of work that a containerd began which ended before this moment, and clears away what they held.
pub async fn end_before(runtime: &Runtime, moment: SystemTime) -> Result<(), CallError> {
    let path = "/containerd.services.leases.v1.Leases/List";
    let all: ListAnswer = runtime.ask_containerd("Leases.List", path, Empty {}).await?;
    let moment = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    for lease in all.leases.into_iter().filter(|lease| is_lost(lease, moment)) {
        tracing::info!(lease = lease.id, "work that containerd did not end is given up");
        let request = DeleteRequest { id: lease.id, sync: true };
        let path = "/containerd.services.leases.v1.Leases/Delete";
        runtime.ask_containerd::<_, Empty>("Leases.Delete", path, request).await?;
    }
    Ok(())
}

/// `moment` is counted from 1970.
fn is_lost(lease: &Lease, moment: Duration) -> bool {
    let made = lease.created_at.and_then(|at| {
        let (seconds, nanos) = (u64::try_from(at.seconds).ok()?, u32::try_from(at.nanos).ok()?);
        Some(Duration::new(seconds, nanos))
    });
    let is_used = lease.labels.keys().any(|label| label.starts_with(HOLDS));
    lease.labels.contains_key(EXPIRES) && !is_used && made.is_some_and(|made| made < moment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_leases_of_work_that_broke_off_are_lost() {
        let held = "containerd.io/gc.ref.snapshot.overlayfs";
        for (title, seconds, labels, expected) in [
            ("of a pull that broke off", 99, vec![EXPIRES], true),
            ("of a pull of this life", 101, vec![EXPIRES], false),
            ("of a mounted image", 99, vec![EXPIRES, held], false),
            ("of somebody who ends it himself", 99, vec![], false),
        ] {
            let lease = Lease {
                id: "l".into(),
                created_at: Some(Moment { seconds, nanos: 5 }),
                labels: labels.into_iter().map(|label| (label.to_owned(), String::new())).collect(),
            };
            assert_eq!(is_lost(&lease, Duration::from_secs(100)), expected, "{title}");
        }
    }
}
