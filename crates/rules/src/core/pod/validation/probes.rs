//! Validation of probes and lifecycle hooks.

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::{checks, formats};

/// Validates the three probes of a container.
pub fn probes(errors: &mut Errors, container: &Value, grace: Option<i64>, path: &Path<'_>) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let probe = container.at(&[name]);
        if probe.is_null() {
            continue;
        }
        let path = path.child(name);
        self::probe(errors, probe, grace, &path);
        if name == "readinessProbe" {
            if let Some(seconds) = probe.integer(&["terminationGracePeriodSeconds"]) {
                let detail = "must not be set for readinessProbes";
                errors.invalid(&path.child("terminationGracePeriodSeconds"), seconds, detail);
            }
        } else {
            let threshold = probe.integer(&["successThreshold"]).unwrap_or_default();
            if threshold != 1 {
                errors.invalid(&path.child("successThreshold"), threshold, "must be 1");
            }
        }
    }
}

fn probe(errors: &mut Errors, probe: &Value, grace: Option<i64>, path: &Path<'_>) {
    handler(errors, probe, &["exec", "httpGet", "tcpSocket", "grpc"], grace, path);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        checks::non_negative(errors, &path.child(field), probe.integer(&[field]));
    }
    if let Some(seconds) = probe.integer(&["terminationGracePeriodSeconds"]).filter(|seconds| *seconds <= 0) {
        errors.invalid(&path.child("terminationGracePeriodSeconds"), seconds, "must be greater than 0");
    }
}

/// Validates the lifecycle hooks of a container.
pub fn lifecycle(errors: &mut Errors, container: &Value, grace: Option<i64>, path: &Path<'_>) {
    let lifecycle = container.at(&["lifecycle"]);
    let path = path.child("lifecycle");
    for name in ["postStart", "preStop"] {
        let hook = lifecycle.at(&[name]);
        if !hook.is_null() {
            handler(errors, hook, &["exec", "httpGet", "tcpSocket", "sleep"], grace, &path.child(name));
        }
    }
}

/// Requires exactly one handler.
fn handler(errors: &mut Errors, holder: &Value, kinds: &[&str], grace: Option<i64>, path: &Path<'_>) {
    let mut count = 0;
    for kind in kinds {
        let action = holder.at(&[kind]);
        if action.is_null() {
            continue;
        }
        let path = path.child(kind);
        count += 1;
        if count > 1 {
            errors.forbidden(&path, "may not specify more than 1 handler type");
            continue;
        }
        match *kind {
            "exec" if action.items(&["command"]).is_empty() => errors.required(&path.child("command"), ""),
            "httpGet" => http_get(errors, action, &path),
            "tcpSocket" | "grpc" => {
                formats::port_number_or_name(errors, &path.child("port"), action.at(&["port"]));
            }
            "sleep" => sleep(errors, action, grace, &path),
            _ => {}
        }
    }
    if count == 0 {
        errors.required(path, "must specify a handler type");
    }
}

fn http_get(errors: &mut Errors, action: &Value, path: &Path<'_>) {
    if action.text(&["path"]).is_empty() {
        errors.required(&path.child("path"), "");
    }
    formats::port_number_or_name(errors, &path.child("port"), action.at(&["port"]));
    checks::one_of(errors, &path.child("scheme"), action.text(&["scheme"]), &["HTTP", "HTTPS"]);
    for header in action.items(&["httpHeaders"]) {
        names::check(errors, &path.child("httpHeaders"), header.text(&["name"]), formats::header_name);
    }
}

fn sleep(errors: &mut Errors, action: &Value, grace: Option<i64>, path: &Path<'_>) {
    let seconds = action.integer(&["seconds"]).unwrap_or_default();
    if let Some(grace) = grace.filter(|grace| !(0..=*grace).contains(&seconds)) {
        let detail = format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        errors.invalid(path, seconds, detail);
    }
}
