//! The steps of a new encryption key: first all servers can decrypt with it, then they encrypt with it and rewrite all objects,
//! then the old keys are removed. Without an encryption configuration, encryption of Secrets is introduced.

use anyhow::{Context as _, bail};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Value, json};

use super::Files;
use super::files::ENCRYPTION;

/// The providers that keep their keys in the configuration.
const WITH_KEYS: [&str; 3] = ["secretbox", "aesgcm", "aescbc"];

/// The step after which all encrypted objects are rewritten.
pub const REWRITE_AFTER: usize = 1;

/// The files of each step. `current` is the current configuration.
pub fn steps(current: Option<&str>, now: Timestamp) -> anyhow::Result<Vec<Files>> {
    let secret: [u8; 32] = rand::random();
    let key = json!({"name": format!("key-{}", now.as_second()), "secret": STANDARD.encode(secret)});
    let configurations: anyhow::Result<Vec<Value>> = match current {
        Some(text) => {
            let current: Value = serde_yaml_ng::from_str(text).context("cannot read the encryption configuration")?;
            [Place::Last, Place::First, Place::Only].map(|place| with_key(&current, &key, place)).into_iter().collect()
        }
        None => Ok(vec![first(&key, false), first(&key, true)]),
    };
    configurations?
        .into_iter()
        .map(|configuration| {
            let text = serde_yaml_ng::to_string(&configuration).context("cannot write the encryption configuration")?;
            Ok(Files([(ENCRYPTION.to_owned(), Some(text))].into()))
        })
        .collect()
}

/// The position of the new key in the list of keys. The first key encrypts.
#[derive(Clone, Copy)]
enum Place {
    Last,
    First,
    Only,
}

/// The configuration with the new key in every rule.
fn with_key(current: &Value, key: &Value, place: Place) -> anyhow::Result<Value> {
    let mut changed = current.clone();
    let rules = changed["resources"].as_array_mut().context("the encryption configuration has no resources")?;
    for rule in rules {
        let provider = rule["providers"].get_mut(0).and_then(Value::as_object_mut);
        let Some((name, provider)) = provider.and_then(|provider| provider.iter_mut().next()) else {
            bail!("the encryption configuration has a rule without providers");
        };
        if !WITH_KEYS.contains(&name.as_str()) {
            bail!("objects are encrypted by {name}, which has no keys in the configuration: rotate them there");
        }
        let keys = provider["keys"].as_array_mut().context("a provider has no keys")?;
        match place {
            Place::Last => keys.push(key.clone()),
            Place::First => keys.insert(0, key.clone()),
            Place::Only => *keys = vec![key.clone()],
        }
    }
    Ok(changed)
}

/// The configuration of a cluster that has had none.
fn first(key: &Value, encrypts: bool) -> Value {
    let (encrypted, plain) = (json!({"secretbox": {"keys": [key]}}), json!({"identity": {}}));
    let providers = if encrypts { [encrypted, plain] } else { [plain, encrypted] };
    json!({
        "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration",
        "resources": [{"resources": ["secrets"], "providers": providers}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use knarr_apiserver::encrypt::Configuration;

    const KEY: &str = "/registry/secrets/default/a";

    fn configurations(current: Option<&str>) -> Vec<Configuration> {
        let steps = steps(current, Timestamp::now()).unwrap();
        steps.iter().map(|step| Configuration::parse(step.0[ENCRYPTION].as_ref().unwrap()).unwrap()).collect()
    }

    /// Servers that are one step apart read each other's values.
    fn check_neighbours(configurations: &[Configuration]) {
        for pair in configurations.windows(2) {
            for (writer, reader) in [(&pair[0], &pair[1]), (&pair[1], &pair[0])] {
                let stored = writer.encrypt(KEY, b"value").unwrap();
                assert_eq!(reader.decrypt(KEY, &stored).unwrap(), b"value");
            }
        }
    }

    #[test]
    fn keys_are_replaced_without_unreadable_values() {
        let old = "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  \
                   providers:\n  - aescbc:\n      keys:\n      - {name: old, secret: AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=}\n  \
                   - identity: {}\n";
        let mut all = vec![Configuration::parse(old).unwrap()];
        all.extend(configurations(Some(old)));
        check_neighbours(&all);
        let stored = all[0].encrypt(KEY, b"value").unwrap();
        assert!(all[3].decrypt(KEY, &stored).is_err(), "the old key is gone");
        let kms = old.replace("aescbc", "kms");
        assert!(steps(Some(&kms), Timestamp::now()).unwrap_err().to_string().contains("rotate them there"));
    }

    #[test]
    fn encryption_starts() {
        let all = configurations(None);
        check_neighbours(&all);
        assert_eq!(all[0].encrypt(KEY, b"value").unwrap(), b"value");
        assert!(all[1].encrypt(KEY, b"value").unwrap().starts_with(b"k8s:enc:secretbox:"));
        assert_eq!(all[1].decrypt(KEY, b"value").unwrap(), b"value", "what was not encrypted yet is still read");
    }
}
