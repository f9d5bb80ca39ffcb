//! Below what a node ends pods: which signals there are, and the limits set for them.

use std::time::Duration;

use k8s_openapi::jiff::SignedDuration;

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    Memory,
    /// What the pods together may still take of the memory that is theirs.
    AllocatableMemory,
    NodeDisk,
    NodeInodes,
    ImageDisk,
    ImageInodes,
    Processes,
}

impl Signal {
    /// In the order in which pods are ended for them.
    pub const ALL: [Self; 7] = [
        Self::Memory,
        Self::AllocatableMemory,
        Self::NodeDisk,
        Self::ImageDisk,
        Self::NodeInodes,
        Self::ImageInodes,
        Self::Processes,
    ];

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

    /// The signal of that name, among those an operator may set limits for.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.name() == name && *signal != Self::AllocatableMemory)
    }

    /// What is short when the signal is low.
    pub fn resource(self) -> &'static str {
        match self {
            Self::Memory | Self::AllocatableMemory => "memory",
            Self::NodeDisk | Self::ImageDisk => "ephemeral-storage",
            Self::NodeInodes | Self::ImageInodes => "inodes",
            Self::Processes => "pids",
        }
    }

    pub fn is_disk(self) -> bool {
        matches!(self, Self::NodeDisk | Self::NodeInodes | Self::ImageDisk | Self::ImageInodes)
    }
}

/// An amount of its own, or a share of the whole in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threshold {
    Amount(i64),
    Thousandths(i64),
}

impl Threshold {
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

/// Pods are ended when a signal is below `below`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub signal: Signal,
    pub below: Threshold,
    /// How long it must be below; none where pods are ended at once and get no time of their own.
    pub grace: Option<Duration>,
    /// How much more there must be than the limit before it is enough.
    pub reclaim: Option<Threshold>,
}

/// When pods are ended for the node's sake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Eviction {
    pub limits: Vec<Limit>,
    /// The most seconds a pod gets that is ended for a limit with a grace period.
    pub max_pod_grace: u64,
    /// How long a condition stays after its cause has gone, so that it does not flicker.
    pub transition: SignedDuration,
}

impl Default for Eviction {
    fn default() -> Self {
        let hard = |(signal, below)| Limit { signal, below, grace: None, reclaim: None };
        let usual = [
            (Signal::Memory, Threshold::Amount(100 << 20)),
            (Signal::NodeDisk, Threshold::Thousandths(100)),
            (Signal::NodeInodes, Threshold::Thousandths(50)),
            (Signal::ImageDisk, Threshold::Thousandths(150)),
            (Signal::ImageInodes, Threshold::Thousandths(50)),
        ];
        Self {
            limits: usual.into_iter().map(hard).collect(),
            max_pod_grace: 0,
            transition: SignedDuration::from_mins(5),
        }
    }
}

impl Eviction {
    /// How much of `whole` is always kept free of pods.
    pub fn kept(&self, signal: Signal, whole: i64) -> i64 {
        let hard = self.limits.iter().find(|limit| limit.signal == signal && limit.grace.is_none());
        hard.map_or(0, |limit| limit.below.amount(whole))
    }

    /// All limits that hold: what is kept free on the machine is also kept free of what the pods may take together.
    pub fn all(&self) -> Vec<Limit> {
        let memory = self.limits.iter().filter(|limit| limit.signal == Signal::Memory && limit.grace.is_none());
        let of_pods = memory.map(|limit| Limit { signal: Signal::AllocatableMemory, ..*limit });
        self.limits.iter().copied().chain(of_pods).collect()
    }
}
