//! How the controls are evaluated: each function looks at one kind of fact.

use std::path::Path;

use super::versions::{CONTAINERD, RUNC};
use super::{ClusterFacts, Facts, Outcome, fail, manual, pass};

/// Whether a setting that is a list has a value.
pub fn is_listed(facts: &Facts, setting: &str, value: &str) -> bool {
    let values = facts.settings.get(setting).into_iter().flatten();
    values.flat_map(|text| text.split(',')).any(|word| word.trim() == value)
}

pub fn plugin(facts: &Facts, name: &str, otherwise: &str) -> Outcome {
    match is_listed(facts, "enable-admission-plugins", name) {
        true => pass(format!("{name} is enabled")),
        false => fail(otherwise),
    }
}

pub fn admission_plugins(facts: &Facts) -> Outcome {
    let needed = ["ServiceAccount", "NamespaceLifecycle", "NodeRestriction", "PodSecurity"];
    let is_disabled = |name: &&str| is_listed(facts, "disable-admission-plugins", name);
    match needed.iter().find(|name| is_disabled(name)) {
        Some(name) => fail(format!("{name} is disabled")),
        None if is_listed(facts, "enable-admission-plugins", "AlwaysAdmit") => fail("AlwaysAdmit is enabled"),
        None => pass("all are enabled"),
    }
}

pub fn authorization(facts: &Facts) -> Outcome {
    if facts.settings.contains_key("authorization-config") {
        return manual("the configuration of --authorization-config decides");
    }
    if !facts.settings.contains_key("authorization-mode") {
        return pass("Node and RBAC, the default");
    }
    let has = |mode: &str| is_listed(facts, "authorization-mode", mode);
    match has("Node") && has("RBAC") && !has("AlwaysAllow") {
        true => pass("by --authorization-mode"),
        false => fail("--authorization-mode lacks Node or RBAC, or has AlwaysAllow"),
    }
}

pub fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own == extension)
}

pub fn is_in_pki(facts: &Facts, path: &Path) -> bool {
    path.parent() == Some(&facts.data.join("pki"))
}

pub fn is_setting(facts: &Facts, path: &Path, name: &str) -> bool {
    facts.setting(name).is_some_and(|value| path == Path::new(value))
}

/// Files and directories belong to root and have no permission beyond `most`; directories may be searched by whom may read them.
pub fn files(facts: &Facts, most: u32, is_meant: fn(&Facts, &Path) -> bool) -> Outcome {
    let found = facts.files_where(|path| is_meant(facts, path));
    let wrong = found.iter().filter(|(_, file)| {
        let search = if file.is_directory { (most & 0o444) >> 2 | 0o100 } else { 0 };
        (file.uid, file.gid) != (0, 0) || file.mode & 0o777 & !(most | search) != 0
    });
    let wrong: Vec<String> = wrong
        .map(|(path, file)| format!("{} is {:o} of {}:{}", path.display(), file.mode, file.uid, file.gid))
        .collect();
    match (found.len(), wrong.is_empty()) {
        (0, _) => pass("there is none"),
        (count, true) => pass(format!("{count} checked")),
        (_, false) => fail(wrong.join("; ")),
    }
}

/// The file that a flag names is readable by root only.
pub fn setting_file(facts: &Facts, name: &str) -> Outcome {
    let Some(path) = facts.setting(name) else { return pass("there is none") };
    match facts.files.get(Path::new(path)) {
        Some(file) if (file.uid, file.gid) == (0, 0) && file.mode & 0o077 == 0 => {
            pass(format!("{path} is {:o}", file.mode))
        }
        Some(file) => fail(format!("{path} is {:o} of {}:{}", file.mode, file.uid, file.gid)),
        None => manual(format!("{path} cannot be read")),
    }
}

pub fn if_set(facts: &Facts, name: &str) -> Outcome {
    match facts.setting(name) {
        Some(value) => pass(format!("--{name}={value}")),
        None => fail(format!("--{name} is not set")),
    }
}

pub fn unless_set(facts: &Facts, name: &str) -> Outcome {
    if facts.is_set(name) { fail(format!("--{name} is set")) } else { pass(format!("--{name} is not set")) }
}

pub fn own_certificate(facts: &Facts, name: &str) -> Outcome {
    let path = facts.data.join("pki").join(name);
    if facts.files.contains_key(&path) {
        pass(path.display().to_string())
    } else {
        manual(format!("{} does not exist yet", path.display()))
    }
}

pub fn own_key(facts: &Facts, name: &str) -> Outcome {
    own_certificate(facts, name)
}

pub fn audit_retention(facts: &Facts) -> Outcome {
    if facts.setting("audit-log-path").is_none() {
        return fail("no audit log is written");
    }
    let number = |name: &str| facts.setting(name).and_then(|value| value.parse::<u64>().ok()).unwrap_or_default();
    let (age, count, size) = (number("audit-log-maxage"), number("audit-log-maxbackup"), number("audit-log-maxsize"));
    // Zero means no limit.
    let is_enough = |value: u64, least: u64| value == 0 || value >= least;
    let found = format!("{age} days, {count} files, {size} MB; 0 is no limit");
    if is_enough(age, 30) && is_enough(count, 10) && size >= 100 { pass(found) } else { fail(found) }
}

pub fn audit_policy(facts: &Facts) -> Outcome {
    let levels: Vec<&str> = facts.audit_levels.iter().map(String::as_str).collect();
    match levels.iter().any(|level| matches!(*level, "Metadata" | "Request" | "RequestResponse")) {
        true => pass(format!("levels: {}", levels.join(", "))),
        false if facts.setting("audit-policy-file").is_none() => fail("there is no audit policy"),
        false => fail("no rule records anything"),
    }
}

pub fn encryption_provider(facts: &Facts) -> Outcome {
    match facts.encryption.first().map(String::as_str) {
        Some(provider @ ("aesgcm" | "secretbox" | "aescbc" | "kms")) => pass(provider),
        Some(other) => fail(format!("{other} comes first")),
        None => fail("no provider for Secrets"),
    }
}

pub fn component_groups(facts: &Facts) -> Outcome {
    let masters =
        facts.certificate_groups.iter().filter(|(_, groups)| groups.iter().any(|group| group == "system:masters"));
    let others: Vec<String> = masters
        .filter(|(path, _)| **path != facts.data.join("pki/admin.crt"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    let count = facts.certificate_groups.len();
    if others.is_empty() { pass(format!("{count} certificates checked")) } else { fail(others.join(", ")) }
}

pub fn closed(facts: &Facts, ports: &[u16]) -> Outcome {
    let open: Vec<String> =
        ports.iter().filter(|port| facts.listening.contains_key(port)).map(u16::to_string).collect();
    if open.is_empty() {
        pass("nothing listens there")
    } else {
        fail(format!("something listens on {}", open.join(" and ")))
    }
}

pub fn external_store(facts: &Facts) -> Option<&[String]> {
    facts.settings.get("datastore").map(Vec::as_slice).filter(|urls| urls.iter().any(|url| !url.is_empty()))
}

pub fn etcd_tls(facts: &Facts) -> Outcome {
    let Some(urls) = external_store(facts) else { return pass("the store is embedded and has no port") };
    if urls.iter().any(|url| !url.starts_with("https://")) {
        return fail(urls.join(", "));
    }
    if_set(facts, "etcd-cafile")
}

pub fn kernel_settings(facts: &Facts) -> Outcome {
    let value = |name: &str| facts.sysctls.get(name).map_or("?", String::as_str);
    let found = format!(
        "kernel.panic={} kernel.panic_on_oops={} kernel.kptr_restrict={}",
        value("kernel/panic"),
        value("kernel/panic_on_oops"),
        value("kernel/kptr_restrict")
    );
    let is_positive = |name: &str| value(name).parse::<i64>().is_ok_and(|value| value > 0);
    match ["kernel/panic", "kernel/panic_on_oops", "kernel/kptr_restrict"].iter().all(|name| is_positive(name)) {
        true => pass(found),
        false => fail(found),
    }
}

pub fn runtime_versions(facts: &Facts) -> Outcome {
    let show = |name: &str, version: Option<&super::Version>| {
        version.map_or_else(|| format!("{name} not found"), |version| format!("{name} {version}"))
    };
    let found = format!("{}, {}", show("containerd", facts.containerd.as_ref()), show("runc", facts.runc.as_ref()));
    match (&facts.containerd, &facts.runc) {
        (Some(containerd), Some(runc)) if containerd.has_fixes(&CONTAINERD) && runc.has_fixes(&RUNC) => pass(found),
        // Distributions put fixes into older versions.
        (Some(_), Some(_)) => {
            manual(format!("{found}: older than the first releases with all fixes; ask your distribution"))
        }
        _ => manual(found),
    }
}

/// A list of the cluster that should be empty. Some lists are for an administrator to evaluate.
pub fn cluster(facts: &Facts, list: fn(&ClusterFacts) -> &Vec<String>, is_manual: bool) -> Outcome {
    let Some(cluster) = &facts.cluster else { return manual("the cluster cannot be reached") };
    let found = list(cluster);
    match (found.is_empty(), is_manual) {
        (true, _) => pass("none"),
        (false, true) => manual(found.join(", ")),
        (false, false) => fail(found.join(", ")),
    }
}
