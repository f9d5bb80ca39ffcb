//! Access to repositories and registries: credentials and CAs from the Secrets and the ConfigMap that a chart names. No I/O.
//!
//! Credentials are passed to Helm in files that only root can read, never as arguments, which every user of the host sees.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use super::spec::ChartSpec;

/// The repository's name in the file below; charts are named after it.
pub const REPOSITORY: &str = "repository";
pub const REPOSITORIES_FILE: &str = "repositories.yaml";
pub const REGISTRIES_FILE: &str = "registries.json";
pub const AUTHORITIES_FILE: &str = "ca.crt";
const CERTIFICATE_FILE: &str = "client.crt";
const KEY_FILE: &str = "client.key";

pub type Data = BTreeMap<String, Vec<u8>>;

/// The data of the objects that a chart names.
#[derive(Default)]
pub struct Sources {
    pub auth: Option<Data>,
    pub registry: Option<Data>,
    pub authorities: Option<Data>,
}

/// Files for Helm, and the secrets in them, which no message may contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    pub files: Vec<(String, Vec<u8>)>,
    pub hidden: Vec<Vec<u8>>,
}

impl Access {
    pub fn plan(chart: &ChartSpec, sources: &Sources) -> Result<Access, String> {
        let mut access = Access::default();
        access.add_authorities(&chart.repo_ca, sources.authorities.as_ref());
        // Credentials are for a repository. An address of a chart has none, as with k3s.
        if let Some(auth) = sources.auth.as_ref().filter(|_| chart.has_repository()) {
            access.add_repository(chart, auth)?;
        }
        if let Some(registry) = &sources.registry {
            access.add_registries(registry)?;
        }
        Ok(access)
    }

    pub fn has(&self, file: &str) -> bool {
        self.files.iter().any(|(name, _)| name == file)
    }

    fn add_authorities(&mut self, text: &str, map: Option<&Data>) {
        let texts = std::iter::once(text.as_bytes()).chain(map.into_iter().flatten().map(|(_, text)| text.as_slice()));
        let mut all = Vec::new();
        for text in texts.filter(|text| !text.is_empty()) {
            all.extend_from_slice(text);
            all.push(b'\n');
        }
        if !all.is_empty() {
            self.files.push((AUTHORITIES_FILE.to_owned(), all));
        }
    }

    /// Helm's repositories file, with one repository.
    fn add_repository(&mut self, chart: &ChartSpec, auth: &Data) -> Result<(), String> {
        let mut entry = json!({
            "name": REPOSITORY, "url": chart.repo,
            "insecure_skip_tls_verify": chart.insecure_skip_tls_verify,
            "pass_credentials_all": chart.auth_pass_credentials,
        });
        if self.has(AUTHORITIES_FILE) {
            entry["caFile"] = json!(AUTHORITIES_FILE);
        }
        match (auth.get("username"), auth.get("password"), auth.get("tls.crt"), auth.get("tls.key")) {
            (Some(user), Some(password), _, _) => {
                let (user, password) = (line("username", user)?, line("password", password)?);
                self.hidden.push(password.as_bytes().to_vec());
                entry["username"] = json!(user);
                entry["password"] = json!(password);
            }
            (_, _, Some(certificate), Some(key)) => {
                entry["certFile"] = json!(CERTIFICATE_FILE);
                entry["keyFile"] = json!(KEY_FILE);
                self.hidden.push(key.clone());
                self.files.push((CERTIFICATE_FILE.to_owned(), certificate.clone()));
                self.files.push((KEY_FILE.to_owned(), key.clone()));
            }
            _ => {
                return Err(
                    "the Secret of spec.authSecret has neither username and password nor tls.crt and tls.key".into()
                );
            }
        }
        let list = json!({"apiVersion": "v1", "repositories": [entry]});
        self.files.push((REPOSITORIES_FILE.to_owned(), list.to_string().into_bytes()));
        Ok(())
    }

    /// Only the credentials: the rest of such a file names programs to run.
    fn add_registries(&mut self, secret: &Data) -> Result<(), String> {
        const FIELD: &str = "the Secret of spec.dockerRegistrySecret";
        let text = secret.get(".dockerconfigjson").ok_or_else(|| format!("{FIELD} has no key .dockerconfigjson"))?;
        let config: Map<String, Value> =
            serde_json::from_slice(text).map_err(|_| format!("{FIELD} is not a Docker configuration"))?;
        let registries = config.get("auths").cloned().unwrap_or_else(|| json!({}));
        for registry in registries.as_object().into_iter().flat_map(Map::values) {
            self.hide_registry(registry);
        }
        let list = json!({"auths": registries});
        self.files.push((REGISTRIES_FILE.to_owned(), list.to_string().into_bytes()));
        Ok(())
    }

    fn hide_registry(&mut self, registry: &Value) {
        let texts = ["auth", "password", "identitytoken", "registrytoken"].map(|field| registry.get(field));
        let texts = texts.into_iter().flatten().filter_map(Value::as_str);
        self.hidden.extend(texts.map(|text| text.as_bytes().to_vec()));
        let pair = registry.get("auth").and_then(Value::as_str).and_then(|text| STANDARD.decode(text).ok());
        let password = pair.as_deref().and_then(|pair| pair.splitn(2, |byte| *byte == b':').nth(1));
        self.hidden.extend(password.map(<[u8]>::to_vec));
    }
}

/// Text without the line end that editors add.
fn line(key: &str, bytes: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(bytes);
    let text = text.map_err(|_| format!("{key} in the Secret of spec.authSecret is not UTF-8"))?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(pairs: &[(&str, &str)]) -> Option<Data> {
        Some(pairs.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect())
    }

    fn chart(value: Value) -> ChartSpec {
        serde_json::from_value(value).unwrap()
    }

    fn json_of(access: &Access, file: &str) -> Value {
        let (_, content) = access.files.iter().find(|(name, _)| name == file).expect(file);
        serde_json::from_slice(content).unwrap()
    }

    #[test]
    fn credentials_of_a_repository_are_a_file() {
        let spec = chart(json!({"chart": "web", "repo": "https://r", "repoCA": "CA", "authPassCredentials": true}));
        let auth = data(&[("username", "ann\n"), ("password", "hunter2-hunter2\n")]);
        let access = Access::plan(&spec, &Sources { auth, ..Sources::default() }).unwrap();
        let entry = json_of(&access, REPOSITORIES_FILE)["repositories"][0].clone();
        assert_eq!(
            entry,
            json!({"name": "repository", "url": "https://r", "username": "ann", "password": "hunter2-hunter2",
                "caFile": "ca.crt", "insecure_skip_tls_verify": false, "pass_credentials_all": true})
        );
        assert_eq!(access.hidden, [b"hunter2-hunter2"]);

        let auth = data(&[("tls.crt", "certificate"), ("tls.key", "key")]);
        let access = Access::plan(&spec, &Sources { auth, ..Sources::default() }).unwrap();
        assert_eq!(json_of(&access, REPOSITORIES_FILE)["repositories"][0]["keyFile"], "client.key");
        assert!(access.has("client.crt") && access.has("client.key"));

        let incomplete = Sources { auth: data(&[("username", "ann")]), ..Sources::default() };
        assert!(Access::plan(&spec, &incomplete).unwrap_err().contains("neither username"));
        let address = chart(json!({"chart": "https://example/web.tgz", "repo": "https://r"}));
        assert_eq!(Access::plan(&address, &incomplete).unwrap(), Access::default());
    }

    #[test]
    fn authorities_of_text_and_map_are_one_file() {
        let spec = chart(json!({"chart": "web", "repo": "https://r", "repoCA": "first"}));
        let authorities = data(&[("b", "third"), ("a", "second")]);
        let access = Access::plan(&spec, &Sources { authorities, ..Sources::default() }).unwrap();
        assert_eq!(access.files, [("ca.crt".to_owned(), b"first\nsecond\nthird\n".to_vec())]);
    }

    /// A configuration of Docker may name a program that prints credentials.
    #[test]
    fn of_a_docker_configuration_only_credentials_are_used() {
        let auth = STANDARD.encode("ann:hunter2-hunter2");
        let text = json!({"auths": {"registry.example": {"auth": auth}}, "credsStore": "x", "credHelpers": {"a": "b"}});
        let registry = data(&[(".dockerconfigjson", &text.to_string())]);
        let access = Access::plan(&ChartSpec::default(), &Sources { registry, ..Sources::default() }).unwrap();
        assert_eq!(json_of(&access, REGISTRIES_FILE), json!({"auths": {"registry.example": {"auth": auth}}}));
        assert_eq!(access.hidden, [auth.into_bytes(), b"hunter2-hunter2".to_vec()]);
        for wrong in [&[("config.json", "{}")][..], &[(".dockerconfigjson", "[]")]] {
            assert!(
                Access::plan(&ChartSpec::default(), &Sources { registry: data(wrong), ..Sources::default() }).is_err()
            );
        }
    }
}
