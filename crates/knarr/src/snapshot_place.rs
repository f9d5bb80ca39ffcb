//! Where a snapshot is: in a file of this host, or in S3-compatible storage.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use knarr_object_storage::{InvalidLocation, Location};

/// A file, or an object such as `s3://bucket/key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotPlace {
    File(PathBuf),
    Remote(Location),
}

impl FromStr for SnapshotPlace {
    type Err = InvalidLocation;

    fn from_str(text: &str) -> Result<Self, InvalidLocation> {
        match Location::is_meant_by(text) {
            true => text.parse().map(SnapshotPlace::Remote),
            false => Ok(SnapshotPlace::File(text.into())),
        }
    }
}

impl fmt::Display for SnapshotPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SnapshotPlace::File(path) => path.display().fmt(formatter),
            SnapshotPlace::Remote(location) => location.fmt(formatter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_files_or_objects() {
        assert_eq!("a/b".parse(), Ok(SnapshotPlace::File("a/b".into())));
        let remote: SnapshotPlace = "s3://bucket/a/b".parse().unwrap();
        assert_eq!(remote.to_string(), "s3://bucket/a/b");
        assert!(matches!(remote, SnapshotPlace::Remote(_)));
        assert!("s3://".parse::<SnapshotPlace>().is_err());
    }
}
