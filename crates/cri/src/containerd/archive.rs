//! Builds OCI image archives of one layer, for the pause image and for tests.

use sha2::{Digest, Sha256};

/// A builder of an image archive. Paths are relative to the image's root.
#[derive(Clone, Debug, Default)]
pub struct ImageArchive {
    names: Vec<String>,
    entrypoint: Vec<String>,
    environment: Vec<String>,
    user: String,
    layer: Tar,
}

impl ImageArchive {
    /// `name` is the full reference, registry and tag included.
    pub fn new(name: impl Into<String>) -> Self {
        Self { names: vec![name.into()], ..Self::default() }
    }

    /// Another reference to the same image.
    #[must_use]
    pub fn also_named(mut self, name: impl Into<String>) -> Self {
        self.names.push(name.into());
        self
    }

    /// Sets the entrypoint.
    #[must_use]
    pub fn entrypoint(mut self, command: &[&str]) -> Self {
        self.entrypoint = command.iter().map(ToString::to_string).collect();
        self
    }

    /// Adds an environment variable.
    #[must_use]
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push(format!("{name}={value}"));
        self
    }

    /// Sets the user, as `UID` or `UID:GID`.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.user = user.to_string();
        self
    }

    /// Adds a directory.
    #[must_use]
    pub fn directory(mut self, path: &str, mode: u32) -> Self {
        self.layer.entry(&format!("{}/", path.trim_end_matches('/')), mode, b'5', "", &[]);
        self
    }

    /// Adds a file.
    #[must_use]
    pub fn file(mut self, path: &str, mode: u32, content: &[u8]) -> Self {
        self.layer.entry(path, mode, b'0', "", content);
        self
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn symlink(mut self, path: &str, target: &str) -> Self {
        self.layer.entry(path, 0o777, b'2', target, &[]);
        self
    }

    /// The archive in the format of `ctr images import` and `docker load`.
    pub fn build(self) -> Vec<u8> {
        let layer = self.layer.finish();
        let layer_digest = digest(&layer);
        let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
        let config = serde_json::json!({
            "architecture": architecture,
            "os": "linux",
            "config": { "Entrypoint": self.entrypoint, "Env": self.environment, "User": self.user },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer_digest}")] },
        })
        .to_string()
        .into_bytes();
        let config_digest = digest(&config);
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": descriptor("application/vnd.oci.image.config.v1+json", &config_digest, config.len()),
            "layers": [descriptor("application/vnd.oci.image.layer.v1.tar", &layer_digest, layer.len())],
        })
        .to_string()
        .into_bytes();
        let manifest_digest = digest(&manifest);
        let manifests: Vec<_> = self
            .names
            .iter()
            .map(|name| {
                let mut entry =
                    descriptor("application/vnd.oci.image.manifest.v1+json", &manifest_digest, manifest.len());
                entry["annotations"] = serde_json::json!({ "io.containerd.image.name": name });
                entry
            })
            .collect();
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": manifests }).to_string();
        let mut archive = Tar::default();
        archive.entry("oci-layout", 0o644, b'0', "", br#"{"imageLayoutVersion":"1.0.0"}"#);
        archive.entry("index.json", 0o644, b'0', "", index.as_bytes());
        for (name, content) in [(layer_digest, layer), (config_digest, config), (manifest_digest, manifest)] {
            archive.entry(&format!("blobs/sha256/{name}"), 0o644, b'0', "", &content);
        }
        archive.finish()
    }
}

fn descriptor(media_type: &str, digest: &str, size: usize) -> serde_json::Value {
    serde_json::json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": size })
}

fn digest(content: &[u8]) -> String {
    Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect()
}

const BLOCK: usize = 512;

/// A tar file in ustar format; all names here are shorter than 100 bytes.
#[derive(Clone, Debug, Default)]
struct Tar(Vec<u8>);

impl Tar {
    fn entry(&mut self, path: &str, mode: u32, kind: u8, link: &str, content: &[u8]) {
        let mut header = [0u8; BLOCK];
        let mut put = |offset: usize, value: &[u8]| header[offset..offset + value.len()].copy_from_slice(value);
        put(0, &path.as_bytes()[..path.len().min(100)]);
        put(100, format!("{mode:07o}\0").as_bytes());
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, b"00000000000\0");
        put(148, b"        ");
        put(156, &[kind]);
        put(157, &link.as_bytes()[..link.len().min(100)]);
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.extend_from_slice(&header);
        self.0.extend_from_slice(content);
        self.0.resize(self.0.len().next_multiple_of(BLOCK), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.0.resize(self.0.len() + 2 * BLOCK, 0);
        self.0
    }
}
