//! `emptyDir` volumes, on disk or in memory, which exist as long as their pod.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use k8s_openapi::api::core::v1::EmptyDirVolumeSource;
use knarr_client::quantity::value;
use nix::mount::MsFlags;

use super::VolumeError;
use crate::mount;
use crate::ownership;
use crate::private;

/// Creates the volume. `memory_limit` limits the size of a volume in memory.
pub fn create(
    path: &Path,
    source: &EmptyDirVolumeSource,
    group: Option<i64>,
    memory_limit: Option<i64>,
) -> Result<(), VolumeError> {
    if path.is_dir() && (!is_mounted_kind(source) || mount::is_mount_point(path)) {
        return Ok(());
    }
    private::create_all(path).map_err(VolumeError::file(path))?;
    let limit = source.size_limit.as_ref().map(value).filter(|limit| *limit > 0);
    match source.medium.as_deref().unwrap_or_default() {
        "Memory" => {
            let smallest = [limit, memory_limit].into_iter().flatten().min();
            let options = smallest.map_or_else(String::new, |bytes| format!("size={bytes}"));
            mount::tmpfs(path, &options, MsFlags::empty())?;
        }
        medium if medium.starts_with("HugePages") => mount::hugetlbfs(path, &page_size_option(medium)?)?,
        _ => {}
    }
    // A tmpfs has the mode of /tmp: everyone may write, and remove their own files.
    let mode = if source.medium.as_deref() == Some("Memory") { 0o1777 } else { 0o777 };
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(VolumeError::file(path))?;
    if let Some(group) = group {
        ownership::apply_group(path, group, true)?;
    }
    Ok(())
}

/// The mount option of a medium such as `HugePages-2Mi`. The size is the author's text and must not be more than one option.
fn page_size_option(medium: &str) -> Result<String, VolumeError> {
    let Some(size) = medium.strip_prefix("HugePages-") else { return Ok(String::new()) };
    if size.is_empty() || !size.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return Err(VolumeError::Path(format!("medium \"{medium}\" names no page size")));
    }
    Ok(format!("pagesize={}", size.trim_end_matches('i')))
}

fn is_mounted_kind(source: &EmptyDirVolumeSource) -> bool {
    source.medium.as_deref().is_some_and(|medium| !medium.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_medium_is_one_mount_option() {
        for (medium, expected) in [
            ("HugePages", Some("")),
            ("HugePages-2Mi", Some("pagesize=2M")),
            ("HugePages-1Gi", Some("pagesize=1G")),
            ("HugePages-2Mi,min_size=100G", None),
            ("HugePages-", None),
        ] {
            assert_eq!(page_size_option(medium).ok().as_deref(), expected, "{medium}");
        }
    }
}
