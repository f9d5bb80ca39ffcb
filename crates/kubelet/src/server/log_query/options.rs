//! Parses and validates the parameters of a log query.

use std::path::Path;

use k8s_openapi::jiff::Timestamp;
use serde_json::json;

use super::super::query::Query;
use super::super::system_logs;

const MAX_LINES: i64 = 100_000;
const MAX_NAME_LENGTH: usize = 256;
const MAX_SERVICES: usize = 4;

#[derive(Debug, Default, PartialEq)]
pub struct LogQuery {
    pub services: Vec<String>,
    pub files: Vec<String>,
    pub options: Options,
}

/// Filters on the journal's entries.
#[derive(Debug, Default, PartialEq)]
pub struct Options {
    pub since: Option<Timestamp>,
    pub until: Option<Timestamp>,
    pub lines: Option<i64>,
    pub boot: Option<i64>,
    pub pattern: String,
}

impl LogQuery {
    /// None if there are no query parameters.
    pub fn parse(query: &Query) -> Result<Option<Self>, String> {
        let (mut found, mut errors) = (Self::default(), Vec::new());
        let queries = query.all("query");
        for one in &queries {
            if one.contains(['/', '\\']) {
                found.files.push(one.clone());
            } else if !one.trim().is_empty() {
                found.services.push(one.clone());
            }
        }
        if !queries.is_empty() && found.files.is_empty() && found.services.is_empty() {
            errors.push(format!("query: Invalid value: {}: may not be empty", json!(queries)));
        }
        let given = |name: &str| query.get(name).filter(|text| !text.is_empty());
        let mut timestamp = |name: &str| {
            let text = given(name)?;
            let parsed = text.parse().ok();
            if parsed.is_none() {
                errors.push(format!("{name}: Invalid value: {text:?}: invalid time format"));
            }
            parsed
        };
        (found.options.since, found.options.until) = (timestamp("sinceTime"), timestamp("untilTime"));
        let mut number = |name: &str| match integer(given(name)?) {
            Ok(number) => Some(number),
            Err(error) => {
                errors.push(error_of(name, given(name).unwrap_or_default(), &error));
                None
            }
        };
        (found.options.boot, found.options.lines) = (number("boot"), number("tailLines"));
        found.options.pattern = query.get("pattern").unwrap_or_default().to_owned();
        match errors.is_empty() {
            true => Ok(Some(found).filter(|found| *found != Self::default())),
            false => Err(aggregate(errors)),
        }
    }

    pub fn validate(&self, root: &Path) -> Result<(), String> {
        let mut errors = self.wrong_services();
        errors.extend(self.wrong_choice(root));
        let Options { since, until, lines, boot, pattern } = &self.options;
        if let (Some(since), Some(until)) = (since, until)
            && since > until
        {
            errors.push(format!("untilTime: Invalid value: \"{until}\": must be after `sinceTime`"));
        }
        if let Some(boot) = boot.filter(|boot| *boot > 0) {
            errors.push(format!("boot: Invalid value: {boot}: must be less than 1"));
        }
        if let Some(lines) = lines.filter(|lines| !(0..=MAX_LINES).contains(lines)) {
            errors.push(format!("tailLines: Invalid value: {lines}: must be between 0 and {MAX_LINES}, inclusive"));
        }
        if let Err(error) = check_pattern(pattern) {
            errors.push(error_of("pattern", pattern, &error));
        }
        if errors.is_empty() { Ok(()) } else { Err(aggregate(errors)) }
    }

    fn wrong_services(&self) -> Vec<String> {
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_.:@".contains(c);
        let mut errors = Vec::new();
        for service in &self.services {
            if service.len() > MAX_NAME_LENGTH {
                errors.push(error_of("query", service, &format!("length must be less than {MAX_NAME_LENGTH}")));
            } else if !service.chars().all(safe) {
                errors.push(error_of("query", service, "input contains unsupported characters"));
            }
        }
        if self.services.len() > MAX_SERVICES {
            let count = self.services.len();
            errors.push(format!("query: Too many: {count}: must have at most {MAX_SERVICES} items"));
        }
        errors
    }

    fn wrong_choice(&self, root: &Path) -> Option<String> {
        let listed = json!(self.files);
        match (self.files.as_slice(), self.services.as_slice()) {
            ([], []) => Some("query: Required value: cannot be empty with options".to_owned()),
            ([_, ..], [_, ..]) => {
                let both = format!("[{}], [{}]", self.files.join(" "), self.services.join(" "));
                Some(error_of("query", &both, "cannot specify a file and service"))
            }
            ([_, _, ..], []) => Some(format!("query: Invalid value: {listed}: cannot specify more than one file")),
            ([_], []) if self.options != Options::default() => {
                Some(format!("query: Invalid value: {listed}: cannot specify file with options"))
            }
            ([file], []) => {
                let problem = missing(root, file)?;
                Some(format!("query: Invalid value: {listed}: statat {file}: {problem}"))
            }
            ([], [_, ..]) => None,
        }
    }

    /// The arguments of `journalctl` for these units.
    pub fn arguments(&self, units: &[String]) -> Vec<String> {
        let Options { since, until, lines, boot, pattern } = &self.options;
        let timestamp = |at: &Timestamp| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string();
        let mut arguments = vec!["--utc".to_owned(), "--no-pager".to_owned(), "--output=short-precise".to_owned()];
        arguments.extend(since.as_ref().map(|since| format!("--since={}", timestamp(since))));
        arguments.extend(until.as_ref().map(|until| format!("--until={}", timestamp(until))));
        if let Some(lines) = lines {
            arguments.extend(["--pager-end".to_owned(), format!("--lines={lines}")]);
        }
        arguments.extend(units.iter().map(|unit| format!("--unit={unit}")));
        if !pattern.is_empty() {
            arguments.push(format!("--grep={pattern}"));
        }
        if let Some(boot) = boot {
            arguments.extend(["--boot".to_owned(), boot.to_string()]);
        }
        arguments
    }
}

fn missing(root: &Path, file: &str) -> Option<String> {
    if file.starts_with('/') || file.split('/').any(|part| part == "..") {
        return Some("path escapes from parent".to_owned());
    }
    match system_logs::exists(root, Path::new(&file.replace('\\', "/"))) {
        Ok(()) => None,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some("no such file or directory".to_owned()),
        Err(error) => Some(error.to_string()),
    }
}

fn error_of(field: &str, value: &str, detail: &str) -> String {
    format!("{field}: Invalid value: {value:?}: {detail}")
}

fn aggregate(mut errors: Vec<String>) -> String {
    match errors.len() {
        1 => errors.remove(0),
        _ => format!("[{}]", errors.join(", ")),
    }
}

fn integer(text: &str) -> Result<i64, String> {
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let what = if is_number { "value out of range" } else { "invalid syntax" };
    text.parse().map_err(|_| format!("strconv.Atoi: parsing {text:?}: {what}"))
}

/// Rejects invalid regular expressions before they are passed to another program.
fn check_pattern(pattern: &str) -> Result<(), String> {
    let wrong = |what: &str, part: &str| Err(format!("error parsing regexp: {what}: `{part}`"));
    if pattern.contains('\0') {
        return wrong("invalid character", pattern);
    }
    let (mut open, mut class, mut escaped) = (0_usize, None, false);
    for (at, character) in pattern.char_indices() {
        if escaped {
            escaped = false;
            continue;
        }
        match (character, class) {
            ('\\', _) => escaped = true,
            // A bracket that comes first in a class is one of its members.
            (']', Some(start)) if at > start + 1 && &pattern[start + 1..at] != "^" => class = None,
            (_, Some(_)) => {}
            ('[', None) => class = Some(at),
            ('(', None) => open += 1,
            (')', None) if open == 0 => return wrong("unexpected )", pattern),
            (')', None) => open -= 1,
            ('*' | '+' | '?', None) if at == 0 => {
                return wrong("missing argument to repetition operator", &character.to_string());
            }
            _ => {}
        }
    }
    match class {
        Some(start) => wrong("missing closing ]", &pattern[start..]),
        None if escaped => wrong("trailing backslash at end of expression", ""),
        None if open > 0 => wrong("missing closing )", pattern),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(query: &str) -> Result<Option<LogQuery>, String> {
        let request = http::Request::get(format!("/logs/?{query}")).body(()).expect("a request");
        LogQuery::parse(&Query::of(&request))
    }

    #[test]
    fn invalid_queries_are_rejected_with_reasons() {
        let directory = tempfile::tempdir().expect("a directory");
        let refused = |query: &str| match parsed(query) {
            Ok(Some(query)) => query.validate(directory.path()).err(),
            Ok(None) => None,
            Err(message) => Some(message),
        };
        let cases = [
            ("query=kubelet", None),
            ("", None),
            ("follow=1", None),
            ("query=+", Some("query: Invalid value: [\" \"]: may not be empty")),
            ("tailLines=1", Some("query: Required value: cannot be empty with options")),
            ("query=a&sinceTime=x", Some("sinceTime: Invalid value: \"x\": invalid time format")),
            (
                "query=a&boot=x&tailLines=y",
                Some(
                    "[boot: Invalid value: \"x\": strconv.Atoi: parsing \"x\": invalid syntax, \
                     tailLines: Invalid value: \"y\": strconv.Atoi: parsing \"y\": invalid syntax]",
                ),
            ),
            ("query=a&boot=1", Some("boot: Invalid value: 1: must be less than 1")),
            (
                "query=a&tailLines=100001",
                Some("tailLines: Invalid value: 100001: must be between 0 and 100000, inclusive"),
            ),
            ("query=a&tailLines=-1", Some("tailLines: Invalid value: -1: must be between 0 and 100000, inclusive")),
            (
                "query=a&sinceTime=2026-01-02T00:00:00Z&untilTime=2026-01-01T00:00:00Z",
                Some("untilTime: Invalid value: \"2026-01-01T00:00:00Z\": must be after `sinceTime`"),
            ),
            ("query=a&pattern=(", Some("pattern: Invalid value: \"(\": error parsing regexp: missing closing ): `(`")),
            ("query=a;b", Some("query: Invalid value: \"a;b\": input contains unsupported characters")),
            ("query=a&query=b&query=c&query=d&query=e", Some("query: Too many: 5: must have at most 4 items")),
            ("query=/a&query=b", Some("query: Invalid value: \"[/a], [b]\": cannot specify a file and service")),
            ("query=a/b&query=c/d", Some("query: Invalid value: [\"a/b\",\"c/d\"]: cannot specify more than one file")),
            ("query=a/b&boot=0", Some("query: Invalid value: [\"a/b\"]: cannot specify file with options")),
            ("query=a/b", Some("query: Invalid value: [\"a/b\"]: statat a/b: no such file or directory")),
            (
                "query=../etc/passwd",
                Some("query: Invalid value: [\"../etc/passwd\"]: statat ../etc/passwd: path escapes from parent"),
            ),
        ];
        for (query, expected) in cases {
            assert_eq!(refused(query).as_deref(), expected, "{query}");
        }
    }

    #[test]
    fn options_become_single_arguments() {
        let query = "query=a&sinceTime=2026-01-01T02:00:00%2B02:00&tailLines=3&boot=-1&pattern=x%20--output=cat";
        let query = parsed(query).expect("a query").expect("one");
        let expected = [
            "--utc",
            "--no-pager",
            "--output=short-precise",
            "--since=2026-01-01 00:00:00 UTC",
            "--pager-end",
            "--lines=3",
            "--unit=a",
            "--grep=x --output=cat",
            "--boot",
            "-1",
        ];
        assert_eq!(query.arguments(&["a".to_owned()]), expected);
    }

    #[test]
    fn patterns_are_checked() {
        for pattern in ["", "a+b*", "(a|b)[^]x]\\(", "[]a]", "\\\\"] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
        for (pattern, what) in [
            ("a)", "unexpected )"),
            ("[a", "missing closing ]"),
            ("a\\", "trailing backslash"),
            ("*", "missing argument"),
        ] {
            assert!(check_pattern(pattern).is_err_and(|error| error.contains(what)), "{pattern}");
        }
    }
}
