//! Validation of the names of a defined kind.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

/// Validates the names of a definition, in its spec or its status.
pub fn validate(errors: &mut Errors, path: &Path<'_>, given: &Value) {
    let check = |errors: &mut Errors, path: &Path<'_>, name: &str, cased: bool| {
        let wrong = if cased { names::dns_1035_label(&name.to_lowercase()) } else { names::dns_1035_label(name) };
        if !wrong.is_empty() {
            let prefix = if cased { "may have mixed case, but should otherwise match: " } else { "" };
            errors.invalid(path, name, format!("{prefix}{}", wrong.join(",")));
        }
    };
    for (field, cased) in [("plural", false), ("singular", false), ("kind", true), ("listKind", true)] {
        let name = given.text(&[field]);
        if !name.is_empty() {
            check(errors, &path.child(field), name, cased);
        }
    }
    for (index, name) in given.items(&["shortNames"]).iter().enumerate() {
        check(errors, &path.item("shortNames", index), name.as_str().unwrap_or_default(), false);
    }
    let (kind, list) = (given.text(&["kind"]), given.text(&["listKind"]));
    if !kind.is_empty() && kind == list {
        errors.invalid(&path.child("listKind"), list, "kind and listKind may not be the same");
    }
    for (index, name) in given.items(&["categories"]).iter().enumerate() {
        check(errors, &path.item("categories", index), name.as_str().unwrap_or_default(), false);
    }
}
