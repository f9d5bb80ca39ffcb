//! Writes the CNI configuration by which a container runtime finds the pod network.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::cidr::Cidr;

/// Name of the network in the CNI configuration.
pub const NETWORK: &str = "knarr";
const FILE: &str = "10-knarr.conflist";
/// Names under which the runtime starts this binary.
const PLUGINS: [&str; 2] = ["knarr", "loopback"];

/// Content of the CNI configuration.
#[derive(Clone, Debug)]
pub struct CniSettings {
    /// Directory of the leases.
    pub data_directory: PathBuf,
    /// The runtime's plugin directory; symlinks to `binary` are created there.
    pub binary_directory: PathBuf,
    pub binary: PathBuf,
    pub bridge: String,
    /// Pod CIDRs of this node, at most one per family.
    pub pod_cidrs: Vec<Cidr>,
    /// Networks within the cluster, towards which pods keep their address.
    pub cluster_cidrs: Vec<Cidr>,
    /// Determined at each call if `None`.
    pub mtu: Option<u32>,
}

/// Writes the configuration and the plugin symlinks, unless they are up to date.
pub fn write_cni_configuration(directory: &Path, settings: &CniSettings) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    fs::create_dir_all(&settings.binary_directory)?;
    for plugin in PLUGINS {
        link(&settings.binary, &settings.binary_directory.join(plugin))?;
    }
    let path = directory.join(FILE);
    let text = render(settings);
    if fs::read_to_string(&path).is_ok_and(|there| there == text) {
        return Ok(());
    }
    let temporary = directory.join(format!(".{FILE}.new"));
    fs::write(&temporary, text)?;
    fs::rename(temporary, path)
}

fn link(binary: &Path, at: &Path) -> io::Result<()> {
    if fs::read_link(at).is_ok_and(|target| target == binary) {
        return Ok(());
    }
    match fs::symlink_metadata(at) {
        // A real plugin of that name (Debian ships a loopback) is equivalent and stays.
        Ok(metadata) if metadata.is_file() => return Ok(()),
        Ok(_) => fs::remove_file(at)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    std::os::unix::fs::symlink(binary, at)
}

fn render(settings: &CniSettings) -> String {
    let mut plugin = json!({
        "type": "knarr",
        "bridge": settings.bridge,
        "dataDir": settings.data_directory,
        "podCIDRs": settings.pod_cidrs,
        "clusterCIDRs": settings.cluster_cidrs,
        "capabilities": {"portMappings": true, "bandwidth": true},
    });
    if let Some(mtu) = settings.mtu {
        plugin["mtu"] = json!(mtu);
    }
    // Runtimes before CNI 1.1 read the first field; newer ones choose the newest supported version from the list.
    let list = json!({
        "cniVersion": "1.0.0",
        "cniVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"],
        "name": NETWORK,
        "plugins": [plugin],
    });
    format!("{list:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_configuration_is_written_once() {
        let base = std::env::temp_dir().join(format!("knarr-cni-{}", std::process::id()));
        let settings = CniSettings {
            data_directory: base.join("data"),
            binary_directory: base.join("bin"),
            binary: "/usr/bin/knarr".into(),
            bridge: "knarr0".into(),
            pod_cidrs: vec!["10.244.0.0/24".parse().unwrap()],
            cluster_cidrs: vec!["10.244.0.0/16".parse().unwrap()],
            mtu: None,
        };
        let directory = base.join("conf");
        write_cni_configuration(&directory, &settings).unwrap();
        write_cni_configuration(&directory, &settings).unwrap();
        let text = fs::read_to_string(directory.join(FILE)).unwrap();
        let list: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(list["plugins"][0]["podCIDRs"][0], "10.244.0.0/24");
        assert_eq!(fs::read_link(base.join("bin/knarr")).unwrap(), Path::new("/usr/bin/knarr"));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        fs::remove_dir_all(base).unwrap();
    }
}
