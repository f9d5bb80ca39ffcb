//! Sessions of the page, without a browser: whose rights they have.

use serde_json::json;

use crate::support::{ControlPlane, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_the_rights_of_its_user_and_a_code_works_once() {
    let plane = ControlPlane::server();
    let kubectl = |arguments: &[&str]| plane.kubectl(arguments).expect("kubectl succeeds");
    kubectl(&["create", "serviceaccount", "reader"]);
    kubectl(&["create", "rolebinding", "reader", "--clusterrole=view", "--serviceaccount=default:reader"]);
    let token = kubectl(&["create", "token", "reader"]);
    let server = kubectl(&["config", "view", "-o=jsonpath={.clusters[0].cluster.server}"]);
    let request = |method: &str, path: &str, token: &str, body: &str| {
        let mut command = std::process::Command::new("curl");
        command.args(["-sk", "-X", method, "-w", "\n%{http_code}", &format!("{server}{path}")]);
        if !token.is_empty() {
            command.args(["-H", &format!("Authorization: Bearer {token}")]);
        }
        if !body.is_empty() {
            command.args(["-H", "Content-Type: application/json", "-d", body]);
        }
        let output = String::from_utf8(command.output().expect("curl is installed").stdout).expect("text");
        let (body, code) = output.rsplit_once('\n').expect("a code");
        (code.to_owned(), body.to_owned())
    };
    let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    assert_eq!(request("GET", "/ui/", "", "").0, "200", "the page is public");
    assert_eq!(request("POST", "/ui/link", "", "").0, "403", "anonymous users create no link");
    assert_eq!(request("GET", "/ui/problems", "", "").0, "403");
    let code = parse(&request("POST", "/ui/link", &token, "").1)["code"].as_str().expect("a code").to_owned();
    let exchange = || request("POST", "/ui/session", "", &json!({"code": code}).to_string());
    let session = parse(&exchange().1)["token"].as_str().expect("a token").to_owned();
    assert_eq!(exchange().0, "403", "used before");
    assert_eq!(request("GET", "/api/v1/namespaces/default/pods", &session, "").0, "200");
    assert_eq!(request("GET", "/api/v1/namespaces/default/secrets", &session, "").0, "403");
    assert_eq!(request("GET", "/api/v1/nodes", &session, "").0, "403");
    assert_eq!(request("POST", "/ui/link", &session, "").0, "403", "a session cannot prolong itself");
    // Who may read one namespace has the diagnosis of that one.
    kubectl(&["create", "service", "clusterip", "nobody", "--tcp=80"]);
    let problems = |query: &str| request("GET", &format!("/ui/problems{query}"), &session, "").1;
    assert!(problems("?namespace=default").contains("nobody"), "{}", problems("?namespace=default"));
    assert!(!problems("").contains("nobody"), "{}", problems(""));
    assert_eq!(request("GET", "/ui/problems?namespace=a/../b", &session, "").0, "400");
    // The account's deletion ends the session with its token.
    kubectl(&["delete", "serviceaccount", "reader"]);
    wait_for("the session to end", || request("GET", "/api/v1/namespaces/default/pods", &session, "").0 == "401");
}
