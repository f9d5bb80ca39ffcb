//! The parsers of requests, for fuzzing.

use std::path::{Component, Path};
use std::sync::LazyLock;

use crate::Store;
use crate::reference::{Digest, Name, Reference, Target};

/// A store in a directory that is removed with it.
static STORE: LazyLock<Option<(Store, tempfile::TempDir)>> = LazyLock::new(|| {
    let directory = tempfile::tempdir().ok()?;
    Some((Store::open(directory.path()).ok()?, directory))
});

/// A path, a range and a manifest, one a line. No name leads out of the store, and no range out of its blob.
pub fn request(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.splitn(3, '\n');
    let mut next = || lines.next().unwrap_or_default();
    if let Ok(target) = Target::parse(next()) {
        check(&target);
    }
    let size = 1000;
    if let Ok((first, end)) = crate::handler::parse_range(next(), size) {
        assert!(first < end && end <= size, "{first} {end}");
    }
    let (manifest, name) = (next(), Target::parse("/v2/a/tags/list"));
    if let (Some((store, _)), Ok(Target::Tags(name))) = (STORE.as_ref(), name) {
        let reference = Reference::Digest(Digest::of(manifest.as_bytes()));
        if let Ok(digest) = store.put_manifest(&name, &reference, "application/json", manifest.as_bytes()) {
            assert!(store.manifest(&name, &reference).is_ok());
            // Many inputs would fill the disk.
            assert!(store.delete_manifest(&name, &reference).is_ok() && store.delete_blob(&digest).is_ok());
            assert!(store.manifest(&name, &reference).is_err());
        }
    }
}

fn check(target: &Target) {
    let is_inside = |text: &str| Path::new(text).components().all(|part| matches!(part, Component::Normal(_)));
    let name = |name: &Name| assert!(is_inside(name.as_str()) && !name.as_str().contains("/_"), "{name:?}");
    match target {
        Target::Root | Target::Catalog => {}
        Target::Tags(of) | Target::NewUpload(of) | Target::Blob(of, _) => name(of),
        Target::Upload(of, id) => {
            name(of);
            assert!(is_inside(id) && !id.contains('/'), "{id}");
        }
        Target::Manifest(of, Reference::Tag(tag)) => {
            name(of);
            assert!(is_inside(tag.as_str()) && !tag.as_str().contains('/'), "{tag:?}");
        }
        Target::Manifest(of, Reference::Digest(_)) => name(of),
    }
}
