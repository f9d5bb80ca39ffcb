//! Registers CSI and DRA drivers whose sockets appear in `plugins_registry`, and forgets those whose sockets vanish.
//!
//! The directory is compared with what is registered after each change. A socket that was replaced is a new plugin.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use knarr_csi::Client;
use knarr_csi::messages::{CSI_PLUGIN, DRA_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::Csi;
use super::drivers::{Driver, Version};
use super::error::plugin_text;
use crate::backoff::backoff;
use crate::inotify::Watcher;

/// How long a plugin may take to say what it is.
const INFO_TIMEOUT: Duration = Duration::from_secs(1);
const NOTIFY_TIMEOUT: Duration = Duration::from_secs(5);
/// How deep below the directory sockets are looked for.
const MAX_DEPTH: usize = 3;
/// How often the directory is read although no change was reported, as when the watch could not be created.
const RESCAN_INTERVAL: Duration = Duration::from_secs(60);

/// Which file a path is: another one after it was replaced. The time of its creation, as numbers of inodes are reused.
type Identity = (u64, u64, i64, i64);

#[derive(Debug)]
enum Phase {
    Registering {
        failures: u32,
    },
    Registered(Registered),
    /// Not a plugin for us, or refused; tried again later.
    Failed {
        failures: u32,
        next: Instant,
    },
}

#[derive(Debug)]
struct Plugin {
    identity: Identity,
    phase: Phase,
}

/// A plugin that is in use.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    kind: String,
    name: String,
    endpoint: String,
}

struct Finished {
    socket: PathBuf,
    identity: Identity,
    outcome: Result<Registered, String>,
}

impl Csi {
    /// Watches the directory for as long as the node runs.
    pub async fn watch_plugins(self: Arc<Self>) {
        let directory = self.paths.registry();
        if let Err(error) = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&directory) {
            tracing::warn!(%error, directory = %directory.display(), "cannot create the directory of CSI plugins");
        }
        // A previous run of this component may have registered them: two registrations of one plugin are refused.
        if let Some(dra) = self.dra.get() {
            dra.unregister_all();
        }
        let mut plugins: BTreeMap<PathBuf, Plugin> = BTreeMap::new();
        let mut watchers = Watchers::default();
        let mut running = JoinSet::new();
        loop {
            watchers.renew(&directory);
            self.reconcile_plugins(&scan(&directory), &mut plugins, &mut running).await;
            let next = plugins.values().filter_map(|plugin| match plugin.phase {
                Phase::Failed { next, .. } => Some(next),
                _ => None,
            });
            let rescan = Instant::now() + RESCAN_INTERVAL;
            let next = next.min().map_or(rescan, |next| next.min(rescan));
            tokio::select! {
                () = watchers.changed() => {}
                () = tokio::time::sleep_until(next) => {}
                Some(finished) = running.join_next() => {
                    if let Ok(finished) = finished {
                        self.finish_registration(&mut plugins, finished).await;
                    }
                }
            }
        }
    }

    async fn reconcile_plugins(
        self: &Arc<Self>,
        found: &HashMap<PathBuf, Identity>,
        plugins: &mut BTreeMap<PathBuf, Plugin>,
        running: &mut JoinSet<Finished>,
    ) {
        let is_gone = |socket: &PathBuf, plugin: &Plugin| found.get(socket) != Some(&plugin.identity);
        let gone: Vec<PathBuf> = plugins
            .iter()
            .filter(|(socket, plugin)| is_gone(socket, plugin))
            .map(|(socket, _)| socket.clone())
            .collect();
        for socket in gone {
            if let Some(Plugin { phase: Phase::Registered(plugin), .. }) = plugins.remove(&socket) {
                self.unregister_plugin(&plugin).await;
            }
        }
        for (socket, identity) in found {
            let now = Instant::now();
            let starts = match plugins.get(socket).map(|plugin| &plugin.phase) {
                None => true,
                Some(Phase::Failed { next, .. }) => *next <= now,
                Some(_) => false,
            };
            if starts {
                let failures = match plugins.get(socket).map(|plugin| &plugin.phase) {
                    Some(Phase::Failed { failures, .. }) => *failures,
                    _ => 0,
                };
                plugins.insert(socket.clone(), Plugin { identity: *identity, phase: Phase::Registering { failures } });
                let (csi, socket, identity) = (self.clone(), socket.clone(), *identity);
                running.spawn(knarr_supervisor::inherit(async move {
                    let outcome = knarr_supervisor::caught(csi.register(&socket)).await;
                    if let Err(error) = &outcome {
                        tracing::warn!(error, socket = %socket.display(), failures, "cannot register a plugin");
                    }
                    Finished { socket, identity, outcome }
                }));
            }
        }
    }

    async fn finish_registration(&self, plugins: &mut BTreeMap<PathBuf, Plugin>, finished: Finished) {
        let Finished { socket, identity, outcome } = finished;
        let current = plugins.get_mut(&socket).filter(|plugin| plugin.identity == identity);
        match (current, outcome) {
            (Some(plugin), Ok(registered)) => plugin.phase = Phase::Registered(registered),
            (Some(plugin), Err(_)) => {
                let before = if let Phase::Registering { failures } = plugin.phase { failures } else { 0 };
                let failures = before.saturating_add(1);
                plugin.phase = Phase::Failed { failures, next: Instant::now() + backoff(failures) };
            }
            // The socket vanished meanwhile.
            (None, Ok(registered)) => self.unregister_plugin(&registered).await,
            (None, Err(_)) => {}
        }
    }

    /// Registers the plugin at the socket and reports the outcome to it.
    pub(super) async fn register(&self, socket: &Path) -> Result<Registered, String> {
        let place = socket.display();
        let client = Client::connect(&socket.to_string_lossy()).map_err(|error| error.to_string())?;
        let info = client.clone().with_timeout(INFO_TIMEOUT).get_info(InfoRequest {}).await.map_err(|error| {
            format!(
                "RegisterPlugin error -- failed to get plugin info using RPC GetInfo at socket {place}, err: {error}"
            )
        })?;
        let client = client.with_timeout(NOTIFY_TIMEOUT);
        let endpoint = match info.endpoint.as_str() {
            "" => socket.to_string_lossy().into_owned(),
            endpoint => endpoint.to_string(),
        };
        let registered = match (info.kind.as_str(), self.dra.get()) {
            (DRA_PLUGIN, Some(dra)) => dra.register(&info, &endpoint),
            _ => self.register_driver(socket, &endpoint, &info).await,
        };
        let error = registered.as_ref().err().cloned().unwrap_or_default();
        let status = RegistrationStatus { plugin_registered: registered.is_ok(), error };
        let notified = client.notify_registration_status(status).await;
        registered?;
        let registered = Registered { kind: info.kind, name: info.name, endpoint };
        if let Err(error) = notified {
            self.unregister_plugin(&registered).await;
            return Err(format!(
                "RegisterPlugin error -- failed to send registration status at socket {place}, err: {error}"
            ));
        }
        let Registered { kind, name, .. } = &registered;
        tracing::info!(kind, driver = name, socket = %place, "registered a plugin");
        if kind == CSI_PLUGIN {
            self.driver_registered(name);
        }
        Ok(registered)
    }

    async fn unregister_plugin(&self, plugin: &Registered) {
        match self.dra.get() {
            Some(dra) if plugin.kind == DRA_PLUGIN => {
                tracing::info!(driver = plugin.name, endpoint = plugin.endpoint, "a DRA driver is gone");
                dra.unregister(&plugin.name, &plugin.endpoint);
            }
            _ => self.unregister(&plugin.name).await,
        }
    }

    async fn register_driver(&self, socket: &Path, endpoint: &str, info: &PluginInfo) -> Result<(), String> {
        if info.kind != CSI_PLUGIN {
            return Err(format!(
                "RegisterPlugin error -- no handler registered for plugin type: {} at socket {}",
                info.kind,
                socket.display()
            ));
        }
        let version = self.check_versions(info, endpoint).map_err(|error| {
            format!(
                "RegisterPlugin error -- plugin validation failed with err: validation failed for CSI Driver {} at \
                 endpoint {endpoint}: {error}",
                info.name
            )
        })?;
        let failed = |error: String| format!("RegisterPlugin error -- plugin registration failed with err: {error}");
        let client = Client::connect(endpoint).map_err(|error| failed(error.to_string()))?;
        let client = client.with_timeout(self.call_timeout).with_observer(self.observer(&info.name));
        let driver = Driver { client, version };
        let node = driver.node_info().await.map_err(|error| failed(error.rpc_message()))?;
        self.node_info.install(&info.name, node.into()).await.map_err(failed)?;
        self.drivers.put(&info.name, driver);
        Ok(())
    }

    fn check_versions(&self, info: &PluginInfo, endpoint: &str) -> Result<Version, String> {
        let name = &info.name;
        let versions = &info.supported_versions;
        let refused = |why: String| plugin_text(format!("ValidatePlugin for CSI driver \"{name}\" failed. {why}"));
        if versions.is_empty() {
            return Err(refused("Plugin returned an empty list for supported versions".into()));
        }
        let version = Version::highest(versions).ok_or_else(|| {
            let quoted: Vec<String> = versions.iter().map(|version| format!("\"{version}\"")).collect();
            refused(format!("None of the versions specified [{}] are supported.", quoted.join(" ")))
        })?;
        match self.drivers.get(name) {
            Some(known) if known.version >= version && !known.is_at(endpoint) => Err(refused(format!(
                "Another driver with the same name is already registered with a higher supported version: \"{}\"",
                known.version
            ))),
            _ => Ok(version),
        }
    }

    pub(super) async fn unregister(&self, name: &str) {
        tracing::info!(driver = name, "a CSI driver is gone");
        self.drivers.remove(name);
        if let Err(error) = self.node_info.uninstall(name).await {
            tracing::warn!(error, driver = name, "cannot remove a CSI driver from the CSINode");
        }
    }

    fn observer(&self, driver: &str) -> knarr_csi::Observer {
        let (metrics, driver) = (self.metrics.clone(), driver.to_string());
        Arc::new(move |method, took, error| {
            let code = error.map_or("OK".to_string(), |error| format!("{:?}", error.code()));
            let method = format!("/csi.v1.Node/{method}");
            let labels = [
                ("driver_name", driver.as_str()),
                ("grpc_status_code", code.as_str()),
                ("method_name", method.as_str()),
                ("migrated", "false"),
            ];
            metrics.observe("csi_operations_seconds", &labels, took);
        })
    }
}

/// One watch for each directory.
#[derive(Default)]
struct Watchers(Vec<(PathBuf, Watcher)>);

impl Watchers {
    fn renew(&mut self, directory: &Path) {
        let directories = directories(directory);
        self.0.retain(|(path, _)| directories.contains(path));
        for path in directories {
            if self.0.iter().all(|(known, _)| *known != path) {
                match Watcher::new(&path) {
                    Ok(watcher) => self.0.push((path, watcher)),
                    Err(error) => tracing::warn!(%error, directory = %path.display(), "cannot watch for CSI plugins"),
                }
            }
        }
    }

    async fn changed(&mut self) {
        if self.0.is_empty() {
            return std::future::pending().await;
        }
        let waits = self.0.iter().map(|(_, watcher)| Box::pin(watcher.changed()));
        let (changed, index, _) = futures::future::select_all(waits).await;
        // A directory that was removed and created again needs another watch.
        let is_gone = nix::sys::inotify::AddWatchFlags::IN_DELETE_SELF | nix::sys::inotify::AddWatchFlags::IN_MOVE_SELF;
        if changed.map_or(true, |changes| changes.intersects(is_gone)) {
            self.0.remove(index);
        }
    }
}

fn directories(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![root.to_path_buf()];
    let mut depth = vec![root.to_path_buf()];
    for _ in 1..MAX_DEPTH {
        let below = depth.iter().flat_map(|path| std::fs::read_dir(path).into_iter().flatten().flatten());
        let below =
            below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()) && !is_hidden(&entry.path()));
        depth = below.map(|entry| entry.path()).collect();
        found.extend(depth.iter().cloned());
    }
    found
}

fn is_hidden(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'))
}

/// The sockets below the directory.
fn scan(root: &Path) -> HashMap<PathBuf, Identity> {
    let entries =
        directories(root).into_iter().flat_map(|path| std::fs::read_dir(path).into_iter().flatten().flatten());
    entries.filter_map(|entry| Some((entry.path(), identity(&entry.path()).ok()??))).collect()
}

fn identity(path: &Path) -> io::Result<Option<Identity>> {
    let found = std::fs::metadata(path)?;
    let is_plugin = found.file_type().is_socket() && !is_hidden(path);
    Ok(is_plugin.then(|| (found.dev(), found.ino(), found.mtime(), found.mtime_nsec())))
}
