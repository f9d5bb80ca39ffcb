//! EncryptionConfiguration: which resources are encrypted with which keys.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use knarr_api::catalogue::Catalogue;
use knarr_api::decode;
use knarr_api::value::Read;
use serde_json::Value;

use super::cipher::{Algorithm, Key};

/// The common prefix of encrypted values.
const ENCRYPTED: &[u8] = b"k8s:enc:";

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ConfigurationError {
    #[error("the encryption configuration cannot be read: {0}")]
    Unreadable(String),
    #[error("the encryption configuration has no resources")]
    Empty,
    #[error("resources[{0}] names neither resources nor providers")]
    NoResources(usize),
    #[error("resources[{0}]: provider {1:?} is not supported (supported are aescbc, aesgcm, secretbox and identity)")]
    Provider(usize, String),
    #[error("resources[{0}]: key {1:?} is not base64 of a valid length")]
    Key(usize, String),
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
        let rules = document.items(&["resources"]).iter().enumerate().map(|(at, rule)| Rule::read(at, rule));
        let rules: Vec<Rule> = rules.collect::<Result<_, _>>()?;
        if rules.is_empty() { Err(ConfigurationError::Empty) } else { Ok(Configuration { rules }) }
    }

    fn rule(&self, key: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.places.iter().any(|place| place.holds(key)))
    }

    /// Whether any value under a prefix may be encrypted.
    pub fn concerns(&self, prefix: &str) -> bool {
        let meets = |place: &Place| match place {
            Place::All => true,
            Place::Prefix(own) => own.starts_with(prefix) || prefix.starts_with(own.as_str()),
        };
        self.rules.iter().flat_map(|rule| &rule.places).any(meets)
    }

    /// The value to store under a key; `None` if it cannot be encrypted.
    pub fn encrypt(&self, key: &str, plain: &[u8]) -> Option<Vec<u8>> {
        match self.rule(key).and_then(|rule| rule.providers.first()) {
            None | Some(Provider::Identity) => Some(plain.to_vec()),
            Some(Provider::Cipher(algorithm, keys)) => {
                let first = keys.first()?;
                let head = format!("{}{}:", algorithm.prefix(), first.name).into_bytes();
                Some([head, algorithm.encrypt(&first.secret, plain, key)?].concat())
            }
        }
    }

    /// Decrypts a stored value; `None` if no key decrypts it.
    pub fn decrypt(&self, key: &str, stored: &[u8]) -> Option<Vec<u8>> {
        if !stored.starts_with(ENCRYPTED) {
            return Some(stored.to_vec());
        }
        let providers = self.rule(key).map_or(&[][..], |rule| rule.providers.as_slice());
        providers.iter().find_map(|provider| {
            let Provider::Cipher(algorithm, keys) = provider else { return None };
            let rest = stored.strip_prefix(algorithm.prefix().as_bytes())?;
            keys.iter().find_map(|own| {
                let sealed = rest.strip_prefix(own.name.as_bytes())?.strip_prefix(b":")?;
                algorithm.decrypt(&own.secret, sealed, key)
            })
        })
    }
}

impl Place {
    fn holds(&self, key: &str) -> bool {
        match self {
            Place::All => true,
            Place::Prefix(prefix) => key.starts_with(prefix.as_str()),
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
    fn read(at: usize, rule: &Value) -> Result<Rule, ConfigurationError> {
        let resources = rule.items(&["resources"]).iter().filter_map(Value::as_str);
        let places: Vec<Place> = resources.flat_map(Place::read).collect();
        let mut providers = Vec::new();
        for provider in rule.items(&["providers"]) {
            for (name, settings) in provider.as_object().into_iter().flatten() {
                providers.push(Provider::read(at, name, settings)?);
            }
        }
        if places.is_empty() || providers.is_empty() {
            return Err(ConfigurationError::NoResources(at));
        }
        Ok(Rule { places, providers })
    }
}

impl Provider {
    fn read(at: usize, name: &str, settings: &Value) -> Result<Provider, ConfigurationError> {
        let algorithm = match name {
            "identity" => return Ok(Provider::Identity),
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
        assert_eq!(old.decrypt(key, &new.encrypt(key, b"plain").unwrap()), None);
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
        assert_eq!(refused(&text("  - kms: {}\n")), ConfigurationError::Provider(0, "kms".into()));
        assert_eq!(
            refused(&text("  - aescbc: {keys: [{name: a, secret: c2hvcnQ=}]}\n")),
            ConfigurationError::Key(0, "a".into())
        );
        assert_eq!(refused("kind: EncryptionConfiguration\n"), ConfigurationError::Empty);
    }
}
