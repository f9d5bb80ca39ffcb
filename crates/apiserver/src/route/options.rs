//! CreateOptions, UpdateOptions, PatchOptions, DeleteOptions and ListOptions, parsed from query parameters and bodies.

use http::HeaderMap;
use http::header::USER_AGENT;
use knarr_api::field::{Errors, Path};
use knarr_api::status::{GroupResource, Status};
use serde_json::{Value, json};

use super::query::Query;

/// How unknown and duplicate fields are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// The options that create, update and patch share.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    pub dry_run: bool,
    /// The field manager: as the client names it, or the name of its program.
    pub manager: String,
    pub field_validation: FieldValidation,
    pub force: bool,
}

/// Which write the options belong to; error messages name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Create,
    Update,
    Patch { apply: bool },
}

impl WriteOptions {
    pub fn parse(query: &Query, headers: &HeaderMap, kind: WriteKind) -> Result<WriteOptions, Status> {
        let mut errors = Errors::new();
        let manager = query.text("fieldManager");
        if let WriteKind::Patch { apply } = kind {
            if apply && manager.is_empty() {
                errors.required(&Path::root("fieldManager"), "is required for apply patch");
            }
            if !apply && query.has("force") {
                errors.forbidden(&Path::root("force"), "may not be specified for non-apply patch");
            }
        }
        check_manager(&mut errors, manager);
        let dry_run: Vec<&str> = query.all("dryRun").collect();
        check_dry_run(&mut errors, &dry_run);
        let field_validation = match query.text("fieldValidation") {
            "Ignore" => FieldValidation::Ignore,
            "" | "Warn" => FieldValidation::Warn,
            "Strict" => FieldValidation::Strict,
            other => {
                errors.not_supported(&Path::root("fieldValidation"), other, &["", "Ignore", "Strict", "Warn"]);
                FieldValidation::Ignore
            }
        };
        if !errors.is_empty() {
            let name = match kind {
                WriteKind::Create => "CreateOptions",
                WriteKind::Update => "UpdateOptions",
                WriteKind::Patch { .. } => "PatchOptions",
            };
            return Err(Status::invalid(GroupResource { group: "meta.k8s.io", name }, "", &errors));
        }
        Ok(WriteOptions {
            dry_run: !dry_run.is_empty(),
            manager: if manager.is_empty() { program_of(headers) } else { manager.to_owned() },
            field_validation,
            force: query.flag("force") == Some(true),
        })
    }
}

fn check_manager(errors: &mut Errors, manager: &str) {
    const MAX_LENGTH: usize = 128;
    let path = Path::root("fieldManager");
    if manager.len() > MAX_LENGTH {
        // Each of its characters could be an error that repeats all of it.
        return errors.too_long(&path, MAX_LENGTH);
    }
    for (at, character) in manager.char_indices().filter(|(_, character)| character.is_control()) {
        let message = format!("invalid character U+{:04X} (at position {at})", character as u32);
        errors.invalid(&path, manager, message);
    }
}

fn check_dry_run(errors: &mut Errors, values: &[&str]) {
    if values.iter().any(|value| *value != "All") {
        errors.not_supported(&Path::root("dryRun"), json!(values), &["All"]);
    }
}

/// The first part of the user agent: `kubectl` of `kubectl/v1.36.4 (linux/amd64)`.
fn program_of(headers: &HeaderMap) -> String {
    let agent = headers.get(USER_AGENT).map(|value| String::from_utf8_lossy(value.as_bytes())).unwrap_or_default();
    let program = agent.split('/').next().unwrap_or_default();
    program.chars().filter(|character| !character.is_control()).take(128).collect()
}

/// What happens to the dependents of a deleted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Propagation {
    Orphan,
    Background,
    Foreground,
}

/// The options of delete and deletecollection.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub grace_period: Option<i64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub orphan_dependents: Option<bool>,
    pub propagation: Option<Propagation>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// Reads the options of a delete from its body, or from its parameters when it has none.
    pub fn parse(query: &Query, body: &Value) -> Result<DeleteOptions, Status> {
        let (grace_period, dry_run, orphan_dependents, propagation): (_, Vec<String>, _, _) = if body.is_null() {
            (
                query.integer("gracePeriodSeconds")?,
                query.all("dryRun").map(str::to_owned).collect(),
                query.flag("orphanDependents"),
                query.get("propagationPolicy").map(str::to_owned),
            )
        } else {
            let dry_run = body["dryRun"].as_array().into_iter().flatten();
            (
                body["gracePeriodSeconds"].as_i64(),
                dry_run.filter_map(Value::as_str).map(str::to_owned).collect(),
                body["orphanDependents"].as_bool(),
                body["propagationPolicy"].as_str().map(str::to_owned),
            )
        };
        let mut errors = Errors::new();
        let path = Path::root("propagationPolicy");
        if let (Some(policy), Some(_)) = (&propagation, orphan_dependents) {
            let why = "orphanDependents and deletionPropagation cannot be both set";
            errors.invalid(&path, policy.as_str(), why);
        }
        let propagation = match propagation.as_deref() {
            None => None,
            Some("Orphan") => Some(Propagation::Orphan),
            Some("Background") => Some(Propagation::Background),
            Some("Foreground") => Some(Propagation::Foreground),
            Some(other) => {
                errors.not_supported(&path, other, &["Foreground", "Background", "Orphan", "nil"]);
                None
            }
        };
        check_dry_run(&mut errors, &dry_run.iter().map(String::as_str).collect::<Vec<_>>());
        if !errors.is_empty() {
            return Err(Status::invalid(GroupResource { group: "meta.k8s.io", name: "DeleteOptions" }, "", &errors));
        }
        let precondition = |name: &str| body["preconditions"][name].as_str().map(str::to_owned);
        Ok(DeleteOptions {
            grace_period,
            uid: precondition("uid"),
            resource_version: precondition("resourceVersion"),
            orphan_dependents,
            propagation,
            dry_run: !dry_run.is_empty(),
        })
    }
}

/// The options of list and watch.
#[derive(Clone, Debug, Default)]
pub struct ListOptions {
    pub label_selector: String,
    pub field_selector: String,
    pub resource_version: Option<u64>,
    pub exact: bool,
    pub not_older: bool,
    pub limit: usize,
    pub continue_token: String,
    pub timeout: Option<i64>,
    pub bookmarks: bool,
    pub send_initial_events: Option<bool>,
}

impl ListOptions {
    pub fn parse(query: &Query, watch: bool) -> Result<ListOptions, Status> {
        let limit = query.integer("limit")?.unwrap_or(0);
        let timeout = query.integer("timeoutSeconds")?;
        let resource_version = query.text("resourceVersion");
        let matching = query.text("resourceVersionMatch");
        let continue_token = query.text("continue");
        let send_initial_events = query.flag("sendInitialEvents");
        let mut errors = Errors::new();
        let path = Path::root("resourceVersionMatch");
        if watch {
            if send_initial_events.is_some() && matching != "NotOlderThan" {
                errors.forbidden(&path, "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan");
            }
            if !matching.is_empty() {
                if send_initial_events.is_none() {
                    let why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided";
                    errors.forbidden(&path, why);
                }
                if matching != "NotOlderThan" {
                    errors.not_supported(&path, matching, &["NotOlderThan"]);
                }
                if !continue_token.is_empty() {
                    errors.forbidden(&path, "resourceVersionMatch is forbidden when continue is provided");
                }
            }
        } else {
            if !matching.is_empty() {
                if resource_version.is_empty() {
                    errors.forbidden(&path, "resourceVersionMatch is forbidden unless resourceVersion is provided");
                }
                if !continue_token.is_empty() {
                    errors.forbidden(&path, "resourceVersionMatch is forbidden when continue is provided");
                }
                if !matches!(matching, "Exact" | "NotOlderThan") {
                    errors.not_supported(&path, matching, &["Exact", "NotOlderThan", ""]);
                }
                if matching == "Exact" && resource_version == "0" {
                    errors.forbidden(&path, "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
                }
            }
            if send_initial_events.is_some() {
                errors.forbidden(&Path::root("sendInitialEvents"), "sendInitialEvents is forbidden for list");
            }
        }
        if !errors.is_empty() {
            return Err(Status::invalid(GroupResource { group: "meta.k8s.io", name: "ListOptions" }, "", &errors));
        }
        Ok(ListOptions {
            label_selector: query.text("labelSelector").to_owned(),
            field_selector: query.text("fieldSelector").to_owned(),
            resource_version: if watch {
                parse_revision_late(resource_version)?
            } else {
                parse_revision(resource_version)?
            },
            exact: matching == "Exact",
            not_older: matching == "NotOlderThan",
            limit: usize::try_from(limit).unwrap_or(0),
            continue_token: continue_token.to_owned(),
            timeout,
            bookmarks: query.flag("allowWatchBookmarks") == Some(true),
            send_initial_events,
        })
    }
}

/// Reads a resource version; `None` when none is given.
pub fn parse_revision(text: &str) -> Result<Option<u64>, Status> {
    if text.is_empty() {
        return Ok(None);
    }
    text.parse().map(Some).map_err(|_| {
        Status::bad_request(format!(
            "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: \
             invalid syntax"
        ))
    })
}

/// Like `parse_revision`, with the message of watches and of reads of one object.
pub fn parse_revision_late(text: &str) -> Result<Option<u64>, Status> {
    parse_revision(text).map_err(|_| {
        Status::new(
            500,
            "",
            format!("resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_options_are_refused() {
        let parse = |query: &str, kind| WriteOptions::parse(&Query::parse(query), &HeaderMap::new(), kind);
        let status = parse("dryRun=Some", WriteKind::Create).unwrap_err();
        let text = "CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: [\"Some\"]: supported values: \"All\"";
        assert_eq!(status.message, text);
        let status = parse("", WriteKind::Patch { apply: true }).unwrap_err();
        let text =
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch";
        assert_eq!(status.message, text);
        assert!(parse("fieldValidation=Maybe", WriteKind::Update).is_err());
        let status = parse(&format!("fieldManager={}", "%01".repeat(80_000)), WriteKind::Create).unwrap_err();
        assert!(status.message.len() < 1000, "one error, and not one for each character");
        assert!(ListOptions::parse(&Query::parse("resourceVersionMatch=Exact"), false).is_err());
        assert!(ListOptions::parse(&Query::parse("sendInitialEvents=true"), true).is_err());
        assert!(DeleteOptions::parse(&Query::parse("propagationPolicy=Loud"), &Value::Null).is_err());
    }

    #[test]
    fn the_field_manager_defaults_to_the_program_of_the_client() {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, "kubectl/v1.36.4 (linux/amd64)".parse().unwrap());
        let options = WriteOptions::parse(&Query::default(), &headers, WriteKind::Create).unwrap();
        assert_eq!((options.manager.as_str(), options.dry_run), ("kubectl", false));
    }
}
