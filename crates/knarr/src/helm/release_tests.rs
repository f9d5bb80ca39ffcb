//! Tests of the plan of a release.

use serde_json::json;

use super::super::access::Sources;
use std::collections::BTreeMap;

use super::*;

fn spec(value: Value) -> ChartSpec {
    serde_json::from_value(value).unwrap()
}

fn plan(chart: Value, config: Option<Value>, secrets: &[&str]) -> Result<Release, String> {
    let secret =
        |text: &&str| SecretValue { content: text.as_bytes().to_vec(), ignores_updates: text.starts_with('#') };
    let secrets = SecretValues { chart: secrets.iter().map(secret).collect(), config: Vec::new() };
    Release::plan(("kube-system", "web"), &spec(chart), config.map(spec).as_ref(), secrets, Access::default())
}

#[test]
fn a_chart_becomes_a_command() {
    let chart = json!({"chart": "nginx", "repo": "https://charts.example", "version": "1.2", "targetNamespace": "web",
        "createNamespace": true, "timeout": "2m30s", "valuesContent": "a: 1",
        "set": {"b": 2, "c": "x,y", "d": "true"}, "jobImage": "ignored", "backOffLimit": 3});
    let release = plan(chart, Some(json!({"valuesContent": "a: 2", "failurePolicy": "abort"})), &["s: 3"]).unwrap();
    assert_eq!(
        release.arguments.join(" "),
        "upgrade --install --namespace=web --timeout=150s --create-namespace --repo=https://charts.example \
         --version=1.2 --values=values-00.yaml --values=values-01.yaml --values=values-02.yaml --set=b=2 \
         --set-string=c=x\\,y --set=d=true -- web nginx"
    );
    let contents: Vec<&[u8]> = release.files.iter().map(|file| file.content.as_slice()).collect();
    assert_eq!(contents, [b"a: 1", b"s: 3", b"a: 2"], "the configuration comes last");
    assert_eq!(release.failure_policy, FailurePolicy::Abort);
    assert_eq!(Release::removal("web", "other").join(" "), "uninstall --ignore-not-found --namespace=other -- web");
}

#[test]
fn charts_come_from_elsewhere_or_are_within() {
    let content = STANDARD.encode("tar");
    for (chart, last) in [
        (json!({"chart": "oci://registry.example/app"}), Some("oci://registry.example/app")),
        (json!({"chart": "https://example/app.tgz"}), Some("https://example/app.tgz")),
        (json!({"chartContent": content}), Some("./chart.tgz")),
        (json!({"chart": "app"}), None),
        (json!({}), None),
        (json!({"chart": "/etc/app", "repo": "https://r"}), None),
        (json!({"chart": "../app", "repo": "https://r"}), None),
        (json!({"chart": "a/../../app", "repo": "https://r"}), None),
        (json!({"chart": "a", "repo": "https://r", "timeout": "18446744073709551615s"}), None),
        (json!({"chart": "a", "repo": "https://r", "timeout": "25h"}), None),
        (json!({"chart": "a", "repo": "https://r", "timeout": "24h"}), Some("a")),
        (json!({"chart": "--post-renderer=x", "repo": "https://r"}), None),
        (json!({"chart": "file:///etc", "repo": "https://r"}), None),
        (json!({"chartContent": "???"}), None),
        (json!({"chart": "a", "repo": "https://r", "failurePolicy": "pray"}), None),
        (json!({"chart": "a", "repo": "https://r", "timeout": "soon"}), None),
    ] {
        let planned = plan(chart.clone(), None, &[]);
        assert_eq!(planned.ok().and_then(|release| release.arguments.last().cloned()).as_deref(), last, "{chart}");
    }
}

/// The chart of an object named like a file of values is not one.
#[test]
fn the_name_of_an_object_is_no_file() {
    let chart = spec(json!({"chartContent": STANDARD.encode("tar"), "valuesContent": "a: 1"}));
    let release =
        Release::plan(("default", "values-99"), &chart, None, SecretValues::default(), Access::default()).unwrap();
    let values: Vec<&String> = release.arguments.iter().filter(|word| word.starts_with("--values")).collect();
    assert_eq!(values, ["--values=values-00.yaml"]);
}

#[test]
fn a_change_of_anything_changes_the_hash() {
    let base = json!({"chart": "a", "repo": "https://r"});
    let hash = |chart: &Value, secrets: &[&str]| plan(chart.clone(), None, secrets).unwrap().hash();
    let all = [
        hash(&base, &[]),
        hash(&base, &["x: 1"]),
        hash(&json!({"chart": "a", "repo": "https://r", "valuesContent": "x: 2"}), &[]),
        hash(&json!({"chart": "a", "repo": "https://r", "version": "2"}), &[]),
    ];
    for (index, one) in all.iter().enumerate() {
        assert!(!all[..index].contains(one));
    }
    assert_eq!(hash(&base, &[]), all[0]);
    assert_eq!(hash(&base, &["# 1"]).len(), all[0].len());
    let ignored = ["# 1", "# 2"].map(|text| hash(&base, &[text]));
    assert_eq!(ignored[0], ignored[1], "updates of this Secret are ignored");
}

/// Credentials are in files, and a new password upgrades nothing.
#[test]
fn a_repository_with_credentials_is_named_in_helms_list() {
    let chart = spec(json!({"chart": "web", "repo": "https://r", "repoCA": "CA", "version": "1"}));
    let plan = |password: &str| {
        let auth = BTreeMap::from([("username", "ann"), ("password", password)]);
        let auth = auth.into_iter().map(|(key, value)| (key.to_owned(), value.as_bytes().to_vec())).collect();
        let sources = Sources { auth: Some(auth), ..Sources::default() };
        let access = Access::plan(&chart, &sources).unwrap();
        Release::plan(("default", "web"), &chart, None, SecretValues::default(), access).unwrap()
    };
    let release = plan("hunter2-hunter2");
    assert_eq!(
        release.arguments.join(" "),
        "upgrade --install --namespace=default --timeout=300s --version=1 -- web repository/web"
    );
    assert_eq!(release.hash(), plan("another").hash());
    assert!(release.has_file("repositories.yaml") && release.has_file("ca.crt"));
}

#[test]
fn commas_that_are_escaped_stay_so() {
    for (text, expected) in [("a,b", "a\\,b"), ("a\\,b", "a\\,b"), ("a\\\\,b", "a\\\\\\,b"), ("a\\b", "a\\b")] {
        assert_eq!(escape_commas(text), expected);
    }
}

#[test]
fn settings_of_the_configuration_take_precedence() {
    let chart = json!({"chart": "a", "repo": "https://r", "serverSide": "false", "forceConflicts": true, "driver": "configmap"});
    let arguments = |config: Option<Value>| plan(chart.clone(), config, &[]).unwrap().arguments.join(" ");
    assert!(arguments(None).contains("--force-conflicts --server-side=false"));
    let changed = arguments(Some(json!({"serverSide": "true", "forceConflicts": false})));
    assert!(changed.contains("--server-side=true") && !changed.contains("--force-conflicts"), "{changed}");
}
