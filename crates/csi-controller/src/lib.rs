//! The controller side of CSI drivers whose socket is on a node: what external-provisioner, external-resizer,
//! external-attacher and external-snapshotter do for drivers that bring them.
//!
//! In: an API client, the node's name and the kubelet's plugin directory. Out: calls to the drivers, and PersistentVolumes,
//! CSIStorageCapacities, VolumeAttachments and snapshots that reflect them.
//!
//! A driver is served here only if its CSIDriver object carries the annotation [`ANNOTATION`], so that nothing is done twice
//! beside a driver's own sidecars. A driver with topology is served on each of its nodes, for the volumes of that node; any
//! other by one node at a time, which holds a Lease. Start reading at [`serve`].

mod attach;
mod capacity;
mod claim;
mod delete;
mod driver;
mod drivers;
mod error;
mod meta;
mod modify;
mod parameters;
mod provision;
mod resize;
mod serve;
mod settings;
mod snapshot;
mod status;

pub use drivers::run;
pub use settings::Settings;

/// CSIDrivers with this annotation and the value [`BUILT_IN`] are served by the nodes they are registered on.
pub const ANNOTATION: &str = "csi.knarr.io/controller";
/// The value of [`ANNOTATION`].
pub const BUILT_IN: &str = "built-in";
