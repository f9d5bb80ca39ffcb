//! Several processes of a kind may run, of which one acts: the flags for it, and working only while holding the lease.

use std::future::Future;
use std::time::Duration;

use clap::Args;
use knarr_client::LeaderElection;
use knarr_client::kube::Client;

use super::common::stopped;

#[derive(Args, Clone, Debug)]
pub struct LeaderArguments {
    /// Act only while holding the lease, so that several may run.
    #[arg(long, default_value_t = false, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub leader_elect: bool,
    /// How long others wait after the holder's last renewal before they take the lease.
    #[arg(long, value_parser = duration, default_value = "10s")]
    pub leader_elect_lease_duration: Duration,
    /// How long the holder goes on without being able to renew.
    #[arg(long, value_parser = duration, default_value = "7s")]
    pub leader_elect_renew_deadline: Duration,
    /// How often it renews, and others look.
    #[arg(long, value_parser = duration, default_value = "2s")]
    pub leader_elect_retry_period: Duration,
}

/// Works until the process is asked to stop; where leaders are elected, only while holding the lease of that name.
pub async fn lead<W, F>(client: Client, lease: &str, arguments: &LeaderArguments, work: W) -> anyhow::Result<()>
where
    W: FnOnce() -> F,
    F: Future<Output = ()>,
{
    if !arguments.leader_elect {
        tokio::select! {
            () = work() => {}
            stopped = stopped() => stopped?,
        }
        return Ok(());
    }
    let election = election(lease, arguments);
    if let Some(mistake) = election.mistake() {
        anyhow::bail!("{mistake}");
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
fn election(lease: &str, arguments: &LeaderArguments) -> LeaderElection {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let identity = format!("{}_{}", host.trim(), std::process::id());
    LeaderElection {
        lease: arguments.leader_elect_lease_duration,
        renew_deadline: arguments.leader_elect_renew_deadline,
        retry: arguments.leader_elect_retry_period,
        ..LeaderElection::new("kube-system", lease, identity)
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
