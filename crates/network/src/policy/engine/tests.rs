use super::costs::MAX_COST;
use super::*;
use crate::policy::member::NamedPort;
use serde_json::{Value, json};

fn member(namespace: &str, app: &str, address: &str, is_local: bool) -> PolicyPod {
    PolicyPod {
        namespace: namespace.into(),
        labels: [("app".to_owned(), app.to_owned())].into(),
        addresses: vec![address.parse().unwrap()],
        named_ports: vec![NamedPort { name: "web".into(), protocol: Protocol::Tcp, number: 8080 }],
        is_local,
    }
}

fn policy(spec: Value) -> CompiledPolicy {
    let policy = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec});
    CompiledPolicy::of(&serde_json::from_value(policy).unwrap())
}

/// The IPv4 lines of a transaction, without hashes.
fn changes(engine: &mut Engine) -> Vec<String> {
    let text = engine.transaction();
    engine.installed();
    let lines = text.lines().filter(|line| line.contains(" ip knarr-policy "));
    lines.map(|line| without_hashes(&line.replace(" ip knarr-policy", ""))).collect()
}

fn without_hashes(line: &str) -> String {
    let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
    for word in &mut words {
        if let Some((before, hash)) = word.rsplit_once('-')
            && hash.len() == 32
        {
            *word = before.to_owned();
        }
    }
    words.join(" ")
}

#[test]
fn a_change_writes_only_itself() {
    let mut engine = Engine::default();
    engine.set_namespace("n", Some(Labels::default()));
    engine.set_pod("n/server", Some(member("n", "server", "10.0.0.1", true)));
    engine.set_pod("n/client", Some(member("n", "client", "10.0.0.2", false)));
    let about_pods: Vec<String> = changes(&mut engine).into_iter().filter(|line| line.contains("10.0.0")).collect();
    assert_eq!(about_pods, ["add element known { 10.0.0.1 }"], "no policy, nothing but that a pod is known");
    let spec = json!({"podSelector": {"matchLabels": {"app": "server"}}, "ingress": [
        {"from": [{"podSelector": {"matchLabels": {"app": "client"}}}], "ports": [{"port": "web"}, {"port": 80}, {"port": 81, "endPort": 90}]}]});
    engine.set_policy("n/p", Some(policy(spec)));
    assert_eq!(
        changes(&mut engine),
        [
            "add set pods { type ipv4_addr ; }",
            "add set port { type ipv4_addr . inet_service ; }",
            "add chain all-in",
            "add chain policy-in",
            "add rule all-in jump policy-in",
            "add rule all-in drop",
            "add rule policy-in ip saddr @pods meta l4proto tcp ip daddr . th dport @port accept",
            "add rule policy-in ip saddr @pods tcp dport { 80-90 } accept",
            "add element ingress { 10.0.0.1 : goto all-in }",
            "add element itself { 10.0.0.1 . 10.0.0.1 }",
            "add element pods { 10.0.0.2 }",
            "add element port { 10.0.0.1 . 8080, 10.0.0.2 . 8080 }",
        ]
    );
    engine.set_pod("n/client-2", Some(member("n", "client", "10.0.0.3", false)));
    assert_eq!(
        changes(&mut engine),
        ["add element pods { 10.0.0.3 }", "add element port { 10.0.0.3 . 8080 }"],
        "one more client"
    );
    engine.set_pod("n/client", None);
    engine.set_pod("n/client-2", None);
    assert_eq!(
        changes(&mut engine),
        ["delete element pods { 10.0.0.2, 10.0.0.3 }", "delete element port { 10.0.0.2 . 8080, 10.0.0.3 . 8080 }"]
    );
    engine.set_policy("n/p", None);
    assert_eq!(
        changes(&mut engine),
        [
            "delete element ingress { 10.0.0.1 }",
            "delete element itself { 10.0.0.1 . 10.0.0.1 }",
            "flush chain all-in",
            "flush chain policy-in",
            "delete chain all-in",
            "delete chain policy-in",
            "delete set pods",
            "delete set port",
        ]
    );
}

#[test]
fn namespaces_add_and_remove_their_pods() {
    let mut engine = Engine::default();
    let spec = json!({"podSelector": {}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"namespaceSelector": {"matchLabels": {"team": "x"}}}]}]});
    engine.set_policy("n/p", Some(policy(spec)));
    engine.set_pod("m/db", Some(member("m", "db", "10.0.0.5", false)));
    changes(&mut engine);
    engine.set_namespace("m", Some([("team".to_owned(), "x".to_owned())].into()));
    assert_eq!(changes(&mut engine), ["add element pods { 10.0.0.5 }"]);
    engine.set_namespace("m", Some(Labels::default()));
    assert_eq!(changes(&mut engine), ["delete element pods { 10.0.0.5 }"]);
}

/// The product of peers and ports of one policy would be ten billion rules.
#[test]
fn rules_grow_with_a_policy_and_not_with_its_square() {
    let spec = |count: usize| {
        let peers: Vec<Value> = (0..count)
            .map(|number| json!({"ipBlock": {"cidr": format!("10.{}.{}.0/24", number / 250, number % 250)}}))
            .collect();
        let ports: Vec<Value> = (0..count).map(|number| json!({"port": format!("p{number}")})).collect();
        json!({"podSelector": {}, "ingress": [{"from": peers, "ports": ports}]})
    };
    let mut engine = Engine::default();
    engine.set_pod("n/server", Some(member("n", "server", "10.0.0.1", true)));
    changes(&mut engine);
    engine.set_policy("n/p", Some(policy(spec(2))));
    let rules =
        |lines: &[String]| lines.iter().filter(|line| line.starts_with("add rule policy")).cloned().collect::<Vec<_>>();
    let inner = "policy-in-HASH-0".replace("-HASH", "");
    let lines: Vec<String> = rules(&changes(&mut engine)).iter().map(|line| without_numbers(line)).collect();
    assert_eq!(
        lines,
        [
            format!("add rule policy-in ip saddr 10.0.0.0/24 jump {inner}"),
            format!("add rule policy-in ip saddr 10.0.1.0/24 jump {inner}"),
            format!("add rule {inner} meta l4proto tcp ip daddr . th dport @port accept"),
            format!("add rule {inner} meta l4proto tcp ip daddr . th dport @port accept"),
        ]
    );
    engine.set_policy("n/p", Some(policy(spec(10_000))));
    assert_eq!(rules(&changes(&mut engine)).len(), 20_000);
    engine.set_policy("n/p", Some(policy(spec(1))));
    assert!(
        changes(&mut engine).iter().any(|line| line.starts_with("delete chain policy-in")),
        "the inner chain is gone"
    );
}

/// Removes the hash before the number of an inner chain, too.
fn without_numbers(line: &str) -> String {
    let words = line.split(' ').map(|word| match word.rsplit_once("-0") {
        Some((before, "")) => format!("{}-0", without_hashes(before)),
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn selectors_of_all_pods(prefix: &str, count: usize, namespaces: &Value) -> Value {
    let peers = (0..count).map(|number| {
        json!({"namespaceSelector": namespaces, "podSelector": {"matchExpressions": [
            {"key": format!("{prefix}{number}"), "operator": "DoesNotExist"}]}})
    });
    json!({"podSelector": {}, "ingress": [{"from": peers.collect::<Vec<_>>()}]})
}

fn sum_of_sizes(engine: &Engine) -> usize {
    engine.groups.keys().map(|set| size(&engine.tables, set)).sum()
}

/// Selectors that differ and all match the whole cluster fill the memory of every node.
#[test]
fn selectors_of_one_namespace_do_not_fill_memory() {
    let mut engine = Engine::default();
    engine.set_namespace("n", Some(Labels::default()));
    for number in 0..2_000 {
        let address = format!("10.1.{}.{}", number / 250, number % 250);
        engine.set_pod(&format!("n/p{number}"), Some(member("n", "web", &address, false)));
    }
    let spec = |prefix: &str, count| selectors_of_all_pods(prefix, count, &json!({}));
    engine.set_policy("n/first", Some(policy(spec("a", 5))));
    assert_eq!((engine.groups.len(), sum_of_sizes(&engine)), (5, 10_000));
    engine.set_policy("n/second", Some(policy(spec("b", 5_000))));
    engine.set_policy("n/third", Some(policy(spec("c", 5_000))));
    assert!(sum_of_sizes(&engine) <= MAX_COST, "{}", sum_of_sizes(&engine));
    let other = json!({"metadata": {"name": "p", "namespace": "m"}, "spec": spec("d", 5)});
    engine.set_policy("m/p", Some(CompiledPolicy::of(&serde_json::from_value(other).unwrap())));
    assert!(sum_of_sizes(&engine) > 10_000);
    assert_eq!(groups_of(&engine.policies["m/p"]).count(), 5);
    // What is gone makes room, and nothing stays of it.
    for key in ["n/first", "n/second", "n/third", "m/p"] {
        engine.set_policy(key, None);
    }
    assert!(engine.groups.is_empty() && engine.costs.of("n") == 0);
}

/// The cost of policies is not known when they are written: the pods may come, or get a namespace with labels, later.
#[test]
fn pods_that_come_after_policies_do_not_fill_memory() {
    const SELECTORS: usize = 400;
    const PODS: usize = 500;
    let team: Labels = [("team".to_owned(), "x".to_owned())].into();
    for comes_last in ["pods", "labels"] {
        let mut engine = Engine::default();
        let labels = |engine: &mut Engine| engine.set_namespace("m", Some(team.clone()));
        let pods = |engine: &mut Engine, are_there: bool| {
            for number in 0..PODS {
                let address = format!("10.1.{}.{}", number / 250, number % 250);
                let pod = member("m", "web", &address, false);
                engine.set_pod(&format!("m/p{number}"), are_there.then_some(pod));
                assert!(engine.costs.of("n") <= MAX_COST);
            }
        };
        let spec = |prefix: &str| selectors_of_all_pods(prefix, SELECTORS / 2, &json!({"matchLabels": {"team": "x"}}));
        engine.set_pod("n/server", Some(member("n", "server", "10.0.0.1", true)));
        engine.set_policy("n/first", Some(policy(spec("a"))));
        engine.set_policy("n/second", Some(policy(spec("b"))));
        let few =
            json!({"metadata": {"name": "p", "namespace": "o"}, "spec": selectors_of_all_pods("a", 2, &json!({}))});
        engine.set_policy("o/few", Some(CompiledPolicy::of(&serde_json::from_value(few).unwrap())));
        assert_eq!(engine.groups.len(), SELECTORS + 2);
        if comes_last == "pods" {
            labels(&mut engine);
            pods(&mut engine, true);
        } else {
            pods(&mut engine, true);
            labels(&mut engine);
        }
        let of = |engine: &Engine, key: &str| groups_of(&engine.policies[key]).count();
        // A set costs 256, too.
        assert_eq!(
            (of(&engine, "n/first"), of(&engine, "n/second")),
            (SELECTORS / 2, MAX_COST / (PODS + 256) - SELECTORS / 2),
            "{comes_last}"
        );
        assert_eq!(engine.costs.of("n"), (PODS + 256) * (MAX_COST / (PODS + 256)), "what is kept has all pods");
        assert_eq!((of(&engine, "o/few"), engine.costs.of("o")), (2, 2 * (PODS + 256)), "of another namespace");
        assert!(sum_of_sizes(&engine) <= MAX_COST);
        // When the pods are gone, the next change of a policy brings all of it back.
        pods(&mut engine, false);
        assert_eq!(sum_of_sizes(&engine), 0);
        engine.set_policy("n/second", Some(policy(spec("b"))));
        assert_eq!(of(&engine, "n/second"), SELECTORS / 2);
        for key in ["n/first", "n/second", "o/few"] {
            engine.set_policy(key, None);
        }
        assert!(engine.groups.is_empty() && engine.costs.of("n") + engine.costs.of("o") == 0);
    }
}
