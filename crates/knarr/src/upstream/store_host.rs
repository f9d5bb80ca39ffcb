//! How Knarr's `etcd` and `kube-apiserver` find each other.
//!
//! Knarr's API server keeps objects itself, and needs no etcd. Tools that start both still expect two programs, and that
//! objects live as long as etcd's data directory. So Knarr's `etcd` only owns a directory: its `/version` names the directory
//! and an identity that is also a file in it. An API server that finds the same identity there keeps its store in that
//! directory; any other response is etcd's.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};

/// The file with the identity of the directory.
pub const IDENTITY: &str = "knarr-store-identity";
/// The store in the directory.
const STORE: &str = "knarr-store";
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// No version is longer.
const MAX_RESPONSE: u64 = 64 << 10;

/// The directory of a store host, as its `/version` names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    pub directory: PathBuf,
    pub identity: String,
    /// Whether writes must survive a loss of power.
    pub is_durable: bool,
}

/// Where an API server keeps its objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreHost {
    pub directory: PathBuf,
    pub is_durable: bool,
}

#[derive(Deserialize)]
struct Version {
    knarr: Option<Announcement>,
}

/// The store host behind the first server, if it is one. Waits until the server accepts connections.
pub fn find(servers: &[String], timeout: Duration) -> anyhow::Result<Option<StoreHost>> {
    // etcd with TLS is never one of ours.
    let Some(address) = servers.first().and_then(|server| server.strip_prefix("http://")) else { return Ok(None) };
    let address = address.trim_end_matches('/');
    let deadline = Instant::now() + timeout;
    let body = loop {
        match request(address) {
            Ok(body) => break body,
            Err(error) if Instant::now() >= deadline => {
                return Err(error).with_context(|| format!("cannot reach the store at {}", servers.join(", ")));
            }
            Err(_) => std::thread::sleep(RETRY_INTERVAL),
        }
    };
    let Some(announced) = serde_json::from_str::<Version>(&body).ok().and_then(|version| version.knarr) else {
        return Ok(None);
    };
    verified(announced).map(Some)
}

/// The announced directory, if it is on this host and belongs to who announced it.
fn verified(announced: Announcement) -> anyhow::Result<StoreHost> {
    let Announcement { directory, identity, is_durable } = announced;
    if !directory.is_absolute() {
        bail!("the store's directory {} is not absolute", directory.display());
    }
    let elsewhere = || format!("the store's directory {} is not on this host", directory.display());
    // Whoever got hold of the address could name a directory of their own, and lead the API server's writes from there.
    let metadata = std::fs::symlink_metadata(&directory).with_context(elsewhere)?;
    let is_own = metadata.uid() == nix::unistd::geteuid().as_raw() && metadata.mode() & 0o022 == 0;
    if !metadata.is_dir() || !is_own {
        bail!("the store's directory {} can be changed by other users", directory.display());
    }
    let found = std::fs::read_to_string(directory.join(IDENTITY)).with_context(elsewhere)?;
    if identity.is_empty() || found.trim() != identity {
        bail!("the store's directory {} belongs to another process", directory.display());
    }
    Ok(StoreHost { directory: directory.join(STORE), is_durable })
}

/// The body of `GET /version`.
fn request(address: &str) -> anyhow::Result<String> {
    let target = address.to_socket_addrs()?.next().context("the name has no address")?;
    let mut stream = TcpStream::connect_timeout(&target, REQUEST_TIMEOUT)?;
    stream.set_read_timeout(Some(REQUEST_TIMEOUT))?;
    stream.set_write_timeout(Some(REQUEST_TIMEOUT))?;
    write!(stream, "GET /version HTTP/1.0\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    stream.take(MAX_RESPONSE).read_to_end(&mut response)?;
    let text = String::from_utf8_lossy(&response);
    let (_, body) = text.split_once("\r\n\r\n").context("the response has no end of its headers")?;
    Ok(body.to_owned())
}

/// Creates the identity of a directory, or reads the one of a previous run.
pub fn identity(directory: &Path) -> anyhow::Result<String> {
    let path = directory.join(IDENTITY);
    if let Ok(known) = std::fs::read_to_string(&path)
        && !known.trim().is_empty()
    {
        return Ok(known.trim().to_owned());
    }
    let identity = format!("{:032x}", rand::random::<u128>());
    std::fs::write(&path, &identity).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(identity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_directory_with_the_announced_identity_is_used() {
        let directory = tempfile::tempdir().unwrap();
        let own = identity(directory.path()).unwrap();
        assert_eq!(identity(directory.path()).unwrap(), own, "a restart keeps it");
        let announced = |path: &Path, identity: &str| Announcement {
            directory: path.to_owned(),
            identity: identity.to_owned(),
            is_durable: true,
        };
        let found = verified(announced(directory.path(), &own)).unwrap();
        assert_eq!(found, StoreHost { directory: directory.path().join(STORE), is_durable: true });
        for (path, identity, reason) in [
            (directory.path(), "other", "belongs to another process"),
            (Path::new("/nonexistent"), own.as_str(), "is not on this host"),
            (Path::new("relative"), own.as_str(), "is not absolute"),
        ] {
            let refused = format!("{:#}", verified(announced(path, identity)).unwrap_err());
            assert!(refused.contains(reason), "{refused}");
        }
    }

    /// A local user who listens at etcd's address must not lead the API server into a directory of theirs.
    #[test]
    fn a_directory_that_others_can_change_is_not_used() {
        use std::os::unix::fs::PermissionsExt as _;
        let parent = tempfile::tempdir().unwrap();
        let own = parent.path().join("own");
        std::fs::create_dir(&own).unwrap();
        let identity = identity(&own).unwrap();
        let link = parent.path().join("link");
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let refused = |directory: &Path| {
            let announced =
                Announcement { directory: directory.to_owned(), identity: identity.clone(), is_durable: true };
            verified(announced).is_err()
        };
        let mode = |mode: u32| std::fs::set_permissions(&own, std::fs::Permissions::from_mode(mode)).unwrap();
        mode(0o700);
        assert!(!refused(&own) && refused(&link));
        mode(0o777);
        assert!(refused(&own));
        mode(0o770);
        assert!(refused(&own));
        if knarr_test_host::has(&["root"]) {
            mode(0o700);
            std::os::unix::fs::chown(&own, Some(65534), None).unwrap();
            assert!(refused(&own));
        }
    }

    #[test]
    fn etcd_itself_is_not_a_store_host() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", listener.local_addr().unwrap());
        let response = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // A connection that is closed with unread bytes is reset.
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap() > 0 {
                request.push(byte[0]);
            }
            stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n{\"etcdserver\":\"3.6.8\",\"etcdcluster\":\"3.6.0\"}").unwrap();
        });
        assert_eq!(find(&[server], Duration::from_secs(60)).unwrap(), None);
        response.join().unwrap();
        assert_eq!(find(&["https://127.0.0.1:1".to_owned()], Duration::ZERO).unwrap(), None);
        assert_eq!(find(&[], Duration::ZERO).unwrap(), None);
        assert!(find(&["http://127.0.0.1:1".to_owned()], Duration::ZERO).is_err());
    }
}
