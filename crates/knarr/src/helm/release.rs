//! From a HelmChart to the command of Helm that installs it. No I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use knarr_api::go_duration;
use serde::Deserialize;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// How long Helm may take, unless the chart says otherwise.
const TIMEOUT: Duration = Duration::from_secs(300);
/// Few charts are installed at a time: one must not occupy its place for ever.
const MAX_TIMEOUT: Duration = Duration::from_secs(24 * 3600);

/// The file of a chart that its object holds. Named after nothing of the object, whose name could be that of another file.
const CHART: &str = "chart.tgz";

/// The specification of a HelmChart, and of a HelmChartConfig, which has some of the fields. Those that describe the Job of
/// k3s are not read: there is none.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ChartSpec {
    pub chart: String,
    pub chart_content: String,
    pub repo: String,
    pub version: String,
    pub target_namespace: String,
    pub create_namespace: bool,
    pub values: Option<Value>,
    pub values_content: String,
    pub values_secrets: Vec<SecretReference>,
    pub set: BTreeMap<String, Value>,
    pub timeout: Option<String>,
    pub failure_policy: String,
    #[serde(rename = "insecureSkipTLSVerify")]
    pub insecure_skip_tls_verify: bool,
    #[serde(rename = "plainHTTP")]
    pub plain_http: bool,
    pub take_ownership: bool,
    #[serde(rename = "repoCA")]
    pub repo_ca: String,
    pub auth_secret: Option<Value>,
    pub docker_registry_secret: Option<Value>,
    #[serde(rename = "repoCAConfigMap")]
    pub repo_ca_config_map: Option<Value>,
}

/// A Secret with values for a chart.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretReference {
    pub name: String,
    pub keys: Vec<String>,
}

/// What is to be installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    pub name: String,
    pub namespace: String,
    /// The arguments of Helm, which runs in a directory with the files.
    pub arguments: Vec<String>,
    pub files: Vec<(String, Vec<u8>)>,
    pub timeout: Duration,
    /// Whether a release that failed is removed before it is installed again.
    pub reinstalls: bool,
}

impl Release {
    /// Plans a release. `secrets` are the values that the chart's Secrets hold, in order.
    pub fn plan(
        (namespace, name): (&str, &str),
        chart: &ChartSpec,
        config: Option<&ChartSpec>,
        secrets: Vec<Vec<u8>>,
    ) -> Result<Release, String> {
        let mut files = Vec::new();
        let source = source(chart, &mut files)?;
        add_values(&mut files, chart, config, secrets);
        let target = if chart.target_namespace.is_empty() { namespace } else { &chart.target_namespace };
        let timeout = chart.timeout.as_deref().map_or(Ok(TIMEOUT), parse_duration)?;
        let mut arguments = vec![
            "upgrade".to_owned(),
            "--install".to_owned(),
            format!("--namespace={target}"),
            format!("--timeout={}s", timeout.as_secs()),
        ];
        for (is_set, flag) in [
            (chart.create_namespace, "--create-namespace"),
            (chart.insecure_skip_tls_verify, "--insecure-skip-tls-verify"),
            (chart.plain_http, "--plain-http"),
            (chart.take_ownership, "--take-ownership"),
        ] {
            arguments.extend(is_set.then(|| flag.to_owned()));
        }
        for (value, flag) in [(&chart.repo, "--repo"), (&chart.version, "--version")] {
            arguments.extend((!value.is_empty()).then(|| format!("{flag}={value}")));
        }
        if !chart.repo_ca.is_empty() {
            files.push(("ca.crt".to_owned(), chart.repo_ca.clone().into_bytes()));
            arguments.push("--ca-file=ca.crt".to_owned());
        }
        let values = files.iter().filter(|(file, _)| file.starts_with("values-"));
        arguments.extend(values.map(|(file, _)| format!("--values={file}")));
        arguments.extend(chart.set.iter().map(|(key, value)| set(key, value)));
        // What follows is no flag, whatever it looks like.
        arguments.extend(["--".to_owned(), name.to_owned(), source]);
        let policy = config.map(|config| &config.failure_policy).filter(|policy| !policy.is_empty());
        let reinstalls = policy.unwrap_or(&chart.failure_policy) != "abort";
        Ok(Release { name: name.to_owned(), namespace: target.to_owned(), arguments, files, timeout, reinstalls })
    }

    /// The arguments that remove a release.
    pub fn removal(name: &str, namespace: &str) -> Vec<String> {
        let words = ["uninstall", "--ignore-not-found", &format!("--namespace={namespace}"), "--", name];
        words.map(str::to_owned).to_vec()
    }

    /// Changes when anything does that Helm would use.
    pub fn hash(&self) -> String {
        let mut hash = Sha256::new();
        for argument in &self.arguments {
            hash.update((argument.len() as u64).to_be_bytes());
            hash.update(argument);
        }
        for (name, content) in &self.files {
            hash.update(name);
            hash.update((content.len() as u64).to_be_bytes());
            hash.update(content);
        }
        let digest = hash.finalize().iter().map(|byte| format!("{byte:02X}")).collect::<String>();
        format!("SHA256={digest}")
    }
}

/// Where the chart is. Files of this host are out of reach: whoever creates the object may not be allowed to read them.
fn source(chart: &ChartSpec, files: &mut Vec<(String, Vec<u8>)>) -> Result<String, String> {
    for (is_set, field) in [
        (chart.auth_secret.is_some(), "authSecret"),
        (chart.docker_registry_secret.is_some(), "dockerRegistrySecret"),
        (chart.repo_ca_config_map.is_some(), "repoCAConfigMap"),
    ] {
        if is_set {
            return Err(format!("spec.{field} is not supported"));
        }
    }
    if !chart.chart_content.is_empty() {
        let text: String = chart.chart_content.split_whitespace().collect();
        let content = STANDARD.decode(text).map_err(|error| format!("spec.chartContent is not base64: {error}"))?;
        files.push((CHART.to_owned(), content));
        return Ok(format!("./{CHART}"));
    }
    let is_remote = ["https://", "http://", "oci://"].iter().any(|scheme| chart.chart.starts_with(scheme));
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
    // Helm looks for a file of that name first.
    let is_name = chart.chart.bytes().all(plain)
        && chart.chart.starts_with(|first: char| first.is_ascii_alphanumeric())
        && chart.chart.split('/').all(|part| !matches!(part, "" | "." | ".."));
    match chart.chart.as_str() {
        "" => Err("neither spec.chart nor spec.chartContent is set".to_owned()),
        remote if is_remote => Ok(remote.to_owned()),
        _ if chart.repo.is_empty() => Err("spec.chart is the name of a chart, and spec.repo is not set".to_owned()),
        chart if is_name => Ok(chart.to_owned()),
        chart => Err(format!("spec.chart {chart:?} is neither the name of a chart nor an address")),
    }
}

/// Later values take precedence: those of the configuration over those of the chart, and Secrets over text.
fn add_values(
    files: &mut Vec<(String, Vec<u8>)>,
    chart: &ChartSpec,
    config: Option<&ChartSpec>,
    secrets: Vec<Vec<u8>>,
) {
    let mut contents: Vec<Vec<u8>> = Vec::new();
    for spec in std::iter::once(chart).chain(config) {
        contents.extend((!spec.values_content.is_empty()).then(|| spec.values_content.clone().into_bytes()));
        // JSON is YAML.
        contents.extend(spec.values.as_ref().map(|values| values.to_string().into_bytes()));
    }
    contents.extend(secrets);
    files.extend(contents.into_iter().enumerate().map(|(index, content)| (format!("values-{index:02}.yaml"), content)));
}

/// Numbers and constants keep their type; commas of other text do not separate values.
fn set(key: &str, value: &Value) -> String {
    match value {
        Value::String(text) if !matches!(text.to_ascii_lowercase().as_str(), "true" | "false" | "null") => {
            format!("--set-string={key}={}", text.replace('\\', "\\\\").replace(',', "\\,"))
        }
        Value::String(text) => format!("--set={key}={text}"),
        other => format!("--set={key}={other}"),
    }
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
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: Value) -> ChartSpec {
        serde_json::from_value(value).unwrap()
    }

    fn plan(chart: Value, config: Option<Value>, secrets: &[&str]) -> Result<Release, String> {
        let secrets = secrets.iter().map(|text| text.as_bytes().to_vec()).collect();
        Release::plan(("kube-system", "web"), &spec(chart), config.map(spec).as_ref(), secrets)
    }

    #[test]
    fn a_chart_becomes_a_command() {
        let chart = json!({"chart": "nginx", "repo": "https://charts.example", "version": "1.2", "targetNamespace": "web",
            "createNamespace": true, "timeout": "2m30s", "valuesContent": "a: 1",
            "set": {"b": 2, "c": "x,y", "d": "true"}, "jobImage": "ignored", "backOffLimit": 3});
        let release = plan(chart, Some(json!({"valuesContent": "a: 2", "failurePolicy": "abort"})), &["s: 3"]).unwrap();
        assert_eq!(
            release.arguments.join(" "),
            "upgrade --install --namespace=web --timeout=150s --create-namespace --repo=https://charts.example \
             --version=1.2 --values=values-00.yaml --values=values-01.yaml --values=values-02.yaml --set=b=2 \
             --set-string=c=x\\,y --set=d=true -- web nginx"
        );
        let contents: Vec<&[u8]> = release.files.iter().map(|(_, content)| content.as_slice()).collect();
        assert_eq!(contents, [b"a: 1", b"a: 2", b"s: 3"]);
        assert!(!release.reinstalls);
        assert_eq!(Release::removal("web", "other").join(" "), "uninstall --ignore-not-found --namespace=other -- web");
    }

    #[test]
    fn charts_come_from_elsewhere_or_are_within() {
        let content = STANDARD.encode("tar");
        for (chart, last) in [
            (json!({"chart": "oci://registry.example/app"}), Some("oci://registry.example/app")),
            (json!({"chart": "https://example/app.tgz"}), Some("https://example/app.tgz")),
            (json!({"chartContent": content}), Some("./chart.tgz")),
            (json!({"chart": "app"}), None),
            (json!({}), None),
            (json!({"chart": "/etc/app", "repo": "https://r"}), None),
            (json!({"chart": "../app", "repo": "https://r"}), None),
            (json!({"chart": "a/../../app", "repo": "https://r"}), None),
            (json!({"chart": "a", "repo": "https://r", "timeout": "18446744073709551615s"}), None),
            (json!({"chart": "a", "repo": "https://r", "timeout": "25h"}), None),
            (json!({"chart": "a", "repo": "https://r", "timeout": "24h"}), Some("a")),
            (json!({"chart": "--post-renderer=x", "repo": "https://r"}), None),
            (json!({"chart": "file:///etc", "repo": "https://r"}), None),
            (json!({"chartContent": "???"}), None),
            (json!({"chart": "a", "repo": "https://r", "authSecret": {"name": "s"}}), None),
            (json!({"chart": "a", "repo": "https://r", "timeout": "soon"}), None),
        ] {
            let planned = plan(chart.clone(), None, &[]);
            assert_eq!(planned.ok().and_then(|release| release.arguments.last().cloned()).as_deref(), last, "{chart}");
        }
    }

    /// The chart of an object named like a file of values is not one.
    #[test]
    fn the_name_of_an_object_is_no_file() {
        let chart = spec(json!({"chartContent": STANDARD.encode("tar"), "valuesContent": "a: 1"}));
        let release = Release::plan(("default", "values-99"), &chart, None, Vec::new()).unwrap();
        let values: Vec<&String> = release.arguments.iter().filter(|word| word.starts_with("--values")).collect();
        assert_eq!(values, ["--values=values-00.yaml"]);
    }

    #[test]
    fn a_change_of_anything_changes_the_hash() {
        let base = json!({"chart": "a", "repo": "https://r"});
        let hash = |chart: &Value, secrets: &[&str]| plan(chart.clone(), None, secrets).unwrap().hash();
        let all = [
            hash(&base, &[]),
            hash(&base, &["x: 1"]),
            hash(&json!({"chart": "a", "repo": "https://r", "valuesContent": "x: 2"}), &[]),
            hash(&json!({"chart": "a", "repo": "https://r", "version": "2"}), &[]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(!all[..index].contains(one));
        }
        assert_eq!(hash(&base, &[]), all[0]);
    }
}
