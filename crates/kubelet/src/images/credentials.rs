//! Finds the credentials for an image's registry: in a pod's pull secrets, in the node's own files, and among those of
//! credential providers.

use base64::Engine;
use knarr_cri::messages::AuthConfig;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::access::{SecretUsed, Source};
use super::glob::covers;
use super::providers::Provided;
use crate::image_reference::without_tag;
use crate::objects::Content;

/// A pull secret of a pod.
pub struct PullSecret {
    pub namespace: String,
    pub name: String,
    pub content: Arc<Content>,
}

/// Credentials for a registry and where they come from; those of the node itself have no source.
pub struct Credentials {
    pub auth: AuthConfig,
    pub source: Option<Source>,
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

/// How many credentials are tried for one image: each is a pull, and others wait for theirs meanwhile.
const MAX_CREDENTIALS: usize = 100;

/// The matching credentials of all secrets; unreadable secrets are skipped. Authors of pods choose how many entries there are: what
/// does not match is not kept.
pub fn of_secrets(secrets: &[PullSecret], image: &str) -> Vec<Credentials> {
    let repository = repository_of(image);
    let is_usable = |named: &str| covers(named, &repository) || named == DEFAULT_REGISTRY;
    let mut entries = Vec::new();
    for secret in secrets {
        let named = entries_of(&secret.content).into_iter().map(|(server, entry)| (normalized_server(&server), entry));
        let usable = named.filter(|(named, _)| is_usable(named));
        entries.extend(usable.map(|(named, entry)| (named, credentials(secret, entry))));
        if entries.len() > MAX_CREDENTIALS {
            most_specific_first(&mut entries);
        }
    }
    matching(entries, image)
}

fn most_specific_first(entries: &mut Vec<(String, Credentials)>) {
    entries.sort_by(|(one, _), (other, _)| other.cmp(one));
    entries.truncate(MAX_CREDENTIALS);
}

/// The matching credentials of a docker configuration file of the node, and of a file in the older format.
pub fn of_node(current: Option<&[u8]>, older: Option<&[u8]>, image: &str) -> Vec<Credentials> {
    let current = current.and_then(|content| serde_json::from_slice::<DockerConfig>(content).ok()).map(|all| all.auths);
    let older = older.and_then(|content| serde_json::from_slice::<BTreeMap<String, Entry>>(content).ok());
    let entries = current.or(older).unwrap_or_default().into_iter().map(|(server, entry)| {
        let (username, password) = entry.login();
        let auth = AuthConfig { username, password, ..Default::default() };
        (normalized_server(&server), Credentials { auth, source: None })
    });
    matching(entries.collect(), image)
}

/// The matching credentials of credential providers.
pub fn of_providers(provided: Vec<Provided>, image: &str) -> Vec<Credentials> {
    let entries = provided.into_iter().flat_map(|(logins, account)| {
        logins.into_iter().map(move |(server, login)| {
            let auth = AuthConfig { username: login.username, password: login.password, ..Default::default() };
            (normalized_server(&server), Credentials { auth, source: account.clone().map(Source::Account) })
        })
    });
    matching(entries.collect(), image)
}

/// The matching entries, most specific first; equal ones in their order.
fn matching(entries: Vec<(String, Credentials)>, image: &str) -> Vec<Credentials> {
    let repository = repository_of(image);
    let (mut found, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(named, _)| covers(named, &repository));
    if found.is_empty() && repository.starts_with("docker.io/") {
        found = others.into_iter().filter(|(named, _)| named == DEFAULT_REGISTRY).collect();
    }
    most_specific_first(&mut found);
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
    let (username, password) = entry.login();
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
    let auth = AuthConfig { username, password, ..Default::default() };
    Credentials { auth, source: Some(Source::Secret(source)) }
}

impl Entry {
    fn login(self) -> (String, String) {
        decoded(&self.auth).unwrap_or((self.username, self.password))
    }
}

/// User and password, padded or not.
fn decoded(auth: &str) -> Option<(String, String)> {
    let bytes = base64::engine::general_purpose::STANDARD_NO_PAD.decode(auth.trim().trim_end_matches('=')).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    text.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
}

/// Registry and path without tag and digest; a bare name belongs to Docker's registry.
pub fn repository_of(image: &str) -> String {
    let path = without_tag(image);
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

    #[test]
    fn entries_of_pull_secrets_are_tried_up_to_a_limit() {
        // All of them match.
        let wild = |number: u32| format!("[r{}].example.org", char::from_u32(0x4e00 + number).unwrap_or('r'));
        let servers: Vec<String> = (0..5000).map(wild).collect();
        let others: Vec<String> = (0..5000).map(|number| format!("r{number}.example.com")).collect();
        let entries: Vec<(&str, &str)> = servers.iter().chain(&others).map(|server| (server.as_str(), "u:p")).collect();
        let secrets = [secret("many", &entries), secret("own", &[("r.example.org/a/b", "me:p")])];
        let found = of_secrets(&secrets, "r.example.org/a/b:1");
        assert_eq!(found.len(), MAX_CREDENTIALS);
        assert!(found.iter().any(|one| one.auth.username == "me"));
        assert_eq!(of_secrets(&secrets, "r7.example.com/x").len(), 1);
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
                assert!(of_secrets(&[broken], "r.io/a").is_empty());
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
            let found = of_secrets(&secrets, image);
            assert!(found.iter().all(|one| one.auth.server_address.is_empty()), "{image}");
            let users: Vec<&str> = found.iter().map(|one| one.auth.username.as_str()).collect();
            assert_eq!(users, expected, "{image}");
        }
    }

    #[test]
    fn files_of_the_node_and_providers_have_credentials_too() {
        let auth = base64::engine::general_purpose::STANDARD.encode("node:1");
        let current = serde_json::json!({ "auths": { "r.io": { "auth": auth } } }).to_string();
        let older = serde_json::json!({ "r.io": { "username": "older", "password": "2" } }).to_string();
        let users = |found: Vec<Credentials>| -> Vec<(String, bool)> {
            found.into_iter().map(|one| (one.auth.username, one.source.is_some())).collect()
        };
        let (current, older) = (current.as_bytes(), older.as_bytes());
        assert_eq!(users(of_node(Some(current), Some(older), "r.io/a")), [("node".to_owned(), false)]);
        assert_eq!(users(of_node(Some(b"{"), Some(older), "r.io/a")), [("older".to_owned(), false)]);
        assert_eq!(users(of_node(None, None, "r.io/a")), []);
        let login = |user: &str| super::super::providers::Login { username: user.into(), password: "p".into() };
        let account = super::super::access::AccountUsed { namespace: "n".into(), name: "a".into(), uid: "u".into() };
        let provided = vec![
            ([("r.io".to_owned(), login("wide")), ("s.io".to_owned(), login("other"))].into(), None),
            ([("https://r.io/a".to_owned(), login("narrow"))].into(), Some(account)),
        ];
        assert_eq!(
            users(of_providers(provided, "r.io/a/b")),
            [("narrow".to_owned(), true), ("wide".to_owned(), false)]
        );
    }
}
