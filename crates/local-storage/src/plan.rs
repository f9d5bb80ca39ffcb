//! Decisions without effects: whether a request is complete, which kind of volume, how large, which page of a list.

use knarr_csi::messages::{
    AccessType, CapacityRange, Mode, StringMap, Topology, TopologyRequirement, VolumeCapability,
};

use crate::TOPOLOGY_KEY;
use crate::error::Error;
use crate::record::Kind;

const MIB: u64 = 1 << 20;
/// A filesystem with a journal needs about this much.
pub const MINIMUM_BYTES: u64 = 16 * MIB;
/// ext4 with blocks of 4 KiB.
pub const MAXIMUM_BYTES: u64 = 16 << 40;
/// The size of volumes whose request names none.
const DEFAULT_BYTES: u64 = 1 << 30;
/// The StorageClass parameter that allows volumes without a limit.
pub const SIZE_LIMIT: &str = "sizeLimit";

/// What the node can do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// Loop devices can be attached.
    pub loop_devices: bool,
    /// Filesystems whose programs are installed.
    pub filesystems: Vec<String>,
}

/// The kind of a new volume.
pub fn kind(capabilities: &[VolumeCapability], parameters: &StringMap, abilities: &Abilities) -> Result<Kind, Error> {
    let without_limit = limit_parameter(parameters)?;
    supported(capabilities)?;
    let block = capabilities.iter().any(|one| matches!(one.access_type, Some(AccessType::Block(_))));
    let mounts = capabilities.iter().filter_map(|one| match &one.access_type {
        Some(AccessType::Mount(mount)) => Some(mount.fs_type.as_str()),
        _ => None,
    });
    let mut fs_types: Vec<&str> = mounts.filter(|fs_type| !fs_type.is_empty()).collect();
    fs_types.dedup();
    if block && capabilities.iter().any(|one| matches!(one.access_type, Some(AccessType::Mount(_)))) {
        return Err(Error::Invalid("a volume is either mounted or a block device".into()));
    }
    if without_limit {
        return match (block, fs_types.is_empty()) {
            (false, true) => Ok(Kind::Directory),
            _ => Err(Error::Invalid(format!(
                "{SIZE_LIMIT}: none is for volumes without fsType and not for block devices"
            ))),
        };
    }
    if !abilities.loop_devices {
        return Err(Error::Precondition(format!(
            "this node has no loop devices and cannot enforce the size of volumes; a StorageClass with the parameter \
             {SIZE_LIMIT}: none creates volumes without a limit"
        )));
    }
    if block {
        return Ok(Kind::Block);
    }
    match fs_types.as_slice() {
        [] => filesystem("ext4", abilities),
        [one] => filesystem(one, abilities),
        _ => Err(Error::Invalid("the capabilities name several filesystems".into())),
    }
}

fn filesystem(fs_type: &str, abilities: &Abilities) -> Result<Kind, Error> {
    if !["ext4", "xfs"].contains(&fs_type) {
        return Err(Error::Invalid(format!("the filesystem {fs_type} is not supported: ext4 and xfs are")));
    }
    if !abilities.filesystems.iter().any(|known| known == fs_type) {
        return Err(Error::Precondition(format!("mkfs.{fs_type} is not installed on this node")));
    }
    Ok(Kind::Filesystem { fs_type: fs_type.to_string() })
}

/// Whether the class allows volumes without a limit. Unknown parameters are errors: a misspelt one would be ignored.
fn limit_parameter(parameters: &StringMap) -> Result<bool, Error> {
    let mut without_limit = false;
    for (key, value) in parameters {
        match (key.as_str(), value.as_str()) {
            (SIZE_LIMIT, "enforced") => {}
            (SIZE_LIMIT, "none") => without_limit = true,
            (SIZE_LIMIT, _) => {
                return Err(Error::Invalid(format!(
                    "the parameter {SIZE_LIMIT} must be enforced or none, not {value}"
                )));
            }
            // Added by provisioners: the names of claim and volume.
            (key, _) if key.starts_with("csi.storage.k8s.io/") => {}
            (key, _) => return Err(Error::Invalid(format!("the parameter {key} is unknown"))),
        }
    }
    Ok(without_limit)
}

/// Checks capabilities by themselves.
pub fn supported(capabilities: &[VolumeCapability]) -> Result<(), Error> {
    if capabilities.is_empty() {
        return Err(Error::Invalid("volume capabilities are missing".into()));
    }
    for capability in capabilities {
        if capability.access_type.is_none() {
            return Err(Error::Invalid("a volume capability lacks its access type".into()));
        }
        match capability.mode() {
            Mode::Unknown => return Err(Error::Invalid("a volume capability lacks its access mode".into())),
            Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => {
                return Err(Error::Invalid("a local volume is accessible on one node only".into()));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Why a volume of this kind cannot be accessed in this way, if so.
pub fn mismatch(kind: &Kind, capability: &VolumeCapability) -> Option<String> {
    match (&capability.access_type, kind) {
        (Some(AccessType::Block(_)), Kind::Block) => None,
        (Some(AccessType::Block(_)), _) => Some("the volume has a filesystem and is no block device".into()),
        (Some(AccessType::Mount(_)), Kind::Block) => Some("the volume is a block device and has no filesystem".into()),
        (Some(AccessType::Mount(mount)), Kind::Filesystem { fs_type }) => {
            let other = !mount.fs_type.is_empty() && mount.fs_type != *fs_type;
            other.then(|| format!("the filesystem of the volume is {fs_type}, not {}", mount.fs_type))
        }
        (Some(AccessType::Mount(_)), Kind::Directory) => None,
        (None, _) => Some("the access type is missing".into()),
    }
}

/// The size of a volume for a range, at least `minimum`: whole MiB where the limit allows.
pub fn size(range: Option<&CapacityRange>, minimum: u64) -> Result<u64, Error> {
    let positive =
        |value: i64, name: &str| u64::try_from(value).map_err(|_| Error::Range(format!("{name} is negative")));
    let required = range.map_or(Ok(0), |range| positive(range.required_bytes, "required_bytes"))?;
    let limit = range.map_or(Ok(0), |range| positive(range.limit_bytes, "limit_bytes"))?;
    let limit = if limit == 0 { MAXIMUM_BYTES } else { limit.min(MAXIMUM_BYTES) };
    let least = required.max(minimum).max(MINIMUM_BYTES);
    if least > limit {
        return Err(Error::Range(format!(
            "a volume of at least {least} bytes is larger than the limit of {limit} bytes"
        )));
    }
    let desired = if required == 0 { least.max(DEFAULT_BYTES).min(limit).max(least) } else { least };
    let rounded = desired.next_multiple_of(MIB);
    if rounded <= limit {
        return Ok(rounded);
    }
    // Filesystem blocks are the smallest unit.
    let rounded = desired.next_multiple_of(4096);
    if rounded <= limit {
        Ok(rounded)
    } else {
        Err(Error::Range(format!("no size fits between {least} and {limit} bytes")))
    }
}

/// Whether a volume of this size fits a range.
pub fn fits(bytes: u64, range: Option<&CapacityRange>) -> bool {
    let Some(range) = range else { return true };
    let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
    bytes >= range.required_bytes && (range.limit_bytes == 0 || bytes <= range.limit_bytes)
}

/// Whether a node is among the places that a volume may be at.
pub fn accessible(requirement: Option<&TopologyRequirement>, node: &str) -> bool {
    match requirement {
        Some(requirement) if !requirement.requisite.is_empty() => {
            requirement.requisite.iter().any(|topology| is_here(topology, node))
        }
        Some(requirement) if !requirement.preferred.is_empty() => {
            requirement.preferred.iter().any(|topology| is_here(topology, node))
        }
        _ => true,
    }
}

/// Whether a place is this node, or says nothing of nodes.
pub fn is_here(topology: &Topology, node: &str) -> bool {
    topology.segments.get(TOPOLOGY_KEY).is_none_or(|value| value == node)
}

/// One page of a list that is sorted by ID: the token is the ID of the last entry before it.
pub fn page<'a, T>(
    all: impl Iterator<Item = &'a T>,
    id: impl Fn(&T) -> &str,
    token: &str,
    max_entries: i32,
) -> Result<(Vec<&'a T>, String), Error> {
    let max = usize::try_from(max_entries).map_err(|_| Error::Invalid("max_entries is negative".into()))?;
    if !token.is_empty() && !crate::record::is_id(token) {
        return Err(Error::Token(token.to_string()));
    }
    let mut rest: Vec<&T> = all.filter(|one| id(one) > token).collect();
    let more = max > 0 && rest.len() > max;
    if more {
        rest.truncate(max);
    }
    let next = if more { rest.last().map_or_else(String::new, |last| id(last).to_string()) } else { String::new() };
    Ok((rest, next))
}

/// An error if a required field is empty.
pub(crate) fn present(value: &str, field: &str) -> Result<(), Error> {
    if value.is_empty() { Err(Error::Invalid(format!("{field} is missing"))) } else { Ok(()) }
}

/// CSI counts bytes in signed numbers.
pub(crate) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
