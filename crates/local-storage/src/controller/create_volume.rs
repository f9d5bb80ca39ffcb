//! CreateVolume: an empty volume, or a copy of a volume or snapshot.

use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use knarr_csi::messages::*;

use crate::driver::Driver;
use crate::error::Error;
use crate::plan::{self, present};
use crate::record::{self, Kind, Snapshot, Source, Volume};
use crate::store::{DATA, IMAGE};
use crate::{copy, filesystem};

/// The content of a new volume.
enum Content {
    Empty,
    Of(Volume),
    Was(Snapshot),
}

impl Content {
    fn kind(&self) -> Option<&Kind> {
        match self {
            Self::Empty => None,
            Self::Of(volume) => Some(&volume.kind),
            Self::Was(snapshot) => Some(&snapshot.kind),
        }
    }

    fn bytes(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Of(volume) => volume.bytes,
            Self::Was(snapshot) => snapshot.bytes,
        }
    }
}

impl Driver {
    pub(super) fn create_volume(&self, request: &CreateVolumeRequest) -> Result<Volume, Error> {
        present(&request.name, "the name")?;
        let kind = plan::kind(&request.volume_capabilities, &request.parameters, &self.abilities)?;
        let source = source(request.volume_content_source.as_ref())?;
        if !plan::accessible(request.accessibility_requirements.as_ref(), &self.settings.node) {
            let node = &self.settings.node;
            return Err(Error::Exhausted(format!("volumes of node {node} are not accessible where it is required")));
        }
        let range = request.capacity_range.as_ref();
        let _name = self.lock(&format!("the volume name {}", request.name))?;
        if let Some(found) = self.state.lock().volumes.named(&request.name) {
            return same_volume(found, request, source.as_ref()).map(|()| found.clone());
        }
        let _source = source.as_ref().map(|source| self.lock(source_id(source))).transpose()?;
        let content = self.content(source.as_ref())?;
        let kind = kind_with_content(kind, &content, &request.volume_capabilities)?;
        let bytes = match kind {
            Kind::Directory => 0,
            _ => plan::size(range, content.bytes())?,
        };
        let _reserved = self.reserve(bytes)?;
        let id = record::random_id();
        let mut volume = Volume { id: id.clone(), name: request.name.clone(), bytes, kind, source, grow: false };
        let built = self.layout.new_directory(&id).and_then(|directory| {
            volume.grow = self.build(&volume, &content, &directory)?;
            record::write(&directory, &volume)?;
            self.layout.finish(&id, &self.layout.volumes())
        });
        if let Err(error) = built {
            self.layout.abandon(&id);
            return Err(error);
        }
        self.state.lock().volumes.insert(volume.clone());
        tracing::info!(volume = id, name = volume.name, bytes, "created a local volume");
        Ok(volume)
    }

    fn content(&self, source: Option<&Source>) -> Result<Content, Error> {
        match source {
            None => Ok(Content::Empty),
            Some(Source::Volume(id)) => self.volume(id).map(Content::Of),
            Some(Source::Snapshot(id)) => self.snapshot(id).map(Content::Was),
        }
    }

    /// Returns whether the filesystem still has to grow to the size of its image.
    fn build(&self, volume: &Volume, content: &Content, directory: &Path) -> Result<bool, Error> {
        let (image, data) = (directory.join(IMAGE), directory.join(DATA));
        match (&volume.kind, content) {
            (Kind::Directory, Content::Empty) => {
                DirBuilder::new().mode(0o755).create(&data).map_err(Error::file("create", &data))?;
            }
            (_, Content::Of(other)) => self.copy(other, directory)?,
            (_, Content::Was(snapshot)) => {
                let from = self.layout.snapshots().join(&snapshot.id);
                match snapshot.kind {
                    Kind::Directory => copy::directory(&from.join(DATA), &data)?,
                    _ => copy::image(&from.join(IMAGE), &image).map(drop)?,
                }
            }
            (_, Content::Empty) => File::create(&image).map(drop).map_err(Error::file("create", &image))?,
        }
        if volume.kind == Kind::Directory {
            return Ok(false);
        }
        let file = File::options().write(true).open(&image).map_err(Error::file("open", &image))?;
        file.set_len(volume.bytes).map_err(Error::file("resize", &image))?;
        let mut grow = false;
        if let Kind::Filesystem { fs_type } = &volume.kind {
            match content {
                Content::Empty => filesystem::create(fs_type, &image)?,
                _ if volume.bytes > content.bytes() => grow = !filesystem::grow_unmounted(fs_type, &image)?,
                _ => {}
            }
        }
        file.sync_all().map_err(Error::file("sync", &image))?;
        Ok(grow)
    }
}

/// Whether a volume is what a repeated request asks for.
fn same_volume(found: &Volume, request: &CreateVolumeRequest, source: Option<&Source>) -> Result<(), Error> {
    let differs = |what: &str| Err(Error::Exists(format!("volume {} exists with {what}", request.name)));
    if found.kind != Kind::Directory && !plan::fits(found.bytes, request.capacity_range.as_ref()) {
        return differs("another size");
    }
    if found.source.as_ref() != source {
        return differs("other content");
    }
    match request.volume_capabilities.iter().find_map(|one| plan::mismatch(&found.kind, one)) {
        Some(reason) => differs(&reason),
        None => Ok(()),
    }
}

/// A copy has the filesystem of its source.
fn kind_with_content(kind: Kind, content: &Content, capabilities: &[VolumeCapability]) -> Result<Kind, Error> {
    let Some(found) = content.kind() else { return Ok(kind) };
    if let Some(reason) = capabilities.iter().find_map(|one| plan::mismatch(found, one)) {
        return Err(Error::Invalid(format!("the source does not fit: {reason}")));
    }
    if (*found == Kind::Directory) != (kind == Kind::Directory) {
        return Err(Error::Invalid(format!("source and copy must have the same parameter {}", plan::SIZE_LIMIT)));
    }
    Ok(found.clone())
}

fn source(source: Option<&VolumeContentSource>) -> Result<Option<Source>, Error> {
    match source.map(|source| &source.kind) {
        None => Ok(None),
        Some(Some(ContentSource::Snapshot(from))) => Ok(Some(Source::Snapshot(from.snapshot_id.clone()))),
        Some(Some(ContentSource::Volume(from))) => Ok(Some(Source::Volume(from.volume_id.clone()))),
        Some(None) => Err(Error::Invalid("the kind of content source is unknown".into())),
    }
}

fn source_id(source: &Source) -> &str {
    match source {
        Source::Snapshot(id) | Source::Volume(id) => id,
    }
}
