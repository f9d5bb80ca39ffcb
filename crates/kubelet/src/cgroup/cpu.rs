//! Conversion of CPU amounts to the kernel's shares and quotas.

/// The CFS period in microseconds.
pub const CPU_PERIOD: i64 = 100_000;
const MIN_SHARES: i64 = 2;
const MAX_SHARES: i64 = 262_144;
const MIN_QUOTA: i64 = 1000;

/// CPU shares for an amount in thousandths of a CPU.
pub fn cpu_shares(milli: i64) -> i64 {
    (milli * 1024 / 1000).clamp(MIN_SHARES, MAX_SHARES)
}

/// CPU quota in microseconds per period.
pub fn cpu_quota(milli: i64) -> i64 {
    if milli <= 0 { 0 } else { (milli * CPU_PERIOD / 1000).max(MIN_QUOTA) }
}
