//! Starts a cluster's etcd on this server, with the contents of the embedded store or of a snapshot.
//!
//! etcd is started once to create its files and stopped, and its database is filled with every revision that is kept. Only then
//! is the member recorded: after a crash before that, the old store is still in use and the next attempt starts over. Files that
//! a crash after that leaves behind are removed at the next start.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use jiff::Timestamp;
use knarr_store::{Etcd, EtcdAdministration, EtcdOptions, SkippedRevisions, Store as _, Tls};

use super::child::{EtcdProcess, State};
use super::member::{Member, MemberFiles, Start, local_url};

/// A fresh etcd responds within a second; a slow disk needs longer.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// Creates the data of a new, single member with the contents of a snapshot, and skips this number of revisions after it. If
/// there is a member already, returns where its data is now: it stays in use until the new one is complete.
pub async fn create(files: &MemberFiles, member: &Member, image: &Path, skip: u64) -> anyhow::Result<Option<PathBuf>> {
    let temporary = files.directory().join("data.new");
    remove_directory(&temporary)?;
    std::fs::create_dir_all(files.directory())
        .with_context(|| format!("cannot create {}", files.directory().display()))?;
    run_once(files, member, &temporary, Start::EarlySnapshot, None).await?;
    let seen = match files.load()? {
        Some(_) => newest_revision(&files.etcd_data()),
        None => 0,
    };
    import(image, &temporary, SkippedRevisions { seen, after: skip })?;
    install(files, member, &temporary)
}

/// Installs complete data as that of this server, and records the member.
fn install(files: &MemberFiles, member: &Member, complete: &Path) -> anyhow::Result<Option<PathBuf>> {
    let (data, now) = (files.etcd_data(), Timestamp::now().as_second());
    let aside = files.directory().join(format!("data.before-reset-{now}"));
    let has_old = files.load()?.is_some() && data.exists();
    if has_old {
        std::fs::rename(&data, &aside).with_context(|| format!("cannot rename {}", data.display()))?;
    } else {
        // The data of a member that was never recorded is incomplete.
        remove_directory(&data)?;
    }
    std::fs::rename(complete, &data).context("cannot move etcd's data into place")?;
    // This makes the renames durable, too: they are in the same directory.
    files.save(&member.with_data())?;
    Ok(has_old.then_some(aside))
}

/// The newest revision of a stopped etcd; 0 if its data cannot be read, which may be why it is replaced.
fn newest_revision(data: &Path) -> u64 {
    knarr_store::etcd_revision(&database(data)).unwrap_or_else(|error| {
        tracing::warn!(%error, "the revision of the old data is not known");
        0
    })
}

fn database(data: &Path) -> PathBuf {
    data.join("member/snap/db")
}

/// Replaces the contents of a stopped etcd's database by a snapshot.
pub fn import(image: &Path, data: &Path, skipped: SkippedRevisions) -> anyhow::Result<()> {
    let file = File::open(image).with_context(|| format!("cannot read {}", image.display()))?;
    let now = Timestamp::now().as_millisecond().max(0) as u64;
    let revision = knarr_store::import_into_etcd(BufReader::new(file), &database(data), skipped, now)
        .context("cannot move the store into etcd")?;
    tracing::info!(revision, "moved the store into etcd");
    Ok(())
}

/// Moves the embedded store of a data directory into a new etcd.
pub async fn move_store(files: &MemberFiles, member: &Member, store: &Path) -> anyhow::Result<()> {
    let image = image_file(files);
    std::fs::create_dir_all(files.directory())
        .with_context(|| format!("cannot create {}", files.directory().display()))?;
    let moved = async {
        export(store, &image)?;
        create(files, member, &image, 0).await.map(drop)
    };
    if let Err(error) = moved.await {
        // Perhaps the disk is full, and the old store is used on.
        remove_image(files);
        return Err(error);
    }
    finish(files, store);
    Ok(())
}

fn export(store: &Path, image: &Path) -> anyhow::Result<()> {
    let mut file = BufWriter::new(private_file(image)?);
    knarr_store::export(store, &mut file).with_context(|| format!("cannot read the store in {}", store.display()))?;
    file.flush().with_context(|| format!("cannot write {}", image.display()))
}

/// Removes what a completed or interrupted move left behind. The old store is kept under another name, as a backup.
pub fn finish(files: &MemberFiles, store: &Path) {
    remove_image(files);
    if !store.exists() {
        return;
    }
    let kept = PathBuf::from(format!("{}.before-etcd", store.display()));
    let renamed = remove_directory(&kept).and_then(|()| Ok(std::fs::rename(store, &kept)?));
    if let Err(error) = renamed {
        tracing::warn!(%error, "cannot rename the store that was moved into etcd");
    }
}

/// Removes the image of the store, which contains secrets.
fn remove_image(files: &MemberFiles) {
    if let Err(error) = std::fs::remove_file(image_file(files))
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(%error, "cannot remove the copy of the store for etcd");
    }
}

/// The image of the store that is moved into etcd.
pub fn image_file(files: &MemberFiles) -> PathBuf {
    files.directory().join("store.image")
}

/// Runs etcd until it responds and has a snapshot of its raft log, saves the contents to `image`, and stops it. Without that
/// snapshot, members that join would replay the log instead of copying the database, and imported data is in no log.
pub async fn run_once(
    files: &MemberFiles,
    member: &Member,
    data: &Path,
    start: Start,
    image: Option<&Path>,
) -> anyhow::Result<()> {
    let snapshots = data.join("member/snap");
    let (files_, member_, data) = (files.clone(), member.clone(), data.to_owned());
    let mut process = EtcdProcess::start(move || member_.command(&files_, &data, start))?;
    let tls = files.credentials().tls().context("cannot read etcd's certificates")?;
    let administration = EtcdAdministration::new(&[local_url()], Some(&tls))?;
    let started = Instant::now();
    let outcome = loop {
        // The only member elects itself.
        match administration.status(&local_url()).await {
            Ok(status) if status.leader != 0 && has_snapshot(&snapshots) => break Ok(()),
            // etcd saves a snapshot only when its log grows.
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
    let outcome = match (outcome, image) {
        (Ok(()), Some(image)) => save(image, tls).await,
        (outcome, _) => outcome,
    };
    tokio::task::spawn_blocking(move || process.stop()).await?;
    outcome
}

/// Saves the contents of the etcd on this host.
async fn save(image: &Path, tls: Tls) -> anyhow::Result<()> {
    let store = Etcd::connect(&[local_url()], Some(tls), EtcdOptions::default()).await?;
    let mut file = BufWriter::new(private_file(image)?);
    store.snapshot(&mut file).await.context("cannot save the contents of etcd")?;
    file.flush().with_context(|| format!("cannot write {}", image.display()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_move_is_tidied_up_at_the_next_start() {
        let directory = tempfile::tempdir().unwrap();
        let (files, store) = (MemberFiles::of(directory.path()), directory.path().join("store"));
        std::fs::create_dir_all(files.directory()).unwrap();
        for _ in 0..2 {
            finish(&files, &store);
        }
        for content in ["first", "second"] {
            std::fs::create_dir_all(&store).unwrap();
            std::fs::write(store.join("file"), content).unwrap();
            std::fs::write(image_file(&files), "secrets").unwrap();
            finish(&files, &store);
            assert!(!store.exists() && !image_file(&files).exists());
            let kept = directory.path().join("store.before-etcd/file");
            assert_eq!(std::fs::read_to_string(kept).unwrap(), content);
        }
    }

    #[tokio::test]
    async fn a_move_that_fails_leaves_no_copy_of_the_store() {
        let directory = tempfile::tempdir().unwrap();
        let (files, store) = (MemberFiles::of(directory.path()), directory.path().join("store"));
        drop(knarr_store::Embedded::open(&store, Default::default()).unwrap());
        // There is no room for etcd's data.
        std::fs::create_dir_all(files.directory()).unwrap();
        std::fs::write(files.directory().join("data.new"), "").unwrap();
        let member = Member::first("one", "127.0.0.1".parse().unwrap());
        let failed = move_store(&files, &member, &store).await.unwrap_err();
        assert!(format!("{failed:#}").contains("data.new"), "{failed:#}");
        assert!(store.exists() && !image_file(&files).exists());
    }

    #[test]
    fn the_data_of_a_member_is_never_lost() {
        let directory = tempfile::tempdir().unwrap();
        let files = MemberFiles::of(directory.path());
        let (data, complete) = (files.etcd_data(), files.directory().join("data.new"));
        let put = |content: &str| {
            std::fs::create_dir_all(complete.join("member/wal")).unwrap();
            std::fs::write(complete.join("file"), content).unwrap();
            install(&files, &Member::first("one", "10.0.0.1".parse().unwrap()), &complete).unwrap()
        };
        // Left behind by an attempt that was interrupted.
        std::fs::create_dir_all(&data).unwrap();
        assert_eq!(put("first"), None);
        let noted = files.load().unwrap().unwrap();
        files.check_data(&noted).unwrap();
        let aside = put("second").expect("it is kept");
        assert_eq!(std::fs::read_to_string(aside.join("file")).unwrap(), "first");
        assert_eq!(std::fs::read_to_string(data.join("file")).unwrap(), "second");
        // It was interrupted between the two renames: the server does not start with nothing, and the command goes on.
        std::fs::remove_dir_all(&data).unwrap();
        assert!(files.check_data(&noted).is_err());
        assert_eq!(put("third"), None);
        files.check_data(&files.load().unwrap().unwrap()).unwrap();
    }
}
