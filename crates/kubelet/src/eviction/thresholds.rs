//! Eviction signals and the limits configured for them.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;

/// A measured resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    Memory,
    /// Memory that all pods together may still use of what is allocatable.
    AllocatableMemory,
    NodeDisk,
    NodeInodes,
    ImageDisk,
    ImageInodes,
    Processes,
}

impl Signal {
    /// In the order in which pods are evicted for them.
    pub const ALL: [Self; 7] = [
        Self::Memory,
        Self::AllocatableMemory,
        Self::NodeDisk,
        Self::ImageDisk,
        Self::NodeInodes,
        Self::ImageInodes,
        Self::Processes,
    ];

    /// The signal's name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory.available",
            Self::AllocatableMemory => "allocatableMemory.available",
            Self::NodeDisk => "nodefs.available",
            Self::NodeInodes => "nodefs.inodesFree",
            Self::ImageDisk => "imagefs.available",
            Self::ImageInodes => "imagefs.inodesFree",
            Self::Processes => "pid.available",
        }
    }

    /// The signal of that name, if operators may configure it.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.name() == name && *signal != Self::AllocatableMemory)
    }

    /// The resource that is short when the signal is low.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory | Self::AllocatableMemory => "memory",
            Self::NodeDisk | Self::ImageDisk => "ephemeral-storage",
            Self::NodeInodes | Self::ImageInodes => "inodes",
            Self::Processes => "pids",
        }
    }

    /// Whether the signal is about disk space or inodes.
    pub fn is_disk(self) -> bool {
        matches!(self, Self::NodeDisk | Self::NodeInodes | Self::ImageDisk | Self::ImageInodes)
    }
}

/// An absolute amount, or a share of the capacity in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    Amount(i64),
    Thousandths(i64),
}

impl Threshold {
    /// The absolute amount for a capacity of `whole`.
    pub fn amount(self, whole: i64) -> i64 {
        match self {
            Self::Amount(amount) => amount,
            Self::Thousandths(share) => i64::try_from(i128::from(whole) * i128::from(share) / 1000).unwrap_or(i64::MAX),
        }
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Amount(amount) => out.write_str(&super::bytes(*amount)),
            Self::Thousandths(share) => write!(out, "{}%", *share as f64 / 10.0),
        }
    }
}

/// Pods are evicted when a signal is below `below`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub signal: Signal,
    pub below: Threshold,
    /// How long the signal must be below; none for a hard limit, for which pods are evicted at once.
    pub grace: Option<Duration>,
    /// The minimum amount to reclaim beyond the limit.
    pub reclaim: Option<Threshold>,
}

/// The node's eviction configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub limits: Vec<Limit>,
    /// The maximum grace period in seconds of a pod that is evicted for a soft limit.
    pub max_pod_grace: u64,
    /// How long a pressure condition stays after its cause is gone, so that it does not flap.
    pub transition: SignedDuration,
}

impl Default for Eviction {
    fn default() -> Self {
        let hard = |(signal, below)| Limit { signal, below, grace: None, reclaim: None };
        let defaults = [
            (Signal::Memory, Threshold::Amount(100 << 20)),
            (Signal::NodeDisk, Threshold::Thousandths(100)),
            (Signal::NodeInodes, Threshold::Thousandths(50)),
            (Signal::ImageDisk, Threshold::Thousandths(150)),
            (Signal::ImageInodes, Threshold::Thousandths(50)),
        ];
        Self {
            limits: defaults.into_iter().map(hard).collect(),
            max_pod_grace: 0,
            transition: SignedDuration::from_mins(5),
        }
    }
}

impl Eviction {
    /// How much of `whole` a hard limit reserves.
    pub fn reserved(&self, signal: Signal, whole: i64) -> i64 {
        let hard = self.limits.iter().find(|limit| limit.signal == signal && limit.grace.is_none());
        hard.map_or(0, |limit| limit.below.amount(whole))
    }

    /// All limits in effect: the hard memory limit of the host also applies to the pods' allocatable memory.
    pub fn all(&self) -> Vec<Limit> {
        let memory = self.limits.iter().filter(|limit| limit.signal == Signal::Memory && limit.grace.is_none());
        let of_pods = memory.map(|limit| Limit { signal: Signal::AllocatableMemory, ..*limit });
        self.limits.iter().copied().chain(of_pods).collect()
    }
}
