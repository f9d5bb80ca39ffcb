use super::*;
use clap::Parser;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    access: AccessArguments,
}

fn parse(flags: &[&str]) -> AccessArguments {
    Line::try_parse_from(["knarr"].iter().chain(flags)).map(|line| line.access).unwrap()
}

fn refused(flags: &[&str]) -> String {
    format!("{:#}", settings(&parse(flags)).err().expect("the flags are accepted"))
}

/// The messages are those of kube-apiserver v1.36.
#[tokio::test]
async fn flags_that_contradict_each_other_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: ";
    let authentication = write("n", &format!("{head}AuthenticationConfiguration\nanonymous: {{enabled: true}}\n"));
    let authorization =
        write("z", &format!("{head}AuthorizationConfiguration\nauthorizers: [{{type: RBAC, name: rbac}}]\n"));
    assert!(settings(&parse(&[])).is_ok());
    assert!(settings(&parse(&["--authentication-config", &authentication])).is_ok());
    assert!(settings(&parse(&["--authorization-config", &authorization])).is_ok());
    for (flags, message) in [
        (
            vec!["--oidc-client-id", "a"],
            "oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set",
        ),
        (
            vec!["--authentication-config", &authentication, "--oidc-client-id", "a"],
            "authentication-config file and oidc-* flags are mutually exclusive",
        ),
        (
            vec!["--authentication-config", &authentication, "--anonymous-auth=false"],
            "anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in \
             authentication configuration file",
        ),
        (
            vec!["--authorization-config", &authorization, "--authorization-mode", "RBAC"],
            "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags \
             are defined",
        ),
        (vec!["--authorization-mode", "RBAC,Foo"], "authorization-mode \"Foo\" is not a valid mode"),
        (
            vec!["--oidc-issuer-url", "http://a", "--oidc-client-id", "b"],
            "invalid authentication configuration: jwt[0].issuer.url: Invalid value: \"http://a\": URL scheme must be \
             https",
        ),
    ] {
        assert_eq!(refused(&flags), message);
    }
}

#[test]
fn issuers_and_lifetimes_of_tokens_are_checked() {
    let directory = tempfile::tempdir().unwrap();
    let pki = Pki::open(directory.path(), Default::default(), jiff::Timestamp::now()).unwrap();
    let tokens = |flags: &[&str]| service_accounts(&parse(flags), &pki);
    let two = tokens(&["--service-account-issuer", "https://a", "--service-account-issuer", "https://b"]).unwrap();
    assert_eq!((two.issuer(), two.api_audiences().join(" ").as_str()), ("https://a", "https://a https://b"));
    assert_eq!(tokens(&["--api-audiences", "x,y"]).unwrap().api_audiences(), ["x", "y"]);
    for (flags, message) in [
        (
            &["--service-account-issuer", "a", "--service-account-issuer", "a"][..],
            "service-account-issuer \"a\" is already specified",
        ),
        (
            &["--service-account-jwks-uri", "http://a"],
            "service-account-jwks-uri requires https scheme, parsed as: http://a",
        ),
        (
            &["--service-account-max-token-expiration", "10m"],
            "the service-account-max-token-expiration must be between 1 hour and 2^32 seconds",
        ),
    ] {
        assert_eq!(tokens(flags).err().unwrap().to_string(), message);
    }
}
