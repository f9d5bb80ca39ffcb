//! Removes secrets from what leaves the cluster in a support bundle.
//!
//! Three layers, each of which would do for most: fields that hold secrets are emptied; whatever looks like a credential is
//! replaced; and every value that a Secret of this cluster holds is replaced wherever it occurs.

use std::sync::LazyLock;

use aho_corasick::{AhoCorasick, MatchKind};
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;
use serde_json::Value;

/// What stands in the place of a secret.
pub const REMOVED: &str = "REMOVED";

/// Shorter values occur in other text by chance.
const MIN_SECRET: usize = 8;
/// Lines of longer secrets are looked for one by one: text that quotes a secret may break or escape its lines.
const MIN_LINE: usize = 20;

/// Patterns of credentials, and what replaces each.
static PATTERNS: LazyLock<Vec<(Regex, &str)>> = LazyLock::new(|| {
    let rows = [
        (r"(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\z)", REMOVED),
        (r"eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*", REMOVED),
        (r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}", "${1}${2}REMOVED"),
        (r"\b[a-z0-9]{6}\.[a-z0-9]{16}\b", REMOVED),
        // A password may contain `@`, and stand without a user.
        (r"(://)[^/\s:@]*:[^/\s]+@", "${1}REMOVED@"),
        // Quoted, with spaces; the quotes may be escaped.
        (
            r#"(?i)([\w.-]*(?:password|passwd|passphrase|pwd|[_.-]pass|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w.-]*\\*["']?\s*[:=]\s*)(?:"[^"]{3,}"|'[^']{3,}'|\\+"[^"]{3,}")"#,
            "${1}\"REMOVED\"",
        ),
        (
            r#"(?i)([\w.-]*(?:password|passwd|passphrase|pwd|[_.-]pass|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|credential)[\w.-]*\\*["']?\s*[:=]\s*\\*["']?)[^\s"',;&}\]]{3,}"#,
            "${1}REMOVED",
        ),
    ];
    // The patterns are constants, and a test compiles them.
    rows.into_iter().filter_map(|(pattern, by)| Some((Regex::new(pattern).ok()?, by))).collect()
});

/// Ends of the names of fields and flags whose values are secrets.
const SECRET_NAMES: [&str; 12] = [
    "password",
    "passwd",
    "passphrase",
    "pass",
    "pwd",
    "token",
    "secret",
    "apikey",
    "accesskey",
    "privatekey",
    "credential",
    "credentials",
];

fn is_secret_name(name: &str) -> bool {
    let plain: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    SECRET_NAMES.iter().any(|end| plain.ends_with(end))
}

/// Replaces secrets in text and objects.
pub struct Redactor {
    known: AhoCorasick,
}

impl Redactor {
    /// `secrets` are values that must not appear anywhere.
    pub fn new(secrets: &[Vec<u8>]) -> anyhow::Result<Redactor> {
        let mut known: Vec<Vec<u8>> = secrets.iter().flat_map(|secret| forms(secret)).collect();
        known.sort();
        known.dedup();
        let builder = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(&known);
        Ok(Redactor { known: builder.context("cannot search for that many secrets")? })
    }

    /// Text without secrets.
    pub fn text(&self, text: &str) -> String {
        let known = self.known.find_iter(text.as_bytes()).next().is_some();
        let text = if known { self.without_known(text) } else { text.to_owned() };
        PATTERNS.iter().fold(text, |text, (pattern, by)| match pattern.is_match(&text) {
            true => pattern.replace_all(&text, *by).into_owned(),
            false => text,
        })
    }

    fn without_known(&self, text: &str) -> String {
        let mut bytes = Vec::with_capacity(text.len());
        self.known.replace_all_with_bytes(text.as_bytes(), &mut bytes, |_, _, out| {
            out.extend_from_slice(REMOVED.as_bytes());
            true
        });
        // A secret that is no text may have ended within a character.
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// An object of the API, or a list of them, without secrets.
    pub fn object(&self, object: &mut Value) {
        match object.get("kind").and_then(Value::as_str) {
            Some("Secret" | "ConfigMap") => empty_data(object),
            Some(kind) if kind.ends_with("List") => {
                let kind = kind.trim_end_matches("List").to_owned();
                for item in object.get_mut("items").and_then(Value::as_array_mut).into_iter().flatten() {
                    if matches!(kind.as_str(), "Secret" | "ConfigMap") {
                        empty_data(item);
                    }
                }
            }
            _ => {}
        }
        self.value(object);
    }

    fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => self.items(items),
            Value::Object(fields) => {
                // They repeat what the object says, in other forms.
                fields.remove("managedFields");
                fields.remove("kubectl.kubernetes.io/last-applied-configuration");
                for (name, field) in fields.iter_mut() {
                    match name.as_str() {
                        "env" | "httpHeaders" => empty_values(field),
                        _ if field.is_string() && is_secret_name(name) => *field = REMOVED.into(),
                        _ => self.value(field),
                    }
                }
            }
            _ => {}
        }
    }

    /// The items of a list. In a command line, the value of a flag may be the next item.
    fn items(&self, items: &mut [Value]) {
        let mut is_value = false;
        for item in items {
            let flag = item.as_str().filter(|text| text.starts_with('-') && !text.contains('=')).map(is_secret_name);
            match item {
                Value::String(text) if is_value && flag.is_none() => *text = REMOVED.to_owned(),
                other => self.value(other),
            }
            is_value = flag == Some(true);
        }
    }
}

/// Empties the values of variables and headers.
fn empty_values(list: &mut Value) {
    for entry in list.as_array_mut().into_iter().flatten() {
        if let Some(value) = entry.get_mut("value") {
            *value = REMOVED.into();
        }
    }
}

fn empty_data(object: &mut Value) {
    for name in ["data", "stringData", "binaryData"] {
        for value in object.get_mut(name).and_then(Value::as_object_mut).into_iter().flat_map(|data| data.values_mut())
        {
            let size = value.as_str().map_or(0, str::len);
            *value = format!("{REMOVED} ({size} characters)").into();
        }
    }
}

/// The forms in which a secret may occur: as it is, line by line, and encoded.
fn forms(secret: &[u8]) -> Vec<Vec<u8>> {
    let trimmed = secret.trim_ascii();
    if trimmed.len() < MIN_SECRET {
        return Vec::new();
    }
    let mut all = vec![trimmed.to_vec(), STANDARD.encode(secret).trim_end_matches('=').as_bytes().to_vec()];
    let lines: Vec<&[u8]> = trimmed.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).collect();
    if lines.len() > 1 {
        all.extend(
            lines.into_iter().filter(|line| line.len() >= MIN_LINE && !line.starts_with(b"-----")).map(<[u8]>::to_vec),
        );
    }
    if let Ok(text) = std::str::from_utf8(trimmed) {
        // As a JSON string says it, without the quotes.
        let quoted = Value::from(text).to_string();
        all.push(quoted.as_bytes()[1..quoted.len() - 1].to_vec());
    }
    all
}

/// The values of a list of Secrets, as the API shows it. Names of namespaces, and certificates, are no secrets. Releases of
/// Helm are compressed, so nothing quotes them.
pub fn values_of(secrets: &Value) -> Vec<Vec<u8>> {
    let items = secrets.get("items").and_then(Value::as_array).into_iter().flatten();
    let is_release = |item: &&Value| item.get("type").and_then(Value::as_str) == Some("helm.sh/release.v1");
    let entries = items.filter(|item| !is_release(item)).filter_map(|item| item.get("data")?.as_object()).flatten();
    let secret = entries.filter(|(name, _)| !matches!(name.as_str(), "namespace" | "ca.crt" | "tls.crt"));
    secret.filter_map(|(_, value)| STANDARD.decode(value.as_str()?).ok()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn redactor(secrets: &[&str]) -> Redactor {
        Redactor::new(&secrets.iter().map(|secret| secret.as_bytes().to_vec()).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn every_pattern_compiles() {
        assert_eq!(PATTERNS.len(), 7);
    }

    #[test]
    fn whatever_looks_like_a_credential_is_removed() {
        for text in [
            "Authorization: Bearer hunter2-hunter2",
            "token eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJodW50ZXIyIn0.hunter2hunter2",
            "join with abcdef.hunter2hunter2ab",
            "https://user:hunter2@registry.example/v2",
            "db_password=hunter2;host=a",
            "{\"apiKey\": \"hunter2\"}",
            "redis://:hunter2@cache:6379/0",
            "postgres://ann:a@hunter2@db/x",
            "password: \"two words of hunter2\"",
            "db_password='two words of hunter2'",
            "line={\\\"password\\\": \\\"hunter2\\\"}",
            "start --db-pass=hunter2 --x",
            "DB_PWD=hunter2",
            "-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----",
            "-----BEGIN PRIVATE KEY-----\nhunter2 and no end",
        ] {
            let clean = redactor(&[]).text(text);
            assert!(!clean.contains("hunter2") && clean.contains(REMOVED), "{clean}");
        }
        for text in ["pod web-1 is ready", "image=nginx:1.27 pulled in 2.1s", "kube-system/coredns: no endpoints"] {
            assert_eq!(redactor(&[]).text(text), text);
        }
    }

    #[test]
    fn secrets_of_the_cluster_are_removed_in_every_form() {
        let secret = "correct horse\nbattery staple of a long line\n\"quoted\"";
        let redactor = redactor(&[secret, "short"]);
        let encoded = STANDARD.encode(secret);
        let quoted = Value::from(secret).to_string();
        for text in [secret, &encoded, &quoted, "log: battery staple of a long line!"] {
            let clean = redactor.text(text);
            assert!(!clean.contains("battery") && !clean.contains(&encoded[..20]), "{clean}");
        }
        assert_eq!(redactor.text("short words stay"), "short words stay");
    }

    #[test]
    fn fields_that_hold_secrets_are_emptied() {
        let mut list = json!({"kind": "PodList", "items": [{
            "metadata": {"name": "web", "managedFields": [{"x": "hunter2"}], "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "hunter2", "note": "password: hunter2"}},
            "spec": {"containers": [{
                "image": "nginx", "args": ["--port=80", "--db-password", "hunter2", "--token=hunter2", "--verbose", "kept"],
                "env": [{"name": "INNOCENT", "value": "hunter2"}, {"name": "A", "valueFrom": {"secretKeyRef": {"name": "kept"}}}],
                "livenessProbe": {"httpGet": {"httpHeaders": [{"name": "X", "value": "hunter2"}]}}}],
                "volumes": [{"secret": {"secretName": "kept-too"}}]},
            "adminPassword": "hunter2"}]});
        redactor(&[]).object(&mut list);
        let text = list.to_string();
        assert!(!text.contains("hunter2"), "{text}");
        assert!(text.contains("kept-too") && text.contains("\"kept\"") && text.contains("--port=80"), "{text}");
        for kind in ["Secret", "ConfigMap"] {
            let mut one = json!({"kind": kind, "data": {"a": "hunter2"}, "stringData": {"b": "hunter2"}});
            let mut many = json!({"kind": format!("{kind}List"), "items": [{"data": {"a": "hunter2"}}]});
            redactor(&[]).object(&mut one);
            redactor(&[]).object(&mut many);
            assert!(!one.to_string().contains("hunter2") && !many.to_string().contains("hunter2"));
        }
    }

    #[test]
    fn values_of_secrets_are_decoded() {
        let list = json!({"items": [{"data": {"a": STANDARD.encode("hunter2"), "namespace": STANDARD.encode("default")}},
            {"type": "Opaque", "data": {"release": STANDARD.encode("hunter3")}},
            {"type": "helm.sh/release.v1", "data": {"release": STANDARD.encode("H4sIAAAA")}}]});
        assert_eq!(values_of(&list), [b"hunter2", b"hunter3"]);
    }
}
