//! The `Warning` headers of a response.
//!
//! A request can cause any number of warnings, one for each unknown field for instance. Beyond a total length they are
//! truncated, and then left out, as Kubernetes does: no client reads more, and many refuse responses with many headers.

use std::collections::HashSet;

use http::HeaderValue;

/// The total number of characters beyond which warnings are truncated.
const MAX_TOTAL: usize = 4 * 1024;
/// The number of characters of a truncated warning.
const MAX_TRUNCATED: usize = 256;

/// The headers for warnings, each text once and in order. Texts with control characters are left out.
pub fn headers(warnings: &[String]) -> Vec<HeaderValue> {
    let mut seen = HashSet::new();
    let distinct = warnings.iter().map(String::as_str).filter(|text| !text.is_empty() && seen.insert(*text));
    let mut written = 0;
    let mut whole = Vec::new();
    let mut candidates = Vec::new();
    for text in distinct {
        candidates.push(text);
        let Some(header) = header(text) else { continue };
        written += text.chars().count();
        if written > MAX_TOTAL {
            return truncated(&candidates, warnings);
        }
        whole.push(header);
    }
    whole
}

/// All texts so far are truncated and written; further ones until the limit is reached.
fn truncated(first: &[&str], warnings: &[String]) -> Vec<HeaderValue> {
    let mut seen = HashSet::new();
    let distinct = warnings.iter().map(String::as_str).filter(|text| !text.is_empty() && seen.insert(*text));
    let mut written = 0;
    let mut headers = Vec::new();
    for (index, text) in distinct.enumerate() {
        if index >= first.len() && written >= MAX_TOTAL {
            break;
        }
        let end = text.char_indices().nth(MAX_TRUNCATED).map_or(text.len(), |(end, _)| end);
        if let Some(header) = header(&text[..end]) {
            written += text[..end].chars().count();
            headers.push(header);
        }
    }
    headers
}

fn header(text: &str) -> Option<HeaderValue> {
    if text.chars().any(char::is_control) {
        return None;
    }
    let escaped = text.replace('\\', "\\\\").replace('"', "\\\"");
    HeaderValue::from_bytes(format!("299 - \"{escaped}\"").as_bytes()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(warnings: &[String]) -> Vec<String> {
        headers(warnings).iter().map(|header| String::from_utf8(header.as_bytes().to_vec()).unwrap()).collect()
    }

    #[test]
    fn warnings_are_quoted_and_sent_once() {
        let warnings = ["a \"b\" \\", "größe", "a \"b\" \\", "", "line\nbreak"].map(str::to_owned);
        assert_eq!(texts(&warnings), [r#"299 - "a \"b\" \\""#, "299 - \"größe\""]);
    }

    #[test]
    fn many_warnings_are_truncated() {
        for (case, warnings, count, length) in [
            ("they fit", vec!["x".repeat(4096)], 1, 4096),
            ("one is too long", vec!["x".repeat(4097)], 1, 256),
            ("the second is too long", vec!["a".repeat(4000), "b".repeat(4000)], 2, 256),
            ("many short ones", (0..100_000).map(|number| format!("unknown field {number:08}")).collect(), 187, 22),
            ("many long ones", (0..1_000).map(|number| format!("{number:0500}")).collect(), 16, 256),
        ] {
            let texts = texts(&warnings);
            assert_eq!(texts.len(), count, "{case}");
            assert!(texts.iter().all(|text| text.len() <= length + "299 - \"\"".len()), "{case}");
        }
    }
}
