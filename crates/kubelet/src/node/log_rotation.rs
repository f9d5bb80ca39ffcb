//! Rotates container logs: a log that is too large is renamed, and the runtime opens a new one.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use k8s_openapi::jiff::Timestamp;

use crate::context::Context;
use crate::pods::Pods;

/// Runs for as long as the node does.
pub async fn rotate_logs(context: Arc<Context>, pods: Arc<Pods>) {
    let mut ticks = tokio::time::interval(context.settings.tuning.log_check);
    loop {
        ticks.tick().await;
        for worker in pods.all() {
            let running: Vec<(String, PathBuf)> = worker
                .runtime
                .lock()
                .running()
                .map(|container| (container.id.clone(), PathBuf::from(&container.log_path)))
                .collect();
            for (id, path) in running {
                if let Err(error) = rotate(&context, &id, &path).await {
                    tracing::warn!(error, log = %path.display(), "cannot rotate a container log");
                }
            }
        }
    }
}

async fn rotate(context: &Context, id: &str, path: &Path) -> Result<(), String> {
    let size = match tokio::fs::metadata(path).await {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.to_string()),
    };
    if size < context.settings.log_max_size {
        return Ok(());
    }
    let rotated = PathBuf::from(format!("{}.{}", path.display(), Timestamp::now().strftime("%Y%m%d-%H%M%S")));
    tokio::fs::rename(path, &rotated).await.map_err(|error| error.to_string())?;
    if let Err(error) = context.runtime.reopen_container_log(id).await {
        // The runtime still writes to the old file, so it gets its name back.
        tokio::fs::rename(&rotated, path).await.map_err(|error| error.to_string())?;
        return Err(error.to_string());
    }
    let (path, max_files) = (path.to_path_buf(), context.settings.log_max_files);
    let tidied = tokio::task::spawn_blocking(move || tidy(&path, max_files)).await;
    tidied.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

/// Compresses all rotated logs but the newest, which a reader may still have open. Removes the oldest beyond the limit,
/// which includes the current log, and unfinished files of a previous process.
fn tidy(path: &Path, max_files: u32) -> io::Result<()> {
    let (unfinished, mut rotated): (Vec<_>, Vec<_>) =
        rotated_logs(path)?.into_iter().partition(|file| file.extension().is_some_and(|extension| extension == "tmp"));
    for file in unfinished {
        std::fs::remove_file(file)?;
    }
    let keep = usize::try_from(max_files.saturating_sub(1)).unwrap_or(1).max(1);
    while rotated.len() > keep {
        std::fs::remove_file(rotated.remove(0))?;
    }
    rotated.pop();
    for file in rotated.into_iter().filter(|file| file.extension().is_none_or(|extension| extension != "gz")) {
        compress(&file)?;
    }
    Ok(())
}

/// The oldest first.
fn rotated_logs(path: &Path) -> io::Result<Vec<PathBuf>> {
    let prefix = format!("{}.", path.file_name().unwrap_or_default().to_string_lossy());
    let directory = path.parent().unwrap_or(Path::new("/"));
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(&prefix) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

fn compress(file: &Path) -> io::Result<()> {
    let target = PathBuf::from(format!("{}.gz", file.display()));
    let unfinished = PathBuf::from(format!("{}.tmp", target.display()));
    let output = std::fs::File::create(&unfinished)?;
    let mut encoder = flate2::write::GzEncoder::new(output, flate2::Compression::default());
    io::copy(&mut std::fs::File::open(file)?, &mut encoder)?;
    encoder.finish()?;
    std::fs::rename(unfinished, target)?;
    std::fs::remove_file(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_logs_are_compressed_and_the_oldest_removed() {
        let directory = tempfile::tempdir().expect("a directory");
        let log = directory.path().join("0.log");
        for name in [
            "0.log",
            "0.log.20260101-000000",
            "0.log.20260102-000000",
            "0.log.20260103-000000",
            "1.log",
            "0.log.20260102-000000.gz.tmp",
        ] {
            std::fs::write(directory.path().join(name), name).expect("written");
        }
        tidy(&log, 3).expect("tidied");
        let mut names: Vec<String> = std::fs::read_dir(directory.path())
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        assert_eq!(names, ["0.log", "0.log.20260102-000000.gz", "0.log.20260103-000000", "1.log"]);
    }
}
