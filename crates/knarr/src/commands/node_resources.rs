//! What of the machine is kept from pods, and how the rest is given to them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Args;
use knarr_client::quantity::{Format, Quantity};
use knarr_kubelet::Settings;
use knarr_kubelet::resources::{NumberSet, Policies, TopologyPolicy, TopologyScope, parse_reserved_memory};

#[derive(Args, Clone, Debug, Default)]
pub struct ResourceArguments {
    /// Kept from pods for the system, such as cpu=500m,memory=1Gi.
    #[arg(long, value_delimiter = ',')]
    pub system_reserved: Vec<String>,
    /// Kept from pods for Knarr and the container runtime, in the same form.
    #[arg(long, value_delimiter = ',')]
    pub kube_reserved: Vec<String>,
    /// CPUs that no container gets for itself, such as 0-1; without it as many as are reserved.
    #[arg(long)]
    pub reserved_cpus: Option<String>,
    /// Whether containers that ask for whole CPUs get them for themselves: none or static.
    #[arg(long, default_value = "none", value_parser = ["none", "static"])]
    pub cpu_manager_policy: String,
    /// Whether memory is set aside on NUMA nodes: None or Static.
    #[arg(long, default_value = "None", value_parser = ["None", "Static"])]
    pub memory_manager_policy: String,
    /// Memory kept for the system on NUMA nodes, such as 0:memory=1Gi;1:memory=512Mi.
    #[arg(long)]
    pub reserved_memory: Option<String>,
    /// Whether a container's CPUs, memory and devices must lie together.
    #[arg(long, default_value = "none", value_parser = ["none", "best-effort", "restricted", "single-numa-node"])]
    pub topology_manager_policy: String,
    /// What lies together: each container, or the pod as a whole.
    #[arg(long, default_value = "container", value_parser = ["container", "pod"])]
    pub topology_manager_scope: String,
    /// How many processes a pod may have.
    #[arg(long)]
    pub pod_max_pids: Option<u64>,
    /// How large a container's log grows before it is set aside.
    #[arg(long, default_value = "10Mi")]
    pub container_log_max_size: String,
    /// How many files of a container's log are kept, at least two.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    pub container_log_max_files: u32,
    /// Seconds that pods get to end when the machine shuts down.
    #[arg(long, default_value_t = 0)]
    pub shutdown_grace_period: u64,
    /// Seconds of those that are kept for critical pods.
    #[arg(long, default_value_t = 0)]
    pub shutdown_grace_period_critical_pods: u64,
    /// Folder in which device plugins and monitors find this node; /var/lib/kubelet unless the data directory is another
    /// than the usual one.
    #[arg(long)]
    pub plugin_dir: Option<PathBuf>,
}

impl ResourceArguments {
    pub fn apply(&self, settings: &mut Settings, data: &Path) -> anyhow::Result<()> {
        settings.reserved = sum(self.system_reserved.iter().chain(&self.kube_reserved))?;
        settings.pod_pids_limit = self.pod_max_pids;
        let size = Quantity::parse(&self.container_log_max_size);
        let size = size.with_context(|| format!("{:?} is no size", self.container_log_max_size))?;
        settings.log_max_size = u64::try_from(size.value()).context("a log can't be smaller than nothing")?;
        settings.log_max_files = self.container_log_max_files;
        settings.shutdown_grace = Duration::from_secs(self.shutdown_grace_period);
        settings.shutdown_grace_critical = Duration::from_secs(self.shutdown_grace_period_critical_pods);
        settings.plugin_root = match &self.plugin_dir {
            Some(folder) => folder.clone(),
            None if data == Path::new("/var/lib/knarr") => PathBuf::from("/var/lib/kubelet"),
            None => data.join("kubelet"),
        };
        let reserved_cpu = settings.reserved.get("cpu").map(|text| Quantity::parse(text)).transpose()?;
        settings.resources = Policies {
            static_cpus: self.cpu_manager_policy == "static",
            static_memory: self.memory_manager_policy == "Static",
            topology: TopologyPolicy::parse(&self.topology_manager_policy).unwrap_or_default(),
            scope: if self.topology_manager_scope == "pod" { TopologyScope::Pod } else { TopologyScope::Container },
            reserved_cpu_milli: reserved_cpu.map_or(0, |amount| amount.milli_value()),
            reserved_cpus: self.reserved_cpus.as_deref().map(NumberSet::parse).transpose()?,
            reserved_memory: match &self.reserved_memory {
                Some(text) => parse_reserved_memory(text).with_context(|| format!("{text:?} reserves no memory"))?,
                None => BTreeMap::new(),
            },
        };
        Ok(())
    }
}

/// Amounts by resource name, those of the same name added up.
fn sum<'a>(parts: impl Iterator<Item = &'a String>) -> anyhow::Result<BTreeMap<String, String>> {
    let mut amounts: BTreeMap<String, Quantity> = BTreeMap::new();
    for part in parts {
        let Some((name, amount)) = part.split_once('=') else { bail!("{part:?} is not of the form name=amount") };
        let amount = Quantity::parse(amount).with_context(|| format!("{part:?} has no amount"))?;
        let own = amounts.entry(name.to_owned()).or_insert_with(|| Quantity::new(0, Format::BinarySi));
        *own += amount;
    }
    Ok(amounts.into_iter().map(|(name, amount)| (name, amount.to_api().0)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_amounts_add_up() {
        let parts = ["cpu=500m", "memory=1Gi", "cpu=1"].map(String::from);
        let amounts = sum(parts.iter()).unwrap();
        assert_eq!(amounts["cpu"], "1500m");
        assert_eq!(amounts["memory"], "1Gi");
        assert!(sum(["cpu".to_owned()].iter()).is_err());
    }
}
