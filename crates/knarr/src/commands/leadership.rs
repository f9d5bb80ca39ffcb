//! Leader election: its flags, and running work only while holding the lease.

use std::future::Future;
use std::time::Duration;

use clap::Args;
use knarr_client::kube::Client;
use knarr_client::{Fence, LeaderElection, go_duration};

use crate::signals::stopped;

#[derive(Args, Clone, Debug, Default)]
pub struct LeaderArguments {
    /// Elect a leader, so that several replicas may run.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub leader_elect: Option<bool>,
    /// How long candidates wait after the leader's last renewal before they acquire the lease [default: 10s].
    #[arg(long, value_parser = duration)]
    pub leader_elect_lease_duration: Option<Duration>,
    /// How long the leader retries a renewal before it gives up [default: 7s].
    #[arg(long, value_parser = duration)]
    pub leader_elect_renew_deadline: Option<Duration>,
    /// Interval of renewals and attempts [default: 2s].
    #[arg(long, value_parser = duration)]
    pub leader_elect_retry_period: Option<Duration>,
    /// Name of the lease; by default that of the component.
    #[arg(long)]
    pub leader_elect_resource_name: Option<String>,
    /// Namespace of the lease [default: kube-system].
    #[arg(long)]
    pub leader_elect_resource_namespace: Option<String>,
}

impl LeaderArguments {
    /// Fills unset values from `other`.
    pub fn or(self, other: Self) -> Self {
        Self {
            leader_elect: self.leader_elect.or(other.leader_elect),
            leader_elect_lease_duration: self.leader_elect_lease_duration.or(other.leader_elect_lease_duration),
            leader_elect_renew_deadline: self.leader_elect_renew_deadline.or(other.leader_elect_renew_deadline),
            leader_elect_retry_period: self.leader_elect_retry_period.or(other.leader_elect_retry_period),
            leader_elect_resource_name: self.leader_elect_resource_name.or(other.leader_elect_resource_name),
            leader_elect_resource_namespace: self
                .leader_elect_resource_namespace
                .or(other.leader_elect_resource_namespace),
        }
    }
}

/// A candidate: the lease's name, and the component's name in events.
#[derive(Clone, Copy)]
pub struct Competitor<'a> {
    pub lease: &'a str,
    pub component: &'a str,
}

/// What the work's requests must pass: closed from when the lease may have passed on, as to a process that was suspended.
pub fn fence(arguments: &LeaderArguments) -> Fence {
    if arguments.leader_elect == Some(true) { Fence::default() } else { Fence::always_open() }
}

/// Runs `work` until the process is stopped; with leader election, only while holding the lease, when the fence is open.
pub async fn lead<W, F>(
    client: Client,
    fence: Fence,
    competitor: Competitor<'_>,
    arguments: &LeaderArguments,
    work: W,
) -> anyhow::Result<()>
where
    W: FnOnce() -> F,
    F: Future<Output = ()>,
{
    if arguments.leader_elect != Some(true) {
        tokio::select! {
            () = work() => {}
            stopped = stopped() => stopped?,
        }
        return Ok(());
    }
    let election = LeaderElection { fence, ..election(competitor, arguments) };
    if let Some(reason) = election.invalid_reason() {
        anyhow::bail!("{reason}");
    }
    let shutdown = async {
        if let Err(error) = stopped().await {
            tracing::error!(%error, "cannot listen for signals");
        }
    };
    election.run(client, shutdown, work).await?;
    Ok(())
}

/// The lease that replicas compete for, each with a unique identity.
fn election(competitor: Competitor<'_>, arguments: &LeaderArguments) -> LeaderElection {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    // Processes in containers may share the host name and have the same process id.
    let identity = format!("{}_{}", read("/proc/sys/kernel/hostname"), read("/proc/sys/kernel/random/uuid"));
    let namespace = arguments.leader_elect_resource_namespace.as_deref().unwrap_or("kube-system");
    let name = arguments.leader_elect_resource_name.as_deref().unwrap_or(competitor.lease);
    let usual = LeaderElection::new(namespace, name, identity);
    LeaderElection {
        component: competitor.component.to_owned(),
        lease_duration: arguments.leader_elect_lease_duration.unwrap_or(usual.lease_duration),
        renew_deadline: arguments.leader_elect_renew_deadline.unwrap_or(usual.renew_deadline),
        retry_period: arguments.leader_elect_retry_period.unwrap_or(usual.retry_period),
        ..usual
    }
}

/// Parses a duration as in Kubernetes' flags: `15s`, `1m30s`, `500ms`.
pub fn duration(text: &str) -> Result<Duration, String> {
    go_duration::parse_positive(text).ok_or_else(|| format!("{text:?} is not a duration such as 15s or 1m30s"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_sent_before_the_lease_is_held() {
        let elected = LeaderArguments { leader_elect: Some(true), ..LeaderArguments::default() };
        assert!(!fence(&elected).is_open());
        assert!(fence(&LeaderArguments::default()).is_always_open());
    }

    #[test]
    fn durations_are_parsed() {
        for (text, milliseconds) in
            [("15s", 15_000), ("1m30s", 90_000), ("500ms", 500), ("1.5s", 1500), ("1h", 3_600_000)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
        for wrong in ["", "15", "s", "1x", "-1s", "1s2"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
