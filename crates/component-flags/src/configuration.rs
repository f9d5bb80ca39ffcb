//! Configuration files of the node's components: their fields become flags.
//!
//! `fields.txt` is generated and holds the fields that exist; `field_status.txt` is written by hand and holds what they do.

use std::sync::LazyLock;

use knarr_go_duration as go_duration;
use knarr_semantics::value::json_type;
use serde_json::{Map, Value};

use crate::parse::{Given, ParseError};
use crate::{Component, go, zero};

/// A kind of configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConfigurationKind {
    pub kind: &'static str,
    pub api_version: &'static str,
}

/// A field of a configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub path: &'static str,
    pub type_name: &'static str,
    pub target: Target,
}

/// What a field does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The same as the flag of the component.
    Flag(&'static str),
    /// The same as the setting of Knarr.
    Setting(&'static str),
    /// The same, as a number of seconds.
    Seconds(&'static str),
    Ignored,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigurationError {
    #[error("no kind {} is registered for version {}", go::quote(.kind), go::quote(.api_version))]
    Kind { kind: String, api_version: String },
    #[error("json: cannot unmarshal {found} into Go struct field {kind}.{path} of type {expected}")]
    Type { found: &'static str, kind: &'static str, path: String, expected: String },
    #[error("{path}: {reason}")]
    Value { path: String, reason: String },
    #[error(transparent)]
    Flag(#[from] ParseError),
}

/// The file that a component reads.
pub fn configuration_kind(component: Component) -> Option<ConfigurationKind> {
    match component {
        Component::Kubelet => {
            Some(ConfigurationKind { kind: "KubeletConfiguration", api_version: "kubelet.config.k8s.io/v1beta1" })
        }
        Component::Proxy => {
            Some(ConfigurationKind { kind: "KubeProxyConfiguration", api_version: "kubeproxy.config.k8s.io/v1alpha1" })
        }
        _ => None,
    }
}

/// All fields of a kind, by path.
pub fn fields(kind: &str) -> Vec<Field> {
    static TARGETS: LazyLock<Vec<(&str, &str, Target)>> = LazyLock::new(|| targets(include_str!("field_status.txt")));
    let own = sections(include_str!("fields.txt")).filter(|(heading, _)| *heading == kind);
    own.filter_map(|(heading, line)| {
        let (path, type_name) = line.split_once('\t')?;
        let known = TARGETS.iter().find(|(of, name, _)| (*of, *name) == (heading, path))?;
        Some(Field { path, type_name, target: known.2 })
    })
    .collect()
}

/// The lines of a table with the heading they stand under.
fn sections(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut heading = "";
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).filter_map(move |line| {
        match line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            Some(next) => {
                heading = next;
                None
            }
            None => Some((heading, line)),
        }
    })
}

fn targets(text: &'static str) -> Vec<(&'static str, &'static str, Target)> {
    let read = |(heading, line): (&'static str, &'static str)| {
        let mut words = line.split(' ');
        let (path, word) = (words.next()?, words.next()?);
        let target = match (word, words.next()) {
            ("flag", Some(name)) => Target::Flag(name),
            ("setting", Some(name)) => Target::Setting(name),
            ("seconds", Some(name)) => Target::Seconds(name),
            ("ignored", None) => Target::Ignored,
            _ => return None,
        };
        Some((heading, path, target))
    };
    sections(text).filter_map(read).collect()
}

/// Merges a drop-in file over a configuration: objects field by field, everything else as a whole.
pub fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                merge(base.entry(key).or_insert(Value::Null), value);
            }
        }
        (base, over) => *base = over,
    }
}

/// Applies a configuration file to the flags, and returns warnings. Given flags take precedence if `flags_win`.
pub fn configure(given: &mut Given, document: &Value, flags_win: bool) -> Result<Vec<String>, ConfigurationError> {
    let Some(expected) = configuration_kind(given.component()) else { return Ok(Vec::new()) };
    let text = |name: &str| document[name].as_str().unwrap_or_default().to_owned();
    if (text("kind"), text("apiVersion")) != (expected.kind.to_owned(), expected.api_version.to_owned()) {
        return Err(ConfigurationError::Kind { kind: text("kind"), api_version: text("apiVersion") });
    }
    let known = fields(expected.kind);
    let mut leaves = Vec::new();
    let mut unknown = Vec::new();
    if let Some(map) = document.as_object() {
        collect(map, "", &known, &mut leaves, &mut unknown);
    }
    let mut warnings = Vec::new();
    if !unknown.is_empty() {
        let fields: Vec<String> = unknown.iter().map(|path| format!("unknown field {}", go::quote(path))).collect();
        warnings.push(format!(
            "Using lenient decoding as strict decoding failed: strict decoding error: {}",
            fields.join(", ")
        ));
    }
    for (field, value) in leaves {
        let values = values(expected.kind, &field, value)?;
        if zero::is_unset(expected.kind, field.path, value) {
            continue;
        }
        match field.target {
            Target::Flag(name) => given.configure(name, &values, flags_win)?,
            Target::Setting(name) => given.set_setting(name, values),
            Target::Seconds(name) => given.set_setting(name, vec![seconds(&field, &values)?]),
            Target::Ignored if zero::is_zero(value) => {}
            Target::Ignored => warnings.push(format!("{} has no effect", field.path)),
        }
    }
    Ok(warnings)
}

/// The set fields of a document, and the paths that are none.
fn collect<'v>(
    map: &'v Map<String, Value>,
    prefix: &str,
    known: &[Field],
    leaves: &mut Vec<(Field, &'v Value)>,
    unknown: &mut Vec<String>,
) {
    for (key, value) in map {
        let path = format!("{prefix}{key}");
        if prefix.is_empty() && matches!(key.as_str(), "kind" | "apiVersion") || value.is_null() {
            continue;
        }
        let inner = format!("{path}.");
        match (known.iter().find(|field| field.path == path), value) {
            (Some(field), value) => leaves.push((*field, value)),
            (None, Value::Object(map)) if known.iter().any(|field| field.path.starts_with(&inner)) => {
                collect(map, &inner, known, leaves, unknown);
            }
            (None, _) => unknown.push(path),
        }
    }
}

/// The values of a field as they would be typed.
fn values(kind: &'static str, field: &Field, value: &Value) -> Result<Vec<String>, ConfigurationError> {
    let wrong = |expected: &str| ConfigurationError::Type {
        found: json_type(value),
        kind,
        path: field.path.to_owned(),
        expected: expected.to_owned(),
    };
    match (field.type_name, value) {
        ("bool", Value::Bool(on)) => Ok(vec![on.to_string()]),
        ("int32" | "int64" | "uint32", Value::Number(number)) if number.is_i64() => Ok(vec![number.to_string()]),
        ("float32" | "float64", Value::Number(number)) => Ok(vec![number.to_string()]),
        ("bool" | "int32" | "int64" | "uint32" | "float32" | "float64", _) => Err(wrong(field.type_name)),
        (name, Value::Array(items)) if name.starts_with("[]") => {
            items.iter().map(|item| element(field, item).ok_or_else(|| wrong("string"))).collect()
        }
        (name, Value::Object(map)) if name.starts_with("map[string]") => {
            map.iter().map(|(key, value)| pair(field, key, value).ok_or_else(|| wrong("string"))).collect()
        }
        (name, _) if name.starts_with("[]") || name.starts_with("map[") => Err(wrong(name)),
        ("duration", Value::String(text)) => go_duration::parse(text)
            .map(|length| vec![go_duration::format(length)])
            .map_err(|reason| ConfigurationError::Value { path: field.path.to_owned(), reason }),
        (_, Value::String(text)) => Ok(vec![text.clone()]),
        (name, Value::Number(number)) if matches!(name, "quantity") || name.starts_with("duration|") => {
            Ok(vec![number.to_string()])
        }
        _ => Err(wrong("string")),
    }
}

/// An element of a list: a text, or an object in the form of its flag.
fn element(field: &Field, item: &Value) -> Option<String> {
    let text = |name: &str| item[name].as_str();
    match (field.path, item) {
        (_, Value::String(text)) => Some(text.clone()),
        (_, Value::Number(number)) => Some(number.to_string()),
        ("registerWithTaints", Value::Object(_)) => {
            let value = text("value").map(|value| format!("={value}")).unwrap_or_default();
            Some(format!("{}{value}:{}", text("key")?, text("effect")?))
        }
        ("shutdownGracePeriodByPodPriority", Value::Object(_)) => {
            let priority = item["priority"].as_i64().unwrap_or(0);
            Some(format!("{priority}={}", item["shutdownGracePeriodSeconds"].as_i64()?))
        }
        ("reservedMemory", Value::Object(_)) => {
            let limits = item["limits"].as_object()?.iter().map(|(name, amount)| {
                let amount = amount.as_str().map_or_else(|| amount.to_string(), str::to_owned);
                format!("{name}={amount}")
            });
            Some(format!("{}:{}", item["numaNode"].as_i64()?, limits.collect::<Vec<_>>().join(",")))
        }
        (_, Value::Object(_)) if field.target == Target::Ignored => Some(item.to_string()),
        _ => None,
    }
}

fn pair(field: &Field, key: &str, value: &Value) -> Option<String> {
    let sign = if matches!(field.path, "evictionHard" | "evictionSoft") { '<' } else { '=' };
    match value {
        Value::String(text) => Some(format!("{key}{sign}{text}")),
        Value::Bool(on) => Some(format!("{key}{sign}{on}")),
        _ if field.target == Target::Ignored => Some(format!("{key}{sign}{value}")),
        _ => None,
    }
}

fn seconds(field: &Field, values: &[String]) -> Result<String, ConfigurationError> {
    let text = values.first().map(String::as_str).unwrap_or_default();
    let nanoseconds =
        go_duration::parse(text).map_err(|reason| ConfigurationError::Value { path: field.path.to_owned(), reason })?;
    Ok((nanoseconds.max(0) / 1_000_000_000).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CommandLine, parse};
    use serde_json::json;

    fn given(component: Component, line: &str) -> Given {
        match parse(component, &line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()) {
            Ok(CommandLine::Run(given)) => given,
            other => panic!("{other:?}"),
        }
    }

    fn kubelet(fields: Value) -> Value {
        let mut document = json!({"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"});
        merge(&mut document, fields);
        document
    }

    #[test]
    fn every_field_has_a_target_that_exists() {
        for component in [Component::Kubelet, Component::Proxy] {
            let kind = configuration_kind(component).unwrap();
            let lines = sections(include_str!("fields.txt")).filter(|(heading, _)| *heading == kind.kind).count();
            assert!(lines > 50 && fields(kind.kind).len() == lines, "a field of {} has no target", kind.kind);
            for field in fields(kind.kind) {
                if let Target::Flag(name) = field.target {
                    assert!(crate::flag(component, name).is_some(), "{}: --{name}", field.path);
                }
            }
            let heading = format!("[{}]\t{}", kind.kind, kind.api_version);
            assert!(include_str!("fields.txt").lines().any(|line| line == heading), "{heading}");
        }
        let written = sections(include_str!("field_status.txt")).count();
        assert_eq!(written, targets(include_str!("field_status.txt")).len());
        assert_eq!(written, sections(include_str!("fields.txt")).count());
    }

    #[test]
    fn fields_become_flags() {
        let mut own = given(Component::Kubelet, "--max-pods=5 --feature-gates=APIServerIdentity=true");
        let document = kubelet(json!({
            "maxPods": 50, "clusterDNS": ["10.0.0.10"], "evictionHard": {"memory.available": "100Mi"},
            "systemReserved": {"cpu": "1"}, "syncFrequency": "90s", "seccompDefault": true,
            "authentication": {"x509": {"clientCAFile": "/ca"}}, "shutdownGracePeriod": "1m30s", "podLogsDir": "/logs",
            "featureGates": {"APIServerIdentity": false, "WatchList": false},
            "registerWithTaints": [{"key": "a", "value": "b", "effect": "NoSchedule"}],
            "reservedMemory": [{"numaNode": 0, "limits": {"memory": "1Gi"}}], "memorySwap": {"swapBehavior": "NoSwap"},
            "colour": "red", "logging": {"volume": 11, "verbosity": 4}}));
        let warnings = configure(&mut own, &document, true).unwrap();
        for (flag, expected) in [
            ("max-pods", "5"),
            ("cluster-dns", "10.0.0.10"),
            ("eviction-hard", "memory.available<100Mi"),
            ("system-reserved", "cpu=1"),
            ("sync-frequency", "1m30s"),
            ("seccomp-default", "true"),
            ("client-ca-file", "/ca"),
            ("register-with-taints", "a=b:NoSchedule"),
            ("reserved-memory", "0:memory=1Gi"),
            ("v", "4"),
            ("feature-gates", "APIServerIdentity=false,WatchList=false,APIServerIdentity=true"),
        ] {
            assert_eq!(own.values(flag).join(","), expected, "{flag}");
        }
        let settings: Vec<_> = own.settings().map(|(name, values)| format!("{name}={}", values.join(","))).collect();
        assert_eq!(settings, ["memory-swap-behavior=NoSwap", "pod-logs-dir=/logs", "shutdown-grace-period=90"]);
        assert_eq!(
            warnings,
            [
                "Using lenient decoding as strict decoding failed: strict decoding error: unknown field \"colour\", unknown \
                 field \"logging.volume\"",
            ]
        );
        let mut proxy = given(Component::Proxy, "--cluster-cidr=10.0.0.0/8");
        let document = json!({"kind": "KubeProxyConfiguration", "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "clusterCIDR": "10.1.0.0/16", "clientConnection": {"kubeconfig": "/k"}, "conntrack": {"min": 3}});
        assert!(configure(&mut proxy, &document, false).unwrap().is_empty());
        assert_eq!((&*proxy.value("cluster-cidr"), &*proxy.value("kubeconfig")), ("10.1.0.0/16", "/k"));
    }

    #[test]
    fn wrong_files_are_refused() {
        let refused =
            |document: &Value| configure(&mut given(Component::Kubelet, ""), document, true).unwrap_err().to_string();
        for (fields, message) in [
            (
                json!({"maxPods": "x"}),
                "json: cannot unmarshal string into Go struct field KubeletConfiguration.maxPods of type int32",
            ),
            (
                json!({"seccompDefault": 1}),
                "json: cannot unmarshal number into Go struct field KubeletConfiguration.seccompDefault of type bool",
            ),
            (
                json!({"clusterDNS": "x"}),
                "json: cannot unmarshal string into Go struct field KubeletConfiguration.clusterDNS of type []string",
            ),
            (
                json!({"clusterDomain": {}}),
                "json: cannot unmarshal object into Go struct field KubeletConfiguration.clusterDomain of type string",
            ),
            (json!({"syncFrequency": "5"}), "syncFrequency: time: missing unit in duration \"5\""),
        ] {
            assert_eq!(refused(&kubelet(fields)), message);
        }
        assert_eq!(
            refused(&json!({"kind": "Pod", "apiVersion": "v1"})),
            "no kind \"Pod\" is registered for version \"v1\""
        );
    }

    #[test]
    fn drop_ins_are_merged_field_by_field() {
        let mut base = json!({"a": 1, "b": {"c": 1, "d": [1]}});
        merge(&mut base, json!({"b": {"d": [2], "e": 3}, "f": 4}));
        assert_eq!(base, json!({"a": 1, "b": {"c": 1, "d": [2], "e": 3}, "f": 4}));
    }
}
