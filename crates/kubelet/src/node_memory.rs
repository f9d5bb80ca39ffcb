//! The node's memory, as far as it decides what containers may use.

/// What containers may use of the node's memory and swap.
#[derive(Clone, Copy, Debug, Default)]
pub struct NodeMemory {
    /// Bytes.
    pub capacity: u64,
    /// Whether cgroups are those of version 2.
    pub unified: bool,
    /// Whether an out-of-memory kill ends a single process.
    pub single_process_oom_kill: bool,
    /// Whether the kernel limits swap per cgroup.
    pub limits_swap: bool,
    /// Bytes of swap that burstable containers may share; none without LimitedSwap.
    pub swap: Option<u64>,
}
