//! Plans the command of Helm that installs a HelmChart. No I/O.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use knarr_api::go_duration;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::access::{AUTHORITIES_FILE, Access, REPOSITORIES_FILE, REPOSITORY};
use super::spec::{ChartSpec, is_address};

/// How long Helm may take, unless the chart says otherwise.
const TIMEOUT: Duration = Duration::from_secs(300);
/// The maximum timeout of a chart: few charts are installed at a time, and none may block the others for ever.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The file of a chart that is embedded in its object. The name is fixed, since the name of the object could be that of another
/// file.
const CHART: &str = "chart.tgz";

/// Values that a Secret holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretValue {
    pub content: Vec<u8>,
    /// Whether changes of the Secret do not upgrade the release.
    pub ignores_updates: bool,
}

/// The values from the Secrets of a chart and of its configuration.
#[derive(Clone, Debug, Default)]
pub struct SecretValues {
    pub chart: Vec<SecretValue>,
    pub config: Vec<SecretValue>,
}

/// A file that Helm reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    pub name: String,
    pub content: Vec<u8>,
    /// Whether a change of the file upgrades the release.
    is_hashed: bool,
}

impl File {
    fn hashed(name: String, content: Vec<u8>) -> File {
        File { name, content, is_hashed: true }
    }
}

/// How a failed release is handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    /// It stays as it is.
    Abort,
    /// It is removed and installed again.
    Reinstall,
    /// It is upgraded.
    Retry,
}

/// A planned release.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub name: String,
    pub namespace: String,
    /// The arguments of Helm, which runs in a directory with the files.
    pub arguments: Vec<String>,
    pub files: Vec<File>,
    pub timeout: Duration,
    pub failure_policy: FailurePolicy,
    /// Where Helm keeps releases; its default if empty.
    pub driver: String,
}

impl Release {
    /// Plans a release.
    pub fn plan(
        (namespace, name): (&str, &str),
        chart: &ChartSpec,
        config: Option<&ChartSpec>,
        secrets: SecretValues,
        access: Access,
    ) -> Result<Release, String> {
        let mut files = Vec::new();
        let source = source(chart, &access, &mut files)?;
        add_values(&mut files, chart, config, secrets);
        let target = if chart.target_namespace.is_empty() { namespace } else { &chart.target_namespace };
        let timeout = chart.timeout.as_deref().map_or(Ok(TIMEOUT), parse_duration)?;
        let mut arguments = vec![
            "upgrade".to_owned(),
            "--install".to_owned(),
            format!("--namespace={target}"),
            format!("--timeout={}s", timeout.as_secs()),
        ];
        arguments.extend(flags(chart, config));
        arguments.extend(where_from(chart, &access));
        let values = files.iter().filter(|file| file.name.starts_with("values-"));
        arguments.extend(values.map(|file| format!("--values={}", file.name)));
        arguments.extend(chart.set.iter().map(|(key, value)| set(key, value)));
        // Ends the flags: neither name nor chart is read as one.
        arguments.extend(["--".to_owned(), name.to_owned(), source]);
        // A change of credentials does not change the release.
        files.extend(access.files.into_iter().map(|(name, content)| File { name, content, is_hashed: false }));
        Ok(Release {
            name: name.to_owned(),
            namespace: target.to_owned(),
            arguments,
            files,
            timeout,
            failure_policy: failure_policy(chart, config)?,
            driver: chart.driver.clone(),
        })
    }

    pub fn has_file(&self, name: &str) -> bool {
        self.files.iter().any(|file| file.name == name)
    }

    /// The arguments that remove a release.
    pub fn removal(name: &str, namespace: &str) -> Vec<String> {
        let words = ["uninstall", "--ignore-not-found", &format!("--namespace={namespace}"), "--", name];
        words.map(str::to_owned).to_vec()
    }

    /// The arguments that list the release in any state. Helm 4 has no flag for all states.
    pub fn listing(&self) -> Vec<String> {
        // A dot in the name matches any character: the list may hold other releases.
        let (filter, namespace) = (format!("--filter=^{}$", self.name), format!("--namespace={}", self.namespace));
        let states = ["--deployed", "--failed", "--pending", "--superseded", "--uninstalled", "--uninstalling"];
        let words = ["list", "--output=json", &filter, &namespace].into_iter().chain(states);
        words.map(str::to_owned).collect()
    }

    /// The arguments that roll a release back to its previous revision.
    pub fn rollback(&self) -> Vec<String> {
        let (namespace, timeout) =
            (format!("--namespace={}", self.namespace), format!("--timeout={}s", self.timeout.as_secs()));
        ["rollback", &namespace, &timeout, "--", &self.name].map(str::to_owned).to_vec()
    }

    /// The hash of everything that Helm uses for the release.
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for argument in &self.arguments {
            hash.update((argument.len() as u64).to_be_bytes());
            hash.update(argument);
        }
        for file in self.files.iter().filter(|file| file.is_hashed) {
            hash.update(&file.name);
            hash.update((file.content.len() as u64).to_be_bytes());
            hash.update(&file.content);
        }
        let digest = hash.finalize().iter().map(|byte| format!("{byte:02X}")).collect::<String>();
        format!("SHA256={digest}")
    }
}

fn flags(chart: &ChartSpec, config: Option<&ChartSpec>) -> Vec<String> {
    let force = config.and_then(|config| config.force_conflicts).or(chart.force_conflicts).unwrap_or_default();
    let flags = [
        (chart.create_namespace, "--create-namespace"),
        (chart.insecure_skip_tls_verify, "--insecure-skip-tls-verify"),
        (chart.plain_http, "--plain-http"),
        (chart.take_ownership, "--take-ownership"),
        (force, "--force-conflicts"),
    ];
    let mut flags: Vec<String> = flags.iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| (*flag).into()).collect();
    let server_side = config.map(|config| &config.server_side).filter(|text| !text.is_empty());
    let server_side = server_side.unwrap_or(&chart.server_side);
    flags.extend((!server_side.is_empty()).then(|| format!("--server-side={server_side}")));
    flags
}

/// The flags that say where the chart comes from. Helm reads a repository with credentials from its list of them.
fn where_from(chart: &ChartSpec, access: &Access) -> Vec<String> {
    let mut flags = Vec::new();
    let is_listed = access.has(REPOSITORIES_FILE);
    flags.extend((!chart.repo.is_empty() && !is_listed).then(|| format!("--repo={}", chart.repo)));
    flags.extend((!chart.version.is_empty()).then(|| format!("--version={}", chart.version)));
    flags.extend((access.has(AUTHORITIES_FILE) && !is_listed).then(|| format!("--ca-file={AUTHORITIES_FILE}")));
    flags
}

/// The failure policy; the configuration's takes precedence.
fn failure_policy(chart: &ChartSpec, config: Option<&ChartSpec>) -> Result<FailurePolicy, String> {
    let configured = config.map(|config| config.failure_policy.as_str()).filter(|policy| !policy.is_empty());
    match configured.unwrap_or(&chart.failure_policy) {
        "" | "reinstall" => Ok(FailurePolicy::Reinstall),
        "abort" => Ok(FailurePolicy::Abort),
        "retry" => Ok(FailurePolicy::Retry),
        other => Err(format!("failurePolicy {other:?} is unknown")),
    }
}

/// The location of the chart. Files of this host are refused: users who create the object may not be allowed to read them.
fn source(chart: &ChartSpec, access: &Access, files: &mut Vec<File>) -> Result<String, String> {
    if !chart.chart_content.is_empty() {
        let text: String = chart.chart_content.split_whitespace().collect();
        let content = STANDARD.decode(text).map_err(|error| format!("spec.chartContent is not base64: {error}"))?;
        files.push(File::hashed(CHART.to_owned(), content));
        return Ok(format!("./{CHART}"));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
    // Helm looks for a file of that name first.
    let is_name = chart.chart.bytes().all(plain)
        && chart.chart.starts_with(|first: char| first.is_ascii_alphanumeric())
        && chart.chart.split('/').all(|part| !matches!(part, "" | "." | ".."));
    match chart.chart.as_str() {
        "" => Err("neither spec.chart nor spec.chartContent is set".to_owned()),
        address if is_address(address) => Ok(address.to_owned()),
        _ if chart.repo.is_empty() => Err("spec.chart is the name of a chart, and spec.repo is not set".to_owned()),
        name if is_name && access.has(REPOSITORIES_FILE) => Ok(format!("{REPOSITORY}/{name}")),
        name if is_name => Ok(name.to_owned()),
        other => Err(format!("spec.chart {other:?} is neither the name of a chart nor an address")),
    }
}

/// Later values take precedence: those of the configuration over those of the chart, and in each Secrets over text.
fn add_values(files: &mut Vec<File>, chart: &ChartSpec, config: Option<&ChartSpec>, secrets: SecretValues) {
    let mut contents: Vec<(Vec<u8>, bool)> = Vec::new();
    for (spec, secrets) in [(Some(chart), secrets.chart), (config, secrets.config)] {
        if let Some(spec) = spec {
            let text = Some(&spec.values_content).filter(|text| !text.is_empty());
            contents.extend(text.map(|text| (text.clone().into_bytes(), true)));
            // JSON is YAML.
            contents.extend(spec.values.as_ref().map(|values| (values.to_string().into_bytes(), true)));
        }
        contents.extend(secrets.into_iter().map(|secret| (secret.content, !secret.ignores_updates)));
    }
    let named = contents.into_iter().enumerate();
    files.extend(named.map(|(index, (content, is_hashed))| {
        let name = format!("values-{index:02}.yaml");
        File { name, content, is_hashed }
    }));
}

/// Numbers and constants keep their type; commas of other text do not separate values.
fn set(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) if !matches!(text.to_ascii_lowercase().as_str(), "true" | "false" | "null") => {
            format!("--set-string={key}={}", escape_commas(text))
        }
        Value::String(text) => format!("--set={key}={text}"),
        other => format!("--set={key}={other}"),
    }
}

/// Escapes commas, except those that are: an odd number of backslashes is before them.
fn escape_commas(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut backslashes = 0;
    for character in text.chars() {
        if character == ',' && backslashes % 2 == 0 {
            escaped.push('\\');
        }
        backslashes = if character == '\\' { backslashes + 1 } else { 0 };
        escaped.push(character);
    }
    escaped
}

/// A duration of whole seconds such as `5m0s` or `1h`.
fn parse_duration(text: &str) -> Result<Duration, String> {
    let found = go_duration::parse_positive(text);
    let timeout = found.filter(|timeout| timeout.as_secs() > 0 && timeout.subsec_nanos() == 0);
    let timeout = timeout.ok_or_else(|| format!("spec.timeout {text:?} is not a duration"))?;
    if timeout > MAX_TIMEOUT {
        return Err(format!("spec.timeout {text:?} is longer than {} h", MAX_TIMEOUT.as_secs() / 3600));
    }
    Ok(timeout)
}

#[cfg(test)]
#[path = "release_tests.rs"]
mod tests;
