use super::*;

const HEAD: &str = "kind: CredentialProviderConfig\napiVersion: kubelet.config.k8s.io/v1\n";
const GOOD: &str = "name: one\n  matchImages: ['*.r.io']\n  defaultCacheDuration: 12h\n  \
    apiVersion: credentialprovider.kubelet.k8s.io/v1\n";

fn read_text(text: &str) -> Result<Configuration, String> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("c.yaml");
    std::fs::write(&path, text).expect("written");
    read(&path).map_err(|error| error.to_string().replace(&path.display().to_string(), "c.yaml"))
}

#[test]
fn all_fields_are_read() {
    let text = format!(
        "{HEAD}providers:\n- {GOOD}  args: [--a]\n  env: [{{name: A, value: b}}]\n  tokenAttributes:\n    \
         serviceAccountTokenAudience: aud\n    cacheType: Token\n    requireServiceAccount: true\n    \
         requiredServiceAccountAnnotationKeys: [a/b]\n    optionalServiceAccountAnnotationKeys: [C]\n"
    );
    let expected = ProviderConfig {
        name: "one".into(),
        api_version: V1.into(),
        match_images: vec!["*.r.io".into()],
        default_cache: Duration::from_secs(12 * 3600),
        arguments: vec!["--a".into()],
        environment: vec![("A".into(), "b".into())],
        token: Some(TokenAttributes {
            audience: "aud".into(),
            require_account: true,
            cache_by_token: true,
            required_annotations: vec!["a/b".into()],
            optional_annotations: vec!["C".into()],
        }),
    };
    assert_eq!(read_text(&text).expect("valid").providers, [expected]);
}

#[test]
fn wrong_files_are_refused_as_kubernetes_refuses_them() {
    let invalid = "failed to validate credential provider config: ";
    let provider = |text: &str| format!("{HEAD}providers:\n- {text}");
    let token = |text: &str| provider(&format!("{GOOD}  tokenAttributes: {text}\n"));
    for (text, expected) in [
        (HEAD.to_owned(), format!("{invalid}providers: Required value: at least 1 item in plugins is required")),
        (
            "kind: Pod\napiVersion: v1\n".to_owned(),
            "error decoding config \"c.yaml\": no kind \"Pod\" is registered for version \"v1\"".to_owned(),
        ),
        (
            provider(&format!("{GOOD}  x: 1\n")),
            "error decoding config \"c.yaml\": strict decoding error: unknown field \"providers[0].x\"".to_owned(),
        ),
        (
            provider(&format!("{GOOD}- {GOOD}")),
            "duplicate provider name \"one\" found in configuration file(s)".to_owned(),
        ),
        (
            provider("name: a/b\n  matchImages: ['a b:x']\n"),
            format!(
                "{invalid}[providers.name: Invalid value: \"a/b\": provider name cannot contain '/', \
                 providers.apiVersion: Required value, providers.matchImages: Invalid value: \"a b:x\": match image is \
                 invalid: parse \"https://a b:x\": invalid character \" \" in host name, \
                 providers.defaultCacheDuration: Required value]"
            ),
        ),
        (
            provider(&GOOD.replace("12h", "-1s").replace("io/v1\n", "io/v2\n")),
            format!(
                "{invalid}[providers.apiVersion: Unsupported value: \"credentialprovider.kubelet.k8s.io/v2\": \
                 supported values: \"credentialprovider.kubelet.k8s.io/v1\", \
                 \"credentialprovider.kubelet.k8s.io/v1alpha1\", \"credentialprovider.kubelet.k8s.io/v1beta1\", \
                 providers.defaultCacheDuration: Invalid value: \"-1s\": must be greater than or equal to 0]"
            ),
        ),
        (
            token(
                "{requireServiceAccount: false, serviceAccountTokenAudience: a, cacheType: X, \
                requiredServiceAccountAnnotationKeys: [a, a], optionalServiceAccountAnnotationKeys: [a]}",
            ),
            format!(
                "{invalid}[providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Forbidden: \
                 requireServiceAccount cannot be false when requiredServiceAccountAnnotationKeys is set, \
                 providers.tokenAttributes.requiredServiceAccountAnnotationKeys: Duplicate value: \"a\", \
                 providers.tokenAttributes: Invalid value: [\"a\"]: annotation keys cannot be both required and \
                 optional, providers.tokenAttributes.cacheType: Unsupported value: \"X\": supported values: \
                 \"ServiceAccount\", \"Token\"]"
            ),
        ),
    ] {
        assert_eq!(read_text(&text).expect_err(&text), expected);
    }
}

#[test]
fn the_files_of_a_directory_are_merged_by_name() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = |path: &Path| read(path).expect_err("refused").to_string();
    let path = directory.path();
    assert_eq!(error(path), format!("no configuration files found in directory {path:?}"));
    let missing = path.join("none");
    let shown = missing.display();
    assert_eq!(error(&missing), format!("unable to access path {missing:?}: stat {shown}: no such file or directory"));
    for (name, provider) in [("b.yml", "two"), ("a.json", "one"), ("c.txt", "three")] {
        let text = format!("{HEAD}providers:\n- {}", GOOD.replace("one", provider));
        let text: Value = serde_yaml_ng::from_str(&text).expect("YAML");
        std::fs::write(path.join(name), text.to_string()).expect("written");
    }
    let found = read(path).expect("valid");
    let names: Vec<&str> = found.providers.iter().map(|provider| provider.name.as_str()).collect();
    assert_eq!(names, ["one", "two"]);
    assert!(found.hash.starts_with("sha256:") && found.hash.len() == 71, "{}", found.hash);
}
