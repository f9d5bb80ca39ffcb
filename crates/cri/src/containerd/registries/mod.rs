//! Registries in one file, as k3s has it: mirrors, credentials and TLS files, written as containerd's `hosts.toml` files.
//!
//! containerd reads those at each pull, so a changed file needs no restart. Credentials are not written anywhere: the kubelet
//! passes them with the pull.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use serde::Deserialize;
use toml::{Table, Value};

/// The file: `/etc/knarr/registries.yaml`.
#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Registries {
    mirrors: BTreeMap<String, Mirror>,
    configs: BTreeMap<String, RegistryConfig>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Mirror {
    #[serde(alias = "endpoints")]
    endpoint: Vec<String>,
    rewrite: BTreeMap<String, String>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RegistryConfig {
    auth: Option<Auth>,
    tls: Option<Tls>,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Auth {
    username: String,
    password: String,
    auth: String,
    identity_token: String,
}

#[derive(Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Tls {
    ca_file: Option<PathBuf>,
    cert_file: Option<PathBuf>,
    key_file: Option<PathBuf>,
    insecure_skip_verify: bool,
}

/// Credentials for one host, which are sent to no other. It has no `Debug`, so that no log can show them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HostLogin {
    pub host: String,
    pub username: String,
    pub password: String,
    pub identity_token: String,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RegistriesError {
    #[error("cannot read {path}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a registries file: {reason}")]
    Syntax { path: PathBuf, reason: String },
    #[error("{path}: {field}: {reason}")]
    Invalid { path: PathBuf, field: String, reason: String },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("{path} was not written by Knarr: remove it, or what the registries file says about that registry")]
    Foreign { path: PathBuf },
}

/// The first line of files that belong to us.
const HEADER: &str = "# Written by Knarr from the registries file; changes are overwritten.\n";
/// The directory of what holds for all registries without one of their own.
const DEFAULT: &str = "_default";

impl Registries {
    /// Reads the file; one that does not exist is an empty one.
    pub fn read(path: &Path) -> Result<Self, RegistriesError> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Self::default()),
            other => other.map_err(|source| RegistriesError::Read { path: path.to_path_buf(), source })?,
        };
        Self::parse(path, &text)
    }

    fn parse(path: &Path, text: &str) -> Result<Self, RegistriesError> {
        let found = serde_yaml_ng::from_str::<Option<Self>>(text);
        // Parsers quote what they do not understand, and it may be a password: only the place is shown.
        let found = found.map_err(|error| RegistriesError::Syntax {
            path: path.to_path_buf(),
            reason: match (error.to_string(), error.location()) {
                (text, _) if text.contains("unknown field") => text,
                (_, Some(place)) => format!("error in line {}, column {}", place.line(), place.column()),
                (_, None) => "it has another form".to_owned(),
            },
        })?;
        let own = found.unwrap_or_default();
        own.check().map_err(|(field, reason)| RegistriesError::Invalid { path: path.to_path_buf(), field, reason })?;
        Ok(own)
    }

    fn check(&self) -> Result<(), (String, String)> {
        for (name, mirror) in &self.mirrors {
            let field = format!("mirrors.{name}");
            if !is_host(name) && name != "*" {
                return Err((field, "the name is not a registry such as docker.io or registry.local:5000".to_owned()));
            }
            for endpoint in &mirror.endpoint {
                split_endpoint(endpoint).map_err(|reason| (format!("{field}.endpoint"), reason))?;
            }
            for (pattern, replacement) in &mirror.rewrite {
                if prefix(pattern, replacement).is_none() {
                    let reason = format!(
                        "{pattern:?}: {replacement:?} cannot be expressed: containerd can only put a path before names, as \
                         \"^(.*)$\": \"path/$1\" does"
                    );
                    return Err((format!("{field}.rewrite"), reason));
                }
            }
            if mirror.rewrite.len() > 1 {
                return Err((format!("{field}.rewrite"), "there can be one rewrite only".to_owned()));
            }
        }
        for (name, config) in &self.configs {
            let field = format!("configs.{name}");
            if !is_host(name) {
                return Err((field, "the name is not a host such as registry.local:5000".to_owned()));
            }
            if let Some(tls) = &config.tls {
                if tls.cert_file.is_some() != tls.key_file.is_some() {
                    return Err((format!("{field}.tls"), "cert_file and key_file belong together".to_owned()));
                }
                for file in [&tls.ca_file, &tls.cert_file, &tls.key_file].into_iter().flatten() {
                    if !file.is_file() {
                        return Err((format!("{field}.tls"), format!("there is no file {}", file.display())));
                    }
                }
            }
            if let Some(auth) = &config.auth
                && !auth.auth.is_empty()
                && decoded(&auth.auth).is_none()
            {
                return Err((format!("{field}.auth"), "auth is not the Base64 form of user:password".to_owned()));
            }
        }
        Ok(())
    }

    /// Credentials for pulls of an image from this registry: those of its mirrors, then its own.
    pub fn logins(&self, registry: &str) -> Vec<HostLogin> {
        let mirror = self.mirrors.get(registry).or_else(|| self.mirrors.get("*"));
        let endpoints = mirror.into_iter().flat_map(|mirror| &mirror.endpoint);
        let mirrors = endpoints.filter_map(|endpoint| Some(split_endpoint(endpoint).ok()?.host));
        // The host that serves Docker's registry has another name.
        let own = if registry == "docker.io" { "registry-1.docker.io" } else { registry };
        let mut hosts: Vec<String> = mirrors.collect();
        hosts.push(own.to_owned());
        let mut logins: Vec<HostLogin> = Vec::new();
        for host in hosts {
            let config = self.configs.get(&host).or_else(|| (host == own).then(|| self.configs.get(registry))?);
            let Some(auth) = config.and_then(|config| config.auth.as_ref()) else { continue };
            let (username, password) =
                decoded(&auth.auth).unwrap_or_else(|| (auth.username.clone(), auth.password.clone()));
            let login = HostLogin { host, username, password, identity_token: auth.identity_token.clone() };
            if !logins.contains(&login) {
                logins.push(login);
            }
        }
        logins
    }

    /// The `hosts.toml` files by registry.
    fn files(&self) -> BTreeMap<String, String> {
        // A registry with TLS files and without mirrors needs a file, too.
        let with_tls = self.configs.iter().filter(|(_, config)| config.tls.is_some()).map(|(name, _)| name);
        let names: std::collections::BTreeSet<&String> = self.mirrors.keys().chain(with_tls).collect();
        let render = |name: &String| {
            let mut file = Table::new();
            if let Some(tls) = self.tls_of(name) {
                file.extend(tls.keys());
            }
            // What has a file of its own does not get the default's.
            let mirror = self.mirrors.get(name).or_else(|| self.mirrors.get("*"));
            let hosts: Table = mirror.map(|mirror| self.hosts(mirror)).unwrap_or_default();
            if !hosts.is_empty() {
                file.insert("host".into(), Value::Table(hosts));
            }
            let directory = if name == "*" { DEFAULT } else { name };
            (directory.to_owned(), format!("{HEADER}{file}"))
        };
        names.into_iter().map(render).collect()
    }

    fn tls_of(&self, host: &str) -> Option<&Tls> {
        self.configs.get(host).and_then(|config| config.tls.as_ref())
    }

    fn hosts(&self, mirror: &Mirror) -> Table {
        let rewrite = mirror.rewrite.iter().find_map(|(pattern, replacement)| prefix(pattern, replacement));
        let one = |endpoint: &String| {
            let endpoint = split_endpoint(endpoint).ok()?;
            let path = match (&rewrite, endpoint.path.as_str()) {
                (None, "" | "/" | "/v2" | "/v2/") => None,
                (None, path) => Some(path.trim_end_matches('/').to_owned()),
                (Some(rewrite), "" | "/") => Some(format!("/v2/{rewrite}")),
                (Some(rewrite), path) => Some(format!("{}/{rewrite}", path.trim_end_matches('/'))),
            };
            let mut keys = Table::from_iter([(
                "capabilities".to_owned(),
                Value::Array(vec![Value::from("pull"), Value::from("resolve")]),
            )]);
            if path.is_some() {
                keys.insert("override_path".into(), Value::from(true));
            }
            if let Some(tls) = self.tls_of(&endpoint.host) {
                keys.extend(tls.keys());
            }
            let Endpoint { scheme, host, .. } = endpoint;
            Some((format!("{scheme}://{host}{}", path.unwrap_or_default()), Value::Table(keys)))
        };
        mirror.endpoint.iter().filter_map(one).collect()
    }

    /// Writes the files below containerd's directory of registries, and removes those that are no longer needed.
    pub fn write(&self, directory: &Path) -> Result<(), RegistriesError> {
        let files = self.files();
        for (name, text) in &files {
            let path = directory.join(name).join("hosts.toml");
            let failed = |source| RegistriesError::Write { path: path.clone(), source };
            match std::fs::read_to_string(&path) {
                Ok(known) if known == *text => continue,
                Ok(known) if !known.starts_with(HEADER) => return Err(RegistriesError::Foreign { path }),
                _ => {}
            }
            std::fs::create_dir_all(directory.join(name)).map_err(failed)?;
            let temporary = path.with_extension("new");
            std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, &path)).map_err(failed)?;
        }
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path().join("hosts.toml");
            let is_named = files.contains_key(entry.file_name().to_string_lossy().as_ref());
            if !is_named && std::fs::read_to_string(&path).is_ok_and(|text| text.starts_with(HEADER)) {
                std::fs::remove_file(&path).map_err(|source| RegistriesError::Write { path, source })?;
                // A directory with other files of the operator stays.
                let _ = std::fs::remove_dir(entry.path());
            }
        }
        Ok(())
    }
}

impl Tls {
    /// The keys of a host in `hosts.toml`.
    fn keys(&self) -> Table {
        let text = |path: &PathBuf| Value::from(path.to_string_lossy().into_owned());
        let mut keys = Table::new();
        keys.extend(self.ca_file.as_ref().map(|file| ("ca".to_owned(), text(file))));
        if let (Some(certificate), Some(key)) = (&self.cert_file, &self.key_file) {
            let pair = Value::Array(vec![text(certificate), text(key)]);
            keys.insert("client".to_owned(), Value::Array(vec![pair]));
        }
        if self.insecure_skip_verify {
            keys.insert("skip_verify".to_owned(), Value::from(true));
        }
        keys
    }
}

struct Endpoint {
    scheme: &'static str,
    host: String,
    path: String,
}

fn split_endpoint(endpoint: &str) -> Result<Endpoint, String> {
    let (scheme, rest) = match endpoint.split_once("://") {
        Some(("https", rest)) => ("https", rest),
        Some(("http", rest)) => ("http", rest),
        Some((other, _)) => return Err(format!("{endpoint:?} has the scheme {other:?}, expected http or https")),
        None => ("https", endpoint),
    };
    let (host, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
    if !is_host(host) || path.contains(['?', '#', ' ', '"']) {
        return Err(format!("{endpoint:?} is not a URL such as https://mirror.local:5000"));
    }
    Ok(Endpoint { scheme, host: host.to_owned(), path: path.to_owned() })
}

/// A host name or address with an optional port. It becomes the name of a directory.
fn is_host(text: &str) -> bool {
    let (host, port) = text.rsplit_once(':').filter(|_| !text.ends_with(']')).unwrap_or((text, "0"));
    let is_port = port.parse::<u16>().is_ok();
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_name = host.starts_with(|sign: char| sign.is_ascii_alphanumeric())
        && host.chars().all(|sign| sign.is_ascii_alphanumeric() || ".-_".contains(sign));
    is_port && (is_name || address.is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok()))
}

/// The path that a rewrite puts before all names.
fn prefix(pattern: &str, replacement: &str) -> Option<String> {
    let is_whole = matches!(pattern, "(.*)" | "^(.*)" | "(.*)$" | "^(.*)$" | "(.+)" | "^(.+)" | "(.+)$" | "^(.+)$");
    let path = replacement.strip_suffix("/$1").or_else(|| replacement.strip_suffix("/${1}"))?;
    let path = path.trim_matches('/');
    let is_path = !path.is_empty() && path.chars().all(|sign| sign.is_ascii_alphanumeric() || "/._-".contains(sign));
    (is_whole && is_path).then(|| path.to_owned())
}

fn decoded(auth: &str) -> Option<(String, String)> {
    let bytes = base64::engine::general_purpose::STANDARD_NO_PAD.decode(auth.trim().trim_end_matches('=')).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    text.split_once(':').map(|(user, password)| (user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests;
