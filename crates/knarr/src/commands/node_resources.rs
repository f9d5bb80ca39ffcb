//! Flags for reserved resources and their managers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use knarr_client::quantity::{Format, Quantity, scale};
use knarr_kubelet::resources::{NumberSet, Policies, TopologyPolicy, TopologyScope, parse_reserved_memory};
use knarr_kubelet::{Settings, ShutdownPeriod};

use crate::paths::{DEFAULT_LOGS, DEFAULT_ROOT, LOG_LINKS, is_default};

/// Seconds for pods to terminate when systemd shuts the host down.
const SERVICE_GRACE: u64 = 30;

#[derive(Args, Clone, Debug, Default)]
pub struct ResourceArguments {
    /// Resources reserved for the system, such as cpu=500m,memory=1Gi.
    #[arg(long, value_delimiter = ',')]
    pub system_reserved: Vec<String>,
    /// Resources reserved for Knarr and the container runtime, in the same form.
    #[arg(long, value_delimiter = ',')]
    pub kube_reserved: Vec<String>,
    /// CPUs that are never assigned exclusively, such as 0-1; by default as many as are reserved.
    #[arg(long)]
    pub reserved_cpus: Option<String>,
    /// CPU manager policy: none or static.
    #[arg(long, default_value = "none", value_parser = ["none", "static"])]
    pub cpu_manager_policy: String,
    /// Memory manager policy: None or Static.
    #[arg(long, default_value = "None", value_parser = ["None", "Static"])]
    pub memory_manager_policy: String,
    /// Memory reserved on NUMA nodes, such as 0:memory=1Gi;1:memory=512Mi.
    #[arg(long)]
    pub reserved_memory: Option<String>,
    /// Topology manager policy.
    #[arg(long, default_value = "none", value_parser = ["none", "best-effort", "restricted", "single-numa-node"])]
    pub topology_manager_policy: String,
    /// Topology manager scope: container or pod.
    #[arg(long, default_value = "container", value_parser = ["container", "pod"])]
    pub topology_manager_scope: String,
    /// Maximum number of processes per pod.
    #[arg(long)]
    pub pod_max_pids: Option<u64>,
    /// Maximum size of a container's log before it is rotated.
    #[arg(long, default_value = "10Mi")]
    pub container_log_max_size: String,
    /// Maximum number of log files per container, at least two.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    pub container_log_max_files: u32,
    /// Seconds for pods to terminate when the host shuts down; by default 30 where systemd started a server or an agent,
    /// otherwise 0.
    #[arg(long)]
    pub shutdown_grace_period: Option<u64>,
    /// Seconds of that period reserved for critical pods; by default a third of it.
    #[arg(long)]
    pub shutdown_grace_period_critical_pods: Option<u64>,
    /// Directory of pods' volumes, plugins and their sockets; /var/lib/kubelet with the default data directory, otherwise
    /// in the data directory.
    #[arg(long, alias = "plugin-dir")]
    pub root_dir: Option<PathBuf>,
    /// Directory of pods' logs; /var/log/pods with the default data directory, otherwise in the data directory.
    #[arg(long)]
    pub pod_logs_dir: Option<PathBuf>,
}

impl ResourceArguments {
    /// The directory of plugins and pods.
    pub fn plugin_root(&self, data: &Path) -> PathBuf {
        match &self.root_dir {
            Some(directory) => directory.clone(),
            None if is_default(data) => PathBuf::from(DEFAULT_ROOT),
            None => data.join("kubelet"),
        }
    }

    fn set_log_directories(&self, settings: &mut Settings, data: &Path) {
        let older = data.join("logs");
        settings.log_root = match &self.pod_logs_dir {
            Some(directory) => directory.clone(),
            None if is_default(data) => PathBuf::from(DEFAULT_LOGS),
            None => older.clone(),
        };
        settings.older_log_root = (settings.log_root != older).then_some(older);
        // Several nodes on one host would remove each other's links.
        settings.log_links = (settings.log_root == Path::new(DEFAULT_LOGS)).then(|| PathBuf::from(LOG_LINKS));
    }

    /// Sets what differs for a service: systemd announces shutdowns, so pods can end in order. The kubelet's own default is
    /// none.
    pub fn set_service_defaults(&mut self, is_service: bool) {
        if is_service {
            self.shutdown_grace_period.get_or_insert(SERVICE_GRACE);
        }
    }

    pub fn apply(&self, settings: &mut Settings, data: &Path) -> anyhow::Result<()> {
        settings.reserved = sum(self.system_reserved.iter().chain(&self.kube_reserved))?;
        settings.pod_pids_limit = self.pod_max_pids;
        let size = Quantity::parse(&self.container_log_max_size);
        let size = size.with_context(|| format!("{:?} is not a size", self.container_log_max_size))?;
        settings.log_max_size =
            u64::try_from(size.saturating_value(scale::ONE)).context("the log size must not be negative")?;
        settings.log_max_files = self.container_log_max_files;
        let grace = self.shutdown_grace_period.unwrap_or(0);
        let critical = self.shutdown_grace_period_critical_pods.unwrap_or(grace / 3);
        settings.shutdown = ShutdownPeriod::with_critical(Duration::from_secs(grace), Duration::from_secs(critical));
        settings.plugin_root = self.plugin_root(data);
        self.set_log_directories(settings, data);
        let reserved_cpu = settings.reserved.get("cpu").map(|text| Quantity::parse(text)).transpose()?;
        settings.resources = Policies {
            static_cpus: self.cpu_manager_policy == "static",
            static_memory: self.memory_manager_policy == "Static",
            topology: TopologyPolicy::parse(&self.topology_manager_policy).unwrap_or_default(),
            scope: if self.topology_manager_scope == "pod" { TopologyScope::Pod } else { TopologyScope::Container },
            reserved_cpu_milli: reserved_cpu.map_or(0, |amount| amount.saturating_value(scale::MILLI)),
            reserved_cpus: self.reserved_cpus.as_deref().map(NumberSet::parse).transpose()?,
            reserved_memory: match &self.reserved_memory {
                Some(text) => {
                    parse_reserved_memory(text).with_context(|| format!("{text:?} is not a memory reservation"))?
                }
                None => BTreeMap::new(),
            },
        };
        Ok(())
    }
}

/// Quantities by resource name, summed per name.
fn sum<'a>(parts: impl Iterator<Item = &'a String>) -> anyhow::Result<BTreeMap<String, String>> {
    let mut amounts: BTreeMap<String, Quantity> = BTreeMap::new();
    for part in parts {
        let Some((name, amount)) = part.split_once('=') else { bail!("{part:?} is not of the form name=quantity") };
        let amount = Quantity::parse(amount).with_context(|| format!("{part:?} has no valid quantity"))?;
        let own = amounts.entry(name.to_owned()).or_insert_with(|| Quantity::new(0, Format::BinarySi));
        own.add(&amount);
    }
    Ok(amounts.into_iter().map(|(name, amount)| (name, amount.to_string())).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        resources: ResourceArguments,
    }

    #[test]
    fn pods_of_a_service_end_in_order() {
        for (words, is_service, expected) in [
            (vec![], false, (0, 0)),
            (vec![], true, (30, 10)),
            (vec!["--shutdown-grace-period=60"], false, (60, 20)),
            (vec!["--shutdown-grace-period=0"], true, (0, 0)),
            (vec!["--shutdown-grace-period-critical-pods=5"], true, (30, 5)),
        ] {
            let mut resources = Line::parse_from([vec!["knarr"], words.clone()].concat()).resources;
            resources.set_service_defaults(is_service);
            let mut settings = Settings::new("node", "/data", String::new());
            resources.apply(&mut settings, Path::new("/data")).unwrap();
            let seconds: Vec<u64> = settings.shutdown.iter().map(|period| period.grace.as_secs()).collect();
            let found = (seconds.iter().sum(), seconds.last().copied().unwrap_or(0));
            assert_eq!(found, expected, "{words:?} {is_service}");
        }
    }

    #[test]
    fn reserved_amounts_add_up() {
        let parts = ["cpu=500m", "memory=1Gi", "cpu=1"].map(String::from);
        let amounts = sum(parts.iter()).unwrap();
        assert_eq!(amounts["cpu"], "1500m");
        assert_eq!(amounts["memory"], "1Gi");
        assert!(sum(["cpu".to_owned()].iter()).is_err());
    }
}
