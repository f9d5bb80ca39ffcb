//! Finds the credentials for an image's registry in a pod's pull secrets.

use base64::Engine;
use knarr_cri::messages::AuthConfig;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::access::SecretUsed;
use crate::objects::Content;

/// A pull secret of a pod.
pub struct PullSecret {
    pub namespace: String,
    pub name: String,
    pub content: Arc<Content>,
}

/// Credentials for a registry and the secret they come from.
pub struct Credentials {
    pub auth: AuthConfig,
    pub source: SecretUsed,
}

#[derive(Deserialize)]
struct DockerConfig {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    #[serde(default)]
    username: String,
    #[serde(default)]
    password: String,
    #[serde(default)]
    auth: String,
}

/// The matching credentials of all secrets, most specific first; equal ones in the order of the secrets. Unreadable
/// secrets are skipped.
pub fn matching(secrets: &[PullSecret], image: &str) -> Vec<Credentials> {
    let entries: Vec<(String, Credentials)> = secrets
        .iter()
        .flat_map(|secret| entries_of(&secret.content).into_iter().map(move |entry| (secret, entry)))
        .map(|(secret, (server, entry))| (normalized_server(&server), credentials(secret, entry)))
        .collect();
    let repository = repository_of(image);
    let (mut found, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(named, _)| covers(named, &repository));
    if found.is_empty() && repository.starts_with("docker.io/") {
        found = others.into_iter().filter(|(named, _)| named == DEFAULT_REGISTRY).collect();
    }
    found.sort_by(|(one, _), (other, _)| other.cmp(one));
    found.into_iter().map(|(_, credentials)| credentials).collect()
}

/// Docker's name for its own registry.
const DEFAULT_REGISTRY: &str = "index.docker.io";

fn entries_of(secret: &Content) -> BTreeMap<String, Entry> {
    let entries = match secret.kind.as_deref() {
        Some("kubernetes.io/dockerconfigjson") => secret
            .data
            .get(".dockerconfigjson")
            .and_then(|content| serde_json::from_slice::<DockerConfig>(content).ok())
            .map(|config| config.auths),
        Some("kubernetes.io/dockercfg") => {
            secret.data.get(".dockercfg").and_then(|content| serde_json::from_slice(content).ok())
        }
        _ => None,
    };
    entries.unwrap_or_default()
}

/// Leaves out the registry, as the runtime only accepts a URL there and the credentials are for this image anyway.
fn credentials(secret: &PullSecret, entry: Entry) -> Credentials {
    let (username, password) = match decoded(&entry.auth) {
        Some(both) => both,
        None => (entry.username, entry.password),
    };
    let mut hash = Sha256::new();
    hash.update(username.len().to_le_bytes());
    hash.update(&username);
    hash.update(&password);
    let source = SecretUsed {
        uid: secret.content.uid.clone(),
        namespace: secret.namespace.clone(),
        name: secret.name.clone(),
        credential_hash: super::access::hexadecimal(&hash.finalize()),
    };
    Credentials { auth: AuthConfig { username, password, ..Default::default() }, source }
}

/// User and password, padded or not.
fn decoded(auth: &str) -> Option<(String, String)> {
    let bytes = base64::engine::general_purpose::STANDARD_NO_PAD.decode(auth.trim().trim_end_matches('=')).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    text.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
}

/// Registry and path without tag and digest; a bare name belongs to Docker's registry.
pub fn repository_of(image: &str) -> String {
    let path = image.split('@').next().unwrap_or_default();
    let path = match path.rsplit_once('/') {
        Some((front, last)) => format!("{front}/{}", last.split(':').next().unwrap_or_default()),
        None => path.split(':').next().unwrap_or_default().to_string(),
    };
    let first = path.split('/').next().unwrap_or_default();
    if first == DEFAULT_REGISTRY {
        path.replacen(DEFAULT_REGISTRY, "docker.io", 1)
    } else if path.contains('/') && (first.contains(['.', ':']) || first == "localhost") {
        path
    } else if path.contains('/') {
        format!("docker.io/{path}")
    } else {
        format!("docker.io/library/{path}")
    }
}

/// `https://host/v1/`, `host`, `host/path` and `*.host` are all in use.
fn normalized_server(server: &str) -> String {
    let repository = server.strip_prefix("https://").or_else(|| server.strip_prefix("http://")).unwrap_or(server);
    let (host, path) = repository.split_once('/').unwrap_or((repository, ""));
    let path = path.strip_prefix("v1/").or_else(|| path.strip_prefix("v2/")).unwrap_or(path);
    if path.is_empty() { host.to_owned() } else { format!("{host}/{path}") }
}

/// Wildcards are allowed in host names only; a path matches every path with that prefix.
fn covers(named: &str, repository: &str) -> bool {
    let (host, path) = named.split_once('/').unwrap_or((named, ""));
    let (repository_host, repository_path) = repository.split_once('/').unwrap_or((repository, ""));
    let ((host, port), (repository_host, repository_port)) = (split_port(host), split_port(repository_host));
    let (parts, repository_parts): (Vec<&str>, Vec<&str>) =
        (host.split('.').collect(), repository_host.split('.').collect());
    let same_host = parts.len() == repository_parts.len()
        && parts.iter().zip(&repository_parts).all(|(part, found)| match part.split_once('*') {
            Some((front, back)) => {
                found.len() >= front.len() + back.len() && found.starts_with(front) && found.ends_with(back)
            }
            None => part == found,
        });
    same_host && port == repository_port && repository_path.starts_with(path)
}

fn split_port(host: &str) -> (&str, &str) {
    host.rsplit_once(':').unwrap_or((host, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registries_are_matched() {
        for (server, image, expected) in [
            ("r.example.org", "r.example.org/a/b:1", true),
            ("https://r.example.org/v2/", "r.example.org/a/b:1", true),
            ("r.example.org/a", "r.example.org/a/b:1", true),
            ("r.example.org/a", "r.example.org/b:1", false),
            ("r.example.org", "r.example.org:5000/b:1", false),
            ("*.example.org", "r.example.org/a", true),
            ("*.example.org", "example.org/a", false),
            ("*.example.org:5000", "r.example.org:5000/a", true),
            ("localhost:5000", "localhost:5000/a@sha256:0", true),
            ("docker.io", "busybox", true),
        ] {
            assert_eq!(covers(&normalized_server(server), &repository_of(image)), expected, "{server} {image}");
        }
    }

    fn secret(name: &str, entries: &[(&str, &str)]) -> PullSecret {
        let entries: BTreeMap<&str, serde_json::Value> = entries
            .iter()
            .map(|(server, auth)| {
                (*server, serde_json::json!({"auth": base64::engine::general_purpose::STANDARD.encode(auth)}))
            })
            .collect();
        let content = serde_json::json!({ "auths": entries }).to_string().into_bytes();
        PullSecret {
            namespace: "default".into(),
            name: name.into(),
            content: Arc::new(Content {
                data: [(".dockerconfigjson".to_owned(), content)].into(),
                binary: BTreeMap::new(),
                kind: Some("kubernetes.io/dockerconfigjson".into()),
                uid: format!("uid-of-{name}"),
            }),
        }
    }

    #[derive(Clone, Default)]
    struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("no panic").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_broken_secret_is_in_no_log() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::trace!("started");
            for (kind, key) in
                [("kubernetes.io/dockerconfigjson", ".dockerconfigjson"), ("kubernetes.io/dockercfg", ".dockercfg")]
            {
                let mut broken = secret("a", &[]);
                broken.content = Arc::new(Content {
                    data: [(key.to_owned(), b"{\"auths\":{\"r.io\":{\"auth\":\"MARKER".to_vec())].into(),
                    kind: Some(kind.into()),
                    binary: BTreeMap::new(),
                    uid: String::new(),
                });
                assert!(matching(&[broken], "r.io/a").is_empty());
            }
        });
        let text = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("text");
        assert!(text.contains("started") && !text.contains("MARKER"), "{text}");
    }

    #[test]
    fn the_most_specific_credentials_of_all_secrets_come_first() {
        let secrets = [
            secret("a", &[("r.io", "wide:1"), ("https://index.docker.io/v1/", "docker:2")]),
            secret("b", &[("r.io/team", "narrow:3"), ("r.io", "later:4"), ("docker.io/mine", "mine:5")]),
        ];
        for (image, expected) in [
            ("r.io/team/app", vec!["narrow", "wide", "later"]),
            ("r.io/other", vec!["wide", "later"]),
            ("busybox", vec!["docker"]),
            ("mine/app", vec!["mine"]),
            ("elsewhere.io/app", vec![]),
        ] {
            let found = matching(&secrets, image);
            assert!(found.iter().all(|one| one.auth.server_address.is_empty()), "{image}");
            let users: Vec<&str> = found.iter().map(|one| one.auth.username.as_str()).collect();
            assert_eq!(users, expected, "{image}");
        }
    }
}
