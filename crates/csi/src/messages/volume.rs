//! What several services say about volumes: capabilities, capacity, topology, condition.

use super::StringMap;

/// How a volume is accessed.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeCapability {
    #[prost(oneof = "AccessType", tags = "1, 2")]
    pub access_type: Option<AccessType>,
    #[prost(message, optional, tag = "3")]
    pub access_mode: Option<AccessMode>,
}

impl VolumeCapability {
    /// Access as a mounted filesystem.
    pub fn mount(mount: MountVolume, mode: Mode) -> Self {
        let access_mode = Some(AccessMode { mode: mode as i32 });
        Self { access_type: Some(AccessType::Mount(mount)), access_mode }
    }

    /// Access as a block device.
    pub fn block(mode: Mode) -> Self {
        let access_mode = Some(AccessMode { mode: mode as i32 });
        Self { access_type: Some(AccessType::Block(BlockVolume {})), access_mode }
    }

    /// The access mode; `Unknown` when it is missing.
    pub fn mode(&self) -> Mode {
        self.access_mode.map_or(Mode::Unknown, |access| access.mode())
    }
}

/// Block device or filesystem.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum AccessType {
    #[prost(message, tag = "1")]
    Block(BlockVolume),
    #[prost(message, tag = "2")]
    Mount(MountVolume),
}

/// The volume is used as a block device.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct BlockVolume {}

/// The volume is mounted.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MountVolume {
    #[prost(string, tag = "1")]
    pub fs_type: String,
    #[prost(string, repeated, tag = "2")]
    pub mount_flags: Vec<String>,
    /// The group that owns the files, for drivers with `VOLUME_MOUNT_GROUP`.
    #[prost(string, tag = "3")]
    pub volume_mount_group: String,
}

/// Who may access a volume at the same time.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct AccessMode {
    #[prost(enumeration = "Mode", tag = "1")]
    pub mode: i32,
}

/// The access modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Mode {
    Unknown = 0,
    SingleNodeWriter = 1,
    SingleNodeReaderOnly = 2,
    MultiNodeReaderOnly = 3,
    MultiNodeSingleWriter = 4,
    MultiNodeMultiWriter = 5,
    SingleNodeSingleWriter = 6,
    SingleNodeMultiWriter = 7,
}

/// The size of a volume; zero means unset.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct CapacityRange {
    #[prost(int64, tag = "1")]
    pub required_bytes: i64,
    #[prost(int64, tag = "2")]
    pub limit_bytes: i64,
}

/// A volume as its driver describes it.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Volume {
    #[prost(int64, tag = "1")]
    pub capacity_bytes: i64,
    #[prost(string, tag = "2")]
    pub volume_id: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub volume_context: StringMap,
    #[prost(message, optional, tag = "4")]
    pub content_source: Option<VolumeContentSource>,
    #[prost(message, repeated, tag = "5")]
    pub accessible_topology: Vec<Topology>,
}

/// What a new volume contains.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeContentSource {
    #[prost(oneof = "ContentSource", tags = "1, 2")]
    pub kind: Option<ContentSource>,
}

impl VolumeContentSource {
    /// The content of a snapshot.
    pub fn snapshot(snapshot_id: impl Into<String>) -> Self {
        Self { kind: Some(ContentSource::Snapshot(SnapshotSource { snapshot_id: snapshot_id.into() })) }
    }

    /// The content of another volume.
    pub fn volume(volume_id: impl Into<String>) -> Self {
        Self { kind: Some(ContentSource::Volume(VolumeSource { volume_id: volume_id.into() })) }
    }
}

/// The kinds of content source.
#[derive(Clone, PartialEq, Eq, prost::Oneof)]
pub enum ContentSource {
    #[prost(message, tag = "1")]
    Snapshot(SnapshotSource),
    #[prost(message, tag = "2")]
    Volume(VolumeSource),
}

/// A snapshot as content source.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct SnapshotSource {
    #[prost(string, tag = "1")]
    pub snapshot_id: String,
}

/// A volume as content source.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeSource {
    #[prost(string, tag = "1")]
    pub volume_id: String,
}

/// Where a volume must be accessible, and where it had best be.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct TopologyRequirement {
    #[prost(message, repeated, tag = "1")]
    pub requisite: Vec<Topology>,
    #[prost(message, repeated, tag = "2")]
    pub preferred: Vec<Topology>,
}

/// A place, as keys and values.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Topology {
    #[prost(btree_map = "string, string", tag = "1")]
    pub segments: StringMap,
}

/// The health of a volume.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct VolumeCondition {
    #[prost(bool, tag = "1")]
    pub abnormal: bool,
    #[prost(string, tag = "2")]
    pub message: String,
}
