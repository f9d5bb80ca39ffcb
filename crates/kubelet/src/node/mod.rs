//! The Node object and node-level tasks: registration, status, lease, eviction, log rotation and shutdown.

pub mod certificates;
mod eviction;

mod lease;
mod log_rotation;

mod object;
mod register;
mod shutdown;
pub mod startup;

pub use eviction::{watch as watch_eviction, watch_storage_limits};
pub use lease::keep_lease;
pub use log_rotation::rotate_logs;
pub use object::{allocatable, apply_devices, memory_for_pods};
pub use register::{keep_status, register};
pub use shutdown::{LOGIND_FILE, watch_shutdown};
