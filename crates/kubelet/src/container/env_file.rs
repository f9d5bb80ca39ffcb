//! Environment variables that a container of the pod wrote to a file of a shared volume (`fileKeyRef`).
//!
//! The file is untrusted: it is opened without leaving the volume, only if it is a regular file, and read within limits
//! of size and time.

use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::api::core::v1::FileKeySelector;

use crate::beneath::{self, Directory, Links, ReadError};
use crate::volumes::MountedVolumes;

#[derive(Debug, thiserror::Error)]
pub enum EnvFileError {
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    NoVolume(String),
    /// The reason goes to the node's log only: it may describe files that the pod's author must not see.
    #[error("couldn't parse env file")]
    Unusable(#[source] Reason),
    #[error("environment variable key {key:?} not found in file {:?}", .path.display().to_string())]
    NoKey { key: String, path: PathBuf },
}

#[derive(Debug, thiserror::Error)]
pub enum Reason {
    #[error("failed to read environment variable file: {0}")]
    Read(#[from] ReadError),
    #[error("reading the environment variable file took too long")]
    Timeout,
    #[error("invalid environment variable format at line {line}: {what}")]
    Format { line: usize, what: &'static str },
    #[error("invalid environment variable format starting at line {0}: unclosed single quote")]
    Unclosed(usize),
    #[error("line {0} of the environment variable file is too long")]
    LongLine(usize),
}

/// The maximum size of a ConfigMap.
const MAX_FILE_SIZE: u64 = 1 << 20;
const MAX_LINE_LENGTH: usize = 64 << 10;
const TIMEOUT: Duration = Duration::from_secs(10);

/// None when the key is optional and the file does not set it.
pub async fn variable(volumes: &MountedVolumes, selector: &FileKeySelector) -> Result<Option<String>, EnvFileError> {
    let no_volume = || EnvFileError::NoVolume(selector.volume_name.clone());
    let volume = volumes.volumes.get(&selector.volume_name).ok_or_else(no_volume)?.path.clone();
    let path = PathBuf::from(&selector.path);
    let rendered = beneath::rendered(&volume, &selector.path);
    let text = read(volume, path).await.map_err(EnvFileError::Unusable)?;
    let found = find(&text, &selector.key).map_err(EnvFileError::Unusable)?;
    match found.filter(|value| !value.is_empty()) {
        Some(value) => Ok(Some(value)),
        None if selector.optional == Some(true) => Ok(None),
        None => Err(EnvFileError::NoKey { key: selector.key.clone(), path: rendered }),
    }
}

async fn read(volume: PathBuf, path: PathBuf) -> Result<String, Reason> {
    let work = tokio::task::spawn_blocking(move || read_blocking(&volume, &path));
    let done = tokio::time::timeout(TIMEOUT, work).await.map_err(|_| Reason::Timeout)?;
    let content = done.map_err(|error| ReadError::Io(std::io::Error::other(error)))??;
    Ok(String::from_utf8_lossy(&content).into_owned())
}

fn read_blocking(volume: &Path, path: &Path) -> Result<Vec<u8>, ReadError> {
    Directory::open(volume)?.read(path, Links::Rooted, MAX_FILE_SIZE)
}

/// The value of the key in a file of `KEY='value'` lines, where a value may span several lines.
fn find(text: &str, key: &str) -> Result<Option<String>, Reason> {
    const BLANKS: [char; 2] = [' ', '\t'];
    let mut lines = text.split_terminator('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).zip(1..);
    while let Some((line, number)) = lines.next() {
        let wrong = |line, what| Reason::Format { line, what };
        let fits =
            |line: &str, number| if line.len() >= MAX_LINE_LENGTH { Err(Reason::LongLine(number)) } else { Ok(()) };
        fits(line, number)?;
        let line = line.trim_start_matches(BLANKS);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or(wrong(number, "missing '='"))?;
        let bare = name.trim_end_matches(BLANKS);
        if bare.is_empty() {
            return Err(wrong(number, "empty variable name"));
        }
        if bare != name {
            return Err(wrong(number, "whitespace before '=' is not allowed"));
        }
        if value.starts_with(BLANKS) {
            // As in a shell, the variable is empty.
            if name == key {
                return Ok(None);
            }
            continue;
        }
        let mut rest = value.strip_prefix('\'').ok_or(wrong(number, "value must be enclosed in single quotes"))?;
        let (mut whole, mut last) = (String::new(), number);
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                whole.push_str(end);
                break after.trim_start_matches(BLANKS);
            }
            whole.push_str(rest);
            whole.push('\n');
            (rest, last) = lines.next().ok_or(Reason::Unclosed(number))?;
            fits(rest, last)?;
        };
        if !after.is_empty() && !after.starts_with('#') {
            return Err(wrong(last, "unexpected content after closing quote"));
        }
        if name == key {
            return Ok(Some(whole));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::Mounted;
    use std::os::unix::fs::symlink;

    fn mounted(volume: &Path) -> MountedVolumes {
        let mounted = Mounted { path: volume.to_path_buf(), read_only: false, relabel: true, image: None };
        MountedVolumes { volumes: [("v".to_string(), mounted)].into_iter().collect(), ..Default::default() }
    }

    fn reference(path: &str) -> FileKeySelector {
        FileKeySelector { volume_name: "v".into(), path: path.into(), key: "KEY".into(), optional: Some(true) }
    }

    #[tokio::test]
    async fn files_outside_the_volume_are_not_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let volume = directory.path().join("v");
        std::fs::create_dir(&volume).expect("made");
        std::fs::write(directory.path().join("secret.env"), "KEY='host'\n").expect("written");
        std::fs::write(volume.join("own.env"), "KEY='own'\n").expect("written");
        symlink(directory.path().join("secret.env"), volume.join("absolute")).expect("made");
        symlink("../secret.env", volume.join("relative")).expect("made");
        symlink(directory.path(), volume.join("up")).expect("made");
        symlink("/dev/zero", volume.join("zero")).expect("made");
        nix::unistd::mkfifo(&volume.join("fifo"), nix::sys::stat::Mode::S_IRWXU).expect("made");
        std::fs::File::create(volume.join("sparse")).and_then(|file| file.set_len(100 << 30)).expect("made");
        let volumes = mounted(&volume);
        let own = variable(&volumes, &reference("own.env")).await;
        assert!(matches!(&own, Ok(Some(value)) if value == "own"), "{own:?}");
        let rooted = variable(&volumes, &reference("/own.env")).await;
        assert!(matches!(&rooted, Ok(Some(value)) if value == "own"), "{rooted:?}");
        let host = directory.path().join("secret.env").display().to_string();
        let outside = [&host, "absolute", "relative", "up/secret.env", "../secret.env", "/etc/os-release"];
        for path in outside.into_iter().chain(["/dev/zero", "zero", "fifo", "sparse", "."]) {
            let value = variable(&volumes, &reference(path)).await;
            assert!(matches!(value, Err(EnvFileError::Unusable(_))), "{path}: {value:?}");
        }
    }

    #[test]
    fn files_are_parsed_strictly() {
        for (text, expected) in [
            ("KEY='a b'\n", Ok(Some("a b"))),
            ("\n# note\n  KEY='a=b' # note\r\n", Ok(Some("a=b"))),
            ("A='x\ny'\nKEY='1\n\n2'", Ok(Some("1\n\n2"))),
            ("KEY= 'a'\n", Ok(None)),
            ("OTHER='a'\n", Ok(None)),
            ("", Ok(None)),
            ("KEY=a\n", Err("invalid environment variable format at line 1: value must be enclosed in single quotes")),
            ("\nKEY ='a'", Err("invalid environment variable format at line 2: whitespace before '=' is not allowed")),
            ("KEY\n", Err("invalid environment variable format at line 1: missing '='")),
            ("='a'", Err("invalid environment variable format at line 1: empty variable name")),
            ("KEY='a'b", Err("invalid environment variable format at line 1: unexpected content after closing quote")),
            ("A='\nKEY=1", Err("invalid environment variable format starting at line 1: unclosed single quote")),
        ] {
            let found = find(text, "KEY").map_err(|error| error.to_string());
            assert_eq!(found, expected.map(|value| value.map(str::to_string)).map_err(str::to_string), "{text:?}");
        }
        assert!(matches!(find(&"a".repeat(MAX_LINE_LENGTH), "KEY"), Err(Reason::LongLine(1))));
    }
}
