//! Validates the options of log requests.

use knarr_api::decode::time_in_seconds;
use knarr_api::field::{Errors, Path};
use knarr_api::status::{GroupResource, Status};

use crate::route::query::Query;

/// Refuses invalid options.
pub fn check(pod: &str, query: &Query) -> Result<(), Status> {
    let since_seconds = query.integer("sinceSeconds")?;
    let tail_lines = query.integer("tailLines")?;
    let limit_bytes = query.integer("limitBytes")?;
    let since_time = query.text("sinceTime");
    if !since_time.is_empty() {
        time_in_seconds(since_time).map_err(Status::bad_request)?;
    }
    let mut errors = Errors::new();
    if let Some(lines) = tail_lines.filter(|lines| *lines < 0) {
        errors.invalid(&Path::root("tailLines"), lines, "must be greater than or equal to 0");
    }
    if let Some(bytes) = limit_bytes.filter(|bytes| *bytes < 1) {
        errors.invalid(&Path::root("limitBytes"), bytes, "must be greater than 0");
    }
    match since_seconds {
        Some(_) if !since_time.is_empty() => {
            errors.forbidden(&Path::root("[]"), "at most one of `sinceTime` or `sinceSeconds` may be specified");
        }
        Some(seconds) if seconds < 1 => {
            errors.invalid(&Path::root("sinceSeconds"), seconds, "must be greater than 0");
        }
        _ => {}
    }
    if query.has("stream") {
        errors.forbidden(&Path::root("stream"), "may not be specified");
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(Status::invalid(GroupResource { group: "", name: "PodLogOptions" }, pod, &errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_options_are_refused() {
        for (query, expected) in [
            ("", None),
            ("tailLines=0&limitBytes=1&sinceSeconds=1&follow=true", None),
            ("sinceTime=2024-01-01T00:00:00Z", None),
            ("tailLines=-1", Some("tailLines: Invalid value: -1: must be greater than or equal to 0")),
            ("limitBytes=0", Some("limitBytes: Invalid value: 0: must be greater than 0")),
            ("sinceSeconds=0", Some("sinceSeconds: Invalid value: 0: must be greater than 0")),
            (
                "sinceSeconds=1&sinceTime=2024-01-01T00:00:00Z",
                Some("[]: Forbidden: at most one of `sinceTime` or `sinceSeconds` may be specified"),
            ),
            ("stream=Stdout", Some("stream: Forbidden: may not be specified")),
        ] {
            let message = check("p", &Query::parse(query)).err().map(|status| status.message);
            let expected = expected.map(|text| format!("PodLogOptions \"p\" is invalid: {text}"));
            assert_eq!(message, expected, "{query}");
        }
        let wrong = check("p", &Query::parse("sinceTime=x")).unwrap_err();
        assert_eq!(wrong.code, 400);
        assert_eq!(check("p", &Query::parse("tailLines=x")).unwrap_err().code, 400);
    }
}
