use super::*;

fn parse(authorizers: &str) -> Result<Configuration, String> {
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\n";
    Configuration::parse(&format!("{head}authorizers: {authorizers}\n"), None).map_err(|error| error.to_string())
}

/// The messages are those of kube-apiserver v1.36.
#[test]
fn invalid_chains_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("k").display().to_string();
    std::fs::write(&file, "").unwrap();
    let webhook = format!(
        "{{type: Webhook, name: w, webhook: {{timeout: 3s, subjectAccessReviewVersion: v1, failurePolicy: Deny, \
         connectionInfo: {{type: KubeConfigFile, kubeConfigFile: '{file}'}}}}}}"
    );
    let chain = parse(&format!("[{{type: Node, name: node}}, {webhook}]")).unwrap();
    let [Authority::Node, Authority::Webhook(read)] = chain.authorizers() else { panic!("{chain:?}") };
    assert_eq!((read.authorized_ttl, read.unauthorized_ttl), (Duration::from_secs(300), Duration::from_secs(30)));
    assert!(read.denies_on_failure);
    for (text, refused) in [
        ("[]".to_owned(), "authorizers: Required value: at least one authorization mode must be defined"),
        ("[{name: a}]".to_owned(), "authorizers[0].type: Required value"),
        (
            "[{type: Foo, name: a}]".to_owned(),
            "authorizers[0].type: Unsupported value: \"Foo\": supported values: \"ABAC\", \"AlwaysAllow\", \
             \"AlwaysDeny\", \"Node\", \"RBAC\", \"Webhook\"",
        ),
        (
            "[{type: RBAC, name: a}, {type: RBAC, name: b}]".to_owned(),
            "authorizers[1].type: Duplicate value: \"RBAC\"",
        ),
        (
            "[{type: RBAC, name: a}, {type: Node, name: a}]".to_owned(),
            "authorizers[1].name: Duplicate value: \"a\"",
        ),
        ("[{type: Webhook, name: a}]".to_owned(), "authorizers[0].webhook: Required value: required when type=Webhook"),
        (
            format!("[{}]", webhook.replace("3s", "31s")),
            "authorizers[0].timeout: Invalid value: \"31s\": must be > 0s and <= 30s",
        ),
        (
            format!("[{}]", webhook.replace("Deny", "Allow")),
            "authorizers[0].failurePolicy: Unsupported value: \"Allow\": supported values: \"NoOpinion\", \"Deny\"",
        ),
        (
            format!("[{}]", webhook.replace(&file, "relative")),
            "authorizers[0].connectionInfo.kubeConfigFile: Invalid value: \"relative\": must be an absolute path",
        ),
        (
            format!(
                "[{}]",
                webhook.replace(
                    "timeout",
                    "matchConditionSubjectAccessReviewVersion: v1, matchConditions: [{expression: request.user}], timeout"
                )
            ),
            "authorizers[0].matchConditions[0].expression: Invalid value: \"request.user\": must evaluate to bool but \
             got string",
        ),
    ] {
        assert_eq!(parse(&text).unwrap_err(), refused, "{text}");
    }
}

#[test]
fn flags_describe_a_chain() {
    let of = |modes: &[&str], policy: Option<&str>, webhook: Option<&str>| {
        let flags = AuthorizationFlags {
            modes: modes.iter().map(|mode| (*mode).to_owned()).collect(),
            policy_file: policy.map(PathBuf::from),
            webhook_config_file: webhook.map(PathBuf::from),
            ..Default::default()
        };
        Configuration::of_flags(&flags).map(|chain| chain.0.len()).map_err(|error| error.to_string())
    };
    assert_eq!(of(&[], None, None), Ok(2), "Node and RBAC");
    assert_eq!(of(&["Node", "RBAC", "Webhook", "ABAC"], Some("p"), Some("w")), Ok(4));
    for (refused, message) in [
        (of(&["Foo"], None, None), "authorization-mode \"Foo\" is not a valid mode"),
        (of(&["ABAC"], None, None), "authorization-mode ABAC's authorization policy file not passed"),
        (of(&["Webhook"], None, None), "authorization-mode Webhook's authorization config file not passed"),
        (of(&["RBAC"], Some("p"), None), "cannot specify --authorization-policy-file without mode ABAC"),
        (of(&["RBAC"], None, Some("w")), "cannot specify --authorization-webhook-config-file without mode Webhook"),
        (of(&["RBAC", "RBAC"], None, None), "authorization-mode [\"RBAC\" \"RBAC\"] has mode specified more than once"),
    ] {
        assert_eq!(refused, Err(message.to_owned()));
    }
}
