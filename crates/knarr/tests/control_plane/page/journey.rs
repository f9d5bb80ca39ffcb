//! Journeys as they happen, and who may see them.

use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

use super::{link, link_of};
use crate::support::browser::Browser;
use crate::support::hollow::HollowNodes;
use crate::support::{ControlPlane, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn a_journey_grows_while_the_page_is_open() {
    let plane = ControlPlane::server();
    let _nodes = HollowNodes::start(plane.client().await, 1).await;
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments).expect("kubectl succeeds");
    let mut browser = Browser::start().await;
    browser.open(&link(&plane)).await;
    browser.until("document.querySelector('#nav a')").await;
    // It is open before the object exists.
    browser.go("object/deployments.apps/default/web/journey").await;
    browser.shows("Waiting for the first step").await;
    browser.evaluate("window.isSamePage = true").await;
    kubectl(&["create", "deployment", "web", "--image=example/web"]);
    browser.shows("bound to hollow-0").await;
    browser.shows("Creation: ready").await;
    let steps = "document.querySelectorAll('.timeline .when').length";
    let before = browser.evaluate(steps).await.as_u64().expect("a number");
    kubectl(&["scale", "deployment", "web", "--replicas=2"]);
    browser.until(&format!("{steps} > {before}")).await;
    browser.shows("scale stored by kubectl").await;
    kubectl(&["delete", "deployment", "web"]);
    browser.shows("Deletion").await;
    browser.shows("removed from the store by kubectl").await;
    assert_eq!(browser.evaluate("window.isSamePage").await, json!(true), "nothing was loaded again");
    assert_eq!(browser.errors, Vec::<String>::new());
}

/// Requests as a service account.
struct Account<'a> {
    plane: &'a ControlPlane,
    server: String,
    token: String,
}

impl Account<'_> {
    fn curl(&self, path: &str) -> Command {
        let mut command = Command::new("curl");
        command.args([
            "-skN",
            "-H",
            &format!("Authorization: Bearer {}", self.token),
            &format!("{}{path}", self.server),
        ]);
        command
    }

    /// The code and the body of a response.
    fn get(&self, path: &str) -> (String, String) {
        let output = self.curl(path).args(["-w", "\n%{http_code}"]).output().expect("curl is installed");
        let text = String::from_utf8(output.stdout).expect("text");
        let (body, code) = text.rsplit_once('\n').expect("a code");
        (code.to_owned(), body.to_owned())
    }

    fn kubeconfig(&self) -> std::path::PathBuf {
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "account",
            "clusters": [{"name": "c", "cluster": {"server": self.server, "insecure-skip-tls-verify": true}}],
            "users": [{"name": "u", "user": {"token": self.token}}],
            "contexts": [{"name": "account", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
        });
        let path = self.plane.data().join("account.yaml");
        std::fs::write(&path, text.to_string()).expect("a file");
        path
    }
}

/// A response that does not end, in a file; it ends on drop.
struct Stream(Child, std::path::PathBuf);

impl Stream {
    fn start(account: &Account<'_>, path: &str, file: &str) -> Stream {
        let file = account.plane.data().join(file);
        let output = std::fs::File::create(&file).expect("a file");
        let child = account.curl(path).stdout(output).stderr(Stdio::null()).spawn().expect("curl is installed");
        Stream(child, file)
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.1).expect("a file")
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A user who may read the pods and Deployments of one namespace sees their journeys and no others.
#[tokio::test(flavor = "multi_thread")]
async fn users_see_journeys_of_what_they_may_get() {
    let plane = ControlPlane::server();
    let _nodes = HollowNodes::start(plane.client().await, 1).await;
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments).expect("kubectl succeeds");
    for namespace in ["team", "other"] {
        kubectl(&["create", "namespace", namespace]);
        kubectl(&["create", "deployment", "web", "--image=example/web", "-n", namespace]);
        kubectl(&["create", "secret", "generic", "keys", "-n", namespace]);
        kubectl(&["rollout", "status", "deployment/web", "-n", namespace, "--timeout=120s"]);
    }
    kubectl(&["create", "serviceaccount", "reader", "-n=team"]);
    kubectl(&["create", "role", "reader", "-n=team", "--verb=get", "--resource=pods,deployments.apps"]);
    kubectl(&["create", "rolebinding", "reader", "-n=team", "--role=reader", "--serviceaccount=team:reader"]);
    let account = Account {
        plane: &plane,
        server: kubectl(&["config", "view", "-o=jsonpath={.clusters[0].cluster.server}"]),
        token: kubectl(&["create", "token", "reader", "-n=team"]),
    };
    let pod = kubectl(&["get", "pods", "-n=other", "-o=jsonpath={.items[0].metadata.name}"]);

    let journey = |object: &str| account.get(&format!("/journey?object={object}"));
    wait_for("the role", || journey("deployments/team/web").0 == "200");
    let (_, own) = journey("deployments/team/web");
    let objects: Vec<String> = serde_json::from_str::<Value>(&own).expect("JSON")["chapters"][0]["moments"]
        .as_array()
        .expect("steps")
        .iter()
        .map(|step| step["object"].as_str().expect("an object").to_owned())
        .collect();
    assert!(objects.iter().any(|object| object == "deployments/team/web"), "{objects:?}");
    assert!(!objects.iter().any(|object| object.starts_with("replicasets/")), "not allowed: {objects:?}");
    for object in
        ["deployments/other/web", &format!("pods/other/{pod}"), "secrets/team/keys", "nodes/hollow-0", "pods", "a/b/c"]
    {
        let (code, body) = journey(object);
        assert_eq!(code, "403", "{object}: {body}");
    }
    let (_, refused) = journey("deployments/other/web");
    let expected =
        "deployments.apps \\\"web\\\" is forbidden: User \\\"system:serviceaccount:team:reader\\\" cannot get resource";
    assert!(refused.contains(expected), "{refused}");

    // The whole journal, as `knarr journey` reads it, is limited in the same way.
    let (code, lines) = account.get("/journey");
    assert_eq!(code, "200");
    let is_own =
        |line: &str| line.contains("\"object\":\"deployments/team/") || line.contains("\"object\":\"pods/team/");
    assert!(!lines.is_empty() && lines.lines().all(is_own), "{lines}");
    assert!(!lines.contains("kubernetes-admin") && !lines.contains("system:serviceaccount"), "no users: {lines}");
    assert_eq!(account.get("/journey?follow=true&object=deployments/other/web").0, "403");
    let stream = Stream::start(&account, "/journey?follow=true", "steps");
    let timelines = Stream::start(&account, "/journey?follow=true&object=deployments/team/web", "timelines");
    wait_for("the first steps", || !stream.text().is_empty() && !timelines.text().is_empty());
    for namespace in ["other", "team"] {
        kubectl(&["scale", "deployment", "web", "-n", namespace, "--replicas=2"]);
    }
    wait_for("a new timeline", || timelines.text().lines().count() > 1);
    wait_for("a new step", || {
        stream.text().lines().any(|line| line.contains("deployments/team/web") && line.contains("\"verb\":\"patch\""))
    });
    assert!(!stream.text().contains("/other/") && !timelines.text().contains("/other/"));
    // Nobody without credentials, and no upload.
    let anonymous = Account { token: "none".to_owned(), server: account.server.clone(), plane: &plane };
    assert_eq!(anonymous.get("/journey").0, "401");
    let mut upload = account.curl("/journey");
    let output =
        upload.args(["-d", "{}", "-w", "%{http_code}", "-o", "/dev/null"]).output().expect("curl is installed");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "403");

    // The same in the browser.
    let mut browser = Browser::start().await;
    browser.open(&link_of(&account.kubeconfig())).await;
    browser.until("document.querySelector('#nav a')").await;
    browser.go("object/deployments.apps/team/web/journey").await;
    browser.shows("Creation").await;
    browser.go("object/deployments.apps/other/web/journey").await;
    browser.shows("cannot get resource \"deployments\" in API group \"apps\" in the namespace \"other\"").await;
    // The rights end: so does the journey that is open.
    browser.go("object/deployments.apps/team/web/journey").await;
    browser.shows("Creation").await;
    kubectl(&["delete", "rolebinding", "reader", "-n=team"]);
    kubectl(&["scale", "deployment", "web", "-n=team", "--replicas=1"]);
    browser.shows("cannot get resource \"deployments\" in API group \"apps\" in the namespace \"team\"").await;
    assert_eq!(browser.errors, Vec::<String>::new());
}
