//! The table of controls.

use std::path::Path;

use super::versions::{CONTAINERD, RUNC};
use super::{ClusterFacts, Control, Facts, Outcome, Scope, fail, manual, pass};

macro_rules! controls {
    ($($section:literal $scope:ident { $($id:literal, $title:literal, $remedy:literal, $evaluate:expr;)* })*) => {
        &[$($(Control {
            id: $id,
            section: $section,
            title: $title,
            remedy: $remedy,
            scope: Scope::$scope,
            evaluate: $evaluate,
        },)*)*]
    };
}

/// All controls, by section.
pub const CONTROLS: &[Control] = controls![
    "1.1 Files of the control plane" Server {
        "data-directory", "The data directory belongs to root and is closed to others' writes",
            "chown root:root DIR && chmod go-w DIR", |facts| files(facts, 0o755, |facts, path| path == facts.data);
        "store-files", "The store is readable by root only",
            "chown -R root:root DIR/store && chmod -R go-rwx DIR/store",
            |facts| files(facts, 0o700, |facts, path| path.starts_with(facts.data.join("store")));
        "certificate-directory", "The directory of certificates is open to root only",
            "chown root:root DIR/pki && chmod 700 DIR/pki", |facts| files(facts, 0o700, |facts, path| path == facts.data.join("pki"));
        "certificate-files", "Certificates belong to root and nobody else writes them",
            "chown root:root DIR/pki/*.crt && chmod 644 DIR/pki/*.crt",
            |facts| files(facts, 0o644, |facts, path| is_in_pki(facts, path) && has_extension(path, "crt"));
        "key-files", "Private keys are readable by root only",
            "chown root:root DIR/pki/*.key && chmod 600 DIR/pki/*.key",
            |facts| files(facts, 0o600, |facts, path| is_in_pki(facts, path) && has_extension(path, "key"));
        "administrator-file", "The administrator's kubeconfig is readable by root only",
            "chown root:root FILE && chmod 600 FILE", |facts| files(facts, 0o600, |_, path| path.ends_with("kubeconfig.yaml"));
        "manifests", "Manifests that are applied at startup belong to root and nobody else writes them",
            "chown -R root:root DIR/manifests && chmod -R go-w DIR/manifests",
            |facts| files(facts, 0o755, |facts, path| path.starts_with(facts.data.join("manifests")));
        "encryption-file", "The file with encryption keys is readable by root only",
            "chown root:root FILE && chmod 600 FILE", |facts| setting_file(facts, "encryption-provider-config");
        "audit-file", "The audit log is readable by root only",
            "chown root:root FILE && chmod 600 FILE", |facts| setting_file(facts, "audit-log-path");
    }
    "1.2 API server" Server {
        "anonymous-requests", "Anonymous requests are refused",
            "--anonymous-auth=false; see docs/hardening.md", |facts| match is_listed(facts, "anonymous-auth", "false") {
                true => pass("anonymous requests are refused"),
                false => fail("anonymous requests may read health, version and cluster-info"),
            };
        "static-tokens", "No static token file is used",
            "remove --token-file; use service accounts, certificates or an identity provider",
            |facts| unless_set(facts, "token-file");
        "external-addresses", "Services cannot claim external addresses",
            "--enable-admission-plugins=DenyServiceExternalIPs",
            |facts| plugin(facts, "DenyServiceExternalIPs", "externalIPs are allowed, though not for addresses of nodes, pods and Services");
        "kubelet-authentication", "The API server authenticates to kubelets with a certificate of its own",
            "restore DIR/pki/kubelet-client.crt: remove it and restart", |facts| own_certificate(facts, "kubelet-client.crt");
        "kubelet-verification", "The API server verifies kubelets' certificates",
            "remove --kubelet-insecure-tls", |facts| unless_set(facts, "kubelet-insecure-tls");
        "authorization", "Requests are authorized by the Node authorizer and RBAC",
            "remove --authorization-mode, or name Node and RBAC and not AlwaysAllow", authorization;
        "request-rate", "The rate of requests is limited",
            "remove --enable-priority-and-fairness=false", |facts| match is_listed(facts, "enable-priority-and-fairness", "false") {
                true => fail("API Priority and Fairness is disabled"),
                false => pass("by API Priority and Fairness"),
            };
        "admission-plugins", "ServiceAccount, NamespaceLifecycle, NodeRestriction and PodSecurity are enabled; nothing is always admitted",
            "remove them from --disable-admission-plugins, and AlwaysAdmit from --enable-admission-plugins", admission_plugins;
        "event-rate", "The rate of events is limited",
            "--enable-admission-plugins=EventRateLimit",
            |facts| plugin(facts, "EventRateLimit", "only API Priority and Fairness limits events");
        "image-pulls", "Every pod has its images' credentials checked",
            "--enable-admission-plugins=AlwaysPullImages",
            |facts| plugin(facts, "AlwaysPullImages", "only kubelets check the credentials of pulled images");
        "profiling", "Profiling is not served",
            "none", |_| pass("no profiling endpoints exist");
        "audit-log", "An audit log is written",
            "--audit-policy-file=FILE --audit-log-path=FILE", |facts| if_set(facts, "audit-log-path");
        "audit-retention", "Audit logs are kept for 30 days or more, in ten files or more, of 100 MB or more",
            "--audit-log-maxage=30 --audit-log-maxbackup=10 --audit-log-maxsize=100", audit_retention;
        "request-timeout", "Requests time out",
            "none", |_| pass("after 60 s, long-running ones aside");
        "token-lookup", "Tokens of deleted service accounts, pods and Secrets are refused",
            "none", |_| pass("built in: each request looks them up");
        "token-keys", "Service account tokens have a signing key of their own",
            "none", |facts| own_key(facts, "service-account.key");
        "serving-tls", "The API is served by TLS 1.2 or newer with strong ciphers only",
            "none", |_| pass("built in: TLS 1.2 and 1.3 with forward secrecy and authenticated encryption");
        "client-authority", "Client certificates are verified by the cluster's authority",
            "restore DIR/pki/ca.crt from a backup", |facts| own_certificate(facts, "ca.crt");
        "encryption-at-rest", "Secrets are encrypted at rest",
            "--encryption-provider-config=FILE", |facts| if_set(facts, "encryption-provider-config");
        "encryption-provider", "The first provider for Secrets is aesgcm, secretbox, aescbc or kms",
            "put such a provider first for `secrets` in the encryption configuration", encryption_provider;
    }
    "1.3 Controllers and 1.4 scheduler" Server {
        "controller-identities", "Each controller acts as its own service account, with only its permissions",
            "none", |_| pass("built in");
        "component-groups", "Only the administrator's certificate is in system:masters",
            "remove the certificate, and find out who made it", component_groups;
        "component-ports", "Controllers and scheduler listen nowhere",
            "stop what listens on 10257 and 10259", |facts| closed(facts, &[10257, 10259]);
        "serving-rotation", "Kubelets' serving certificates are signed by the cluster and rotated",
            "none", |_| pass("built in");
    }
    "2 etcd" Server {
        "store-encryption", "Connections to etcd are encrypted and verify it",
            "--datastore=https://… --etcd-cafile=FILE", etcd_tls;
        "store-authentication", "The API server authenticates to etcd with a certificate",
            "--etcd-certfile=FILE --etcd-keyfile=FILE", |facts| match external_store(facts) {
                None => pass("the store is embedded and has no port"),
                Some(_) => if_set(facts, "etcd-certfile"),
            };
        "store-port", "No store listens for other hosts without authentication",
            "let etcd listen with --client-cert-auth, or on loopback", |facts| match facts.listening.get(&2379) {
                Some(true) => manual("etcd listens on 2379: verify its --client-cert-auth and --peer-client-cert-auth"),
                _ => pass("nothing listens on 2379 for other hosts"),
            };
    }
    "3 Control plane configuration" Server {
        "user-certificates", "People do not authenticate with client certificates, which cannot be revoked",
            "use an identity provider for people", |_| manual("the administrator's kubeconfig has a certificate for a year");
        "audit-policy", "The audit policy records at least the metadata of requests",
            "set level Metadata or more in the rules of the audit policy", audit_policy;
    }
    "4.1 Files of the node" Node {
        "unit-file", "The service's unit belongs to root and nobody else writes it",
            "chown root:root FILE && chmod 644 FILE", |facts| files(facts, 0o644, |_, path| path.ends_with("knarr.service"));
        "configuration-file", "The configuration file is readable by root only",
            "chown root:root FILE && chmod 600 FILE",
            |facts| files(facts, 0o600, |_, path| path == Path::new(crate::configuration::FILE));
        "node-keys", "The node's keys are readable by root only",
            "chmod 600 DIR/kubelet/pki/*", |facts| {
                files(facts, 0o600, |facts, path| path.starts_with(facts.data.join("kubelet/pki")))
            };
        "network-configuration", "Network configurations belong to root and nobody else writes them",
            "chown -R root:root DIR/cni && chmod -R go-w DIR/cni", |facts| {
                files(facts, 0o755, |facts, path| path.starts_with(facts.data.join("cni")) || is_setting(facts, path, "cni-conf-dir"))
            };
        "static-pods", "The directory of static pods belongs to root and nobody else writes it",
            "chown root:root DIR && chmod 755 DIR", |facts| {
                files(facts, 0o755, |facts, path| is_setting(facts, path, "pod-manifest-path"))
            };
        "pod-files", "Directories of pods and of the container runtime are closed to other users",
            "chmod 700 DIR/kubelet DIR/pods DIR/containerd", |facts| {
                let own = |facts: &Facts, path: &Path| ["kubelet", "pods", "containerd"].iter().any(|name| path == facts.data.join(name));
                files(facts, 0o711, own)
            };
    }
    "4.2 Kubelet" Node {
        "kubelet-anonymous", "The kubelet refuses anonymous requests and authorizes all others by the API server",
            "none", |_| pass("built in");
        "read-only-port", "The kubelet has no read-only port",
            "stop what listens on 10255", |facts| closed(facts, &[10255]);
        "health-port", "Health and metrics without authentication are on loopback only",
            "--healthz-bind-address=127.0.0.1", |facts| match (facts.listening.get(&10248), facts.listening.get(&10249)) {
                (Some(true), _) | (_, Some(true)) => fail("10248 or 10249 is reachable from other hosts"),
                _ => pass("on loopback, or not at all"),
            };
        "certificate-rotation", "The kubelet's certificates are rotated",
            "none", |_| pass("built in");
        "process-limit", "The number of processes of each pod is limited",
            "--pod-max-pids=4096", |facts| if_set(facts, "pod-max-pids");
        "seccomp-default", "Pods without a seccomp profile get the runtime's",
            "set seccompProfile in pods, or enforce the restricted standard", |_| fail("they are unconfined, as in Kubernetes by default");
        "log-queries", "Logs of the host's services are not served",
            "remove --enable-system-log-query", |facts| unless_set(facts, "enable-system-log-query");
        "kernel-settings", "The kernel stops at a panic, and shows its addresses to nobody",
            "sysctl -w kernel.panic=10 kernel.panic_on_oops=1 kernel.kptr_restrict=1", kernel_settings;
        "runtime-versions", "containerd and runc have the fixes of published escapes",
            "install newer packages of containerd and runc", runtime_versions;
    }
    "4.4 Process" Host {
        "core-dumps", "A crash writes no memory, which holds keys, to disk",
            "remove LimitCORE from the unit", |facts| match facts.core_limit.as_deref() {
                Some("0") => pass("the limit is 0"),
                Some(limit) => fail(format!("the limit is {limit}")),
                None => manual("Knarr is not running"),
            };
    }
    "5 Policies" Server {
        "administrators", "Few subjects are bound to cluster-admin",
            "kubectl delete clusterrolebinding …; bind smaller roles", |facts| cluster(facts, |cluster| &cluster.administrators, true);
        "wildcards", "Roles name what they allow",
            "replace * in the rules of the roles", |facts| cluster(facts, |cluster| &cluster.with_wildcards, true);
        "anonymous-bindings", "Anonymous users are bound to the public information only",
            "kubectl delete clusterrolebinding …", |facts| cluster(facts, |cluster| &cluster.anonymous_bindings, false);
        "default-accounts", "Default service accounts of applications' namespaces mount no token",
            "kubectl patch serviceaccount default -n NAMESPACE -p '{\"automountServiceAccountToken\":false}'",
            |facts| cluster(facts, |cluster| &cluster.with_default_tokens, true);
        "pod-security", "Applications' namespaces enforce the baseline or restricted standard",
            "kubectl label namespace NAMESPACE pod-security.kubernetes.io/enforce=restricted",
            |facts| cluster(facts, |cluster| &cluster.without_pod_security, true);
        "network-policies", "Applications' namespaces have network policies",
            "create a policy that denies all, and those that allow what is needed",
            |facts| cluster(facts, |cluster| &cluster.without_policies, true);
        "secrets-in-files", "Applications read Secrets from files, not from the environment",
            "mount Secrets as volumes", |_| manual("kubectl get pods -A -o json | grep secretKeyRef");
        "image-provenance", "Only images of known origin run",
            "use a validating admission policy or webhook for images", |_| manual("no policy is built in");
    }
];

/// Whether a setting that is a list has a value.
fn is_listed(facts: &Facts, setting: &str, value: &str) -> bool {
    let values = facts.settings.get(setting).into_iter().flatten();
    values.flat_map(|text| text.split(',')).any(|word| word.trim() == value)
}

fn plugin(facts: &Facts, name: &str, otherwise: &str) -> Outcome {
    match is_listed(facts, "enable-admission-plugins", name) {
        true => pass(format!("{name} is enabled")),
        false => fail(otherwise),
    }
}

fn admission_plugins(facts: &Facts) -> Outcome {
    let needed = ["ServiceAccount", "NamespaceLifecycle", "NodeRestriction", "PodSecurity"];
    let is_disabled = |name: &&str| is_listed(facts, "disable-admission-plugins", name);
    match needed.iter().find(|name| is_disabled(name)) {
        Some(name) => fail(format!("{name} is disabled")),
        None if is_listed(facts, "enable-admission-plugins", "AlwaysAdmit") => fail("AlwaysAdmit is enabled"),
        None => pass("all are enabled"),
    }
}

fn authorization(facts: &Facts) -> Outcome {
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

fn has_extension(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|own| own == extension)
}

fn is_in_pki(facts: &Facts, path: &Path) -> bool {
    path.parent() == Some(&facts.data.join("pki"))
}

fn is_setting(facts: &Facts, path: &Path, name: &str) -> bool {
    facts.setting(name).is_some_and(|value| path == Path::new(value))
}

/// Files and directories belong to root and have no permission beyond `most`; directories may be searched by whom may read them.
fn files(facts: &Facts, most: u32, is_meant: fn(&Facts, &Path) -> bool) -> Outcome {
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
fn setting_file(facts: &Facts, name: &str) -> Outcome {
    let Some(path) = facts.setting(name) else { return pass("there is none") };
    match facts.files.get(Path::new(path)) {
        Some(file) if (file.uid, file.gid) == (0, 0) && file.mode & 0o077 == 0 => {
            pass(format!("{path} is {:o}", file.mode))
        }
        Some(file) => fail(format!("{path} is {:o} of {}:{}", file.mode, file.uid, file.gid)),
        None => manual(format!("{path} cannot be read")),
    }
}

fn if_set(facts: &Facts, name: &str) -> Outcome {
    match facts.setting(name) {
        Some(value) => pass(format!("--{name}={value}")),
        None => fail(format!("--{name} is not set")),
    }
}

fn unless_set(facts: &Facts, name: &str) -> Outcome {
    if facts.is_set(name) { fail(format!("--{name} is set")) } else { pass(format!("--{name} is not set")) }
}

fn own_certificate(facts: &Facts, name: &str) -> Outcome {
    let path = facts.data.join("pki").join(name);
    if facts.files.contains_key(&path) {
        pass(path.display().to_string())
    } else {
        manual(format!("{} does not exist yet", path.display()))
    }
}

fn own_key(facts: &Facts, name: &str) -> Outcome {
    own_certificate(facts, name)
}

fn audit_retention(facts: &Facts) -> Outcome {
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

fn audit_policy(facts: &Facts) -> Outcome {
    let levels: Vec<&str> = facts.audit_levels.iter().map(String::as_str).collect();
    match levels.iter().any(|level| matches!(*level, "Metadata" | "Request" | "RequestResponse")) {
        true => pass(format!("levels: {}", levels.join(", "))),
        false if facts.setting("audit-policy-file").is_none() => fail("there is no audit policy"),
        false => fail("no rule records anything"),
    }
}

fn encryption_provider(facts: &Facts) -> Outcome {
    match facts.encryption.first().map(String::as_str) {
        Some(provider @ ("aesgcm" | "secretbox" | "aescbc" | "kms")) => pass(provider),
        Some(other) => fail(format!("{other} comes first")),
        None => fail("no provider for Secrets"),
    }
}

fn component_groups(facts: &Facts) -> Outcome {
    let masters =
        facts.certificate_groups.iter().filter(|(_, groups)| groups.iter().any(|group| group == "system:masters"));
    let others: Vec<String> = masters
        .filter(|(path, _)| **path != facts.data.join("pki/admin.crt"))
        .map(|(path, _)| path.display().to_string())
        .collect();
    let count = facts.certificate_groups.len();
    if others.is_empty() { pass(format!("{count} certificates checked")) } else { fail(others.join(", ")) }
}

fn closed(facts: &Facts, ports: &[u16]) -> Outcome {
    let open: Vec<String> =
        ports.iter().filter(|port| facts.listening.contains_key(port)).map(u16::to_string).collect();
    if open.is_empty() {
        pass("nothing listens there")
    } else {
        fail(format!("something listens on {}", open.join(" and ")))
    }
}

fn external_store(facts: &Facts) -> Option<&[String]> {
    facts.settings.get("datastore").map(Vec::as_slice).filter(|urls| urls.iter().any(|url| !url.is_empty()))
}

fn etcd_tls(facts: &Facts) -> Outcome {
    let Some(urls) = external_store(facts) else { return pass("the store is embedded and has no port") };
    if urls.iter().any(|url| !url.starts_with("https://")) {
        return fail(urls.join(", "));
    }
    if_set(facts, "etcd-cafile")
}

fn kernel_settings(facts: &Facts) -> Outcome {
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

fn runtime_versions(facts: &Facts) -> Outcome {
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

/// A list of the cluster that should be empty. Some lists are for an administrator to judge.
fn cluster(facts: &Facts, list: fn(&ClusterFacts) -> &Vec<String>, is_for_judgement: bool) -> Outcome {
    let Some(cluster) = &facts.cluster else { return manual("the cluster cannot be reached") };
    let found = list(cluster);
    match (found.is_empty(), is_for_judgement) {
        (true, _) => pass("none"),
        (false, true) => manual(found.join(", ")),
        (false, false) => fail(found.join(", ")),
    }
}
