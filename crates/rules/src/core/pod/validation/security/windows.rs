//! Security options of Windows containers.

use std::sync::LazyLock;

use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use regex::Regex;
use serde_json::Value;

static NET_BIOS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r#"^[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}$"#).expect("the pattern is well formed"));

static DOMAIN: LazyLock<Regex> = LazyLock::new(|| {
    let label = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
    Regex::new(&format!(r"^{label}(?:\.{label})*$")).expect("the pattern is well formed")
});

pub(super) fn windows_options(errors: &mut Errors, options: &Value, path: &Path<'_>) {
    if options.is_null() {
        return;
    }
    if let Some(name) = options.at(&["gmsaCredentialSpecName"]).as_str() {
        names::check(errors, &path.child("gmsaCredentialSpecName"), name, names::dns_subdomain);
    }
    if let Some(spec) = options.at(&["gmsaCredentialSpec"]).as_str() {
        if spec.is_empty() {
            errors.invalid(&path.child("gmsaCredentialSpec"), spec, "gmsaCredentialSpec cannot be an empty string");
        } else if spec.len() > 64 * 1024 {
            errors.invalid(&path.child("gmsaCredentialSpec"), spec, "gmsaCredentialSpec size must be under 64 KiB");
        }
    }
    if let Some(user) = options.at(&["runAsUserName"]).as_str() {
        for detail in windows_user(user) {
            errors.invalid(&path.child("runAsUserName"), user, detail);
        }
    }
}

fn windows_user(name: &str) -> Vec<&'static str> {
    if name.is_empty() {
        return vec!["runAsUserName cannot be an empty string"];
    }
    if name.chars().any(|character| character.is_ascii_control()) {
        return vec!["runAsUserName cannot contain control characters"];
    }
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return vec!["runAsUserName cannot contain more than one backslash"],
    };
    let mut wrong = Vec::new();
    if domain.is_some_and(|domain| domain.len() >= 256) {
        wrong.push("runAsUserName's Domain length must be under 256 characters");
    }
    if domain.is_some_and(|domain| !NET_BIOS.is_match(domain) && !DOMAIN.is_match(domain)) {
        wrong.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        wrong.push("runAsUserName's User cannot be empty");
    } else if user.len() > 104 {
        wrong.push("runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|character| matches!(character, '.' | ' ')) {
        wrong.push("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        wrong.push("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
    wrong
}

/// Validates pods whose containers run as processes of a Windows host.
pub fn host_processes(errors: &mut Errors, spec: &Value, path: &Path<'_>) {
    let process = ["securityContext", "windowsOptions", "hostProcess"];
    let of_pod = spec.flag(&process);
    let (mut all, mut on_host) = (0, 0);
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (i, container) in spec.items(&[list]).iter().enumerate() {
            all += 1;
            let of_container = container.flag(&process);
            if let (Some(pod), Some(own)) = (of_pod, of_container)
                && pod != own
            {
                let container = path.item(list, i);
                let detail = format!("pod hostProcess value must be identical if both are specified, was {pod}");
                errors.invalid(&container.child("securityContext.windowsOptions.hostProcess"), own, detail);
            }
            if of_container.or(of_pod) == Some(true) {
                on_host += 1;
            }
        }
    }
    if on_host == 0 {
        return;
    }
    if on_host != all {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.invalid(path, "", detail);
    }
    if spec.flag(&["hostNetwork"]) != Some(true) {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.invalid(&path.child("hostNetwork"), false, detail);
    }
}
