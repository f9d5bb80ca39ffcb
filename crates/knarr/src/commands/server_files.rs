//! Files that an API server writes for its users: the administrator's kubeconfig, and copies of its certificate.

use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::Context;
use jiff::Timestamp;
use knarr_apiserver::pki::{Pki, kubeconfig};

use crate::paths;

/// Copies the serving certificate, followed by its authority, to where tools that start kube-apiserver expect it.
pub fn copy_serving_certificate(from: &Path, authority: &str, to: &Path) -> anyhow::Result<()> {
    let read = |name: &str| {
        let path = from.join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let chain = format!("{}\n{authority}", read("apiserver.crt")?.trim_end());
    write_private(&to.join("apiserver.key"), read("apiserver.key")?.as_bytes())?;
    let certificate = to.join("apiserver.crt");
    write_private(&certificate, chain.as_bytes())?;
    // Everybody may know it, unlike its key.
    std::fs::set_permissions(&certificate, std::fs::Permissions::from_mode(0o644))
        .with_context(|| format!("cannot open {} to other users", certificate.display()))
}

/// Writes the administrator's kubeconfig of a server.
pub fn write_kubeconfig(data: &Path, url: &str, pki: &Pki) -> anyhow::Result<()> {
    let text = kubeconfig(url, &pki.authority.certificate, "kubernetes-admin", &pki.admin(Timestamp::now())?);
    let path = paths::kubeconfig(data);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    }
    write_private(&path, text.as_bytes())
}

/// Writes a file that only its owner can read, atomically.
fn write_private(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    let new = path.with_extension("new");
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&new)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
        .and_then(|()| knarr_files::rename_durably(&new, path));
    written.with_context(|| format!("cannot write {}", path.display()))
}
