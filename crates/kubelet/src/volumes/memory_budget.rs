//! Limits what the volumes of one pod hold in the node's memory: secrets, tokens and the pod's own fields. A pod may mount one
//! Secret thousands of times, and no cgroup counts it. Files count before they are held, so that those still being collected count.

use std::sync::atomic::{AtomicU64, Ordering};

use super::VolumeError;

/// A Secret has at most one megabyte.
const MAX_BYTES: u64 = 64 << 20;
/// A file takes whole pages.
const PAGE: u64 = 4096;

#[derive(Default)]
pub struct MemoryBudget(AtomicU64);

impl MemoryBudget {
    /// Counts one file.
    pub fn spend(&self, size: usize) -> Result<(), VolumeError> {
        let bytes = u64::try_from(size).unwrap_or(u64::MAX).div_ceil(PAGE).max(1).saturating_mul(PAGE);
        let before = self.0.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) <= MAX_BYTES {
            return Ok(());
        }
        let limit = MAX_BYTES >> 20;
        Err(VolumeError::Path(format!("the files of the volumes of the pod have more than {limit}Mi")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_secret_mounted_many_times_does_not_fill_memory() {
        let budget = MemoryBudget::default();
        let mounted = (0..15_000).take_while(|_| budget.spend(1 << 20).is_ok()).count();
        assert_eq!(mounted, 64);
        let small = MemoryBudget::default();
        assert!((0..16_384).all(|_| small.spend(1).is_ok()));
        assert!(small.spend(1).is_err(), "small files take pages, too");
    }
}
