//! Decoding errors of a configuration file, in Kubernetes' own messages.

use serde::Deserialize;

use super::STRICT;

/// Checked first: whether this is a configuration at all.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Head {
    #[serde(default)]
    pub(super) api_version: String,
    #[serde(default)]
    pub(super) kind: String,
}

/// The kind of the object, or why it has none.
pub(super) fn head(text: &str) -> Result<Head, String> {
    let no_json = |why: String| format!("{NO_HEAD}{why}");
    if text.starts_with('{') {
        let parsed = serde_json::from_str::<serde::de::IgnoredAny>(text);
        parsed.map_err(|error| no_json(json_error(text, &error)))?;
    }
    if text.trim().is_empty() {
        return Ok(Head::default());
    }
    serde_yaml_ng::from_str(text).map_err(|error| {
        let message = error.to_string();
        match message.strip_prefix("invalid type: ").filter(|rest| rest.contains("expected struct Head")) {
            Some(found) => no_head(json_kind(found)),
            None => reason(text, &error),
        }
    })
}

/// The error for something that is no object of any kind.
pub(super) fn no_head(found: &str) -> String {
    format!("{NO_HEAD}json: cannot unmarshal {found} into Go value of type {HEAD}")
}

const NO_HEAD: &str = "couldn't get version/kind; json parse error: ";
const HEAD: &str =
    r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;

/// Why the file could not be decoded.
pub(super) fn reason(text: &str, error: &serde_yaml_ng::Error) -> String {
    let message = error.to_string();
    let (place, what) =
        match message.find("unknown field `").or(message.find("invalid type: ")).or(message.find("duplicate f")) {
            Some(start) => (message[..start].trim_end_matches(": "), &message[start..]),
            None => return yaml_error(&message),
        };
    let named = || what.split('`').nth(1).unwrap_or_default();
    if let Some(found) = what.strip_prefix("invalid type: ") {
        wrong_type(place, found)
    } else if what.starts_with("unknown field") {
        let dot = if place.is_empty() { "" } else { "." };
        format!("{STRICT}unknown field \"{place}{dot}{}\"", named())
    } else {
        let line = second_line_of(text, named()).map_or(String::new(), |line| format!("line {line}: "));
        format!("{STRICT}yaml: unmarshal errors:\n  {line}key {:?} already set in map", named())
    }
}

/// The YAML parser's error, with the line as Kubernetes counts it.
fn yaml_error(message: &str) -> String {
    let (problem, rest) = message.split_once(" at line ").unwrap_or((message, ""));
    let number = rest.split(' ').next().and_then(|number| number.parse::<usize>().ok()).unwrap_or(1);
    let by_signs = rest.contains(", while scanning") || problem.ends_with("not allowed in this context");
    match (number.saturating_sub(1), by_signs) {
        (0, _) => format!("yaml: {problem}"),
        (line, false) => format!("yaml: line {line}: {problem}"),
        (line, true) => format!("yaml: line {}: {problem}", line + 1),
    }
}

/// The line of a duplicate key, when it occurs exactly twice.
fn second_line_of(text: &str, key: &str) -> Option<usize> {
    let is_key = |at: usize| {
        let before = text[..at].trim_end_matches('"').chars().next_back();
        let after = text[at + key.len()..].trim_start_matches('"');
        before.is_none_or(|sign| sign.is_whitespace() || "{,".contains(sign)) && after.starts_with(':')
    };
    let mut places = text.match_indices(key).map(|(at, _)| at).filter(|at| is_key(*at));
    let (_, second) = (places.next()?, places.next()?);
    places.next().is_none().then(|| text[..second].lines().count().max(1) + usize::from(text[..second].ends_with('\n')))
}

/// "invalid type: string \"x\", expected i64" at a place such as `profiles[0].schedulerName`.
fn wrong_type(place: &str, found: &str) -> String {
    let path: Vec<&str> = place.split('.').map(|part| part.split('[').next().unwrap_or(part)).collect();
    let (field, above) = path.split_last().unwrap_or((&"", &[]));
    let (owner, expected) = go_types(above, field);
    let expected = if place.ends_with(']') { expected.trim_start_matches("[]") } else { expected };
    let fraction = found.strip_prefix("floating point `").and_then(|rest| rest.split('`').next());
    let number = fraction.filter(|_| expected.starts_with("int")).map_or(String::new(), |number| format!(" {number}"));
    format!(
        "json: cannot unmarshal {}{number} into Go struct field {owner}.{} of type {expected}",
        json_kind(found),
        path.join(".")
    )
}

/// Kubernetes' name for a value's type, by the start of the parser's message.
fn json_kind(found: &str) -> &'static str {
    match found.split([' ', ',']).next().unwrap_or_default() {
        "integer" | "floating" => "number",
        "boolean" => "bool",
        "sequence" => "array",
        "map" => "object",
        "unit" | "null" => "null",
        _ => "string",
    }
}

/// Kubernetes' names for the struct that a field is in, and for the type of the field.
fn go_types(above: &[&str], field: &str) -> (&'static str, &'static str) {
    let owner = match above {
        [] => "KubeSchedulerConfiguration",
        ["profiles"] => "KubeSchedulerProfile",
        ["profiles", "plugins"] => return ("Plugins", "v1.PluginSet"),
        ["profiles", "plugins", _] => "PluginSet",
        ["profiles", "plugins", ..] => "Plugin",
        ["profiles", ..] => "PluginConfig",
        ["extenders"] => "Extender",
        ["extenders", "tlsConfig", ..] => "ExtenderTLSConfig",
        ["extenders", ..] => "ExtenderManagedResource",
        ["leaderElection", ..] => "LeaderElectionConfiguration",
        _ => "ClientConnectionConfiguration",
    };
    let kind = match (owner, field) {
        (_, "percentageOfNodesToScore" | "parallelism") | ("Plugin", "weight") => "int32",
        (_, "podInitialBackoffSeconds" | "podMaxBackoffSeconds" | "weight") => "int64",
        (_, "enableHTTPS" | "nodeCacheCapable" | "ignorable" | "ignoredByScheduler" | "leaderElect" | "insecure") => {
            "bool"
        }
        (_, "profiles") => "[]v1.KubeSchedulerProfile",
        (_, "extenders") => "[]v1.Extender",
        (_, "plugins") => "v1.Plugins",
        (_, "pluginConfig") => "[]v1.PluginConfig",
        (_, "enabled" | "disabled") => "[]v1.Plugin",
        (_, "managedResources") => "[]v1.ExtenderManagedResource",
        (_, "tlsConfig") => "v1.ExtenderTLSConfig",
        (_, "leaderElection") => "v1alpha1.LeaderElectionConfiguration",
        (_, "clientConnection") => "v1alpha1.ClientConnectionConfiguration",
        _ => "string",
    };
    (owner, kind)
}

/// The syntax error in JSON, and the character it is at.
fn json_error(text: &str, error: &serde_json::Error) -> String {
    if error.is_eof() {
        return "unexpected end of JSON input".to_owned();
    }
    let message = error.to_string();
    let sign = text.lines().nth(error.line().saturating_sub(1)).and_then(|line| {
        let at = error.column().saturating_sub(1);
        line.get(at..).and_then(|rest| rest.chars().next())
    });
    let place = if message.starts_with("key must be a string") || message.starts_with("trailing comma") {
        "looking for beginning of object key string"
    } else if message.starts_with("expected `,` or `}`") {
        "after object key:value pair"
    } else if message.starts_with("expected `,` or `]`") {
        "after array element"
    } else if message.starts_with("expected `:`") {
        "after object key"
    } else if message.starts_with("trailing characters") {
        "after top-level value"
    } else {
        "looking for beginning of value"
    };
    format!("invalid character {:?} {place}", sign.unwrap_or('\n'))
}

#[cfg(test)]
mod tests {
    use super::no_head;
    use crate::config::Configuration;

    /// Messages of Kubernetes v1.36 for the same texts.
    #[test]
    fn decode_errors_equal_those_of_kubernetes() {
        const START: &str = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n";
        let whole = |text: &str| text.to_owned();
        let with = |text: &str| format!("{START}{text}\n");
        let json = |why: &str| format!("couldn't get version/kind; json parse error: {why}");
        let field = |rest: &str| format!("json: cannot unmarshal {rest}");
        for (text, expected) in [
            (whole(""), "Object 'Kind' is missing in ''".into()),
            (whole("hello\n"), no_head("string")),
            (whole("- a\n"), no_head("array")),
            (whole("{["), json("invalid character '[' looking for beginning of object key string")),
            (whole("{\"a\":"), json("unexpected end of JSON input")),
            (whole("{\"a\": 1, }"), json("invalid character '}' looking for beginning of object key string")),
            (whole("a: b: c\n"), "yaml: mapping values are not allowed in this context".into()),
            (whole("a: [1\nb: 2\n"), "yaml: line 1: did not find expected ',' or ']'".into()),
            (whole("a: 'x\n"), "yaml: line 2: found unexpected end of stream".into()),
            (whole("a:\n\t- b\n"), "yaml: line 2: found character that cannot start any token".into()),
            (
                with("profiles:\n  - schedulerName: a\n   plugins: {}"),
                "yaml: line 4: did not find expected '-' indicator".into(),
            ),
            (
                with("parallelism: 5\nparallelism: 6"),
                "strict decoding error: yaml: unmarshal errors:\n  line 4: key \"parallelism\" already set in map"
                    .into(),
            ),
            (
                with("profiles: [{schedulerName: a, schedulerName: b}]"),
                "strict decoding error: yaml: unmarshal errors:\n  line 3: key \"schedulerName\" already set in map"
                    .into(),
            ),
            (with("more: 2"), "strict decoding error: unknown field \"more\"".into()),
            (with("profiles: [{foo: 1}]"), "strict decoding error: unknown field \"profiles[0].foo\"".into()),
            (
                with("percentageOfNodesToScore: many"),
                field("string into Go struct field KubeSchedulerConfiguration.percentageOfNodesToScore of type int32"),
            ),
            (
                with("parallelism: 1.5"),
                field("number 1.5 into Go struct field KubeSchedulerConfiguration.parallelism of type int32"),
            ),
            (
                with("profiles: {a: 1}"),
                field(
                    "object into Go struct field KubeSchedulerConfiguration.profiles of type []v1.KubeSchedulerProfile",
                ),
            ),
            (
                with("profiles: [{plugins: {score: {enabled: [{name: A, weight: a}]}}}]"),
                field("string into Go struct field Plugin.profiles.plugins.score.enabled.weight of type int32"),
            ),
            (
                with("profiles: [{plugins: {score: {enabled: [ImageLocality]}}}]"),
                field("string into Go struct field PluginSet.profiles.plugins.score.enabled of type v1.Plugin"),
            ),
            (
                with("profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: x}}]}]"),
                format!(
                    "decoding .profiles[0].pluginConfig[0]: decoding args for plugin InterPodAffinity: {}",
                    field("string into Go struct field InterPodAffinityArgs.hardPodAffinityWeight of type int32")
                ),
            ),
            (
                with("profiles: [{pluginConfig: [{name: NodeAffinity, args: 3}]}]"),
                format!(
                    "decoding .profiles[0].pluginConfig[0]: decoding args for plugin NodeAffinity: {}",
                    no_head("number")
                ),
            ),
            (
                with("leaderElection: {leaderElect: no way}"),
                field(
                    "string into Go struct field LeaderElectionConfiguration.leaderElection.leaderElect of type bool",
                ),
            ),
        ] {
            let message = Configuration::parse(&text).unwrap_err().to_string();
            assert_eq!(message, expected, "{text}");
        }
    }
}
