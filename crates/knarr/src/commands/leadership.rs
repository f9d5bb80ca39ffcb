//! Several processes of a kind may run, of which one acts: the flags for it, and working only while holding the lease.

use std::future::Future;
use std::time::Duration;

use clap::Args;
use knarr_client::LeaderElection;
use knarr_client::kube::Client;

use super::common::stopped;

#[derive(Args, Clone, Debug, Default)]
pub struct LeaderArguments {
    /// Act only while holding the lease, so that several may run.
    #[arg(long, num_args = 0..=1, default_missing_value = "true")]
    pub leader_elect: Option<bool>,
    /// How long others wait after the holder's last renewal before they take the lease: 10s unless told.
    #[arg(long, value_parser = duration)]
    pub leader_elect_lease_duration: Option<Duration>,
    /// How long the holder goes on without being able to renew: 7s unless told.
    #[arg(long, value_parser = duration)]
    pub leader_elect_renew_deadline: Option<Duration>,
    /// How often it renews, and others look: every 2s unless told.
    #[arg(long, value_parser = duration)]
    pub leader_elect_retry_period: Option<Duration>,
    /// The lease's name, where it is not the component's.
    #[arg(long)]
    pub leader_elect_resource_name: Option<String>,
    /// The lease's namespace: kube-system unless told.
    #[arg(long)]
    pub leader_elect_resource_namespace: Option<String>,
}

impl LeaderArguments {
    /// What is left open is taken from elsewhere.
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

/// What competes for a lease: the lease's name, and the name in events.
#[derive(Clone, Copy)]
pub struct Competitor<'a> {
    pub lease: &'a str,
    pub component: &'a str,
}

/// Works until the process is asked to stop; where leaders are elected, only while holding the lease of that name.
pub async fn lead<W, F>(
    client: Client,
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
    let election = election(competitor, arguments);
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

/// The lease that processes of one kind compete for, each under a name of its own.
fn election(competitor: Competitor<'_>, arguments: &LeaderArguments) -> LeaderElection {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    // Processes in containers may share the host's name and have the same number.
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

/// A length of time as Kubernetes' flags write it: `15s`, `1m30s`, `500ms`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no length of time such as 15s or 1m30s");
    let mut rest = text;
    let mut seconds = 0.0;
    while !rest.is_empty() {
        let digits = rest.find(|sign: char| !sign.is_ascii_digit() && sign != '.').ok_or_else(wrong)?;
        let number: f64 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let unit = rest.find(|sign: char| sign.is_ascii_digit() || sign == '.').unwrap_or(rest.len());
        seconds += number
            * match &rest[..unit] {
                "ms" => 0.001,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return Err(wrong()),
            };
        rest = &rest[unit..];
    }
    if text.is_empty() { Err(wrong()) } else { Duration::try_from_secs_f64(seconds).map_err(|_| wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_time_are_read() {
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
