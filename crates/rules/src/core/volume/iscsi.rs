//! iSCSI volumes.

use std::sync::LazyLock;

use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use regex::Regex;
use serde_json::Value;

use super::{VolumeContext, require};
use crate::common::checks::between;

static IQN: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"iqn\.\d{4}-\d{2}\.([[:alnum:]\-.]+)(:[^,;*&$|\s]+)$").expect("the pattern is well formed")
});

pub(super) fn iscsi(errors: &mut Errors, value: &Value, path: &Path<'_>, _: &VolumeContext<'_>) {
    const PREFIXES: &str = "must be valid format starting with iqn, eui, or naa";
    require(errors, value, path, &["targetPortal"]);
    iscsi_names(errors, value, path, PREFIXES, |_, _, _| {});
}

/// Limits the length of volume name and portal, which together form the name of a device.
pub fn iscsi_names_length(errors: &mut Errors, value: &Value, path: &Path<'_>, volume_context: &VolumeContext<'_>) {
    let length = volume_context.volume_name.len() + 1 + value.text(&["targetPortal"]).len();
    if value.has(&["initiatorName"]) && length > 64 {
        errors.invalid(&path.child("name"), volume_context.volume_name, ISCSI_TOO_LONG);
    }
}

const ISCSI_TOO_LONG: &str = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if \
                              iscsi.initiatorName is specified.";

pub(super) fn persistent_iscsi(
    errors: &mut Errors,
    value: &Value,
    path: &Path<'_>,
    volume_context: &VolumeContext<'_>,
) {
    require(errors, value, path, &["targetPortal"]);
    let portal = value.text(&["targetPortal"]);
    if value.has(&["initiatorName"]) && volume_context.pod_name.len() + 1 + portal.len() > 64 {
        errors.invalid(&path.child("targetportal"), portal, ISCSI_TOO_LONG);
    }
    iscsi_names(errors, value, path, "must be valid format", |errors, value, path| {
        if value.has(&["secretRef"]) {
            require(errors, value.at(&["secretRef"]), &path.child("secretRef"), &["name"]);
        }
    });
}

fn iscsi_names(
    errors: &mut Errors,
    value: &Value,
    path: &Path<'_>,
    prefix_message: &str,
    secret: fn(&mut Errors, &Value, &Path<'_>),
) {
    let name = value.text(&["iqn"]);
    if name.is_empty() {
        errors.required(&path.child("iqn"), "");
    } else {
        iscsi_name(errors, name, &path.child("iqn"), prefix_message);
    }
    let unit = value.integer(&["lun"]).unwrap_or_default();
    if !(0..=255).contains(&unit) {
        errors.invalid(&path.child("lun"), unit, between(0, 255));
    }
    let authenticates = ["chapAuthDiscovery", "chapAuthSession"].iter().any(|name| value.flag(&[name]) == Some(true));
    if authenticates && !value.has(&["secretRef"]) {
        errors.required(&path.child("secretRef"), "");
    }
    secret(errors, value, path);
    if let Some(initiator) = value.at(&["initiatorName"]).as_str() {
        iscsi_name(errors, initiator, &path.child("initiatorname"), prefix_message);
    }
}

fn iscsi_name(errors: &mut Errors, name: &str, path: &Path<'_>, prefix_message: &str) {
    // The prefix of three letters, any separator, then the identity.
    let identity = |length: usize| {
        let mut characters = name.chars().skip(3);
        characters.next().is_some_and(|separator| separator != '\n')
            && characters.clone().count() == length
            && characters.all(|character| character.is_ascii_alphanumeric())
    };
    let well_formed = match name.get(..3) {
        Some("iqn") => IQN.is_match(name),
        Some("eui") => identity(16),
        Some("naa") => identity(32),
        _ => return errors.invalid(path, name, prefix_message),
    };
    if !well_formed {
        errors.invalid(path, name, "must be valid format");
    }
}
