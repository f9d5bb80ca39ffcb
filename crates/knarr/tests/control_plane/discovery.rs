//! Discovery of the cluster by a host with a bootstrap token and no other credentials.

use super::support::{ControlPlane, wait_for};

const TOKEN: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData: {token-id: abcdef, token-secret: 0123456789abcdef, usage-bootstrap-signing: "true"}
"#;
const PATH: &str = "/api/v1/namespaces/kube-public/configmaps/cluster-info";
const BINDING: [&str; 4] = ["-n", "kube-public", "rolebinding", "kubeadm:bootstrap-signer-clusterinfo"];

/// Reads a path of the API without credentials, which kubectl would prompt for.
fn read_anonymously(plane: &ControlPlane, path: &str) -> Result<serde_json::Value, String> {
    let server = plane.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"]).unwrap();
    let authority = plane.kubeconfig().with_file_name("pki").join("ca.crt");
    let kubeconfig = plane.kubeconfig().with_file_name("anonymous.yaml");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: x\ncontexts: [{{name: x, context: {{cluster: x, user: x}}}}]\n\
         clusters: [{{name: x, cluster: {{server: \"{server}\", certificate-authority: {}}}}}]\n\
         users: [{{name: x, user: {{}}}}]\n",
        authority.display()
    );
    std::fs::write(&kubeconfig, text).unwrap();
    let request = http::Request::get(path).body(Vec::new()).expect("a request");
    tokio::runtime::Runtime::new().expect("a runtime").block_on(async {
        let client = knarr_client::connect(Some(&kubeconfig), "test").await.expect("a client");
        client.request(request).await.map_err(|error| error.to_string())
    })
}

#[test]
fn cluster_info_is_public_and_signed_with_each_token() {
    let mut plane = ControlPlane::server();
    let data = |plane: &ControlPlane| read_anonymously(plane, PATH).map(|map| map["data"].clone()).unwrap_or_default();
    wait_for("the public ConfigMap", || data(&plane)["kubeconfig"].is_string());
    assert!(read_anonymously(&plane, "/api/v1/namespaces/kube-public/configmaps").is_err());
    assert!(read_anonymously(&plane, "/api/v1/namespaces/kube-public/configmaps/kube-root-ca.crt").is_err());
    assert!(data(&plane).get("jws-kubeconfig-abcdef").is_none());

    let manifest = plane.kubeconfig().with_file_name("token.yaml");
    std::fs::write(&manifest, TOKEN).unwrap();
    plane.kubectl(&["apply", "-f", &manifest.to_string_lossy()]).unwrap();
    wait_for("the token's signature", || data(&plane).get("jws-kubeconfig-abcdef").is_some());

    // The server applies the ConfigMap when it starts and creates the binding after that: when the binding is back, an
    // unchanged version shows that the signature survived.
    let version = |plane: &ControlPlane| {
        plane.kubectl(&["get", "--raw", PATH]).map(|text| {
            let map: serde_json::Value = serde_json::from_str(&text).expect("JSON");
            map["metadata"]["resourceVersion"].clone()
        })
    };
    let before = version(&plane).unwrap();
    plane.kubectl(&[&["delete"], &BINDING[..]].concat()).unwrap();
    plane.restart("server");
    wait_for("the binding to be back", || plane.kubectl(&[&["get"], &BINDING[..]].concat()).is_ok());
    assert_eq!(version(&plane).unwrap(), before);

    plane.kubectl(&["delete", "secret", "-n", "kube-system", "bootstrap-token-abcdef"]).unwrap();
    wait_for("the signature to be removed", || data(&plane).get("jws-kubeconfig-abcdef").is_none());
    assert!(data(&plane)["kubeconfig"].is_string());
}
