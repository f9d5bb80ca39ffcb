//! Validation of webhook client configurations: a URL or a service.

use std::collections::BTreeSet;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use super::{checks, formats};

const FORM: &str = "; desired format: https://host[/path]";

/// The versions of reviews that the API server sends.
const REVIEW_VERSIONS: [&str; 2] = ["v1", "v1beta1"];

/// Validates the client configuration of a webhook, which has a URL or a service.
pub fn validate_client_config(errors: &mut Errors, path: &Path<'_>, config: &Value) {
    match (config["url"].as_str(), config.has(&["service"])) {
        (Some(url), false) => validate_url(errors, &path.child("url"), url, true),
        (None, true) => {
            let service = &config["service"];
            // Kubernetes swaps the two names here.
            let (namespace, name) = (service.text(&["name"]), service.text(&["namespace"]));
            let port = service.integer(&["port"]).unwrap_or(0);
            validate_service(errors, &path.child("service"), namespace, name, service["path"].as_str(), port);
        }
        _ => errors.required(path, "exactly one of url or service is required"),
    }
}

/// Validates the versions of reviews that a webhook accepts. `missing` is the error without any; `known` requires one that
/// the API server sends.
pub fn validate_review_versions(errors: &mut Errors, path: &Path<'_>, reviews: &Value, missing: &str, known: bool) {
    let versions: Vec<&str> = reviews.items(&[]).iter().map(|version| version.as_str().unwrap_or_default()).collect();
    if versions.is_empty() {
        errors.required(path, missing);
        return;
    }
    let mut seen = BTreeSet::new();
    for (index, version) in versions.iter().enumerate() {
        if !seen.insert(*version) {
            errors.invalid(&path.index(index), *version, "duplicate version");
            continue;
        }
        names::check(errors, &path.index(index), version, names::dns_1035_label);
    }
    if known && !versions.iter().any(|version| REVIEW_VERSIONS.contains(version)) {
        errors.invalid(path, reviews.clone(), "must include at least one of v1, v1beta1");
    }
}

/// Whether there are no review versions or at least one that the API server sends.
pub fn has_known_review(reviews: &[Value]) -> bool {
    reviews.is_empty() || reviews.iter().any(|version| REVIEW_VERSIONS.contains(&version.as_str().unwrap_or_default()))
}

/// Validates the URL of a webhook.
pub fn validate_url(errors: &mut Errors, path: &Path<'_>, text: &str, https_only: bool) {
    let url = match Url::parse(text) {
        Ok(url) => url,
        Err(wrong) => {
            errors.required(path, format!("url must be a valid URL: {wrong}{FORM}"));
            return;
        }
    };
    if https_only && url.scheme != "https" {
        errors.invalid(path, url.scheme.as_str(), format!("'https' is the only allowed URL scheme{FORM}"));
    }
    if url.host.is_empty() {
        errors.invalid(path, "", format!("host must be specified{FORM}"));
    }
    if let Some(user) = url.user {
        errors.invalid(path, user, "user information is not permitted in the URL");
    }
    if !url.fragment.is_empty() {
        errors.invalid(path, url.fragment, "fragments are not permitted in the URL");
    }
    if !url.query.is_empty() {
        errors.invalid(path, url.query, "query parameters are not permitted in the URL");
    }
}

/// Validates the service reference of a webhook.
pub fn validate_service(
    errors: &mut Errors,
    path: &Path<'_>,
    namespace: &str,
    name: &str,
    url_path: Option<&str>,
    port: i64,
) {
    if name.is_empty() {
        errors.required(&path.child("name"), "");
    }
    if namespace.is_empty() {
        errors.required(&path.child("namespace"), "");
    }
    if !formats::is_port(port) {
        errors.invalid(&path.child("port"), port, format!("port is not valid: {}", checks::between(1, 65535)));
    }
    let Some(text) = url_path.filter(|text| !matches!(*text, "" | "/")) else { return };
    let at = path.child("path");
    if text == "//" {
        errors.invalid(&at, text, "segment[0] may not be empty");
        return;
    }
    if !text.starts_with('/') {
        errors.invalid(&at, text, "must start with a '/'");
    }
    let mut characters = text.chars();
    characters.next();
    let rest = characters.as_str();
    for (index, step) in rest.strip_suffix('/').unwrap_or(rest).split('/').enumerate() {
        if step.is_empty() {
            errors.invalid(&at, text, format!("segment[{index}] may not be empty"));
        }
        for wrong in names::dns_subdomain(step).into_iter().filter(|_| !step.is_empty()) {
            errors.invalid(&at, text, format!("segment[{index}]: {wrong}"));
        }
    }
}

/// The components of a URL that validation needs.
struct Url<'a> {
    scheme: String,
    user: Option<&'a str>,
    host: &'a str,
    query: &'a str,
    fragment: &'a str,
}

impl<'a> Url<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let fault = |why: &str| format!("parse {text:?}: {why}");
        if text.bytes().any(|byte| byte < 0x20 || byte == 0x7f) {
            return Err(fault("net/url: invalid control character in URL"));
        }
        let (rest, fragment) = text.split_once('#').unwrap_or((text, ""));
        let (scheme, rest) = split_scheme(rest).map_err(|why| fault(&why))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (mut authority, path) = match rest.strip_prefix("//") {
            Some(rest) => rest.find('/').map_or((rest, ""), |at| rest.split_at(at)),
            None => ("", rest),
        };
        if scheme.is_empty() && rest == text && path.split('/').next().is_some_and(|first| first.contains(':')) {
            return Err(fault("first path segment in URL cannot contain colon"));
        }
        let user = authority.rfind('@').map(|at| {
            let user = &authority[..at];
            authority = &authority[at + 1..];
            user
        });
        if let Some(bad) =
            authority.chars().find(|c| matches!(c, ' ' | '<' | '>' | '"' | '\\' | '^' | '`' | '{' | '}' | '|'))
        {
            return Err(fault(&format!("invalid character {:?} in host name", bad.to_string())));
        }
        let after_bracket = authority.rfind(']').map_or(0, |at| at + 1);
        if let Some((_, port)) = authority[after_bracket..].split_once(':')
            && !port.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Err(fault(&format!("invalid port {:?} after host", format!(":{port}"))));
        }
        Ok(Url { scheme, user, host: authority, query, fragment })
    }
}

fn split_scheme(text: &str) -> Result<(String, &str), String> {
    for (index, byte) in text.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' => {}
            b'0'..=b'9' | b'+' | b'-' | b'.' if index > 0 => {}
            b':' if index == 0 => return Err("missing protocol scheme".to_owned()),
            b':' => return Ok((text[..index].to_lowercase(), &text[index + 1..])),
            _ => break,
        }
    }
    Ok((String::new(), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_checked() {
        for (text, wrong) in [
            ("https://example.com:8443/hook", vec![]),
            (
                "http://u:p@example.com?a=b#c",
                vec![
                    "url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
                    "url: Invalid value: \"u:p\": user information is not permitted in the URL",
                    "url: Invalid value: \"c\": fragments are not permitted in the URL",
                    "url: Invalid value: \"a=b\": query parameters are not permitted in the URL",
                ],
            ),
            (
                "",
                vec![
                    "url: Invalid value: \"\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
                    "url: Invalid value: \"\": host must be specified; desired format: https://host[/path]",
                ],
            ),
        ] {
            let mut errors = Errors::new();
            validate_url(&mut errors, &Path::root("url"), text, true);
            let read: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
            assert_eq!(read, wrong, "{text}");
        }
    }

    #[test]
    fn services_are_checked() {
        let mut errors = Errors::new();
        validate_service(&mut errors, &Path::root("service"), "", "s", Some("/a//B"), 0);
        let read: Vec<String> = errors.0.iter().map(|error| error.field.clone()).collect();
        assert_eq!(read, ["service.namespace", "service.port", "service.path", "service.path"]);
    }
}
