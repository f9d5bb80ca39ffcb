//! Impersonation that is allowed for some users, nodes or requests only.

use super::*;

/// Allows what its rules list: verb, group, resource (or path) and name, where `*` is any.
struct Rules(&'static [[&'static str; 4]]);

impl Authorizer for Rules {
    fn decide(&self, _user: &User, target: &Target) -> Decision {
        let resource = match (&*target.resource, &*target.subresource) {
            ("", _) => target.path.clone(),
            (resource, "") => resource.to_owned(),
            (resource, subresource) => format!("{resource}/{subresource}"),
        };
        let asked = [&*target.verb, &*target.group, &*resource, &*target.name];
        let covers = |rule: &[&str; 4]| rule.iter().zip(asked).all(|(rule, asked)| *rule == "*" || *rule == asked);
        if self.0.iter().any(covers) { Decision::Allow(String::new()) } else { Decision::NoOpinion(String::new()) }
    }
}

const AUTHENTICATION: &str = "authentication.k8s.io";
const MASTER: Rules = Rules(&[["*", "*", "*", "*"]]);
const NOBODY: Rules = Rules(&[]);
const LEGACY: Rules = Rules(&[["impersonate", "", "*", "*"], ["impersonate", AUTHENTICATION, "uids", "*"]]);
const INFO: Rules = Rules(&[
    ["impersonate:user-info", AUTHENTICATION, "users", "bob"],
    ["impersonate:user-info", AUTHENTICATION, "groups", "dev"],
    ["impersonate-on:user-info:list", "", "pods", "*"],
    ["impersonate-on:user-info:get", "", "/version", "*"],
]);
const ANY_INFO: Rules = Rules(&[
    ["impersonate:user-info", AUTHENTICATION, "users", "*"],
    ["impersonate:user-info", AUTHENTICATION, "groups", "*"],
    ["impersonate:user-info", AUTHENTICATION, "uids", "*"],
    ["impersonate-on:user-info:list", "*", "*", "*"],
]);
const NO_REQUEST: Rules = Rules(&[["impersonate:user-info", AUTHENTICATION, "*", "*"]]);
const ACCOUNTS: Rules = Rules(&[
    ["impersonate:serviceaccount", AUTHENTICATION, "serviceaccounts", "*"],
    ["impersonate-on:serviceaccount:list", "", "pods", "*"],
]);
const NODE: Rules = Rules(&[
    ["impersonate:arbitrary-node", AUTHENTICATION, "nodes", "n1"],
    ["impersonate-on:arbitrary-node:list", "", "pods", "*"],
]);
const AGENT: Rules = Rules(&[
    ["impersonate:associated-node", AUTHENTICATION, "nodes", "*"],
    ["impersonate-on:associated-node:list", "", "pods", "*"],
]);

fn path(path: &str) -> Target {
    Target { verb: "get".into(), path: path.into(), ..Target::default() }
}

/// The responses of Kubernetes v1.36 to the same requests in the same order, which matters: the mode by which a user last
/// succeeded is tried first. An outcome is the constraint and the groups, or the message of the refusal.
#[tokio::test]
async fn requests_are_allowed_and_refused_as_by_kubernetes() {
    const BOB: &str = "User: bob";
    const ACCOUNT: &str = "User: system:serviceaccount:ns:sa";
    let pods = || list("pods", "");
    let cases: Vec<(&str, &Rules, Target, &[&str], &str)> = vec![
        ("admin", &MASTER, pods(), &[BOB], "impersonate:user-info [system:authenticated]"),
        ("admin", &MASTER, pods(), &[BOB, "Group: system:masters"], " [system:masters, system:authenticated]"),
        ("admin", &MASTER, pods(), &["User: system:node:n1"], " [system:authenticated]"),
        (
            "admin",
            &MASTER,
            pods(),
            &[ACCOUNT],
            " [system:serviceaccounts, system:serviceaccounts:ns, system:authenticated]",
        ),
        ("admin", &MASTER, pods(), &[ACCOUNT, "Group: g"], " [g, system:authenticated]"),
        (
            "nobody",
            &NOBODY,
            pods(),
            &[BOB],
            r#"pods is forbidden: User "nobody" cannot impersonate-on:user-info:list resource "pods" in API group "" at the cluster scope"#,
        ),
        (
            "nobody",
            &NOBODY,
            pods(),
            &["User: system:node:n1"],
            r#"pods is forbidden: User "nobody" cannot impersonate-on:arbitrary-node:list resource "pods" in API group "" at the cluster scope"#,
        ),
        (
            "nobody",
            &NOBODY,
            pods(),
            &[ACCOUNT],
            r#"pods is forbidden: User "nobody" cannot impersonate-on:serviceaccount:list resource "pods" in API group "" at the cluster scope"#,
        ),
        (
            "nobody",
            &NOBODY,
            pods(),
            &["User: system:serviceaccount:Ns:sa"],
            r#"pods is forbidden: User "nobody" cannot impersonate-on:user-info:list resource "pods" in API group "" at the cluster scope"#,
        ),
        (
            "nobody",
            &NOBODY,
            pods(),
            &["Group: dev"],
            r#"requested &user.DefaultInfo{Name:"", UID:"", Groups:[]string{"dev"}, Extra:map[string][]string(nil)} without impersonating a user name"#,
        ),
        (
            "nobody",
            &NOBODY,
            path("/version"),
            &[BOB],
            r#"forbidden: User "nobody" cannot impersonate-on:user-info:get path "/version""#,
        ),
        ("legacy", &LEGACY, pods(), &[BOB], " [system:authenticated]"),
        ("legacy", &LEGACY, pods(), &[BOB, "Group: system:masters"], " [system:masters, system:authenticated]"),
        ("legacy", &LEGACY, pods(), &["User: system:node:n1"], " [system:authenticated]"),
        (
            "legacy",
            &LEGACY,
            pods(),
            &[BOB, "Uid: 7", "Extra-Key: v"],
            r#"userextras.authentication.k8s.io "v" is forbidden: User "legacy" cannot impersonate resource "userextras/key" in API group "authentication.k8s.io" at the cluster scope"#,
        ),
        ("info", &INFO, pods(), &[BOB], "impersonate:user-info [system:authenticated]"),
        ("info", &INFO, pods(), &[BOB, "Group: dev"], "impersonate:user-info [dev, system:authenticated]"),
        (
            "info",
            &INFO,
            pods(),
            &[BOB, "Group: ops"],
            r#"groups.authentication.k8s.io "ops" is forbidden: User "info" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope"#,
        ),
        (
            "info",
            &INFO,
            pods(),
            &["User: ann"],
            r#"users.authentication.k8s.io "ann" is forbidden: User "info" cannot impersonate:user-info resource "users" in API group "authentication.k8s.io" at the cluster scope"#,
        ),
        (
            "info",
            &INFO,
            list("nodes", ""),
            &[BOB],
            r#"nodes is forbidden: User "info" cannot impersonate-on:user-info:list resource "nodes" in API group "" at the cluster scope"#,
        ),
        ("info", &INFO, path("/version"), &[BOB], "impersonate:user-info [system:authenticated]"),
        (
            "info",
            &INFO,
            path("/livez"),
            &[BOB],
            r#"forbidden: User "info" cannot impersonate-on:user-info:get path "/livez""#,
        ),
        (
            "any-info",
            &ANY_INFO,
            pods(),
            &[BOB, "Group: system:masters"],
            r#"groups.authentication.k8s.io "system:masters" is forbidden: User "any-info" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope: impersonating the system:masters group is not allowed"#,
        ),
        (
            "any-info",
            &ANY_INFO,
            pods(),
            &[BOB, "Group: a", "Group: b", "Group: c", "Group: d"],
            "impersonate:user-info [a, b, c, d, system:authenticated]",
        ),
        (
            "info",
            &INFO,
            pods(),
            &[BOB, "Group: a", "Group: b", "Group: c", "Group: d"],
            r#"groups.authentication.k8s.io "a" is forbidden: User "info" cannot impersonate:user-info resource "groups" in API group "authentication.k8s.io" at the cluster scope"#,
        ),
        ("any-info", &ANY_INFO, pods(), &[BOB, "Uid: 7"], "impersonate:user-info [system:authenticated]"),
        (
            "any-info",
            &ANY_INFO,
            pods(),
            &[BOB, "Extra-Key: v"],
            r#"userextras.authentication.k8s.io is forbidden: User "any-info" cannot impersonate:user-info resource "userextras" in API group "authentication.k8s.io" at the cluster scope: impersonating an invalid key in extra is not allowed: extra.key: Invalid value: "key": must be a domain-prefixed path (such as "acme.io/foo")"#,
        ),
        (
            "any-info",
            &ANY_INFO,
            pods(),
            &[BOB, "Extra-A.io%2fkey: v"],
            r#"userextras.authentication.k8s.io "v" is forbidden: User "any-info" cannot impersonate:user-info resource "userextras/a.io/key" in API group "authentication.k8s.io" at the cluster scope"#,
        ),
        (
            "any-info",
            &ANY_INFO,
            pods(),
            &[BOB, "Extra-A.io%2fkey%41: v"],
            r#"userextras.authentication.k8s.io is forbidden: User "any-info" cannot impersonate:user-info resource "userextras" in API group "authentication.k8s.io" at the cluster scope: impersonating a non-lowercase key in extra is not allowed: "a.io/keyA""#,
        ),
        (
            "any-info",
            &ANY_INFO,
            pods(),
            &[BOB, "Extra-A.io%2fkey%zz: v"],
            r#"userextras.authentication.k8s.io is forbidden: User "any-info" cannot impersonate:user-info resource "userextras" in API group "authentication.k8s.io" at the cluster scope: impersonating an invalid key in extra is not allowed: extra.key: Invalid value: "a.io%2fkey%zz": must be a domain-prefixed path (such as "acme.io/foo")"#,
        ),
        (
            "any-info",
            &ANY_INFO,
            pods(),
            &[BOB, "Extra-A_b%2f%20: v"],
            r#"userextras.authentication.k8s.io is forbidden: User "any-info" cannot impersonate:user-info resource "userextras" in API group "authentication.k8s.io" at the cluster scope: impersonating an invalid key in extra is not allowed: [extra.key: Invalid value: "a_b": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*'), extra.key: Invalid value: " ": Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')]"#,
        ),
        (
            "any-info",
            &ANY_INFO,
            pods(),
            &[BOB, "Extra-A.io%2fkey: "],
            r#"userextras.authentication.k8s.io is forbidden: User "any-info" cannot impersonate:user-info resource "userextras" in API group "authentication.k8s.io" at the cluster scope: impersonating the empty string value in extra is not allowed"#,
        ),
        (
            "any-info",
            &ANY_INFO,
            pods(),
            &["User: system:node:n1"],
            r#"pods is forbidden: User "any-info" cannot impersonate-on:arbitrary-node:list resource "pods" in API group "" at the cluster scope"#,
        ),
        ("any-info", &ANY_INFO, pods(), &["User: system:node:N1"], "impersonate:user-info [system:authenticated]"),
        (
            "no-request",
            &NO_REQUEST,
            pods(),
            &[BOB],
            r#"pods is forbidden: User "no-request" cannot impersonate-on:user-info:list resource "pods" in API group "" at the cluster scope"#,
        ),
        (
            "accounts",
            &ACCOUNTS,
            pods(),
            &[ACCOUNT],
            "impersonate:serviceaccount [system:serviceaccounts, system:serviceaccounts:ns, system:authenticated]",
        ),
        (
            "accounts",
            &ACCOUNTS,
            pods(),
            &[ACCOUNT, "Uid: 1"],
            r#"serviceaccounts "sa" is forbidden: User "accounts" cannot impersonate resource "serviceaccounts" in API group "" in the namespace "ns""#,
        ),
        (
            "accounts",
            &ACCOUNTS,
            list("configmaps", "x"),
            &[ACCOUNT],
            r#"configmaps is forbidden: User "accounts" cannot impersonate-on:serviceaccount:list resource "configmaps" in API group "" in the namespace "x""#,
        ),
        (
            "node",
            &NODE,
            pods(),
            &["User: system:node:n1"],
            "impersonate:arbitrary-node [system:nodes, system:authenticated]",
        ),
        (
            "node",
            &NODE,
            pods(),
            &["User: system:node:n2"],
            r#"nodes.authentication.k8s.io "n2" is forbidden: User "node" cannot impersonate:arbitrary-node resource "nodes" in API group "authentication.k8s.io" at the cluster scope"#,
        ),
        (
            "node",
            &NODE,
            pods(),
            &["User: system:node:n1", "Group: system:nodes"],
            r#"users "system:node:n1" is forbidden: User "node" cannot impersonate resource "users" in API group "" at the cluster scope"#,
        ),
    ];
    let impersonation = Impersonation::default();
    for (user, rules, target, requested, expected) in cases {
        let pairs: Vec<(String, &str)> = requested
            .iter()
            .map(|header| header.split_once(": ").unwrap())
            .map(|(name, value)| (format!("Impersonate-{name}"), value))
            .collect();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(name, value)| (name.as_str(), *value)).collect();
        let user = User::named(user, &[]);
        let outcome = match impersonation.impersonate(&user, &headers(&pairs), &target, rules).await {
            Ok(Some(found)) => format!("{} [{}]", found.constraint, found.user.groups.join(", ")),
            Ok(None) => "nobody".to_owned(),
            Err(status) => status.message,
        };
        assert_eq!(outcome, expected, "{} {requested:?}", user.name);
    }
}

/// A service account is on the node that its token names, and impersonates no other by that rule.
#[tokio::test]
async fn service_accounts_impersonate_their_own_node() {
    let on = |nodes: &[&str], name: &str| {
        let mut user = User::named(name, &[]);
        let nodes = nodes.iter().map(|node| (*node).to_owned()).collect();
        user.extra.insert("authentication.kubernetes.io/node-name".to_owned(), nodes);
        user
    };
    const ACCOUNT: &str = "system:serviceaccount:ns:agent";
    for (case, user, wanted, allowed) in [
        ("its own", on(&["n1"], ACCOUNT), "system:node:n1", true),
        ("another", on(&["n1"], ACCOUNT), "system:node:n2", false),
        ("no node", User::named(ACCOUNT, &[]), "system:node:n1", false),
        ("two nodes", on(&["n1", "n2"], ACCOUNT), "system:node:n1", false),
        ("not a service account", on(&["n1"], "ann"), "system:node:n1", false),
    ] {
        let impersonation = Impersonation::default();
        let requested = headers(&[("Impersonate-User", wanted)]);
        let outcome = impersonation.impersonate(&user, &requested, &list("pods", ""), &AGENT).await;
        let expected = allowed.then_some("impersonate:associated-node");
        assert_eq!(outcome.ok().flatten().map(|found| found.constraint), expected, "{case}");
    }
}

/// Whoever may impersonate for some requests must not get a session, which is for all.
#[tokio::test]
async fn constrained_impersonation_leads_to_no_session() {
    const LINK: Rules = Rules(&[
        ["impersonate:user-info", AUTHENTICATION, "users", "*"],
        ["impersonate-on:user-info:post", "", "*", "*"],
    ]);
    let target = Target { verb: "post".into(), path: knarr_ui::LINK_PATH.into(), ..Target::default() };
    let requested = headers(&[("Impersonate-User", "bob")]);
    let impersonation = Impersonation::default();
    let ann = User::named("ann", &[]);
    let other = Target { path: "/other".into(), ..target.clone() };
    assert!(impersonation.impersonate(&ann, &requested, &other, &LINK).await.is_ok());
    let refused = impersonation.impersonate(&ann, &requested, &target, &LINK).await.unwrap_err();
    assert_eq!(
        refused.message,
        r#"users "bob" is forbidden: User "ann" cannot impersonate resource "users" in API group "" at the cluster scope"#
    );
    let allowed = impersonation.impersonate(&ann, &requested, &target, &LEGACY).await.unwrap().unwrap();
    assert_eq!(allowed.constraint, "");
}
