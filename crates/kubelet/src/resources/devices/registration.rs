//! The registration service for device plugins: a socket in the plugin directory.

use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prost::Message;
use tokio::time::Instant;
use tokio_stream::StreamExt;

use super::plugin::{API_VERSION, DeviceList, HEALTHY, Plugin, RegisterRequest};
use super::{Device, Devices};
use crate::counters::Counters;
use crate::resources::Resources;
use crate::resources::cpu_set::NumberSet;
use crate::resources::unary::{self, Failure};

/// The socket's name is part of the protocol.
pub const SOCKET: &str = "kubelet.sock";

pub struct Registration {
    pub directory: PathBuf,
    pub devices: Arc<Devices>,
    metrics: Arc<Counters>,
    /// Called whenever the node's devices change.
    pub changed: Arc<dyn Fn() + Send + Sync>,
    numbers: AtomicU64,
}

impl Registration {
    pub fn new(directory: &Path, resources: &Resources, changed: Arc<dyn Fn() + Send + Sync>) -> Arc<Self> {
        let (devices, metrics) = (resources.devices.clone(), resources.metrics.clone());
        Arc::new(Self { directory: directory.to_path_buf(), devices, metrics, changed, numbers: AtomicU64::new(0) })
    }

    /// Serves for as long as the node does.
    pub async fn serve(self: Arc<Self>) {
        if let Err(error) = prepare(&self.directory) {
            tracing::warn!(%error, directory = %self.directory.display(), "cannot serve the registration of device plugins");
            return;
        }
        let socket = self.directory.join(SOCKET);
        let handler = move |path: String, message: bytes::Bytes| {
            let own = self.clone();
            async move {
                match path.as_str() {
                    "/v1beta1.Registration/Register" => own.register(&message).await.map(|()| Vec::new()),
                    _ => Err(Failure::unknown(&path)),
                }
            }
        };
        if let Err(error) = unary::serve(&socket, handler).await {
            tracing::warn!(%error, socket = %socket.display(), "cannot serve the registration of device plugins");
        }
    }

    async fn register(self: &Arc<Self>, message: &[u8]) -> Result<(), Failure> {
        let request = RegisterRequest::decode(message).map_err(|error| Failure::invalid(error.to_string()))?;
        if request.version != API_VERSION {
            let text = format!(
                "requested API version \"{}\" is not supported by kubelet. Supported version is [\"{API_VERSION}\"]",
                request.version
            );
            return Err(Failure::invalid(text));
        }
        if !is_extended(&request.resource_name) {
            let text = format!("the ResourceName \"{}\" is invalid", request.resource_name);
            return Err(Failure::invalid(text));
        }
        if request.endpoint.contains('/') || request.endpoint.is_empty() {
            return Err(Failure::invalid(format!("the endpoint \"{}\" is not a file name", request.endpoint)));
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let socket = self.directory.join(&request.endpoint);
        let plugin = Plugin::connected(&socket, number).await.map_err(Failure::failed)?;
        tracing::info!(resource = request.resource_name, socket = %socket.display(), "registered a device plugin");
        let labels = [("resource_name", request.resource_name.as_str())];
        self.metrics.count("kubelet_device_plugin_registration_total", &labels);
        self.devices.connected(&request.resource_name, plugin.clone());
        knarr_supervisor::spawn(self.clone().watch_plugin(request.resource_name, plugin));
        Ok(())
    }

    /// Watches the plugin's devices until it disconnects.
    async fn watch_plugin(self: Arc<Self>, resource: String, plugin: Plugin) {
        let received = async {
            let mut stream = plugin.watch().await.map_err(|error| error.to_string())?;
            while let Some(item) = stream.next().await {
                self.devices.set_devices(&resource, read(item.map_err(|error| error.to_string())?));
                (self.changed)();
            }
            Ok(())
        };
        // After a panic, too, its devices must not stay allocatable.
        if let Err(reason) = knarr_supervisor::caught(received).await {
            tracing::debug!(reason, resource, "the device list of a plugin ended");
        }
        tracing::info!(resource, "a device plugin disconnected");
        self.devices.disconnected(&resource, &plugin, Instant::now());
        (self.changed)();
    }
}

/// Removes sockets of a previous process, which also makes plugins register again.
fn prepare(directory: &Path) -> std::io::Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)?;
    for entry in std::fs::read_dir(directory)? {
        use std::os::unix::fs::FileTypeExt;
        let entry = entry?;
        if entry.file_type()?.is_socket() {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Names of extended resources have a domain that is not Kubernetes' own.
fn is_extended(name: &str) -> bool {
    let Some((domain, rest)) = name.split_once('/') else { return false };
    let reserved = domain == "kubernetes.io" || domain.ends_with(".kubernetes.io") || domain.starts_with("requests.");
    !domain.is_empty() && !rest.is_empty() && !rest.contains('/') && !reserved
}

fn read(list: DeviceList) -> BTreeMap<String, Device> {
    let one = |device: super::plugin::PluginDevice| {
        let nodes = device.topology.iter().flat_map(|topology| &topology.nodes);
        let nodes: NumberSet = nodes.filter_map(|node| u32::try_from(node.id).ok()).collect();
        (device.id, Device { healthy: device.health == HEALTHY, nodes })
    };
    list.devices.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_extended_resources_can_be_brought() {
        for (name, expected) in [
            ("example.com/dongle", true),
            ("nvidia.com/gpu", true),
            ("cpu", false),
            ("kubernetes.io/x", false),
            ("a.kubernetes.io/x", false),
            ("requests.example.com/x", false),
            ("example.com/", false),
        ] {
            assert_eq!(is_extended(name), expected, "{name}");
        }
    }
}
