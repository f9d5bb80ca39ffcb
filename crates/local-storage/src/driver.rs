//! The state that all services of the driver share.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use knarr_csi::Status;
use knarr_csi::messages::{StringMap, Topology};
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use parking_lot::Mutex;

use crate::capacity::{self, Disk, Reserve};
use crate::error::Error;
use crate::mount_table::{self, Mount};
use crate::plan::Abilities;
use crate::record::{self, Kind, Snapshot, Volume};
use crate::store::{DATA, IMAGE, Index, Layout};
use crate::{TOPOLOGY_KEY, copy, filesystem, freeze, loop_device, shared};

const LOCK_TIMEOUT: Duration = Duration::from_secs(2);
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// What a driver is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where volumes are kept.
    pub root: PathBuf,
    /// The name of this node.
    pub node: String,
    /// The part of the disk that volumes never get.
    pub reserve: Reserve,
}

/// The driver of one data directory.
pub struct Driver {
    pub(crate) settings: Settings,
    pub(crate) layout: Layout,
    pub(crate) abilities: Abilities,
    pub(crate) state: Mutex<State>,
    /// Names and IDs with an operation in progress.
    busy: Mutex<HashSet<String>>,
    /// Two drivers on one directory would undo each other's work.
    _lock: Flock<File>,
}

/// What exists.
pub(crate) struct State {
    pub(crate) volumes: Index<Volume>,
    pub(crate) snapshots: Index<Snapshot>,
    /// Bytes for volumes that are being created or expanded.
    pending: u64,
}

impl Driver {
    /// Opens the data directory and completes what a killed process left.
    pub fn open(settings: Settings) -> Result<Self, Error> {
        let layout_root = settings.root.clone();
        std::fs::create_dir_all(&layout_root).map_err(Error::file("create", &layout_root))?;
        // Mounts and loop devices name resolved paths.
        let root = layout_root.canonicalize().map_err(Error::file("resolve", &layout_root))?;
        let lock = lock(&root.join("lock"))?;
        let layout = Layout::open(&root)?;
        let state =
            State { volumes: Index::load(&layout.volumes()), snapshots: Index::load(&layout.snapshots()), pending: 0 };
        let abilities = Abilities { loop_devices: loop_device::available(), filesystems: filesystem::installed() };
        let driver = Self {
            settings: Settings { root, ..settings },
            layout,
            abilities,
            state: Mutex::new(state),
            busy: Mutex::default(),
            _lock: lock,
        };
        driver.thaw_all()?;
        Ok(driver)
    }

    /// A process that was killed during a snapshot leaves the filesystem frozen.
    fn thaw_all(&self) -> Result<(), Error> {
        let volumes: Vec<Volume> = self.state.lock().volumes.all().cloned().collect();
        for volume in volumes.iter().filter(|volume| matches!(volume.kind, Kind::Filesystem { .. })) {
            if let Some(mount) = self.mounts(volume)?.first()
                && freeze::thaw(&mount.target)
            {
                tracing::warn!(volume = volume.id, "thawed a filesystem that an interrupted snapshot left frozen");
            }
        }
        Ok(())
    }

    pub(crate) fn topology(&self) -> Topology {
        Topology { segments: StringMap::from([(TOPOLOGY_KEY.to_string(), self.settings.node.clone())]) }
    }

    pub(crate) fn volume_directory(&self, volume: &Volume) -> PathBuf {
        self.layout.volumes().join(&volume.id)
    }

    pub(crate) fn image(&self, volume: &Volume) -> PathBuf {
        self.volume_directory(volume).join(IMAGE)
    }

    pub(crate) fn data(&self, volume: &Volume) -> PathBuf {
        self.volume_directory(volume).join(DATA)
    }

    /// The volume of an ID.
    pub(crate) fn volume(&self, id: &str) -> Result<Volume, Error> {
        let found = self.state.lock().volumes.get(id).cloned();
        found.ok_or_else(|| Error::NotFound(format!("volume {id:?} does not exist")))
    }

    /// Replaces the record of a volume, on disk first.
    pub(crate) fn update(&self, volume: Volume) -> Result<(), Error> {
        record::write(&self.volume_directory(&volume), &volume)?;
        self.state.lock().volumes.insert(volume);
        Ok(())
    }

    /// Marks a name or ID until the guard is dropped; operations on one thing never overlap.
    pub(crate) fn lock(&self, key: &str) -> Result<Busy<'_>, Error> {
        if self.busy.lock().insert(key.to_string()) {
            return Ok(Busy { driver: self, key: key.to_string() });
        }
        Err(Error::InProgress(key.to_string()))
    }

    /// All mounts of a volume.
    pub(crate) fn mounts(&self, volume: &Volume) -> Result<Vec<Mount>, Error> {
        let table = mount_table::read()?;
        Ok(table.into_iter().filter(self.is_mount_of(volume)?).collect())
    }

    /// Whether a mount is of this volume.
    pub(crate) fn is_mount_of(&self, volume: &Volume) -> Result<impl Fn(&Mount) -> bool + use<>, Error> {
        let numbers: Vec<u32> = match volume.kind {
            Kind::Directory => Vec::new(),
            _ => loop_device::devices_of(&self.image(volume))?
                .iter()
                .filter_map(|path| loop_device::number(path))
                .collect(),
        };
        let (kind, data) = (volume.kind.clone(), Path::new("volumes").join(&volume.id).join(DATA));
        Ok(move |mount: &Mount| match kind {
            Kind::Filesystem { .. } => mount.device.0 == loop_device::MAJOR && numbers.contains(&mount.device.1),
            Kind::Block => numbers.iter().any(|number| mount.root == Path::new(&format!("/loop{number}"))),
            // The root of a bind mount is relative to its filesystem, which may be mounted anywhere.
            Kind::Directory => mount.root.ends_with(&data),
        })
    }

    /// Bytes that new volumes can have.
    pub(crate) fn available(&self) -> Result<u64, Error> {
        let state = self.state.lock();
        self.available_in(&state)
    }

    fn available_in(&self, state: &State) -> Result<u64, Error> {
        let mut promised = state.pending;
        for volume in state.volumes.all().filter(|volume| volume.kind != Kind::Directory) {
            let image = self.image(volume);
            promised += capacity::promised(volume.bytes, copy::allocated(&image).unwrap_or(0));
            // Of all that share a block, one has it already, and the copies will need their own.
            if volume.source.is_some() {
                promised += shared::bytes(&image)?;
            }
        }
        for snapshot in state.snapshots.all().filter(|snapshot| snapshot.kind != Kind::Directory) {
            promised += shared::bytes(&self.layout.snapshots().join(&snapshot.id).join(IMAGE))?;
        }
        Ok(capacity::available(Disk::of(self.layout.root())?, promised, self.settings.reserve))
    }

    /// Sets bytes aside until the guard is dropped.
    pub(crate) fn reserve(&self, bytes: u64) -> Result<Reservation<'_>, Error> {
        let mut state = self.state.lock();
        let available = self.available_in(&state)?;
        if bytes > available {
            return Err(Error::Exhausted(format!(
                "{bytes} bytes are requested and {available} bytes are available on node {}",
                self.settings.node
            )));
        }
        state.pending += bytes;
        Ok(Reservation { driver: self, bytes })
    }
}

/// A driver that was restarted in this process may still end its last calls, and a child that is being started holds
/// every open file for a moment: the lock is waited for.
fn lock(path: &Path) -> Result<Flock<File>, Error> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path);
    let mut file = file.map_err(Error::file("create", path))?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => return Ok(locked),
            Err((file, Errno::EWOULDBLOCK | Errno::EINTR)) if Instant::now() < deadline => file,
            Err((_, Errno::EWOULDBLOCK)) => {
                let text = format!("{} is locked: another driver uses this directory", path.display());
                return Err(Error::Internal(text));
            }
            Err((_, error)) => return Err(Error::system("lock", path)(error)),
        };
        std::thread::sleep(LOCK_INTERVAL);
    }
}

/// An operation in progress.
pub(crate) struct Busy<'a> {
    driver: &'a Driver,
    key: String,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.driver.busy.lock().remove(&self.key);
    }
}

/// Bytes set aside.
pub(crate) struct Reservation<'a> {
    driver: &'a Driver,
    bytes: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.driver.state.lock();
        state.pending = state.pending.saturating_sub(self.bytes);
    }
}

/// The gRPC services. Operations block, so each runs on a thread of its own.
#[derive(Clone)]
pub(crate) struct Service(pub Arc<Driver>);

impl Service {
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        operation: impl FnOnce(&Driver) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Status> {
        let driver = self.0.clone();
        let finished = tokio::task::spawn_blocking(move || operation(&driver)).await;
        let result = finished.map_err(|error| Status::internal(error.to_string()))?;
        result.map_err(|error| {
            let status = Status::from(error);
            if status.code() == knarr_csi::Code::Internal {
                tracing::warn!(error = status.message(), "an operation on a local volume failed");
            }
            status
        })
    }
}
