//! The CredentialProviderConfig: which plugin has credentials for which images.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use knarr_client::go_duration;
use serde::Deserialize;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use super::ProviderError;
use crate::images::access::hexadecimal;

/// The version of requests and responses that knows service account tokens.
pub const V1: &str = "credentialprovider.kubelet.k8s.io/v1";
const API_VERSIONS: [&str; 3] =
    [V1, "credentialprovider.kubelet.k8s.io/v1alpha1", "credentialprovider.kubelet.k8s.io/v1beta1"];
const CACHE_TYPES: [&str; 2] = ["ServiceAccount", "Token"];

/// A configuration, and a digest of its files.
#[derive(Debug)]
pub struct Configuration {
    pub providers: Vec<ProviderConfig>,
    pub hash: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProviderConfig {
    pub name: String,
    pub api_version: String,
    pub match_images: Vec<String>,
    pub default_cache: Duration,
    pub arguments: Vec<String>,
    pub environment: Vec<(String, String)>,
    pub token: Option<TokenAttributes>,
}

/// The service account token that a plugin receives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenAttributes {
    pub audience: String,
    pub require_account: bool,
    /// Whether credentials are cached per token instead of per service account.
    pub cache_by_token: bool,
    pub required_annotations: Vec<String>,
    pub optional_annotations: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawProvider {
    name: String,
    match_images: Vec<String>,
    default_cache_duration: Option<String>,
    api_version: String,
    args: Vec<String>,
    env: Vec<RawVariable>,
    token_attributes: Option<RawToken>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RawVariable {
    name: String,
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct RawToken {
    service_account_token_audience: String,
    cache_type: String,
    require_service_account: Option<bool>,
    required_service_account_annotation_keys: Vec<String>,
    optional_service_account_annotation_keys: Vec<String>,
}

const PROVIDER_FIELDS: [&str; 6] = ["name", "matchImages", "defaultCacheDuration", "apiVersion", "args", "env"];
const TOKEN_FIELDS: [&str; 5] = [
    "serviceAccountTokenAudience",
    "cacheType",
    "requireServiceAccount",
    "requiredServiceAccountAnnotationKeys",
    "optionalServiceAccountAnnotationKeys",
];

/// Reads a file, or all files of a directory that end in `.json`, `.yaml` or `.yml`, in the order of their names.
pub fn read(path: &Path) -> Result<Configuration, ProviderError> {
    let mut hash = Sha256::new();
    let mut providers: Vec<RawProvider> = Vec::new();
    for file in files(path)? {
        let data = std::fs::read(&file).map_err(|error| {
            ProviderError(format!("unable to read file {:?}: {}", file, go_error("open", &file, &error)))
        })?;
        hash.update((data.len() as u64).to_be_bytes());
        hash.update(&data);
        let own = decode(&data).map_err(|reason| ProviderError(format!("error decoding config {file:?}: {reason}")))?;
        for provider in own {
            if providers.iter().any(|known| known.name == provider.name) {
                let name = &provider.name;
                return Err(ProviderError(format!("duplicate provider name {name:?} found in configuration file(s)")));
            }
            providers.push(provider);
        }
    }
    Ok(Configuration {
        providers: validate(providers)
            .map_err(|reasons| ProviderError(format!("failed to validate credential provider config: {reasons}")))?,
        hash: format!("sha256:{}", hexadecimal(&hash.finalize())),
    })
}

fn files(path: &Path) -> Result<Vec<PathBuf>, ProviderError> {
    let facts = std::fs::metadata(path).map_err(|error| {
        ProviderError(format!("unable to access path {path:?}: {}", go_error("stat", path, &error)))
    })?;
    if !facts.is_dir() {
        return Ok(vec![path.to_path_buf()]);
    }
    let unreadable = |error: std::io::Error| ProviderError(format!("unable to read directory {path:?}: {error}"));
    let mut files = Vec::new();
    for entry in std::fs::read_dir(path).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let name = entry.path();
        let is_named =
            name.extension().is_some_and(|ending| ["json", "yaml", "yml"].iter().any(|known| ending == *known));
        if is_named && !entry.file_type().map_err(unreadable)?.is_dir() {
            files.push(name);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(ProviderError(format!("no configuration files found in directory {path:?}")));
    }
    Ok(files)
}

/// An error as Kubernetes' programs show it.
fn go_error(call: &str, path: &Path, error: &std::io::Error) -> String {
    let reason = match error.kind() {
        std::io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        std::io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ => error.to_string(),
    };
    format!("{call} {}: {reason}", path.display())
}

fn decode(data: &[u8]) -> Result<Vec<RawProvider>, String> {
    let document: Value = serde_yaml_ng::from_slice(data).map_err(|error| error.to_string())?;
    let text = |name: &str| document[name].as_str().unwrap_or_default();
    let (kind, version) = (text("kind"), text("apiVersion"));
    if kind.is_empty() {
        return Err("Object 'Kind' is missing in the configuration".to_owned());
    }
    let release = version.strip_prefix("kubelet.config.k8s.io/").unwrap_or_default();
    if kind != "CredentialProviderConfig" || !["v1", "v1beta1", "v1alpha1"].contains(&release) {
        return Err(format!("no kind {kind:?} is registered for version {version:?}"));
    }
    let unknown = unknown_fields(&document, release == "v1");
    if !unknown.is_empty() {
        let fields: Vec<String> = unknown.iter().map(|path| format!("unknown field {path:?}")).collect();
        return Err(format!("strict decoding error: {}", fields.join(", ")));
    }
    match &document["providers"] {
        Value::Null => Ok(Vec::new()),
        providers => Vec::deserialize(providers).map_err(|error| error.to_string()),
    }
}

fn unknown_fields(document: &Value, has_tokens: bool) -> Vec<String> {
    let mut unknown = Vec::new();
    let mut check = |value: &Value, prefix: &str, known: &[&str]| {
        let keys = value.as_object().into_iter().flat_map(Map::keys);
        unknown.extend(keys.filter(|key| !known.contains(&key.as_str())).map(|key| format!("{prefix}{key}")));
    };
    check(document, "", &["kind", "apiVersion", "providers"]);
    for (place, provider) in document["providers"].as_array().into_iter().flatten().enumerate() {
        let prefix = format!("providers[{place}].");
        let mut fields = PROVIDER_FIELDS.to_vec();
        fields.extend(has_tokens.then_some("tokenAttributes"));
        check(provider, &prefix, &fields);
        for (place, variable) in provider["env"].as_array().into_iter().flatten().enumerate() {
            check(variable, &format!("{prefix}env[{place}]."), &["name", "value"]);
        }
        check(&provider["tokenAttributes"], &format!("{prefix}tokenAttributes."), &TOKEN_FIELDS);
    }
    unknown
}

fn validate(raw: Vec<RawProvider>) -> Result<Vec<ProviderConfig>, String> {
    let mut reasons = Reasons::default();
    if raw.is_empty() {
        reasons.add("providers: Required value: at least 1 item in plugins is required");
    }
    let checked: Vec<ProviderConfig> = raw.into_iter().map(|provider| check(provider, &mut reasons)).collect();
    match reasons.0.as_slice() {
        [] => Ok(checked),
        [one] => Err(one.clone()),
        several => Err(format!("[{}]", several.join(", "))),
    }
}

/// Distinct reasons in the order they were found.
#[derive(Default)]
struct Reasons(Vec<String>);

impl Reasons {
    fn add(&mut self, reason: impl Into<String>) {
        let reason = reason.into();
        if !self.0.contains(&reason) {
            self.0.push(reason);
        }
    }
}

fn check(raw: RawProvider, reasons: &mut Reasons) -> ProviderConfig {
    let name = &raw.name;
    for (is_wrong, why) in [
        (name.contains('/'), "provider name cannot contain '/'"),
        (name.contains(' '), "provider name cannot contain spaces"),
        (name == ".", "provider name cannot be '.'"),
        (name == "..", "provider name cannot be '..'"),
    ] {
        if is_wrong {
            reasons.add(format!("providers.name: Invalid value: {name:?}: {why}"));
        }
    }
    if raw.api_version.is_empty() {
        reasons.add("providers.apiVersion: Required value");
    } else if !API_VERSIONS.contains(&raw.api_version.as_str()) {
        let known = API_VERSIONS.map(|version| format!("{version:?}")).join(", ");
        reasons
            .add(format!("providers.apiVersion: Unsupported value: {:?}: supported values: {known}", raw.api_version));
    }
    if raw.match_images.is_empty() {
        reasons.add("providers.matchImages: Required value: at least 1 item in matchImages is required");
    }
    for image in &raw.match_images {
        if let Some(why) = why_no_address(image) {
            reasons.add(format!("providers.matchImages: Invalid value: {image:?}: match image is invalid: {why}"));
        }
    }
    let default_cache = match raw.default_cache_duration.as_deref() {
        None => {
            reasons.add("providers.defaultCacheDuration: Required value");
            Duration::ZERO
        }
        Some(text) if text.starts_with('-') => {
            reasons.add(format!(
                "providers.defaultCacheDuration: Invalid value: {text:?}: must be greater than or equal to 0"
            ));
            Duration::ZERO
        }
        Some(text) => go_duration::parse_positive(text).unwrap_or_else(|| {
            reasons.add(format!("time: invalid duration {text:?}"));
            Duration::ZERO
        }),
    };
    let token = raw.token_attributes.map(|token| check_token(token, &raw.api_version, reasons));
    ProviderConfig {
        name: raw.name,
        api_version: raw.api_version,
        match_images: raw.match_images,
        default_cache,
        arguments: raw.args,
        environment: raw.env.into_iter().map(|variable| (variable.name, variable.value)).collect(),
        token,
    }
}

fn check_token(raw: RawToken, api_version: &str, reasons: &mut Reasons) -> TokenAttributes {
    const PATH: &str = "providers.tokenAttributes";
    if raw.service_account_token_audience.is_empty() {
        reasons.add(format!("{PATH}.serviceAccountTokenAudience: Required value"));
    }
    if raw.require_service_account.is_none() {
        reasons.add(format!("{PATH}.requireServiceAccount: Required value"));
    }
    if api_version != V1 {
        reasons.add(format!("{PATH}: Forbidden: tokenAttributes is only supported for {V1} API version"));
    }
    let (required, optional) =
        (&raw.required_service_account_annotation_keys, &raw.optional_service_account_annotation_keys);
    if raw.require_service_account == Some(false) && !required.is_empty() {
        reasons.add(format!(
            "{PATH}.requiredServiceAccountAnnotationKeys: Forbidden: requireServiceAccount cannot be false when \
             requiredServiceAccountAnnotationKeys is set"
        ));
    }
    for (field, keys) in [("required", required), ("optional", optional)] {
        let path = format!("{PATH}.{field}ServiceAccountAnnotationKeys");
        let mut seen = BTreeSet::new();
        for key in keys {
            for why in knarr_client::semantics::names::qualified_name(&key.to_lowercase()) {
                reasons.add(format!("{path}: Invalid value: {key:?}: {why}"));
            }
            if !seen.insert(key) {
                reasons.add(format!("{path}: Duplicate value: {key:?}"));
            }
        }
    }
    let both: BTreeSet<&String> = required.iter().filter(|key| optional.contains(key)).collect();
    if !both.is_empty() {
        let both = both.iter().map(|key| format!("{key:?}")).collect::<Vec<_>>().join(",");
        reasons.add(format!("{PATH}: Invalid value: [{both}]: annotation keys cannot be both required and optional"));
    }
    match raw.cache_type.as_str() {
        "" => reasons.add(format!(
            "{PATH}.cacheType: Required value: cacheType is required to be set when tokenAttributes is specified. \
             Supported values are: {}",
            CACHE_TYPES.join(", ")
        )),
        known if CACHE_TYPES.contains(&known) => {}
        other => {
            let known = CACHE_TYPES.map(|name| format!("{name:?}")).join(", ");
            reasons.add(format!("{PATH}.cacheType: Unsupported value: {other:?}: supported values: {known}"));
        }
    }
    TokenAttributes {
        audience: raw.service_account_token_audience,
        require_account: raw.require_service_account.unwrap_or_default(),
        cache_by_token: raw.cache_type == "Token",
        required_annotations: raw.required_service_account_annotation_keys,
        optional_annotations: raw.optional_service_account_annotation_keys,
    }
}

/// Why a text is not a host with an optional port and path.
fn why_no_address(image: &str) -> Option<String> {
    let wrong = |why: String| Some(format!("parse {:?}: {why}", format!("https://{image}")));
    if image.chars().any(char::is_control) {
        return wrong("net/url: invalid control character in URL".to_owned());
    }
    let host = image.split(['/', '?', '#']).next().unwrap_or_default();
    if let Some(sign) = host.chars().find(|sign| " \"<>\\^`{|}".contains(*sign)) {
        return wrong(format!("invalid character {:?} in host name", sign.to_string()));
    }
    match host.rsplit_once(':') {
        Some((_, port)) if !host.ends_with(']') && !port.chars().all(|sign| sign.is_ascii_digit()) => {
            wrong(format!("invalid port {:?} after host", format!(":{port}")))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
