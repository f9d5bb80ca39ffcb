//! Kubernetes' own libraries: quantities, URLs, named formats and semantic versions.

use super::super::error::EvaluateError;
use super::super::value::{Semver, Value};
use super::{Outcome, failed, flag};
use crate::json_schema::format_named;
use crate::names;
use crate::quantity::{Format, Quantity};
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

pub(super) fn call<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    quantities(function, values)
        .or_else(|| urls(function, values))
        .or_else(|| formats(function, values))
        .or_else(|| versions(function, values))
}

fn quantities<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    let made = |quantity: Quantity| Some(Ok(Value::Quantity(Arc::new(quantity))));
    match (function, values) {
        ("quantity", [Value::String(text)]) => match Quantity::parse(text) {
            Ok(quantity) => made(quantity),
            Err(error) => failed(error.to_string()),
        },
        ("isQuantity", [Value::String(text)]) => flag(Quantity::parse(text).is_ok()),
        ("sign", [Value::Quantity(quantity)]) => Some(Ok(Value::Int(i64::from(quantity.signum())))),
        ("isInteger", [Value::Quantity(quantity)]) => flag(quantity.as_i64().is_some()),
        ("asInteger", [Value::Quantity(quantity)]) => match quantity.as_i64() {
            Some(number) => Some(Ok(Value::Int(number))),
            None => failed("cannot convert value to integer"),
        },
        ("asApproximateFloat", [Value::Quantity(quantity)]) => Some(Ok(Value::Double(quantity.as_f64()))),
        ("isGreaterThan", [Value::Quantity(a), Value::Quantity(b)]) => flag(a > b),
        ("isLessThan", [Value::Quantity(a), Value::Quantity(b)]) => flag(a < b),
        ("compareTo", [Value::Quantity(a), Value::Quantity(b)]) => Some(Ok(Value::Int(a.cmp(b) as i64))),
        ("add" | "sub", [Value::Quantity(a), b]) => {
            let other = match b {
                Value::Quantity(other) => (**other).clone(),
                Value::Int(number) => Quantity::new(*number, Format::DecimalSi),
                _ => return None,
            };
            let mut sum = (**a).clone();
            if function == "add" {
                sum.add(&other)
            } else {
                sum.subtract(&other)
            }
            made(sum)
        }
        _ => None,
    }
}

fn urls<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    let text = |text: &str| Some(Ok(Value::text(text.to_owned())));
    match (function, values) {
        ("isURL", [Value::String(url)]) => flag(Parts::of(url).is_some()),
        ("url", [Value::String(url)]) => match Parts::of(url) {
            Some(_) => Some(Ok(Value::Url((**url).into()))),
            None => {
                failed(format!("URL parse error during conversion from string: parse {url:?}: invalid URI for request"))
            }
        },
        (_, [Value::Url(url)]) => {
            let parts = Parts::of(url)?;
            match function {
                "getScheme" => text(parts.scheme),
                "getHost" => text(parts.host),
                "getHostname" => text(parts.hostname()),
                "getPort" => text(parts.port()),
                "getEscapedPath" => Some(Ok(Value::text(parts.path.replace(' ', "%20")))),
                "getQuery" => Some(Ok(query(parts.query))),
                _ => None,
            }
        }
        _ => None,
    }
}

struct Parts<'u> {
    scheme: &'u str,
    host: &'u str,
    path: &'u str,
    query: &'u str,
}

impl<'u> Parts<'u> {
    fn of(url: &'u str) -> Option<Self> {
        let url = url.split('#').next().unwrap_or(url);
        if url.is_empty() || url.contains(|c: char| c.is_control() || c == ' ') {
            return None;
        }
        let (rest, query) = url.split_once('?').unwrap_or((url, ""));
        if rest.starts_with('/') {
            return Some(Parts { scheme: "", host: "", path: rest, query });
        }
        let (scheme, rest) = rest.split_once(':')?;
        let mut letters = scheme.chars();
        let scheme_fits = letters.next().is_some_and(|c| c.is_ascii_alphabetic())
            && letters.all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
        if !scheme_fits {
            return None;
        }
        let Some(rest) = rest.strip_prefix("//") else {
            return rest.starts_with('/').then_some(Parts { scheme, host: "", path: rest, query });
        };
        let (authorizer, path) = rest.find('/').map_or((rest, ""), |at| rest.split_at(at));
        let host = authorizer.rsplit('@').next().unwrap_or(authorizer);
        let parts = Parts { scheme, host, path, query };
        let port_fits = parts.port().bytes().all(|byte| byte.is_ascii_digit());
        (port_fits && !parts.hostname().contains(['[', ']'])).then_some(parts)
    }

    fn hostname(&self) -> &'u str {
        if let Some(rest) = self.host.strip_prefix('[') {
            return rest.split(']').next().unwrap_or(rest);
        }
        self.host.rsplit_once(':').map_or(self.host, |(name, _)| name)
    }

    fn port(&self) -> &'u str {
        let after = self.host.rsplit(']').next().unwrap_or(self.host);
        after.rsplit_once(':').map_or("", |(_, port)| port)
    }
}

fn query<'a>(query: &str) -> Value<'a> {
    let mut all: Vec<(String, Vec<Value<'a>>)> = Vec::new();
    let mut places: HashMap<String, usize> = HashMap::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let (name, value) = (unquoted(name), Value::text(unquoted(value)));
        match places.get(&name) {
            Some(at) => all[*at].1.push(value),
            None => {
                places.insert(name.clone(), all.len());
                all.push((name, vec![value]));
            }
        }
    }
    Value::Map(Arc::new(all.into_iter().map(|(name, values)| (Value::text(name), Value::list(values))).collect()))
}

fn unquoted(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let escaped = (*first == b'%').then(|| after.get(..2)).flatten();
        let escaped = escaped.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        match escaped {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(if *first == b'+' { b' ' } else { *first });
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The formats that `format.named` knows.
const FORMATS: [&str; 14] = [
    "dns1123Label",
    "dns1123Subdomain",
    "dns1035Label",
    "qualifiedName",
    "dns1123LabelPrefix",
    "dns1123SubdomainPrefix",
    "dns1035LabelPrefix",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
    "configMapKey",
];

fn formats<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    let known = |name: &str| FORMATS.iter().find(|format| **format == name).copied();
    match (function, values) {
        ("format.named", [Value::String(name)]) => {
            Some(Ok(known(name).map_or(Value::Optional(None), |name| Value::some(Value::Format(name)))))
        }
        (_, []) => function.strip_prefix("format.").and_then(known).map(|name| Ok(Value::Format(name))),
        ("validate", [Value::Format(name), Value::String(text)]) => {
            let problems: Vec<Value<'a>> = problems(name, text).into_iter().map(Value::text).collect();
            let outcome = if problems.is_empty() { Value::Optional(None) } else { Value::some(Value::list(problems)) };
            Some(Ok(outcome))
        }
        _ => None,
    }
}

fn problems(format: &str, text: &str) -> Vec<String> {
    let by_schema = |name: &str, message: &str| match format_named(name) {
        Some(fits) if !fits(text) => vec![message.to_owned()],
        _ => Vec::new(),
    };
    let prefix = |text: &str| text.strip_suffix('-').map_or_else(|| text.to_owned(), |cut| format!("{cut}a"));
    match format {
        "dns1123Label" => names::dns_label(text),
        "dns1123Subdomain" => names::dns_subdomain(text),
        "dns1035Label" => names::dns_1035_label(text),
        "dns1123LabelPrefix" => names::dns_label(&prefix(text)),
        "dns1123SubdomainPrefix" => names::dns_subdomain(&prefix(text)),
        "dns1035LabelPrefix" => names::dns_1035_label(&prefix(text)),
        "qualifiedName" => names::qualified_name(text),
        "labelValue" => names::label_value(text),
        "uri" => by_schema("uri", "invalid URI for request"),
        "uuid" => by_schema("uuid", "does not match the UUID format"),
        "byte" => by_schema("byte", "invalid base64"),
        "date" => by_schema("date", "invalid date"),
        "datetime" => by_schema("datetime", "invalid datetime"),
        _ => Vec::new(),
    }
}

fn versions<'a>(function: &str, values: &[Value<'a>]) -> Option<Outcome<'a>> {
    match (function, values) {
        ("isSemver", [Value::String(text)]) => flag(parse_version(text, false).is_some()),
        ("isSemver", [Value::String(text), Value::Bool(normalize)]) => flag(parse_version(text, *normalize).is_some()),
        ("semver", [Value::String(text)]) => Some(version(text, false)),
        ("semver", [Value::String(text), Value::Bool(normalize)]) => Some(version(text, *normalize)),
        ("major" | "minor" | "patch", [Value::Semver(version)]) => {
            let at = match function {
                "major" => 0,
                "minor" => 1,
                _ => 2,
            };
            Some(Ok(Value::Int(version.numbers[at] as i64)))
        }
        ("isGreaterThan", [Value::Semver(a), Value::Semver(b)]) => flag(compare(a, b) == Ordering::Greater),
        ("isLessThan", [Value::Semver(a), Value::Semver(b)]) => flag(compare(a, b) == Ordering::Less),
        ("compareTo", [Value::Semver(a), Value::Semver(b)]) => Some(Ok(Value::Int(compare(a, b) as i64))),
        _ => None,
    }
}

/// A semantic version.
pub fn semver(text: &str) -> Option<Value<'static>> {
    parse_version(text, false).map(|version| Value::Semver(Arc::new(version)))
}

fn version<'a>(text: &str, normalize: bool) -> Outcome<'a> {
    parse_version(text, normalize)
        .map(|version| Value::Semver(Arc::new(version)))
        .ok_or_else(|| EvaluateError::new(format!("semver parse error: invalid version {text:?}")))
}

fn parse_version(text: &str, normalize: bool) -> Option<Semver> {
    let text = if normalize { text.strip_prefix('v').unwrap_or(text) } else { text };
    let text = text.split('+').next().unwrap_or(text);
    let (core, before) = text.split_once('-').map_or((text, None), |(core, before)| (core, Some(before)));
    let mut parts: Vec<&str> = core.split('.').collect();
    if normalize {
        while parts.len() < 3 {
            parts.push("0");
        }
    }
    let number = |part: &str| {
        let trimmed = if normalize { part.trim_start_matches('0') } else { part };
        let plain = if trimmed.is_empty() { "0" } else { trimmed };
        let leading_zero = plain.len() > 1 && plain.starts_with('0');
        (!part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()) && !leading_zero)
            .then(|| plain.parse().ok())?
    };
    let [major, minor, patch] = parts[..] else { return None };
    let before: Vec<String> = before.map(|text| text.split('.').map(str::to_owned).collect()).unwrap_or_default();
    let before_fits = |part: &String| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    before.iter().all(before_fits).then_some(())?;
    Some(Semver { numbers: [number(major)?, number(minor)?, number(patch)?], before })
}

fn compare(a: &Semver, b: &Semver) -> Ordering {
    let before = match (a.before.is_empty(), b.before.is_empty()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => {
            let part = |a: &str, b: &str| match (a.parse::<u64>(), b.parse::<u64>()) {
                (Ok(a), Ok(b)) => a.cmp(&b),
                (Ok(_), Err(_)) => Ordering::Less,
                (Err(_), Ok(_)) => Ordering::Greater,
                _ => a.cmp(b),
            };
            let different = a.before.iter().zip(&b.before).map(|(a, b)| part(a, b)).find(|order| order.is_ne());
            different.unwrap_or_else(|| a.before.len().cmp(&b.before.len()))
        }
    };
    a.numbers.cmp(&b.numbers).then(before)
}
