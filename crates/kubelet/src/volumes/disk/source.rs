//! Reads iSCSI and Fibre Channel sources of pods and PersistentVolumes, which differ in where their secrets are.

use k8s_openapi::api::core::v1::{FCVolumeSource, ISCSIPersistentVolumeSource, PersistentVolume, Volume};
use knarr_client::disk_name;

use super::fibre_channel;
use super::host::FileSystem;
use super::iscsi::{Chap, Unit};
use super::record::Disk;
use crate::volumes::VolumeError;

const DEFAULT_FILE_SYSTEM: &str = "ext4";
const DEFAULT_INTERFACE: &str = "default";
const DEFAULT_PORT: u16 = 3260;

/// Where the names and passwords of an iSCSI target are. Without a namespace it is the pod's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretName {
    pub namespace: Option<String>,
    pub name: String,
}

/// A disk as a volume refers to it.
#[derive(Clone)]
pub struct DiskSource {
    /// The directory's name in the pod.
    pub name: String,
    /// The disk's name in the node's status.
    pub unique_name: String,
    pub(super) disk: Disk,
    pub(super) system: FileSystem,
    pub(super) chap: Chap,
    pub block: bool,
    pub secret: Option<SecretName>,
}

impl DiskSource {
    pub fn read_only(&self) -> bool {
        self.system.read_only
    }

    /// A volume that a pod names without a claim. None if it is of another kind.
    pub fn inline(volume: &Volume) -> Result<Option<Self>, VolumeError> {
        let unique_name = disk_name::of_inline(volume).as_ref().map(disk_name::unique_name).unwrap_or_default();
        if let Some(source) = &volume.fc {
            let source = fc(&volume.name, source, source.read_only == Some(true))?;
            return Ok(Some(Self { unique_name, ..source }));
        }
        let Some(source) = volume.iscsi.clone() else { return Ok(None) };
        let secret = source.secret_ref.map(|secret| SecretName { namespace: None, name: secret.name });
        let source = ISCSIPersistentVolumeSource {
            chap_auth_discovery: source.chap_auth_discovery,
            chap_auth_session: source.chap_auth_session,
            fs_type: source.fs_type,
            initiator_name: source.initiator_name,
            iqn: source.iqn,
            iscsi_interface: source.iscsi_interface,
            lun: source.lun,
            portals: source.portals,
            read_only: source.read_only,
            secret_ref: None,
            target_portal: source.target_portal,
        };
        let read_only = source.read_only == Some(true);
        Ok(Some(Self { secret, unique_name, ..iscsi(&volume.name, &source, read_only)? }))
    }

    /// None if the volume is of another kind.
    pub fn persistent(volume: &PersistentVolume, read_only: bool) -> Result<Option<Self>, VolumeError> {
        let Some(spec) = &volume.spec else { return Ok(None) };
        let name = volume.metadata.name.as_deref().unwrap_or_default();
        let source = match (&spec.iscsi, &spec.fc) {
            (Some(source), _) => iscsi(name, source, read_only || source.read_only == Some(true))?,
            (None, Some(source)) => fc(name, source, read_only || source.read_only == Some(true))?,
            (None, None) => return Ok(None),
        };
        let options = spec.mount_options.clone().unwrap_or_default();
        let block = spec.volume_mode.as_deref() == Some("Block");
        let unique_name = disk_name::of_volume(volume).as_ref().map(disk_name::unique_name).unwrap_or_default();
        Ok(Some(Self { system: FileSystem { options, ..source.system }, block, unique_name, ..source }))
    }
}

/// `iscsiadm` keeps its records in files named after portals, targets and interfaces, and checks none of the names.
fn check_names<'a>(names: impl IntoIterator<Item = &'a String>) -> Result<(), VolumeError> {
    let is_plain = |name: &str| {
        let is_character = |byte: u8| byte.is_ascii_graphic() && byte != b'/' && byte != b'\\';
        name.bytes().all(is_character) && !name.starts_with(['-', '.'])
    };
    match names.into_iter().find(|name| !is_plain(name)) {
        Some(name) => Err(VolumeError::Path(format!("iscsi: {name:?} is no portal, target or interface"))),
        None => Ok(()),
    }
}

fn iscsi(name: &str, source: &ISCSIPersistentVolumeSource, read_only: bool) -> Result<DiskSource, VolumeError> {
    let mut portals: Vec<String> = Vec::new();
    for portal in std::iter::once(&source.target_portal).chain(source.portals.iter().flatten()) {
        let portal = with_port(portal);
        if !portals.contains(&portal) {
            portals.push(portal);
        }
    }
    let base = source.iscsi_interface.clone().filter(|name| !name.is_empty());
    let base = base.unwrap_or_else(|| DEFAULT_INTERFACE.to_string());
    let initiator = source.initiator_name.clone().filter(|name| !name.is_empty());
    let (interface, clone_of) = match initiator {
        Some(initiator) => (format!("{}:{name}", portals[0]), Some((base, initiator))),
        None => (base, None),
    };
    check_names(portals.iter().chain([&source.iqn, &interface]).chain(clone_of.iter().map(|(base, _)| base)))?;
    let secret = source.secret_ref.clone().map(|secret| SecretName {
        namespace: secret.namespace.filter(|namespace| !namespace.is_empty()),
        name: secret.name.unwrap_or_default(),
    });
    let unit = Unit { portals, target: source.iqn.clone(), number: source.lun, interface, clone_of };
    let chap = Chap {
        discovery: source.chap_auth_discovery == Some(true),
        session: source.chap_auth_session == Some(true),
        ..Chap::default()
    };
    let uses_secret = chap.discovery || chap.session;
    Ok(DiskSource {
        name: name.to_string(),
        unique_name: String::new(),
        disk: Disk::Iscsi(unit),
        system: file_system(source.fs_type.as_deref(), read_only),
        chap,
        block: false,
        secret: secret.filter(|_| uses_secret),
    })
}

fn fc(name: &str, source: &FCVolumeSource, read_only: bool) -> Result<DiskSource, VolumeError> {
    let ports = source.target_wwns.clone().unwrap_or_default();
    let ids = source.wwids.clone().unwrap_or_default();
    let disk = match source.lun {
        Some(number) if !ports.is_empty() => fibre_channel::Disk::Unit { ports, number },
        // Links in /dev have no blanks.
        _ if !ids.is_empty() => {
            fibre_channel::Disk::Identifiers(ids.into_iter().map(|id| id.replace(' ', "_")).collect())
        }
        _ => {
            let text = "fc: no fc disk information found. failed to make a new mounter";
            return Err(VolumeError::Path(text.to_string()));
        }
    };
    Ok(DiskSource {
        name: name.to_string(),
        unique_name: String::new(),
        disk: Disk::FibreChannel(disk),
        system: file_system(source.fs_type.as_deref(), read_only),
        chap: Chap::default(),
        block: false,
        secret: None,
    })
}

fn file_system(kind: Option<&str>, read_only: bool) -> FileSystem {
    let kind = kind.filter(|kind| !kind.is_empty()).unwrap_or(DEFAULT_FILE_SYSTEM);
    FileSystem { kind: kind.to_string(), read_only, options: Vec::new() }
}

fn with_port(portal: &str) -> String {
    match portal.contains(':') && !portal.ends_with(']') {
        true => portal.to_string(),
        false => format!("{portal}:{DEFAULT_PORT}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Names of the API that `iscsiadm` would make paths of: `/etc/iscsi/ifaces/NAME`, `/etc/iscsi/nodes/TARGET/PORTAL`.
    #[test]
    fn names_that_are_paths_or_options_are_refused() {
        let attach = |field: &str, value: serde_json::Value| {
            let mut source = json!({ "targetPortal": "10.0.0.1", "iqn": "iqn.2001-04.com.example:disk", "lun": 0,
                "initiatorName": "iqn.1994-05.com.example:me", "portals": ["[fd00::1%eth0]:3260"] });
            source[field] = value;
            let volume: Volume = serde_json::from_value(json!({ "name": "v", "iscsi": source })).expect("a volume");
            DiskSource::inline(&volume).map(|found| found.is_some())
        };
        assert!(matches!(attach("lun", json!(1)), Ok(true)));
        for (field, value) in [
            ("targetPortal", json!("../../../tmp/x")),
            ("portals", json!(["10.0.0.2", "a/b"])),
            ("iqn", json!("iqn.2001-04.com.example:../../../../cron.d/x")),
            ("iscsiInterface", json!("../../passwd")),
            ("iscsiInterface", json!("-o")),
            ("targetPortal", json!("10.0.0.1\n")),
        ] {
            assert!(attach(field, value.clone()).is_err(), "{field} {value}");
        }
    }
}
