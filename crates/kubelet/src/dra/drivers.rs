//! The DRA drivers that are registered on this node.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use knarr_csi::messages::PluginInfo;
use knarr_csi::{CallError, Client, Stream};
use parking_lot::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Dra;
use super::messages::{ClaimsRequest, PrepareResponse, UnprepareResponse};

/// The services that can be used, the preferred first.
const SERVICES: [&str; 2] = ["v1.DRAPlugin", "v1beta1.DRAPlugin"];

/// A driver at one socket. A driver that is updated has two for a while.
#[derive(Clone, Debug)]
pub struct Plugin {
    client: Client,
    is_beta: bool,
    /// Cancelled when it is unregistered.
    gone: CancellationToken,
}

impl Plugin {
    pub async fn prepare(&self, request: ClaimsRequest) -> Result<PrepareResponse, CallError> {
        let path = match self.is_beta {
            false => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodePrepareResources",
            true => "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodePrepareResources",
        };
        self.client.call("NodePrepareResources", path, request).await
    }

    pub async fn unprepare(&self, request: ClaimsRequest) -> Result<UnprepareResponse, CallError> {
        let path = match self.is_beta {
            false => "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin/NodeUnprepareResources",
            true => "/k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin/NodeUnprepareResources",
        };
        self.client.call("NodeUnprepareResources", path, request).await
    }

    pub async fn watch<Q, A>(
        &self,
        method: &'static str,
        path: &'static str,
        request: Q,
    ) -> Result<Stream<A>, CallError>
    where
        Q: prost::Message + std::fmt::Debug + 'static,
        A: prost::Message + Default + 'static,
    {
        self.client.watch(method, path, request).await
    }

    pub fn socket(&self) -> PathBuf {
        self.client.socket().to_path_buf()
    }
}

#[derive(Debug, Default)]
pub struct Drivers(pub(super) Mutex<BTreeMap<String, Driver>>);

#[derive(Debug, Default)]
pub struct Driver {
    /// In the order of their registration.
    pub plugins: Vec<Plugin>,
    /// When its ResourceSlices are deleted, unless it is back by then.
    pub wipe_at: Option<Instant>,
}

impl Drivers {
    /// The newest plugin of a driver.
    pub fn get(&self, name: &str) -> Result<Plugin, String> {
        let drivers = self.0.lock();
        let newest = drivers.get(name).and_then(|driver| driver.plugins.last());
        newest.cloned().ok_or_else(|| format!("DRA driver {name} is not registered"))
    }
}

impl Dra {
    /// Registers a plugin that serves at the endpoint.
    pub fn register(self: &Arc<Self>, info: &PluginInfo, endpoint: &str) -> Result<(), String> {
        let name = &info.name;
        let chosen = choose_service(&info.supported_versions).map_err(|error| {
            format!(
                "RegisterPlugin error -- plugin validation failed with err: invalid supported gRPC versions of DRA driver \
                 plugin {name} at endpoint {endpoint}: {error}"
            )
        })?;
        let failed = |error: String| format!("RegisterPlugin error -- plugin registration failed with err: {error}");
        let client = Client::connect(endpoint).map_err(|error| failed(error.to_string()))?;
        let gone = CancellationToken::new();
        let plugin = Plugin { client: client.with_timeout(self.call_timeout), is_beta: chosen != SERVICES[0], gone };
        let mut drivers = self.drivers.0.lock();
        let driver = drivers.entry(name.clone()).or_default();
        if driver.plugins.iter().any(|known| known.socket() == plugin.socket()) {
            let text = format!("endpoint {endpoint} already registered for DRA driver plugin {name}");
            return Err(failed(text));
        }
        driver.plugins.push(plugin.clone());
        driver.wipe_at = None;
        drop(drivers);
        let (watching, gone) = (self.clone(), plugin.gone.clone());
        knarr_supervisor::spawn(watching.watch_health(name.clone(), plugin, gone));
        self.drivers_changed.notify_one();
        std::mem::take(&mut *self.waiting.lock()).iter().for_each(|notify| notify());
        Ok(())
    }

    /// Forgets all plugins, which are about to be registered again.
    pub fn unregister_all(&self) {
        for driver in self.drivers.0.lock().values_mut() {
            driver.plugins.drain(..).for_each(|plugin| plugin.gone.cancel());
            driver.wipe_at.get_or_insert(Instant::now() + self.slice_grace);
        }
        self.drivers_changed.notify_one();
    }

    pub fn unregister(&self, name: &str, endpoint: &str) {
        let Ok(gone) = knarr_csi::socket_path(endpoint) else { return };
        if let Some(driver) = self.drivers.0.lock().get_mut(name) {
            driver.plugins.retain(|plugin| {
                let stays = plugin.socket() != gone;
                if !stays {
                    plugin.gone.cancel();
                }
                stays
            });
            if driver.plugins.is_empty() {
                driver.wipe_at.get_or_insert(Instant::now() + self.slice_grace);
            }
        }
        self.drivers_changed.notify_one();
    }
}

/// The service that the kubelet calls.
fn choose_service(supported: &[String]) -> Result<&'static str, String> {
    if supported.is_empty() {
        return Err("empty list of supported gRPC services (aka supported versions)".to_owned());
    }
    let quoted = |names: &[&str]| {
        let names: Vec<String> = names.iter().map(|name| format!("{name:?}")).collect();
        format!("[{}]", names.join(" "))
    };
    // The plugin lists them in the order of its preference.
    let chosen = supported.iter().find_map(|own| SERVICES.into_iter().find(|known| own == known));
    chosen.ok_or_else(|| {
        let own: Vec<&str> = supported.iter().map(String::as_str).collect();
        let (own, ours) = (quoted(&own), quoted(&SERVICES));
        format!("none of services supported by the plugin ({own}) are supported by the kubelet ({ours})")
    })
}

/// How often drivers are checked for whether they still accept connections.
pub const PROBE_INTERVAL: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services_are_chosen_in_the_order_of_the_plugin() {
        for (supported, expected) in [
            (vec!["v1.DRAPlugin", "v1beta1.DRAPlugin"], Ok("v1.DRAPlugin")),
            (vec!["v1beta1.DRAPlugin"], Ok("v1beta1.DRAPlugin")),
            (vec!["v1alpha1.DRAResourceHealth", "v1.DRAPlugin"], Ok("v1.DRAPlugin")),
            (vec![], Err("empty list of supported gRPC services (aka supported versions)")),
            (
                vec!["1.0.0"],
                Err("none of services supported by the plugin ([\"1.0.0\"]) are supported by the kubelet \
                    ([\"v1.DRAPlugin\" \"v1beta1.DRAPlugin\"])"),
            ),
        ] {
            let supported: Vec<String> = supported.into_iter().map(str::to_owned).collect();
            assert_eq!(choose_service(&supported).as_ref().map_err(String::as_str), expected.as_ref().map_err(|e| *e));
        }
    }
}
