//! Flags of node-pressure eviction.

use anyhow::{Context as _, bail};
use clap::Args;
use knarr_client::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use knarr_client::k8s_openapi::jiff::SignedDuration;
use knarr_client::quantity;
use knarr_kubelet::{Eviction, Limit, Signal, Threshold};
use std::time::Duration;

use super::leadership::duration;

#[derive(Args, Clone, Debug)]
pub struct EvictionArguments {
    /// Hard eviction thresholds, such as memory.available<100Mi,nodefs.available<10%.
    #[arg(long, value_delimiter = ',')]
    pub eviction_hard: Vec<String>,
    /// Soft eviction thresholds, such as memory.available<300Mi.
    #[arg(long, value_delimiter = ',', requires = "eviction_soft_grace_period")]
    pub eviction_soft: Vec<String>,
    /// Grace period of each threshold of --eviction-soft, such as memory.available=1m30s.
    #[arg(long, value_delimiter = ',')]
    pub eviction_soft_grace_period: Vec<String>,
    /// Maximum grace period in seconds of pods evicted by --eviction-soft.
    #[arg(long, default_value_t = 0)]
    pub eviction_max_pod_grace_period: u64,
    /// Minimum amount to reclaim beyond a threshold, such as imagefs.available=2Gi.
    #[arg(long, value_delimiter = ',')]
    pub eviction_minimum_reclaim: Vec<String>,
    /// How long a pressure condition is kept after the pressure has ended.
    #[arg(long, default_value = "5m0s", value_parser = duration)]
    pub eviction_pressure_transition_period: Duration,
}

impl EvictionArguments {
    /// The configured thresholds, or the defaults.
    pub fn eviction(&self) -> anyhow::Result<Eviction> {
        let mut eviction = Eviction {
            max_pod_grace: self.eviction_max_pod_grace_period,
            transition: SignedDuration::try_from(self.eviction_pressure_transition_period)?,
            ..Eviction::default()
        };
        if !self.eviction_hard.is_empty() {
            let hard = pairs("--eviction-hard", '<', &self.eviction_hard, "memory.available<100Mi", threshold)?;
            eviction.limits = hard.into_iter().map(|(signal, below)| limit(signal, below, None)).collect();
        }
        let graces = &self.eviction_soft_grace_period;
        let graces = pairs("--eviction-soft-grace-period", '=', graces, "memory.available=1m30s", |text| {
            duration(text).map_err(anyhow::Error::msg)
        })?;
        for (signal, below) in pairs("--eviction-soft", '<', &self.eviction_soft, "memory.available<300Mi", threshold)?
        {
            let Some((_, grace)) = graces.iter().find(|(named, _)| *named == signal) else {
                bail!("--eviction-soft has {}, which is missing in --eviction-soft-grace-period", signal.name());
            };
            eviction.limits.push(limit(signal, below, Some(*grace)));
        }
        let reclaims = &self.eviction_minimum_reclaim;
        let reclaims = pairs("--eviction-minimum-reclaim", '=', reclaims, "imagefs.available=2Gi", threshold)?;
        for limit in &mut eviction.limits {
            limit.reclaim = reclaims.iter().find(|(signal, _)| *signal == limit.signal).map(|(_, amount)| *amount);
        }
        // 0% and 100% mean no threshold.
        eviction.limits.retain(|limit| !matches!(limit.below, Threshold::Thousandths(0 | 1000)));
        Ok(eviction)
    }
}

fn limit(signal: Signal, below: Threshold, grace: Option<Duration>) -> Limit {
    Limit { signal, below, grace, reclaim: None }
}

/// Parses a flag's value per signal.
fn pairs<T>(
    flag: &str,
    sign: char,
    texts: &[String],
    form: &str,
    read: impl Fn(&str) -> anyhow::Result<T>,
) -> anyhow::Result<Vec<(Signal, T)>> {
    let one = |text: &String| {
        let wrong = || format!("{flag} is {text:?}, expected the form {form}");
        let Some((name, value)) = text.split_once(sign) else { bail!(wrong()) };
        let Some(signal) = Signal::parse(name.trim()) else {
            bail!(
                "{flag} names {:?}; there are memory.available, nodefs.available, nodefs.inodesFree, imagefs.available, \
                 imagefs.inodesFree and pid.available",
                name.trim()
            );
        };
        Ok((signal, read(value.trim()).with_context(wrong)?))
    };
    texts.iter().map(one).collect()
}

fn threshold(text: &str) -> anyhow::Result<Threshold> {
    if let Some(share) = text.strip_suffix('%') {
        let share: f64 = share.parse().context("the percentage is not a number")?;
        if !(0.0..=100.0).contains(&share) {
            bail!("a percentage must be between 0% and 100%");
        }
        // At most 1000, with a precision of 0.1 percent.
        #[allow(clippy::cast_possible_truncation)]
        return Ok(Threshold::Thousandths((share * 10.0).round() as i64));
    }
    if !text.starts_with(|first: char| first.is_ascii_digit()) {
        bail!("the quantity is not a number");
    }
    Ok(Threshold::Amount(quantity::value(&Quantity(text.to_owned()))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        eviction: EvictionArguments,
    }

    fn read(words: &[&str]) -> anyhow::Result<Eviction> {
        Line::try_parse_from(["test"].iter().chain(words))?.eviction.eviction()
    }

    #[test]
    fn thresholds_are_parsed() {
        assert_eq!(read(&[]).unwrap(), Eviction::default());
        let named =
            read(&["--eviction-hard", "memory.available<200Mi,nodefs.available<5%,imagefs.available<0%"]).unwrap();
        let expected = [
            limit(Signal::Memory, Threshold::Amount(200 << 20), None),
            limit(Signal::NodeDisk, Threshold::Thousandths(50), None),
        ];
        assert_eq!(named.limits, expected);
        for wrong in
            ["memory.available", "memory<1Gi", "nodefs.available<x%", "nodefs.available<120%", "pid.available<-"]
        {
            assert!(read(&["--eviction-hard", wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn soft_thresholds_need_a_grace_period() {
        let words = "--eviction-hard memory.available<1Mi --eviction-soft memory.available<10% \
            --eviction-soft-grace-period memory.available=1m30s --eviction-max-pod-grace-period 40 \
            --eviction-minimum-reclaim memory.available=64Mi --eviction-pressure-transition-period 30s";
        let eviction = read(&words.split_whitespace().collect::<Vec<_>>()).unwrap();
        let soft = Limit {
            reclaim: Some(Threshold::Amount(64 << 20)),
            ..limit(Signal::Memory, Threshold::Thousandths(100), Some(Duration::from_secs(90)))
        };
        assert_eq!(eviction.limits[1], soft);
        assert_eq!((eviction.max_pod_grace, eviction.transition.as_secs()), (40, 30));
        for wrong in [
            "--eviction-soft memory.available<1Gi",
            "--eviction-soft memory.available<1Gi --eviction-soft-grace-period pid.available=1m",
            "--eviction-soft memory.available<1Gi --eviction-soft-grace-period memory.available=soon",
        ] {
            assert!(read(&wrong.split_whitespace().collect::<Vec<_>>()).is_err(), "{wrong}");
        }
    }
}
