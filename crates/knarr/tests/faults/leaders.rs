//! Who held the Leases of elected components, and who acted for them: never anybody but the holder.
//!
//! Holders come from a watch on the Leases, acts from the audit log of each server: components use the API server of their own
//! process. The store's versions put both into one order, whatever the clocks say.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::history::Version;

/// The components that are elected: user agent and Lease have the same name.
pub const LEASES: [&str; 3] = ["kube-controller-manager", "kube-scheduler", "knarr-network"];

/// A version of a Lease. The holder is empty if it was released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    pub lease: String,
    pub holder: String,
    pub version: Version,
}

/// A write of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Act {
    pub lease: String,
    /// The name of the server on which the component ran.
    pub server: String,
    pub what: String,
    pub version: Version,
}

/// The first act of a server that did not hold the Lease.
pub fn violation(holdings: &[Holding], acts: &[Act]) -> Option<String> {
    let mut leases: BTreeMap<&str, BTreeMap<Version, &str>> = BTreeMap::new();
    for holding in holdings {
        leases.entry(&holding.lease).or_default().insert(holding.version, &holding.holder);
    }
    acts.iter().find_map(|act| {
        // What happened before the watch started is unknown.
        let (_, holder) = leases.get(act.lease.as_str())?.range(..=act.version).next_back()?;
        let is_holder = holder.split('_').next() == Some(act.server.as_str());
        (!is_holder).then(|| format!("{holder:?} held {}, but {act:?}", act.lease))
    })
}

/// The acts in an audit log. Events are reports, and elections are no acts.
pub fn acts(server: &str, log: &str) -> Vec<Act> {
    let text = |value: &Value, path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    let act = |line: &str| {
        // The last line of a server that was killed may be incomplete.
        let event: Value = serde_json::from_str(line).ok()?;
        let lease = text(&event, "/userAgent");
        let resource = text(&event, "/objectRef/resource");
        if !LEASES.contains(&lease.as_str()) || ["events", "leases"].contains(&resource.as_str()) {
            return None;
        }
        let version = text(&event, "/responseObject/metadata/resourceVersion").parse().ok()?;
        let what = format!("{} {resource} {}", text(&event, "/verb"), text(&event, "/objectRef/name"));
        Some(Act { lease, server: server.to_owned(), what, version })
    };
    log.lines().filter_map(act).collect()
}

/// The audit policy that records acts.
pub const POLICY: &str = "apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: None
  verbs: [get, list, watch, deletecollection]
- level: RequestResponse
  users: [\"system:kube-controller-manager\", \"system:kube-scheduler\"]
- level: RequestResponse
  userGroups: [\"system:serviceaccounts:kube-system\"]
- level: RequestResponse
  users: [\"knarr:network-controller\"]
- level: None
";

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(version: Version, holder: &str) -> Holding {
        Holding { lease: "kube-scheduler".into(), holder: holder.into(), version }
    }

    fn act(version: Version, server: &str) -> Act {
        Act { lease: "kube-scheduler".into(), server: server.into(), what: "patch pods a".into(), version }
    }

    #[test]
    fn only_the_holder_may_act() {
        let holdings = [holding(5, "server-1_x"), holding(9, "server-1_x"), holding(20, "server-2_y"), holding(30, "")];
        for (version, server, is_good) in [
            (4, "server-3", true),
            (5, "server-1", true),
            (19, "server-1", true),
            (19, "server-2", false),
            (21, "server-1", false),
            (29, "server-2", true),
            (31, "server-2", false),
        ] {
            let found = violation(&holdings, &[act(version, server)]);
            assert_eq!(found.is_none(), is_good, "{version} {server}: {found:?}");
        }
        let other = Act { lease: "knarr-network".into(), ..act(21, "server-1") };
        assert_eq!(violation(&holdings, &[other]), None, "another Lease");
    }

    #[test]
    fn acts_are_read_from_audit_logs() {
        let line = |agent: &str, resource: &str, version: &str| {
            format!(
                r#"{{"verb":"patch","userAgent":"{agent}","objectRef":{{"resource":"{resource}","name":"a"}},"responseObject":{{"metadata":{{"resourceVersion":"{version}"}}}}}}"#
            )
        };
        let log = [
            line("kube-scheduler", "pods", "7"),
            line("kube-scheduler", "leases", "8"),
            line("kube-scheduler", "events", "9"),
            line("kubectl", "pods", "10"),
            line("kube-scheduler", "pods", ""),
            "{\"verb\":\"pa".to_owned(),
        ];
        assert_eq!(acts("server-1", &log.join("\n")), [act(7, "server-1")]);
    }
}
