//! EncryptionConfiguration: which resources are encrypted with which keys.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_api::catalogue::Catalogue;
use knarr_api::decode;
use knarr_api::value::Read;
use serde_json::Value;

use super::cipher::{Algorithm, Key};
use super::kms::KmsProvider;

/// The common prefix of encrypted values.
const ENCRYPTED: &[u8] = b"k8s:enc:";

/// The error for an encrypted value that no rule is about.
const ONLY_IDENTITY: &str = "identity transformer tried to read encrypted data";

/// Records of the servers themselves, which are no objects: they are read whether or not `*.*` has the identity provider.
const OWN_RECORDS: &str = "/registry/knarr/";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigurationError {
    #[error("the encryption configuration cannot be read: {0}")]
    Unreadable(String),
    #[error("the encryption configuration has no resources")]
    Empty,
    #[error("resources[{0}] names neither resources nor providers")]
    NoResources(usize),
    #[error(
        "resources[{0}]: provider {1:?} is not supported (supported are aescbc, aesgcm, secretbox, kms and identity)"
    )]
    Provider(usize, String),
    #[error("resources[{0}]: {1}")]
    Kms(usize, String),
    #[error("resources[{0}]: key {1:?} is not base64 of a valid length")]
    Key(usize, String),
    #[error("health check for new transformers failed, polling error timed out waiting for the condition: {0}")]
    Unhealthy(String),
}

/// Which values are encrypted, and how.
pub struct Configuration {
    rules: Vec<Rule>,
}

struct Rule {
    places: Vec<Place>,
    providers: Vec<Provider>,
}

/// The store keys that a rule matches.
enum Place {
    All,
    Prefix(String),
}

enum Provider {
    Identity,
    Kms(Arc<KmsProvider>),
    Cipher(Algorithm, Vec<Key>),
}

impl Configuration {
    /// Parses a configuration file in YAML or JSON.
    pub fn parse(text: &str) -> Result<Configuration, ConfigurationError> {
        let decoded = decode::untyped_yaml(text.as_bytes());
        let document = decoded.map_err(|error| ConfigurationError::Unreadable(error.to_string()))?.value;
        if document.text(&["kind"]) != "EncryptionConfiguration" {
            let why = format!("its kind is {:?}", document.text(&["kind"]));
            return Err(ConfigurationError::Unreadable(why));
        }
        let mut kms: Vec<Arc<KmsProvider>> = Vec::new();
        let rules = document.items(&["resources"]).iter().enumerate().map(|(at, rule)| Rule::read(at, rule, &mut kms));
        let rules: Vec<Rule> = rules.collect::<Result<_, _>>()?;
        if rules.is_empty() { Err(ConfigurationError::Empty) } else { Ok(Configuration { rules }) }
    }

    fn rule(&self, key: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.places.iter().any(|place| place.holds(key)))
    }

    /// The KMS plugins, each once.
    pub fn kms_providers(&self) -> Vec<Arc<KmsProvider>> {
        let mut names = HashSet::new();
        let all = self.rules.iter().flat_map(|rule| &rule.providers);
        let kms = all.filter_map(|provider| match provider {
            Provider::Kms(provider) => Some(provider.clone()),
            _ => None,
        });
        kms.filter(|provider| names.insert(provider.name.clone())).collect()
    }

    /// Whether any value under a prefix may be encrypted.
    pub fn concerns(&self, prefix: &str) -> bool {
        self.rules.iter().flat_map(|rule| &rule.places).any(|place| place.meets(prefix))
    }

    /// The value to store under a key; `None` if it cannot be encrypted.
    pub fn encrypt(&self, key: &str, plain: &[u8]) -> Option<Vec<u8>> {
        self.encrypt_at(key, key, plain)
    }

    /// The same for a key that has another name in the store, to which the value is bound.
    pub fn encrypt_at(&self, key: &str, stored_key: &str, plain: &[u8]) -> Option<Vec<u8>> {
        match self.rule(key).and_then(|rule| rule.providers.first()) {
            None | Some(Provider::Identity) => Some(plain.to_vec()),
            Some(Provider::Kms(provider)) => match provider.encrypt(plain, stored_key) {
                Ok(encrypted) => Some(encrypted),
                Err(error) => {
                    tracing::error!(key, error, "a value cannot be encrypted");
                    None
                }
            },
            Some(Provider::Cipher(algorithm, keys)) => {
                let first = keys.first()?;
                let head = format!("{}{}:", algorithm.prefix(), first.name).into_bytes();
                Some([head, algorithm.encrypt(&first.secret, plain, stored_key)?].concat())
            }
        }
    }

    /// Decrypts a stored value; the error is Kubernetes'.
    pub fn decrypt(&self, key: &str, stored: &[u8]) -> Result<Vec<u8>, String> {
        self.decrypt_at(key, key, stored)
    }

    /// The same for a key that has another name in the store, to which the value is bound.
    pub fn decrypt_at(&self, key: &str, stored_key: &str, stored: &[u8]) -> Result<Vec<u8>, String> {
        let is_encrypted = stored.starts_with(ENCRYPTED);
        let Some(rule) = self.rule(key) else {
            return if is_encrypted { Err(ONLY_IDENTITY.to_owned()) } else { Ok(stored.to_vec()) };
        };
        if !is_encrypted && key.starts_with(OWN_RECORDS) {
            return Ok(stored.to_vec());
        }
        let mut errors: Vec<String> = Vec::new();
        for provider in &rule.providers {
            match provider.decrypt(stored_key, stored) {
                Some(Ok(plain)) => return Ok(plain),
                Some(Err(error)) if !errors.contains(&error) => errors.push(error),
                _ => {}
            }
        }
        Err(match errors.as_slice() {
            [] => "no matching prefix found".to_owned(),
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        })
    }

    /// Waits until a value can be encrypted, or that has failed.
    pub async fn prepare_write(&self, key: &str) {
        if let Some(Provider::Kms(provider)) = self.rule(key).and_then(|rule| rule.providers.first()) {
            provider.prepare_write().await;
        }
    }

    /// What to wait for until a plugin has opened the key of a stored value, if it was not asked before.
    pub fn prepare_read(&self, key: &str, stored: &[u8]) -> Option<tokio::sync::watch::Receiver<()>> {
        self.rule(key)?.providers.iter().find_map(|provider| match provider {
            Provider::Kms(provider) => provider.prepare_read(stored.strip_prefix(provider.prefix().as_slice())?),
            _ => None,
        })
    }

    /// Whether the key of a value under a prefix may have to be asked for.
    pub fn asks_plugins(&self, prefix: &str) -> bool {
        let uses_plugin = |rule: &&Rule| rule.providers.iter().any(|one| matches!(one, Provider::Kms(_)));
        self.rules.iter().filter(uses_plugin).flat_map(|rule| &rule.places).any(|place| place.meets(prefix))
    }
}

impl Place {
    fn holds(&self, key: &str) -> bool {
        match self {
            Place::All => true,
            Place::Prefix(prefix) => key.starts_with(prefix.as_str()),
        }
    }

    /// Whether it may hold keys with a prefix.
    fn meets(&self, prefix: &str) -> bool {
        match self {
            Place::All => true,
            Place::Prefix(own) => own.starts_with(prefix) || prefix.starts_with(own.as_str()),
        }
    }

    /// The store keys of `secrets`, `deployments.apps`, `*.apps` or `*.*`.
    fn read(resource: &str) -> Vec<Place> {
        let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
        if plural == "*" && group == "*" {
            return vec![Place::All];
        }
        let catalogue = Catalogue::built_in();
        let own = catalogue.kinds().filter(|kind| kind.group == group && (plural == "*" || kind.plural == plural));
        let mut found: Vec<String> =
            own.filter_map(|kind| kind.storage.as_ref()).map(|storage| storage.prefix.to_string()).collect();
        if found.is_empty() {
            // Custom resources are stored under their group and name.
            found.push(if plural == "*" {
                format!("/registry/{group}/")
            } else {
                format!("/registry/{group}/{plural}/")
            });
        }
        found.sort();
        found.dedup();
        found.into_iter().map(Place::Prefix).collect()
    }
}

impl Rule {
    fn read(at: usize, rule: &Value, kms: &mut Vec<Arc<KmsProvider>>) -> Result<Rule, ConfigurationError> {
        let resources = rule.items(&["resources"]).iter().filter_map(Value::as_str);
        let places: Vec<Place> = resources.flat_map(Place::read).collect();
        let mut providers = Vec::new();
        for provider in rule.items(&["providers"]) {
            for (name, settings) in provider.as_object().into_iter().flatten() {
                providers.push(Provider::read(at, name, settings, kms)?);
            }
        }
        if places.is_empty() || providers.is_empty() {
            return Err(ConfigurationError::NoResources(at));
        }
        Ok(Rule { places, providers })
    }
}

impl Provider {
    /// The plain value; `None` if the value is not one of this provider.
    fn decrypt(&self, stored_key: &str, stored: &[u8]) -> Option<Result<Vec<u8>, String>> {
        let (algorithm, keys) = match self {
            Provider::Identity => return (!stored.starts_with(ENCRYPTED)).then(|| Ok(stored.to_vec())),
            Provider::Kms(provider) => {
                return Some(provider.decrypt(stored.strip_prefix(provider.prefix().as_slice())?, stored_key));
            }
            Provider::Cipher(algorithm, keys) => (algorithm, keys),
        };
        let rest = stored.strip_prefix(algorithm.prefix().as_bytes())?;
        let sealed_by = |own: &Key| rest.strip_prefix(own.name.as_bytes())?.strip_prefix(b":");
        let mut error = algorithm.unknown_key();
        for (own, sealed) in keys.iter().filter_map(|own| Some((own, sealed_by(own)?))) {
            match algorithm.decrypt(&own.secret, sealed, stored_key) {
                Some(plain) => return Some(Ok(plain)),
                None => error = algorithm.wrong_key(sealed.len()),
            }
        }
        Some(Err(error.to_owned()))
    }

    fn read(
        at: usize,
        name: &str,
        settings: &Value,
        kms: &mut Vec<Arc<KmsProvider>>,
    ) -> Result<Provider, ConfigurationError> {
        let algorithm = match name {
            "identity" => return Ok(Provider::Identity),
            "kms" => return read_kms(settings, kms).map(Provider::Kms).map_err(|why| ConfigurationError::Kms(at, why)),
            "aescbc" => Algorithm::AesCbc,
            "aesgcm" => Algorithm::AesGcm,
            "secretbox" => Algorithm::SecretBox,
            other => return Err(ConfigurationError::Provider(at, other.to_owned())),
        };
        let read = |key: &Value| {
            let name = key.text(&["name"]).to_owned();
            let secret =
                STANDARD.decode(key.text(&["secret"])).ok().filter(|key| algorithm.accepts_key_length(key.len()));
            match secret {
                Some(secret) if !name.is_empty() => Ok(Key { name, secret }),
                _ => Err(ConfigurationError::Key(at, name)),
            }
        };
        let keys: Vec<Key> = settings.items(&["keys"]).iter().map(read).collect::<Result<_, _>>()?;
        if keys.is_empty() {
            return Err(ConfigurationError::Key(at, String::new()));
        }
        Ok(Provider::Cipher(algorithm, keys))
    }
}

const KMS_TIMEOUT: Duration = Duration::from_secs(3);

/// Reads a KMS provider; resources that name the same one share it.
fn read_kms(settings: &Value, known: &mut Vec<Arc<KmsProvider>>) -> Result<Arc<KmsProvider>, String> {
    let (name, endpoint) = (settings.text(&["name"]), settings.text(&["endpoint"]));
    if name.is_empty() {
        return Err("kms.name: Required value: name is required".to_owned());
    }
    if name.contains(':') {
        return Err(format!("kms.name: Invalid value: {name:?}: should not contain \":\""));
    }
    match settings.text(&["apiVersion"]) {
        "v2" => {}
        "" | "v1" => {
            let why = "KMSv1 is deprecated and will only receive security updates going forward. Use KMSv2 instead.";
            return Err(format!("{why}  To continue use KMSv1 set --feature-gates=KMSv1=true"));
        }
        other => {
            return Err(format!("kms.apiVersion: Invalid value: {other:?}: unsupported apiVersion, must be v1 or v2"));
        }
    }
    if endpoint.is_empty() {
        return Err("kms.endpoint: Required value: endpoint is a required field".to_owned());
    }
    let timeout = match settings.text(&["timeout"]) {
        "" => KMS_TIMEOUT,
        text => crate::configuration_file::duration(text)?,
    };
    if timeout.is_zero() {
        return Err("kms.timeout: Invalid value: \"0s\": should be a positive value".to_owned());
    }
    if let Some(same) = known.iter().find(|provider| provider.name == name) {
        return Ok(same.clone());
    }
    let provider = KmsProvider::new(name, endpoint, timeout)?;
    known.push(provider.clone());
    Ok(provider)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(providers: &str) -> String {
        format!(
            "kind: EncryptionConfiguration\napiVersion: apiserver.config.k8s.io/v1\nresources:\n- resources: [secrets, \
             ships.example.com]\n  providers:\n{providers}"
        )
    }

    #[test]
    fn the_first_key_encrypts_and_all_decrypt() {
        let secret = |byte: u8| STANDARD.encode([byte; 32]);
        let of = |providers: &str| Configuration::parse(&text(providers)).unwrap();
        let old = of(&format!("  - aescbc: {{keys: [{{name: a, secret: {}}}]}}\n  - identity: {{}}\n", secret(1)));
        let new = of(&format!(
            "  - secretbox: {{keys: [{{name: b, secret: {}}}]}}\n  - aescbc: {{keys: [{{name: a, secret: {}}}]}}\n",
            secret(2),
            secret(1)
        ));
        let key = "/registry/secrets/default/s";
        let stored = old.encrypt(key, b"plain").unwrap();
        assert!(stored.starts_with(b"k8s:enc:aescbc:v1:a:"));
        assert_eq!(new.decrypt(key, &stored).unwrap(), b"plain");
        assert_eq!(old.decrypt(key, b"plain").unwrap(), b"plain", "written before encryption was on");
        assert!(new.encrypt(key, b"plain").unwrap().starts_with(b"k8s:enc:secretbox:v1:b:"));
        assert_eq!(new.decrypt(key, b"plain").unwrap_err(), "no matching prefix found");
        assert_eq!(new.decrypt("/registry/configmaps/default/m", b"plain").unwrap(), b"plain");
        let other = new.encrypt(key, b"plain").unwrap();
        assert_eq!(old.decrypt(key, &other).unwrap_err(), "no matching prefix found");
        let elsewhere = old.decrypt("/registry/configmaps/default/m", &other).unwrap_err();
        assert_eq!(elsewhere, "identity transformer tried to read encrypted data");
        let unknown = old.decrypt(key, b"k8s:enc:aescbc:v1:b:sealed").unwrap_err();
        assert_eq!(unknown, "no matching key was found for the provided AES transformer");
        let short = old.decrypt(key, b"k8s:enc:aescbc:v1:a:sealed").unwrap_err();
        assert_eq!(short, "the stored data was shorter than the required size");
        assert_eq!(old.encrypt("/registry/configmaps/default/m", b"plain").unwrap(), b"plain");
        assert!(old.encrypt("/registry/example.com/ships/default/s", b"plain").unwrap().starts_with(b"k8s:enc:"));
        assert!(
            old.concerns("/registry/secrets/default/")
                && old.concerns("/registry/")
                && !old.concerns("/registry/pods/")
        );
    }

    #[test]
    fn invalid_files_are_refused() {
        let refused = |text: &str| Configuration::parse(text).err().unwrap();
        assert_eq!(refused(&text("  - vault: {}\n")), ConfigurationError::Provider(0, "vault".into()));
        for (settings, why) in [
            ("{}", "resources[0]: kms.name: Required value: name is required"),
            ("{name: a, apiVersion: v3}", "unsupported apiVersion, must be v1 or v2"),
            ("{name: a, endpoint: 'unix:///x'}", "KMSv1 is deprecated"),
            ("{name: a, apiVersion: v2}", "kms.endpoint: Required value"),
            ("{name: 'a:b', apiVersion: v2}", "should not contain"),
            ("{name: a, apiVersion: v2, endpoint: 'http://x'}", "unsupported scheme"),
        ] {
            let found = refused(&text(&format!("  - kms: {settings}\n"))).to_string();
            assert!(found.contains(why), "{found}");
        }
        assert_eq!(
            refused(&text("  - aescbc: {keys: [{name: a, secret: c2hvcnQ=}]}\n")),
            ConfigurationError::Key(0, "a".into())
        );
        assert_eq!(refused("kind: EncryptionConfiguration\n"), ConfigurationError::Empty);
    }
}
