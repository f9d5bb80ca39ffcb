//! Volumes that the host's `mount` command mounts: NFS, and local block devices, which get a file system first.

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{NFSVolumeSource, PersistentVolume};
use tokio::sync::Mutex;

use super::VolumeError;
use super::command::{Failure, Status, run};
use crate::beneath;
use crate::mount;
use crate::private;
use crate::settings::Settings;

const LOCAL: &str = "kubernetes.io~local-volume";
const DEFAULT_FILE_SYSTEM: &str = "ext4";
/// File systems that a device is formatted with: each has a program of its name.
const FILE_SYSTEMS: [&str; 5] = ["ext2", "ext3", "ext4", "xfs", "btrfs"];

/// Local devices are mounted once for all pods: one at a time looks who uses them.
static LOCAL_DEVICES: Mutex<()> = Mutex::const_new(());

/// Mounts an export at the target.
pub async fn mount_nfs(source: &NFSVolumeSource, options: &[String], target: &Path) -> Result<(), VolumeError> {
    let mut options = options.to_vec();
    if source.read_only == Some(true) {
        options.push("ro".into());
    }
    let server = match source.server.contains(':') && !source.server.starts_with('[') {
        true => format!("[{}]", source.server),
        false => source.server.clone(),
    };
    mount_with_command(&["-t", "nfs"], &options, &format!("{server}:{}", source.path), target).await
}

async fn mount_with_command(kind: &[&str], options: &[String], source: &str, target: &Path) -> Result<(), VolumeError> {
    if mount::is_mount_point(target) {
        return Ok(());
    }
    private::create_all(target).map_err(VolumeError::file(target))?;
    let mut arguments: Vec<String> = kind.iter().map(ToString::to_string).collect();
    if !options.is_empty() {
        arguments.extend(["-o".to_string(), options.join(",")]);
    }
    // Ends the options, so that no name from a pod is read as one.
    arguments.extend(["--".to_string(), source.to_string(), target.to_string_lossy().into_owned()]);
    let mounted = run("mount", &arguments).await;
    mounted.map(drop).map_err(|Failure { status, output }| {
        VolumeError::Path(format!(
            "mount failed: {status}\nMounting command: mount\nMounting arguments: {}\nOutput: {output}\n",
            arguments.join(" ")
        ))
    })
}

/// Whether a local volume is a device that needs a file system.
pub fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Mounts a local device for a pod, and formats it if it has no file system yet.
pub async fn mount_device(settings: &Settings, uid: &str, volume: &PersistentVolume) -> Result<PathBuf, VolumeError> {
    let name = volume.metadata.name.as_deref().unwrap_or_default();
    let spec = volume.spec.clone().unwrap_or_default();
    let source = spec.local.unwrap_or_default();
    let invalid = || VolumeError::Path(format!("the name {name} is not a name of a directory"));
    let global = beneath::join(&global_directory(settings), name).ok_or_else(invalid)?;
    let target = beneath::join(&settings.pod_directory(uid).join("volumes").join(LOCAL), name).ok_or_else(invalid)?;
    let _operation = LOCAL_DEVICES.lock().await;
    if !mount::is_mount_point(&global) {
        let kind = source.fs_type.as_deref().filter(|kind| !kind.is_empty()).unwrap_or(DEFAULT_FILE_SYSTEM);
        let options = spec.mount_options.unwrap_or_default();
        format_and_mount(&source.path, kind, false, &options, &global).await?;
    }
    if !mount::is_mount_point(&target) {
        private::create_all(&target).map_err(VolumeError::file(&target))?;
        mount::bind(&global, &target)?;
    }
    Ok(target)
}

/// Mounts a device at the target. One without data gets a file system, unless nothing may be written to it.
pub async fn format_and_mount(
    device: &str,
    kind: &str,
    read_only: bool,
    options: &[String],
    target: &Path,
) -> Result<(), VolumeError> {
    check_kind(kind)?;
    let mut options = options.to_vec();
    match read_only {
        true => options.push("ro".to_string()),
        false => format(device, kind).await?,
    }
    // `mount` would start a program for kinds such as `fuse.sh`, with a disk that a pod chose: only the kernel mounts.
    mount_with_command(&["-i", "-t", kind], &options, device, target).await
}

/// Refuses file systems of other kinds than those of disks, since users choose both the disk and its file system.
fn check_kind(kind: &str) -> Result<(), VolumeError> {
    match !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric()) && !kind.starts_with("fuse") {
        true => Ok(()),
        false => Err(VolumeError::Path(format!("{kind:?} is no file system of a disk"))),
    }
}

fn global_directory(settings: &Settings) -> PathBuf {
    settings.plugin_root.join("plugins/kubernetes.io/local-volume/mounts")
}

/// Creates the file system of a device without any data that is known, and checks that of another.
async fn format(device: &str, kind: &str) -> Result<(), VolumeError> {
    let failed = |program: &str, Failure { status, output }: Failure| {
        VolumeError::Path(format!("failed to format the device {device}: {program}: {status} {output}"))
    };
    let arguments = ["-p", "-s", "TYPE", "-s", "PTTYPE", "-o", "export", device].map(str::to_string);
    match run("blkid", &arguments).await {
        Ok(found) => match found.lines().find_map(|line| line.strip_prefix("TYPE=")) {
            Some(found) if found == kind => return check(device).await,
            Some(found) => {
                return Err(VolumeError::Path(format!(
                    "failed to mount the volume as \"{kind}\", it already contains {found}. Mount error: the file system \
                     differs"
                )));
            }
            None => {
                return Err(VolumeError::Path(format!(
                    "failed to mount the volume as \"{kind}\", it already contains unknown data, probably partitions"
                )));
            }
        },
        // Nothing was recognised.
        Err(failure) if failure.status == Status::Exit(2) => {}
        Err(failure) => return Err(failed("blkid", failure)),
    }
    if !FILE_SYSTEMS.contains(&kind) {
        return Err(VolumeError::Path(format!("cannot create a file system of type {kind}")));
    }
    let program = format!("mkfs.{kind}");
    let mut arguments: Vec<String> = Vec::new();
    if kind.starts_with("ext") {
        arguments.extend(["-F", "-m0"].map(str::to_string));
    }
    arguments.push(device.to_string());
    run(&program, &arguments).await.map(drop).map_err(|failure| failed(&program, failure))
}

/// Has `fsck` repair what it can without questions. Only errors that it could not correct keep a device from being mounted.
async fn check(device: &str) -> Result<(), VolumeError> {
    const UNCORRECTED: i32 = 4;
    match run("fsck", &["-a".to_string(), device.to_string()]).await {
        Err(Failure { status: Status::Exit(UNCORRECTED), output }) => Err(VolumeError::Path(format!(
            "'fsck' found errors on device {device} but could not correct them: {output}"
        ))),
        Err(Failure { status, output }) => {
            tracing::info!(%status, output, device, "fsck reported something");
            Ok(())
        }
        Ok(_) => Ok(()),
    }
}

/// Unmounts the local devices that no pod uses any more.
pub async fn unmount_unused(settings: &Settings) -> Result<(), VolumeError> {
    let global = global_directory(settings);
    if !global.exists() {
        return Ok(());
    }
    let _operation = LOCAL_DEVICES.lock().await;
    let in_use = |name: &std::ffi::OsStr| {
        let pods = settings.pod_parents().into_iter().flat_map(|parent| mount::mounts_below(&parent));
        pods.into_iter().any(|point| point.file_name() == Some(name) && point.iter().any(|part| part == LOCAL))
    };
    for point in mount::mounts_below(&global) {
        if point.file_name().is_some_and(|name| !in_use(name)) {
            mount::unmount(&point)?;
            std::fs::remove_dir(&point).map_err(VolumeError::file(&point))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_mount_that_fails_shows_its_command() {
        let directory = tempfile::tempdir().expect("a directory");
        let target = directory.path().join("t");
        let source = NFSVolumeSource { server: "-evil".into(), path: "/x".into(), read_only: Some(true) };
        // There is no server, and often not even the program.
        let error = mount_nfs(&source, &["soft".into()], &target).await.expect_err("no server").to_string();
        let expected = format!("Mounting arguments: -t nfs -o soft,ro -- -evil:/x {}", target.display());
        assert!(error.starts_with("mount failed: ") && error.contains(&expected), "{error}");
    }

    /// A kind such as `fuse.sh` makes `mount` start `sh` with the device: the disk's content would run as root.
    #[tokio::test]
    async fn no_program_is_started_for_a_kind_of_file_system() {
        let directory = tempfile::tempdir().expect("a directory");
        let target = directory.path().join("t");
        for kind in ["fuse.sh", "fuse", "fuseblk", "nfs4,exec", "../x", "-o", ""] {
            let error = format_and_mount("/dev/null", kind, true, &[], &target).await.expect_err(kind).to_string();
            assert!(error.contains("is no file system of a disk"), "{kind}: {error}");
        }
        let error = format_and_mount("/dev/null", "ext4", true, &[], &target).await.expect_err("no disk").to_string();
        assert!(error.contains("Mounting arguments: -i -t ext4 -o ro -- /dev/null "), "{error}");
    }

    #[test]
    fn only_block_devices_are_formatted() {
        assert!(!is_device(Path::new("/tmp")));
        assert!(!is_device(Path::new("/dev/null")));
        assert!(!is_device(Path::new("/nothing")));
    }
}
