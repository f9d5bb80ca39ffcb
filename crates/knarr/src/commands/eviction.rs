//! When a node ends pods before it runs out of something itself.

use anyhow::{Context as _, bail};
use clap::Args;
use knarr_client::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::quantity;
use knarr_kubelet::{Threshold, Thresholds};

#[derive(Args, Clone, Debug, Default)]
pub struct EvictionArguments {
    /// Below what pods are ended, such as memory.available<100Mi,nodefs.available<10%; what is not named has no limit.
    #[arg(long, value_delimiter = ',')]
    pub eviction_hard: Vec<String>,
}

impl EvictionArguments {
    /// The limits that were named, or the usual ones when none was.
    pub fn thresholds(&self) -> anyhow::Result<Thresholds> {
        let usual = Thresholds::default();
        if self.eviction_hard.is_empty() {
            return Ok(usual);
        }
        let none = Threshold::Bytes(0);
        let mut limits = Thresholds {
            memory_available: none,
            nodefs_available: none,
            nodefs_inodes_free: none,
            imagefs_available: none,
            processes_available: none,
            transition: usual.transition,
        };
        for text in &self.eviction_hard {
            let wrong = || format!("--eviction-hard is {text:?}, which is not of the form memory.available<100Mi");
            let Some((signal, amount)) = text.split_once('<') else { bail!(wrong()) };
            let limit = match signal.trim() {
                "memory.available" => &mut limits.memory_available,
                "nodefs.available" => &mut limits.nodefs_available,
                "nodefs.inodesFree" => &mut limits.nodefs_inodes_free,
                "imagefs.available" => &mut limits.imagefs_available,
                "pid.available" => &mut limits.processes_available,
                other => bail!(
                    "--eviction-hard names {other:?}; there are memory.available, nodefs.available, nodefs.inodesFree, \
                     imagefs.available and pid.available"
                ),
            };
            *limit = threshold(amount.trim()).with_context(wrong)?;
        }
        Ok(limits)
    }
}

fn threshold(text: &str) -> anyhow::Result<Threshold> {
    if let Some(share) = text.strip_suffix('%') {
        let share: f64 = share.parse().context("the share is no number")?;
        if !(0.0..=100.0).contains(&share) {
            bail!("a share is between 0% and 100%");
        }
        // At most a thousand, and exact to a tenth of a percent.
        #[allow(clippy::cast_possible_truncation)]
        return Ok(Threshold::Thousandths((share * 10.0).round() as i64));
    }
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        bail!("the amount is no number");
    }
    Ok(Threshold::Bytes(quantity::value(&Quantity(text.to_owned()))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read() {
        let read = |texts: &[&str]| {
            EvictionArguments { eviction_hard: texts.iter().map(ToString::to_string).collect() }.thresholds()
        };
        assert_eq!(read(&[]).unwrap(), Thresholds::default());
        let named = read(&["memory.available<200Mi", "nodefs.available<5%"]).unwrap();
        assert_eq!(named.memory_available, Threshold::Bytes(200 << 20));
        assert_eq!(named.nodefs_available, Threshold::Thousandths(50));
        assert_eq!(named.imagefs_available, Threshold::Bytes(0));
        for wrong in
            ["memory.available", "memory<1Gi", "nodefs.available<x%", "nodefs.available<120%", "pid.available<-"]
        {
            assert!(read(&[wrong]).is_err(), "{wrong}");
        }
    }
}
