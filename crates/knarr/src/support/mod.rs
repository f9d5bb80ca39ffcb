//! What a support bundle contains: the state of the cluster and of this host, without secrets.
//!
//! Collecting never fails as a whole: what cannot be read is listed in `errors.txt`, for a bundle is needed when things
//! are broken.

mod cluster;
mod host;
mod redact;

use std::io::Write;

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::GzEncoder;

pub use cluster::{collect_cluster, get};
pub use host::collect_host;
pub use redact::{Redactor, values_of};

/// The largest file of a bundle; the end of longer ones is kept.
const MAX_FILE: usize = 16 << 20;

/// The files of a bundle.
#[derive(Default)]
pub struct Bundle {
    files: Vec<(String, Vec<u8>)>,
    errors: Vec<String>,
}

impl Bundle {
    pub fn add(&mut self, name: impl Into<String>, content: impl Into<Vec<u8>>) {
        let mut content: Vec<u8> = content.into();
        if content.len() > MAX_FILE {
            content.drain(..content.len() - MAX_FILE);
        }
        self.files.push((name.into(), content));
    }

    /// Records what could not be collected.
    pub fn fail(&mut self, name: &str, error: &anyhow::Error, redactor: &Redactor) {
        self.errors.push(redactor.text(&format!("{name}: {error:#}")));
    }

    pub fn errors(&self) -> &[String] {
        &self.errors
    }

    /// Writes a compressed archive with everything below one directory.
    pub fn write(mut self, directory: &str, seconds: u64, out: impl Write) -> anyhow::Result<()> {
        let errors = self.errors.iter().map(|error| format!("{error}\n")).collect::<String>();
        self.add("errors.txt", errors);
        let mut archive = tar::Builder::new(GzEncoder::new(out, Compression::default()));
        for (name, content) in &self.files {
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(seconds);
            archive
                .append_data(&mut header, format!("{directory}/{name}"), content.as_slice())
                .with_context(|| format!("cannot write {name}"))?;
        }
        let compressed = archive.into_inner().context("cannot write the archive")?;
        compressed.finish().and_then(|mut out| out.flush()).context("cannot write the archive")
    }
}
