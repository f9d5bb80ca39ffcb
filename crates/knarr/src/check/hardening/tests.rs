use super::facts::{levels, providers};
use super::*;

/// A new server with default settings, as its files and its process are found.
fn fresh() -> Facts {
    let data = PathBuf::from("/var/lib/knarr");
    let file = |mode: u32| FileFacts { mode, uid: 0, gid: 0, is_directory: false };
    let directory = |mode: u32| FileFacts { is_directory: true, ..file(mode) };
    let files = [
        ("", directory(0o700)),
        ("store", directory(0o700)),
        ("store/000001.log", file(0o600)),
        ("pki", directory(0o700)),
        ("pki/ca.crt", file(0o600)),
        ("pki/ca.key", file(0o600)),
        ("pki/admin.crt", file(0o600)),
        ("pki/admin.key", file(0o600)),
        ("pki/kubelet-client.crt", file(0o600)),
        ("pki/service-account.key", file(0o600)),
        ("manifests", directory(0o755)),
        ("cni", directory(0o755)),
        ("kubelet", directory(0o700)),
    ];
    let mut files: BTreeMap<PathBuf, FileFacts> = files
        .into_iter()
        .map(|(name, facts)| (if name.is_empty() { data.clone() } else { data.join(name) }, facts))
        .collect();
    files.insert("/etc/knarr/kubeconfig.yaml".into(), file(0o600));
    Facts {
        certificate_groups: [
            (data.join("pki/admin.crt"), vec!["system:masters".to_owned()]),
            (data.join("pki/kubelet-client.crt"), Vec::new()),
        ]
        .into(),
        data,
        is_server: true,
        is_node: true,
        files,
        settings: [("audit-log-maxsize", "100"), ("healthz-port", "10248"), ("kubelet-insecure-tls", "false")]
            .map(|(name, value)| (name.to_owned(), vec![value.to_owned()]))
            .into(),
        listening: [(6443, true), (10250, true), (10248, false), (10249, false), (10256, true)].into(),
        containerd: Some(Version([2, 2, 1])),
        runc: Some(Version([1, 4, 1])),
        sysctls: [("kernel/panic", "10"), ("kernel/panic_on_oops", "1"), ("kernel/kptr_restrict", "1")]
            .map(|(name, value)| (name, value.to_owned()))
            .into(),
        core_limit: Some("0".to_owned()),
        cluster: Some(ClusterFacts::default()),
        ..Facts::default()
    }
}

fn state(facts: &Facts, id: &str) -> State {
    let all = evaluate(facts);
    all.iter().find(|one| one.control.id == id).unwrap_or_else(|| panic!("no control {id}")).outcome.state
}

/// What does not hold by default is named in the document with its reason, and nothing else is.
#[test]
fn the_document_names_what_does_not_hold_by_default() {
    let document = include_str!("../../../../../docs/hardening.md");
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
    let named: BTreeSet<&str> = rows.map(|(id, _)| id).collect();
    let evaluated = evaluate(&fresh());
    let failed: BTreeSet<&str> = failed(&evaluated, &[]).into_iter().collect();
    assert_eq!(named, failed);
}

#[test]
fn identifiers_are_unique_and_every_control_says_what_to_do() {
    let ids: BTreeSet<&str> = CONTROLS.iter().map(|control| control.id).collect();
    assert_eq!(ids.len(), CONTROLS.len());
    assert!(CONTROLS.iter().all(|control| !control.remedy.is_empty() && !control.title.is_empty()));
    let accepted = vec!["audit-log".to_owned()];
    let evaluated = evaluate(&fresh());
    assert!(failed(&evaluated, &[]).contains(&"audit-log") && !failed(&evaluated, &accepted).contains(&"audit-log"));
}

#[test]
fn every_change_for_the_worse_is_found() {
    type Change = fn(&mut Facts);
    let changes: [(&str, Change); 23] = [
        ("data-directory", |facts| set_mode(facts, "", 0o777)),
        ("store-files", |facts| set_mode(facts, "store/000001.log", 0o640)),
        ("certificate-directory", |facts| set_mode(facts, "pki", 0o755)),
        ("certificate-files", |facts| set_mode(facts, "pki/ca.crt", 0o664)),
        ("key-files", |facts| set_mode(facts, "pki/ca.key", 0o604)),
        ("key-files", |facts| facts.files.get_mut(&facts.data.join("pki/ca.key")).unwrap().uid = 1000),
        ("administrator-file", |facts| {
            facts.files.get_mut(Path::new("/etc/knarr/kubeconfig.yaml")).unwrap().mode = 0o644;
        }),
        ("manifests", |facts| set_mode(facts, "manifests", 0o775)),
        ("static-tokens", |facts| set(facts, "token-file", "/x")),
        ("kubelet-verification", |facts| set(facts, "kubelet-insecure-tls", "true")),
        ("component-groups", |facts| {
            facts.certificate_groups.insert("/var/lib/knarr/pki/x.crt".into(), vec!["system:masters".to_owned()]);
        }),
        ("component-ports", |facts| {
            facts.listening.insert(10257, false);
        }),
        ("store-encryption", |facts| set(facts, "datastore", "http://10.0.0.1:2379")),
        ("store-authentication", |facts| set(facts, "datastore", "https://10.0.0.1:2379")),
        ("read-only-port", |facts| {
            facts.listening.insert(10255, true);
        }),
        ("health-port", |facts| {
            facts.listening.insert(10248, true);
        }),
        ("log-queries", |facts| set(facts, "enable-system-log-query", "true")),
        ("kernel-settings", |facts| drop(facts.sysctls.insert("kernel/panic", "0".to_owned()))),
        ("core-dumps", |facts| facts.core_limit = Some("unlimited".to_owned())),
        ("authorization", |facts| set(facts, "authorization-mode", "Node,AlwaysAllow")),
        ("request-rate", |facts| set(facts, "enable-priority-and-fairness", "false")),
        ("admission-plugins", |facts| set(facts, "disable-admission-plugins", "PodSecurity")),
        ("anonymous-bindings", |facts| facts.cluster.as_mut().unwrap().anonymous_bindings.push("x".to_owned())),
    ];
    for (id, change) in changes {
        let mut facts = fresh();
        assert_eq!(state(&facts, id), State::Pass, "{id}");
        change(&mut facts);
        assert_eq!(state(&facts, id), State::Fail, "{id}");
    }
}

#[test]
fn settings_make_controls_hold() {
    let mut facts = fresh();
    set(&mut facts, "enable-admission-plugins", "DenyServiceExternalIPs,EventRateLimit,AlwaysPullImages");
    set(&mut facts, "anonymous-auth", "false");
    set(&mut facts, "audit-log-path", "/var/log/audit.log");
    set(&mut facts, "audit-policy-file", "/etc/knarr/audit.yaml");
    set(&mut facts, "encryption-provider-config", "/etc/knarr/encryption.yaml");
    set(&mut facts, "pod-max-pids", "4096");
    let private = FileFacts { mode: 0o600, uid: 0, gid: 0, is_directory: false };
    for path in ["/var/log/audit.log", "/etc/knarr/encryption.yaml"] {
        facts.files.insert(path.into(), private);
    }
    facts.audit_levels = levels("rules: [{level: None, users: [a]}, {level: Metadata}]");
    facts.encryption = providers(
        "resources:\n- resources: [configmaps]\n  providers: [{identity: {}}]\n- resources: [secrets]\n  \
         providers: [{aesgcm: {keys: []}}, {identity: {}}]\n",
    );
    for id in [
        "external-addresses",
        "event-rate",
        "image-pulls",
        "anonymous-requests",
        "audit-log",
        "audit-retention",
        "audit-policy",
        "audit-file",
        "encryption-at-rest",
        "encryption-provider",
        "encryption-file",
        "process-limit",
    ] {
        assert_eq!(state(&facts, id), State::Pass, "{id}");
    }
    facts.encryption = providers("resources: [{resources: [secrets], providers: [{identity: {}}, {aesgcm: {}}]}]");
    assert_eq!(state(&facts, "encryption-provider"), State::Fail);
    set(&mut facts, "audit-log-maxage", "7");
    assert_eq!(state(&facts, "audit-retention"), State::Fail);
    facts.files.get_mut(Path::new("/var/log/audit.log")).unwrap().mode = 0o644;
    assert_eq!(state(&facts, "audit-file"), State::Fail);
}

#[test]
fn an_agent_has_no_controls_of_servers() {
    let facts = Facts { is_server: false, cluster: None, ..fresh() };
    let all = evaluate(&facts);
    assert!(all.iter().all(|one| one.control.scope != Scope::Server));
    assert!(all.iter().any(|one| one.control.id == "read-only-port"));
    let rows = to_json(&all);
    assert_eq!(rows[0]["state"], "pass");
}

#[test]
fn unreachable_clusters_and_old_runtimes_are_for_the_administrator() {
    let facts = Facts { cluster: None, runc: Some(Version([1, 1, 5])), core_limit: None, ..fresh() };
    for id in ["administrators", "pod-security", "runtime-versions", "core-dumps"] {
        assert_eq!(state(&facts, id), State::Manual, "{id}");
    }
}

fn set(facts: &mut Facts, name: &str, value: &str) {
    facts.settings.insert(name.to_owned(), vec![value.to_owned()]);
}

fn set_mode(facts: &mut Facts, name: &str, mode: u32) {
    let path = if name.is_empty() { facts.data.clone() } else { facts.data.join(name) };
    facts.files.get_mut(&path).unwrap().mode = mode;
}
