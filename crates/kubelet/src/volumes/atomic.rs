//! Writes the files of a volume atomically: readers see either all old files or all new ones.
//!
//! ```text
//! volume/..2026_11_15_04_30_00.123456/name   the files themselves
//! volume/..data -> ..2026_11_15_04_30_00.123456   swapped by one rename
//! volume/name   -> ..data/name
//! ```

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};

use super::VolumeError;
use crate::private;

const DATA: &str = "..data";

/// One file: its bytes and mode, and the user it belongs to if not root.
#[derive(Clone, PartialEq, Eq)]
pub struct File {
    pub content: Vec<u8>,
    pub mode: u32,
    pub owner: Option<u32>,
}

/// Names are paths within the volume. The API allows no `..` in them, and a name that has one is rejected.
pub fn write(
    volume: &Path,
    files: &BTreeMap<String, File>,
    group: Option<i64>,
    in_memory: bool,
) -> Result<(), VolumeError> {
    if let Some(name) = files.keys().find(|name| Path::new(name).components().any(is_unsafe)) {
        return Err(VolumeError::Path(format!("invalid path in volume: {name}")));
    }
    let group = group.and_then(|group| u32::try_from(group).ok());
    private::create_all(volume).map_err(VolumeError::file(volume))?;
    // In memory it has the mode of a separate tmpfs.
    let mode = 0o777 | if group.is_some() { 0o2000 } else { 0 } | if in_memory { 0o1000 } else { 0 };
    if let Some(group) = group {
        lchown(volume, None, Some(group)).map_err(VolumeError::file(volume))?;
    }
    std::fs::set_permissions(volume, std::fs::Permissions::from_mode(mode)).map_err(VolumeError::file(volume))?;
    let old = current(volume);
    if let Some(old) = &old
        && holds(&volume.join(old), files)
    {
        return link_names(volume, files);
    }
    let new = format!("..{}", k8s_openapi::jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S.%f"));
    let directory = volume.join(&new);
    create_directory(&directory, group)?;
    for (name, file) in files {
        write_file(&directory, name, file, group)?;
    }
    let next = volume.join("..data_tmp");
    remove_if_there(&next)?;
    symlink(&new, &next).map_err(VolumeError::file(&next))?;
    std::fs::rename(&next, volume.join(DATA)).map_err(VolumeError::file(&next))?;
    link_names(volume, files)?;
    remove_other_names(volume, files)?;
    if let Some(old) = old {
        let old = volume.join(old);
        std::fs::remove_dir_all(&old).map_err(VolumeError::file(&old))?;
    }
    Ok(())
}

/// The directory with the current files. A link to anything else is not ours, and its target is neither compared nor
/// removed.
fn current(volume: &Path) -> Option<PathBuf> {
    let target = std::fs::read_link(volume.join(DATA)).ok()?;
    let name = target.to_str().filter(|name| name.starts_with("..") && name.len() > 2 && !name.contains('/'))?;
    let is_directory = std::fs::symlink_metadata(volume.join(name)).is_ok_and(|metadata| metadata.is_dir());
    is_directory.then(|| PathBuf::from(name))
}

fn is_unsafe(part: std::path::Component<'_>) -> bool {
    !matches!(part, std::path::Component::Normal(_) | std::path::Component::CurDir)
}

fn create_directory(directory: &Path, group: Option<u32>) -> Result<(), VolumeError> {
    std::fs::create_dir_all(directory).map_err(VolumeError::file(directory))?;
    let mode = if group.is_some() { 0o2755 } else { 0o755 };
    if let Some(group) = group {
        lchown(directory, None, Some(group)).map_err(VolumeError::file(directory))?;
    }
    std::fs::set_permissions(directory, std::fs::Permissions::from_mode(mode)).map_err(VolumeError::file(directory))
}

fn write_file(directory: &Path, name: &str, file: &File, group: Option<u32>) -> Result<(), VolumeError> {
    let path = directory.join(name);
    let mut parent = directory.to_path_buf();
    for part in Path::new(name).parent().into_iter().flat_map(Path::iter) {
        parent.push(part);
        if !parent.is_dir() {
            create_directory(&parent, group)?;
        }
    }
    std::fs::write(&path, &file.content).map_err(VolumeError::file(&path))?;
    if file.owner.is_some() || group.is_some() {
        lchown(&path, file.owner, group).map_err(VolumeError::file(&path))?;
    }
    // The group must be able to read the file.
    let mode = if group.is_some() { file.mode | 0o440 } else { file.mode };
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).map_err(VolumeError::file(&path))
}

/// Whether the volume already has exactly these files.
fn holds(directory: &Path, files: &BTreeMap<String, File>) -> bool {
    let mut found = Vec::new();
    if list(directory, Path::new(""), &mut found).is_err() || found.len() != files.len() {
        return false;
    }
    files.iter().all(|(name, file)| {
        let path = directory.join(name);
        let same_owner = |owner: u32| std::fs::metadata(&path).is_ok_and(|metadata| metadata.uid() == owner);
        std::fs::read(&path).is_ok_and(|content| content == file.content) && file.owner.is_none_or(same_owner)
    })
}

fn list(directory: &Path, below: &Path, found: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in std::fs::read_dir(directory.join(below))? {
        let entry = entry?;
        let name = below.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            list(directory, &name, found)?;
        } else {
            found.push(name);
        }
    }
    Ok(())
}

fn first_component(name: &str) -> Option<PathBuf> {
    let part = Path::new(name).components().find(|part| matches!(part, std::path::Component::Normal(_)))?;
    Some(PathBuf::from(part.as_os_str()))
}

fn link_names(volume: &Path, files: &BTreeMap<String, File>) -> Result<(), VolumeError> {
    for (name, file) in files {
        let owner = file.owner.filter(|_| !name.contains('/'));
        let Some(name) = first_component(name) else { continue };
        let link = volume.join(&name);
        let target = Path::new(DATA).join(&name);
        if std::fs::read_link(&link).is_ok_and(|known| known == target) {
            continue;
        }
        remove_if_there(&link)?;
        symlink(&target, &link).map_err(VolumeError::file(&link))?;
        if owner.is_some() {
            lchown(&link, owner, None).map_err(VolumeError::file(&link))?;
        }
    }
    Ok(())
}

fn remove_other_names(volume: &Path, files: &BTreeMap<String, File>) -> Result<(), VolumeError> {
    let desired: std::collections::HashSet<PathBuf> = files.keys().filter_map(|name| first_component(name)).collect();
    for entry in std::fs::read_dir(volume).map_err(VolumeError::file(volume))? {
        let name = PathBuf::from(entry.map_err(VolumeError::file(volume))?.file_name());
        if !name.to_string_lossy().starts_with("..") && !desired.contains(&name) {
            remove_if_there(&volume.join(name))?;
        }
    }
    Ok(())
}

fn remove_if_there(path: &Path) -> Result<(), VolumeError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(VolumeError::file(path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(list: &[(&str, &str, u32)]) -> BTreeMap<String, File> {
        list.iter()
            .map(|(name, content, mode)| {
                (name.to_string(), File { content: content.as_bytes().to_vec(), mode: *mode, owner: None })
            })
            .collect()
    }

    fn names(volume: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(volume)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .filter(|name| !name.starts_with("..2"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_change_all_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = directory.path().join("v");
        write(&volume, &files(&[("a", "1", 0o400), ("dir/b", "2", 0o644)]), None, false).expect("written");
        assert_eq!(names(&volume), ["..data", "a", "dir"]);
        assert_eq!(std::fs::read_to_string(volume.join("dir/b")).expect("readable"), "2");
        let mode = std::fs::metadata(volume.join("a")).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o400);
        let before = std::fs::read_link(volume.join(DATA)).expect("a link");
        write(&volume, &files(&[("a", "1", 0o400), ("dir/b", "2", 0o644)]), None, false).expect("written");
        assert_eq!(std::fs::read_link(volume.join(DATA)).expect("a link"), before, "nothing changed");
        write(&volume, &files(&[("a", "3", 0o400)]), None, false).expect("written");
        assert_eq!(names(&volume), ["..data", "a"]);
        assert_eq!(std::fs::read_to_string(volume.join("a")).expect("readable"), "3");
        assert!(!volume.join(before).exists(), "the old files are gone");
        assert!(write(&volume, &files(&[("../x", "", 0)]), None, false).is_err());
    }

    #[test]
    fn an_update_removes_nothing_behind_a_planted_link() {
        let directory = tempfile::tempdir().expect("a directory");
        let (volume, host) = (directory.path().join("v"), directory.path().join("host"));
        std::fs::create_dir(&host).expect("made");
        for target in [host.clone(), PathBuf::from("../host"), PathBuf::from(".."), PathBuf::from("..planted")] {
            std::fs::write(host.join("a"), "host").expect("written");
            write(&volume, &files(&[("a", "1", 0o400)]), None, false).expect("written");
            std::fs::remove_file(volume.join(DATA)).expect("removed");
            remove_if_there(&volume.join("..planted")).expect("removed");
            symlink(&host, volume.join("..planted")).expect("made");
            symlink(&target, volume.join(DATA)).expect("made");
            write(&volume, &files(&[("a", "2", 0o400)]), None, false).expect("written");
            assert_eq!(std::fs::read_to_string(host.join("a")).expect("kept"), "host", "{}", target.display());
            assert_eq!(std::fs::read_to_string(volume.join("a")).expect("written"), "2", "{}", target.display());
        }
    }
}
