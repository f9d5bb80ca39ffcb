//! The table of controls.

use std::path::Path;

use super::evaluate::{
    admission_plugins, audit_policy, audit_retention, authorization, closed, cluster, component_groups,
    encryption_provider, etcd_tls, external_store, files, has_extension, if_set, is_in_pki, is_listed, is_setting,
    kernel_settings, own_certificate, own_key, plugin, runtime_versions, setting_file, unless_set,
};
use super::{Control, Facts, Scope, fail, manual, pass};

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
