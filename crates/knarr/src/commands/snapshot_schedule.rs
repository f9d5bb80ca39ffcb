//! Scheduled snapshots of the store, in a directory with a limited number of them, and in S3-compatible storage.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use jiff::Timestamp;
use knarr_apiserver::state::ApiServer;
use knarr_files::rename_durably;
use knarr_object_storage::Location;
use knarr_store::Store;
use knarr_supervisor::Supervisor;
use tokio::sync::watch;

use super::leadership::duration;
use super::snapshot::{LastSnapshot, Occasion};
use super::snapshot_storage::{Mirror, SnapshotStorageArguments};

const RETRY_INTERVAL: Duration = Duration::from_secs(60);
const PREFIX: &str = "knarr-";
const SUFFIX: &str = ".snapshot";
const PARTIAL: &str = ".partial";

#[derive(Args, Clone, Debug)]
pub struct SnapshotArguments {
    /// How often a snapshot of the store is saved, such as 6h; by default never.
    #[arg(long, value_parser = duration)]
    pub snapshot_schedule: Option<Duration>,
    /// How many scheduled snapshots are kept.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..))]
    pub snapshot_retention: u16,
    /// Directory of scheduled snapshots [default: DATA_DIR/snapshots].
    #[arg(long)]
    pub snapshot_dir: Option<PathBuf>,
    /// Where scheduled snapshots are uploaded, such as s3://BUCKET/PREFIX: below it, in a directory of this host's name.
    #[arg(long, value_name = "LOCATION", requires = "snapshot_schedule")]
    pub snapshot_s3: Option<Location>,
    #[command(flatten)]
    pub storage: SnapshotStorageArguments,
}

/// Starts the schedule, if there is one.
pub fn start(
    arguments: &SnapshotArguments,
    data: &Path,
    server: &Arc<ApiServer>,
    supervisor: &Supervisor,
) -> anyhow::Result<()> {
    let Some(interval) = arguments.snapshot_schedule else { return Ok(()) };
    anyhow::ensure!(interval >= Duration::from_secs(1), "--snapshot-schedule is shorter than a second");
    let directory = arguments.snapshot_dir.clone().unwrap_or_else(|| data.join("snapshots"));
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let mirror = arguments.snapshot_s3.as_ref().map(|location| {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").context("this host has no name")?;
        anyhow::Ok(Mirror::new(arguments.storage.open(&location.bucket)?, location, host.trim()))
    });
    let (keep, data) = (usize::from(arguments.snapshot_retention), data.to_owned());
    let schedule = Schedule { data, directory, interval, keep, mirror: mirror.transpose()? };
    let server = server.clone();
    supervisor.restart("snapshots", move || {
        schedule.clone().run(server.backend.store.clone(), server.backend.stopping.clone())
    });
    Ok(())
}

#[derive(Clone)]
struct Schedule {
    /// Where the last snapshot is noted.
    data: PathBuf,
    directory: PathBuf,
    interval: Duration,
    keep: usize,
    mirror: Option<Mirror>,
}

impl Schedule {
    async fn run(self, store: Arc<dyn Store>, mut stopping: watch::Receiver<bool>) {
        loop {
            let wait = tokio::select! {
                wait = self.reconcile(&store) => wait,
                _ = stopping.wait_for(|stopping| *stopping) => return,
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = stopping.wait_for(|stopping| *stopping) => return,
            }
        }
    }

    /// Saves a snapshot if one is due, and uploads what is not in the storage yet. Returns when to do so again.
    async fn reconcile(&self, store: &Arc<dyn Store>) -> Duration {
        // A restarted server continues the schedule.
        let due = || due_in(&names(&self.directory), Timestamp::now(), self.interval);
        let mut has_failed = false;
        if due().is_zero() {
            remove(&self.directory, partial(names(&self.directory)));
            let now = Timestamp::now();
            match save(store.clone(), &self.directory, now).await {
                Ok((file, revision)) => {
                    tracing::info!(file = %file.display(), "saved a snapshot");
                    let last = LastSnapshot { file, revision, time: format!("{now:.0}") };
                    if let Err(error) = last.save(&self.data, Occasion::Schedule) {
                        tracing::warn!(error = format!("{error:#}"), "`knarr status` will not show the snapshot");
                    }
                    remove(&self.directory, expired(names(&self.directory), self.keep));
                }
                Err(error) => {
                    tracing::error!(error = format!("{error:#}"), "cannot save a snapshot; retrying");
                    has_failed = true;
                }
            }
        }
        if let Some(mirror) = &self.mirror
            && let Err(error) = mirror.sync(&self.directory, &names(&self.directory), self.keep).await
        {
            tracing::error!(error = format!("{error:#}"), "cannot store snapshots outside of this host; retrying");
            has_failed = true;
        }
        if has_failed { RETRY_INTERVAL.min(self.interval) } else { due() }
    }
}

/// Writes a snapshot that has its final name only when it is complete and durable. Returns the file and its revision.
async fn save(store: Arc<dyn Store>, directory: &Path, now: Timestamp) -> anyhow::Result<(PathBuf, u64)> {
    let path = directory.join(file_name(now));
    let partial = path.with_extension("partial");
    let runtime = tokio::runtime::Handle::current();
    let written = {
        let partial = partial.clone();
        // Writing a large store would block other tasks of the thread.
        tokio::task::spawn_blocking(move || runtime.block_on(write(&*store, &partial))).await?
    };
    let revision = written.inspect_err(|_| {
        // It wastes space.
        let _ = std::fs::remove_file(&partial);
    })?;
    rename_durably(&partial, &path).with_context(|| format!("cannot write {}", path.display()))?;
    Ok((path, revision))
}

async fn write(store: &dyn Store, path: &Path) -> anyhow::Result<u64> {
    // It contains secrets.
    let opened = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    let mut image = BufWriter::new(opened.with_context(|| format!("cannot write {}", path.display()))?);
    let revision = store.snapshot(&mut image).await?;
    image.flush()?;
    image.get_ref().sync_all()?;
    Ok(revision)
}

fn remove(directory: &Path, names: Vec<String>) {
    for name in names {
        if let Err(error) = std::fs::remove_file(directory.join(&name)) {
            tracing::warn!(%error, name, "cannot remove an old snapshot");
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Names sort by time.
fn file_name(now: Timestamp) -> String {
    format!("{PREFIX}{}{SUFFIX}", now.strftime("%Y%m%dT%H%M%SZ"))
}

/// When a scheduled snapshot was saved; none for other files.
pub(super) fn saved_at(name: &str) -> Option<Timestamp> {
    let time = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    Timestamp::strptime("%Y%m%dT%H%M%S%z", time.strip_suffix('Z').map(|time| format!("{time}+0000"))?).ok()
}

/// What a process that was killed has left: it wastes space.
fn partial(mut names: Vec<String>) -> Vec<String> {
    names.retain(|name| name.strip_suffix(PARTIAL).is_some_and(|stem| saved_at(&format!("{stem}{SUFFIX}")).is_some()));
    names
}

/// The scheduled snapshots beyond the newest ones.
fn expired(names: Vec<String>, keep: usize) -> Vec<String> {
    let mut own: Vec<String> = names.into_iter().filter(|name| saved_at(name).is_some()).collect();
    own.sort_unstable_by(|one, other| other.cmp(one));
    own.split_off(keep.min(own.len()))
}

/// How long until the next snapshot. What a clock that was wrong has dated in the future does not count.
fn due_in(names: &[String], now: Timestamp, interval: Duration) -> Duration {
    let last = names.iter().filter_map(|name| saved_at(name)).filter(|saved| *saved <= now).max();
    let Some(last) = last else { return Duration::ZERO };
    let age = Duration::try_from(now.duration_since(last)).unwrap_or_default();
    interval.saturating_sub(age)
}

#[cfg(test)]
#[path = "../../../object-storage/src/fake_storage.rs"]
mod fake_storage;

#[cfg(test)]
mod tests {
    use super::*;

    use fake_storage::FakeStorage;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn the_newest_snapshots_are_kept_and_other_files_untouched() {
        let names = |days: &[u8]| -> Vec<String> {
            days.iter().map(|day| file_name(at(&format!("2026-01-{day:02}T10:00:00Z")))).collect()
        };
        let mut all = names(&[3, 1, 2]);
        all.extend(
            ["knarr-x.snapshot", "before-upgrade.snapshot", "knarr-20260101T100000Z.partial"].map(str::to_owned),
        );
        assert_eq!(partial(all.clone()), ["knarr-20260101T100000Z.partial"]);
        assert_eq!(expired(all.clone(), 2), names(&[1]));
        assert_eq!(expired(all, 5), Vec::<String>::new());
    }

    #[test]
    fn the_schedule_continues_after_a_restart() {
        let hour = Duration::from_secs(3600);
        let now = at("2026-01-01T10:00:00Z");
        for (last, wait) in [(None, 0), (Some("2026-01-01T09:30:00Z"), 1800), (Some("2026-01-01T01:00:00Z"), 0)] {
            let mut names: Vec<String> = last.map(at).map(file_name).into_iter().collect();
            assert_eq!(due_in(&names, now, hour), Duration::from_secs(wait), "{last:?}");
            // Otherwise there would be no snapshots until then.
            names.push(file_name(at("2027-01-01T00:00:00Z")));
            assert_eq!(due_in(&names, now, hour), Duration::from_secs(wait), "{last:?}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_saved_snapshot_can_be_restored() {
        let parent = tempfile::tempdir().unwrap();
        let store = knarr_store::Embedded::open(&parent.path().join("store"), Default::default()).unwrap();
        store.create("/registry/a", bytes::Bytes::from("1"), None).await.unwrap();
        let (path, saved) = save(Arc::new(store), parent.path(), at("2026-01-01T10:00:00Z")).await.unwrap();
        assert_eq!(path, parent.path().join("knarr-20260101T100000Z.snapshot"));
        let restored = parent.path().join("restored");
        let revision = knarr_store::restore(File::open(path).unwrap(), &restored, 0).unwrap();
        assert_eq!((saved, revision), (2, 2));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn scheduled_snapshots_are_uploaded_and_pruned_there() {
        let storage = FakeStorage::start().await;
        let parent = tempfile::tempdir().unwrap();
        let credentials = parent.path().join("credentials");
        FakeStorage::credentials(&credentials, fake_storage::SECRET);
        let arguments = SnapshotStorageArguments {
            snapshot_s3_endpoint: Some(storage.endpoint().parse().unwrap()),
            snapshot_s3_region: fake_storage::REGION.to_owned(),
            snapshot_s3_credentials: Some(credentials),
            snapshot_s3_cafile: None,
        };
        let location: Location = format!("s3://{}/clusters/one", fake_storage::BUCKET).parse().unwrap();
        let mirror = Mirror::new(arguments.open(&location.bucket).unwrap(), &location, "server-1");
        let directory = parent.path().join("snapshots");
        std::fs::create_dir(&directory).unwrap();
        let interval = Duration::from_secs(3600);
        let data = parent.path().to_owned();
        let schedule = Schedule { data, directory: directory.clone(), interval, keep: 2, mirror: Some(mirror) };
        let store: Arc<dyn Store> =
            Arc::new(knarr_store::Embedded::open(&parent.path().join("store"), Default::default()).unwrap());
        store.create("/registry/a", bytes::Bytes::from("1"), None).await.unwrap();
        for old in [
            "clusters/one/server-1/knarr-20200101T100000Z.snapshot",
            "clusters/one/server-1/knarr-20200102T100000Z.snapshot",
        ]
        .into_iter()
        .chain(["clusters/one/server-2/knarr-20200101T100000Z.snapshot", "clusters/one/server-1/notes.txt"])
        {
            storage.state.lock().unwrap().objects.insert(old.to_owned(), bytes::Bytes::new());
        }
        // The storage is unreachable: the snapshot stays on the disk, and is uploaded with the next attempt.
        storage.state.lock().unwrap().failures = [http::StatusCode::FORBIDDEN].into();
        assert_eq!(schedule.reconcile(&store).await, RETRY_INTERVAL);
        let local = names(&directory);
        let noted = LastSnapshot::load(parent.path(), Occasion::Schedule).unwrap();
        assert_eq!((noted.file, noted.revision), (directory.join(&local[0]), 2), "`knarr status` finds it");
        assert_eq!((local.len(), storage.keys().len()), (1, 4));
        let wait = schedule.reconcile(&store).await;
        assert!(wait > interval - Duration::from_secs(60) && wait <= interval, "{wait:?}");
        let expected = [
            "clusters/one/server-1/knarr-20200102T100000Z.snapshot",
            &format!("clusters/one/server-1/{}", local[0]),
            "clusters/one/server-1/notes.txt",
            "clusters/one/server-2/knarr-20200101T100000Z.snapshot",
        ];
        assert_eq!(storage.keys(), expected);
        let place = format!("{location}/server-1/{}", local[0]).parse().unwrap();
        let fetched = arguments.fetch(&place, parent.path()).await.unwrap();
        let restored = parent.path().join("restored");
        let revision = knarr_store::restore(File::open(fetched.path()).unwrap(), &restored, 0).unwrap();
        assert_eq!(revision, 2);
    }
}
