//! Imports a directory of image archives that every start of the node must have.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::{ImportError, import};
use crate::client::Runtime;

/// The record of imported archives, one per line: file, size, modification time, and the image names.
const RECORD: &str = ".loaded";

/// Imports every `.tar` of a directory that is new, has changed, or whose images the runtime has lost, in the order of
/// their names. A failure does not stop the others. A missing directory counts as empty.
pub async fn import_directory(runtime: &Runtime, directory: &Path) -> Result<(), ImportError> {
    let present = match archives(directory) {
        Ok(present) => present,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(ImportError::Directory { directory: directory.to_path_buf(), source }),
    };
    let record = directory.join(RECORD);
    let mut known = read_record(&std::fs::read_to_string(&record).unwrap_or_default());
    let pinned = runtime.pinned_images().await?;
    let due = outstanding(&present, &known, &pinned);
    known.retain(|archive, _| present.contains(archive));
    for archive in due {
        match import(runtime.socket(), &directory.join(&archive.file)).await {
            Ok(names) => {
                known.insert(archive, names);
                std::fs::write(&record, write_record(&known))
                    .map_err(|source| ImportError::Directory { directory: directory.to_path_buf(), source })?;
            }
            Err(error) => tracing::error!(%error, archive = archive.file, "an image archive can't be imported"),
        }
    }
    Ok(())
}

/// One state of one file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Archive {
    file: String,
    size: u64,
    changed: u128,
}

type Record = BTreeMap<Archive, Vec<String>>;

fn archives(directory: &Path) -> std::io::Result<Vec<Archive>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if PathBuf::from(entry.file_name()).extension().is_none_or(|extension| extension != "tar") {
            continue;
        }
        // Follows symbolic links.
        let metadata = std::fs::metadata(entry.path())?;
        let changed = metadata.modified()?.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        found.push(Archive { file: entry.file_name().to_string_lossy().into_owned(), size: metadata.len(), changed });
    }
    found.sort();
    Ok(found)
}

/// The archives to import.
fn outstanding(present: &[Archive], known: &Record, pinned: &HashSet<String>) -> Vec<Archive> {
    let is_there = |names: &Vec<String>| names.iter().all(|name| pinned.contains(name));
    present.iter().filter(|archive| !known.get(archive).is_some_and(is_there)).cloned().collect()
}

fn read_record(text: &str) -> Record {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.split('\t');
            let file = fields.next()?.to_owned();
            let (size, changed) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
            Some((Archive { file, size, changed }, fields.map(str::to_owned).collect()))
        })
        .collect()
}

fn write_record(record: &Record) -> String {
    let line = |(archive, names): (&Archive, &Vec<String>)| {
        let names: String = names.iter().map(|name| format!("\t{name}")).collect();
        format!("{}\t{}\t{}{names}\n", archive.file, archive.size, archive.changed)
    };
    record.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn archives_are_imported_once_until_they_change_or_are_lost() {
        let archive = |file: &str, size| Archive { file: file.to_owned(), size, changed: 5 };
        let known = Record::from([
            (archive("a b.tar", 1), vec!["localhost/a:1".to_owned(), "localhost/a:2".to_owned()]),
            (archive("c.tar", 1), vec!["localhost/c:1".to_owned()]),
        ]);
        assert_eq!(read_record(&write_record(&known)), known);
        let both = ["localhost/a:1", "localhost/a:2", "localhost/c:1"];
        for (title, present, pinned, expected) in [
            ("nothing new", vec![archive("a b.tar", 1), archive("c.tar", 1)], &both[..], vec![]),
            ("one lost", vec![archive("a b.tar", 1), archive("c.tar", 1)], &both[1..], vec![archive("a b.tar", 1)]),
            ("one changed", vec![archive("a b.tar", 1), archive("c.tar", 2)], &both[..], vec![archive("c.tar", 2)]),
            ("one new", vec![archive("d.tar", 1)], &both[..], vec![archive("d.tar", 1)]),
        ] {
            let pinned = pinned.iter().map(ToString::to_string).collect();
            assert_eq!(outstanding(&present, &known, &pinned), expected, "{title}");
        }
    }

    #[test]
    fn only_archives_count() {
        let directory = tempfile::tempdir().expect("a directory");
        for name in ["b.tar", "a.tar", "notes.txt", RECORD] {
            std::fs::write(directory.path().join(name), name).expect("a file");
        }
        let files: Vec<String> = archives(directory.path()).expect("a list").into_iter().map(|one| one.file).collect();
        assert_eq!(files, ["a.tar", "b.tar"]);
    }
}
