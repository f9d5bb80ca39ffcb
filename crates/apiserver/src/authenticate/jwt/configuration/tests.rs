//! Tests of the configuration: messages and limits.

use super::*;

fn parse(issuer: &str) -> Result<Configuration, String> {
    let text = format!("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- {issuer}\n");
    Configuration::parse(&text, &["https://own".to_owned()]).map_err(|error| error.to_string())
}

/// The messages are those of kube-apiserver v1.36.
#[test]
fn invalid_issuers_are_refused() {
    let good = "{issuer: {url: 'https://a', audiences: [x]}, claimMappings: {username: {claim: sub, prefix: ''}}}";
    assert!(parse(good).is_ok());
    for (from, to, refused) in [
        ("https://a", "http://a", "jwt[0].issuer.url: Invalid value: \"http://a\": URL scheme must be https"),
        (
            "https://a",
            "https://u:p@a",
            "jwt[0].issuer.url: Invalid value: \"https://u:p@a\": URL must not contain a username or password",
        ),
        (
            "https://a",
            "https://a?b=c",
            "jwt[0].issuer.url: Invalid value: \"https://a?b=c\": URL must not contain a query",
        ),
        (
            "https://a",
            "https://a#b",
            "jwt[0].issuer.url: Invalid value: \"https://a#b\": URL must not contain a fragment",
        ),
        (
            "https://a",
            "https://own",
            "jwt[0].issuer.url: Invalid value: \"https://own\": URL must not overlap with disallowed issuers: \
             [https://own]",
        ),
        (
            "audiences: [x]",
            "audiences: []",
            "jwt[0].issuer.audiences: Required value: at least one jwt[0].issuer.audiences is required",
        ),
        (
            "audiences: [x]",
            "audiences: [x, z]",
            "jwt[0].issuer.audienceMatchPolicy: Invalid value: \"\": audienceMatchPolicy must be MatchAny for \
             multiple audiences",
        ),
        (
            "audiences: [x]",
            "audiences: [x], certificateAuthority: nonsense",
            "jwt[0].issuer.certificateAuthority: Invalid value: \"<omitted>\": data does not contain any valid RSA \
             or ECDSA certificates",
        ),
        (
            ", prefix: ''",
            "",
            "jwt[0].claimMappings.username.prefix: Required value: prefix is required when claim is set. It can be \
             set to an empty string to disable prefixing",
        ),
        (
            "claim: sub, prefix: ''",
            "expression: claims.email",
            "jwt[0].claimMappings.username.expression: Invalid value: \"claims.email\": claims.email_verified must \
             be used in claimMappings.username.expression or claimMappings.extra[*].valueExpression or \
             claimValidationRules[*].expression when claims.email is used in claimMappings.username.expression",
        ),
        (
            "prefix: ''}",
            "prefix: ''}, extra: [{key: a.kubernetes.io/x, valueExpression: '1'}]",
            "jwt[0].claimMappings.extra[0].key: Invalid value: \"a.kubernetes.io/x\": k8s.io, kubernetes.io and \
             their subdomains are reserved for Kubernetes use",
        ),
        (
            "prefix: ''}}",
            "prefix: ''}}, userValidationRules: [{expression: user.username}]",
            "jwt[0].userValidationRules[0].expression: Invalid value: \"user.username\": must evaluate to bool",
        ),
        (
            "prefix: ''}}",
            "prefix: ''}}, claimValidationRules: [{claim: a, expression: b}, {}]",
            "[jwt[0].claimValidationRules[0]: Invalid value: \"a\": claim and expression can't both be set, \
             jwt[0].claimValidationRules[1]: Required value: claim or expression is required]",
        ),
    ] {
        let refusal = parse(&good.replace(from, to)).unwrap_err();
        assert_eq!(refusal, format!("invalid authentication configuration: {refused}"), "{to}");
    }
    let unknown = parse(&good.replace("audiences", "audience")).unwrap_err();
    assert_eq!(unknown, "strict decoding error: unknown field \"jwt[0].issuer.audience\"");
    let broken = parse(&good.replace("claim: sub, prefix: ''", "expression: 'claims.'")).unwrap_err();
    assert!(broken.contains("compilation failed: ERROR: <input>:1:"), "{broken}");
}

#[test]
fn requests_are_anonymous_where_the_configuration_says() {
    let anonymous = |text: &str| {
        let head = "apiVersion: apiserver.config.k8s.io/v1beta1\nkind: AuthenticationConfiguration\n";
        Configuration::parse(&format!("{head}{text}"), &[]).map(|configuration| configuration.anonymous)
    };
    assert_eq!(anonymous(""), Ok(None));
    assert_eq!(anonymous("anonymous: {enabled: false}"), Ok(Some(Anonymous::Never)));
    assert_eq!(anonymous("anonymous: {enabled: true}"), Ok(Some(Anonymous::Everywhere)));
    let some = anonymous("anonymous: {enabled: true, conditions: [{path: /livez}]}").unwrap().unwrap();
    assert!(some.allows("/livez") && !some.allows("/livez/x") && !some.allows("/api"));
    let refused = anonymous("anonymous: {enabled: false, conditions: [{path: /livez}]}").unwrap_err().to_string();
    assert_eq!(
        refused,
        "invalid authentication configuration: anonymous.conditions: Invalid value: [{\"Path\":\"/livez\"}]: enabled \
         should be set to true when conditions are defined"
    );
}

#[test]
fn issuers_are_unique_and_not_too_many() {
    let one = "{issuer: {url: 'https://a', audiences: [x]}, claimMappings: {username: {claim: sub, prefix: ''}}}";
    let twice = parse(&format!("{one}\n- {one}")).unwrap_err();
    assert!(twice.contains("jwt[1].issuer.url: Duplicate value: \"https://a\""), "{twice}");
    let many = parse(&vec![one; 65].join("\n- ")).unwrap_err();
    assert!(many.contains("jwt: Too many: 65: must have at most 64 items"), "{many}");
}
