//! Starts a cluster's etcd on this server, with the contents of the embedded store or of a snapshot.
//!
//! etcd is started once to create its files, stopped, and its database is filled with every revision kept. Only then is the
//! member noted; a crash before that leaves the old store in use, and the next attempt starts from nothing.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use knarr_store::EtcdAdministration;

use super::child::{EtcdProcess, State};
use super::member::{Member, MemberFiles, Start, local_url};

/// A fresh etcd responds within a second; a slow disk needs longer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates the data of a new, single member; `contents` is a snapshot, with the number of revisions to skip after it.
pub async fn create(files: &MemberFiles, member: &Member, contents: Option<(&Path, u64)>) -> anyhow::Result<()> {
    let temporary = files.directory().join("data.new");
    remove_directory(&temporary)?;
    std::fs::create_dir_all(files.directory())
        .with_context(|| format!("cannot create {}", files.directory().display()))?;
    if let Some((image, skip)) = contents {
        // Others that join copy the database only if the raft log does not reach back to its beginning: what is imported
        // is in no log.
        run_once(files, member, &temporary, Start::EarlySnapshot).await?;
        let database = temporary.join("member/snap/db");
        let file = File::open(image).with_context(|| format!("cannot read {}", image.display()))?;
        let now = Timestamp::now().as_millisecond().max(0) as u64;
        let revision = knarr_store::import_into_etcd(BufReader::new(file), &database, skip, now)
            .context("cannot move the store into etcd")?;
        tracing::info!(revision, "moved the store into etcd");
        // A member that is not noted has no data of value.
        remove_directory(&files.etcd_data())?;
        std::fs::rename(&temporary, files.etcd_data()).context("cannot move etcd's data into place")?;
    }
    files.save(member)
}

/// Moves the embedded store of a data directory into a new etcd.
pub async fn move_store(files: &MemberFiles, member: &Member, store: &Path) -> anyhow::Result<()> {
    let image = files.directory().join("store.image");
    std::fs::create_dir_all(files.directory())
        .with_context(|| format!("cannot create {}", files.directory().display()))?;
    let mut file = BufWriter::new(private_file(&image)?);
    knarr_store::export(store, &mut file).with_context(|| format!("cannot read the store in {}", store.display()))?;
    file.flush().with_context(|| format!("cannot write {}", image.display()))?;
    create(files, member, Some((&image, 0))).await?;
    // It contains secrets, and so does the old store, which stays for the case that etcd is not wanted after all.
    std::fs::remove_file(&image).with_context(|| format!("cannot remove {}", image.display()))?;
    let kept = PathBuf::from(format!("{}.before-etcd", store.display()));
    remove_directory(&kept)?;
    std::fs::rename(store, &kept).with_context(|| format!("cannot rename {}", store.display()))
}

/// Runs etcd until it responds, and stops it.
pub async fn run_once(files: &MemberFiles, member: &Member, data: &Path, start: Start) -> anyhow::Result<()> {
    let snapshots = data.join("member/snap");
    let (files_, member_, data) = (files.clone(), member.clone(), data.to_owned());
    let mut process = EtcdProcess::start(move || member_.command(&files_, &data, start))?;
    let tls = files.credentials().tls().context("cannot read etcd's certificates")?;
    let administration = EtcdAdministration::new(&[local_url()], Some(&tls))?;
    let started = Instant::now();
    let outcome = loop {
        // A member with a leader is itself: it is alone.
        match administration.status(&local_url()).await {
            Ok(status) if status.leader != 0 && start != Start::EarlySnapshot => break Ok(()),
            Ok(status) if status.leader != 0 && has_snapshot(&snapshots) => break Ok(()),
            // etcd considers a snapshot when its log grows.
            Ok(status) if status.leader != 0 => grow_log(&administration).await,
            _ => {}
        }
        let state = process.state.borrow().clone();
        if let State::Restarting(reason) = state {
            break Err(anyhow::anyhow!("etcd does not start: {reason}"));
        }
        if started.elapsed() > START_TIMEOUT {
            break Err(anyhow::anyhow!("etcd does not respond"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    tokio::task::spawn_blocking(move || process.stop()).await?;
    outcome
}

/// Whether etcd has saved a snapshot of its raft log.
fn has_snapshot(directory: &Path) -> bool {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten().map(|entry| entry.path());
    files.filter(|path| path.is_file()).any(|path| path.extension().is_some_and(|extension| extension == "snap"))
}

/// Appends to the raft log without changing anything.
async fn grow_log(administration: &EtcdAdministration) {
    if let Err(error) = administration.clear_space_alarm(0).await {
        tracing::debug!(%error, "etcd does not accept a request yet");
    }
}

/// Whether etcd can be run, with the reason if not.
pub fn check_program() -> anyhow::Result<()> {
    match std::process::Command::new("etcd").arg("--version").output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => bail!("`etcd --version` fails: {}", String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => bail!(
            "several servers need etcd 3.4 or newer on each of them, but it cannot be run ({error}): \
             install Debian's etcd-server package, or put etcd on the PATH"
        ),
    }
}

fn private_file(path: &Path) -> anyhow::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let opened = File::options().write(true).create(true).truncate(true).mode(0o600).open(path);
    opened.with_context(|| format!("cannot write {}", path.display()))
}

pub fn remove_directory(path: &Path) -> anyhow::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}
