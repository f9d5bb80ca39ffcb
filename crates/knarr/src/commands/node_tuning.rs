//! Flags of intervals and limits that few change.

use std::time::Duration;

use anyhow::bail;
use clap::{ArgAction, Args};
use knarr_kubelet::{CgroupDriver, RestartBackoff, Settings, ShutdownPeriod};

use super::leadership::duration;

#[derive(Args, Clone, Debug)]
pub struct TuningArguments {
    /// Cgroup driver for runtimes that do not report theirs: cgroupfs or systemd.
    #[arg(long, default_value = "cgroupfs", value_parser = ["cgroupfs", "systemd"])]
    pub cgroup_driver: String,
    /// Swap of containers: NoSwap, or LimitedSwap for burstable pods in proportion to their memory requests (cgroup v2).
    #[arg(long, default_value = "NoSwap", value_parser = ["NoSwap", "LimitedSwap"])]
    pub memory_swap_behavior: String,
    /// Do not start on a host with swap.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub fail_swap_on: bool,
    /// Do not start on a host with cgroup v1.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub fail_cgroupv1: bool,
    /// Seconds for pods to terminate when the host shuts down, by priority, such as 0=20,100000=10; in place of the two grace
    /// periods.
    #[arg(long, value_name = "PRIORITY=SECONDS", value_delimiter = ',', allow_hyphen_values = true)]
    pub shutdown_grace_period_by_pod_priority: Vec<String>,
    /// Maximum number of pods per CPU, within --max-pods; 0 for no such limit.
    #[arg(long, default_value_t = 0)]
    pub pods_per_core: u32,
    /// How often the node's status is computed.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub node_status_update_frequency: Duration,
    /// How often the node's status is written if it does not change.
    #[arg(long, default_value = "5m0s", value_parser = duration)]
    pub node_status_report_frequency: Duration,
    /// How many images the node's status names; -1 for all.
    #[arg(long, default_value_t = 50, allow_hyphen_values = true)]
    pub node_status_max_images: i64,
    /// Duration of the node's lease in seconds; it is renewed four times as often.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(i32).range(1..))]
    pub node_lease_duration_seconds: i32,
    /// How often the sizes of container logs are checked.
    #[arg(long, default_value = "10s", value_parser = duration)]
    pub container_log_monitor_interval: Duration,
    /// End a single process instead of its container when memory runs out, with cgroup v2.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub single_process_oom_kill: bool,
    /// Serve exec, attach, port-forward and logs.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    pub enable_debugging_handlers: bool,
    /// Longest delay before a container that fails again and again restarts, from 1s to 5m [default: 5m].
    #[arg(long, value_parser = duration)]
    pub max_container_restart_period: Option<Duration>,
    /// Serve the host's logs.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    pub enable_system_log_handler: bool,
}

impl TuningArguments {
    /// To be called after the grace periods are set.
    pub fn apply(&self, settings: &mut Settings) -> anyhow::Result<()> {
        settings.cgroup_driver = CgroupDriver::parse(&self.cgroup_driver).unwrap_or_default();
        settings.limited_swap = self.memory_swap_behavior == "LimitedSwap";
        settings.fail_swap_on = self.fail_swap_on;
        settings.fail_cgroup_v1 = self.fail_cgroupv1;
        if !self.shutdown_grace_period_by_pod_priority.is_empty() {
            if !settings.shutdown.is_empty() {
                bail!(
                    "invalid configuration: Cannot specify both shutdownGracePeriodByPodPriority and shutdownGracePeriod at \
                     the same time"
                );
            }
            settings.shutdown = periods(&self.shutdown_grace_period_by_pod_priority)?;
        }
        if self.pods_per_core > 0 {
            let cpus = std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(1));
            settings.max_pods = settings.max_pods.min(cpus.saturating_mul(self.pods_per_core));
        }
        let tuning = &mut settings.tuning;
        tuning.status_update = positive("node-status-update-frequency", self.node_status_update_frequency)?;
        tuning.status_report = positive("node-status-report-frequency", self.node_status_report_frequency)?;
        if self.node_status_max_images < -1 {
            bail!(
                "invalid configuration: nodeStatusMaxImages (--node-status-max-images) {} must be -1 or greater",
                self.node_status_max_images
            );
        }
        tuning.status_images = usize::try_from(self.node_status_max_images).ok();
        tuning.lease_seconds = self.node_lease_duration_seconds;
        tuning.log_check = positive("container-log-monitor-interval", self.container_log_monitor_interval)?;
        tuning.single_process_oom_kill = self.single_process_oom_kill;
        tuning.debugging_handlers = self.enable_debugging_handlers;
        tuning.system_log_handler = self.enable_system_log_handler;
        let gates = crate::feature_gates::current();
        tuning.checkpoints = gates.is_on("ContainerCheckpoint");
        tuning.restart_backoff =
            restart_backoff(self.max_container_restart_period, gates.is_on("ReduceDefaultCrashLoopBackOffDecay"))?;
        Ok(())
    }
}

/// `reduced` shortens the delays that are not given.
fn restart_backoff(max: Option<Duration>, reduced: bool) -> anyhow::Result<RestartBackoff> {
    let usual = match reduced {
        true => RestartBackoff { initial: Duration::from_secs(1), max: Duration::from_secs(60) },
        false => RestartBackoff::default(),
    };
    let max = max.unwrap_or(usual.max);
    if !(Duration::from_secs(1)..=Duration::from_secs(300)).contains(&max) {
        bail!(
            "invalid configuration: CrashLoopBackOff.MaxContainerRestartPeriod (got: {} seconds) must be set between 1s \
             and 300s",
            max.as_secs_f64()
        );
    }
    Ok(RestartBackoff { initial: usual.initial.min(max), max })
}

fn positive(flag: &str, value: Duration) -> anyhow::Result<Duration> {
    if value.is_zero() {
        bail!("--{flag} must be greater than 0");
    }
    Ok(value)
}

fn periods(texts: &[String]) -> anyhow::Result<Vec<ShutdownPeriod>> {
    let one = |text: &String| {
        let (priority, seconds) = text.split_once('=')?;
        Some(ShutdownPeriod { priority: priority.parse().ok()?, grace: Duration::from_secs(seconds.parse().ok()?) })
    };
    let mut periods = Vec::new();
    for text in texts {
        let Some(period) = one(text) else {
            bail!("--shutdown-grace-period-by-pod-priority is {text:?}, expected the form PRIORITY=SECONDS");
        };
        periods.push(period);
    }
    periods.sort();
    Ok(periods)
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[test]
    fn restart_delays_are_bounded_as_in_kubernetes() {
        let of = |max: Option<u64>, reduced| {
            let delays = restart_backoff(max.map(Duration::from_secs), reduced);
            delays.map(|delays| (delays.initial.as_secs(), delays.max.as_secs())).map_err(|error| error.to_string())
        };
        assert_eq!(of(None, false), Ok((10, 300)));
        assert_eq!(of(None, true), Ok((1, 60)));
        assert_eq!(of(Some(5), false), Ok((5, 5)));
        assert_eq!(of(Some(120), true), Ok((1, 120)));
        let message = "invalid configuration: CrashLoopBackOff.MaxContainerRestartPeriod (got: 301 seconds) must be set \
                       between 1s and 300s";
        assert_eq!(of(Some(301), false), Err(message.to_owned()));
        assert!(of(Some(0), false).is_err());
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        tuning: TuningArguments,
    }

    fn apply(words: &[&str], settings: &mut Settings) -> anyhow::Result<()> {
        Line::try_parse_from(["knarr"].iter().chain(words))?.tuning.apply(settings)
    }

    #[test]
    fn shutdown_periods_are_sorted_by_priority() {
        let mut settings = Settings::new("node", "/data", String::new());
        apply(&["--shutdown-grace-period-by-pod-priority=1000=5,-10=20"], &mut settings).unwrap();
        let found: Vec<_> = settings.shutdown.iter().map(|period| (period.priority, period.grace.as_secs())).collect();
        assert_eq!(found, [(-10, 20), (1000, 5)]);
        let again = apply(&["--shutdown-grace-period-by-pod-priority=0=5"], &mut settings).unwrap_err().to_string();
        assert!(again.starts_with("invalid configuration: Cannot specify both"), "{again}");
    }

    #[test]
    fn limits_are_checked() {
        let mut settings = Settings::new("node", "/data", String::new());
        apply(
            &["--node-status-max-images=-1", "--pods-per-core=1", "--memory-swap-behavior=LimitedSwap"],
            &mut settings,
        )
        .unwrap();
        assert_eq!((settings.tuning.status_images, settings.limited_swap), (None, true));
        assert!(settings.max_pods < 110);
        for wrong in [
            "--node-status-max-images=-2",
            "--node-status-update-frequency=0s",
            "--node-lease-duration-seconds=0",
            "--shutdown-grace-period-by-pod-priority=high=5",
            "--memory-swap-behavior=UnlimitedSwap",
            "--cgroup-driver=other",
        ] {
            assert!(apply(&[wrong], &mut settings).is_err(), "{wrong}");
        }
    }
}
