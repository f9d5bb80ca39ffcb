//! Certificates that a join token can and cannot obtain.

use std::path::Path;
use std::process::Command;

use base64::Engine;

use super::support::{ControlPlane, wait_for};

/// A bootstrap token whose bearers may request node certificates, as an installer creates it.
const TOKEN: &str = r#"
apiVersion: v1
kind: Secret
metadata: {name: bootstrap-token-abcdef, namespace: kube-system}
type: bootstrap.kubernetes.io/token
stringData:
  token-id: abcdef
  token-secret: 0123456789abcdef
  usage-bootstrap-authentication: "true"
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: bootstrap}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:node-bootstrapper"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: approval}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: "system:certificates.k8s.io:certificatesigningrequests:nodeclient"
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: "system:bootstrappers"}]
"#;

fn request(name: &str, pem: &str) -> String {
    let encoded = base64::engine::general_purpose::STANDARD.encode(pem);
    format!(
        "apiVersion: certificates.k8s.io/v1\nkind: CertificateSigningRequest\nmetadata: {{name: {name}}}\n\
         spec:\n  signerName: kubernetes.io/kube-apiserver-client-kubelet\n  \
         usages: [digital signature, client auth]\n  request: {encoded}\n"
    )
}

/// Creates the objects of a file, as the bearer of the token.
fn create_with_token(plane: &ControlPlane, file: &Path) {
    let server = plane.kubectl(&["config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"]).unwrap();
    let output = Command::new("kubectl")
        .env("HOME", file.parent().expect("a directory"))
        .args(["--kubeconfig", "/dev/null", "--token", "abcdef.0123456789abcdef", "--server", &server])
        .arg("--certificate-authority")
        .arg(plane.kubeconfig().with_file_name("pki").join("ca.crt"))
        .args(["create", "--validate=false", "-f"])
        .arg(file)
        .output()
        .expect("kubectl is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_join_token_becomes_a_node_and_nobody_else() {
    let mut plane = ControlPlane::api_server();
    let pki = plane.kubeconfig().with_file_name("pki");
    let (certificate, key) = (pki.join("ca.crt"), pki.join("ca.key"));
    let (certificate, key) = (certificate.to_string_lossy(), key.to_string_lossy());
    plane.add(
        "controller-manager",
        &["controller-manager", "--cluster-signing-cert-file", &certificate, "--cluster-signing-key-file", &key],
    );
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let token = write("token.yaml", TOKEN);
    plane.kubectl(&["apply", "-f", &token.to_string_lossy()]).unwrap();
    create_with_token(&plane, &write("two.yaml", &request("two-names", include_str!("two_names.csr"))));
    create_with_token(&plane, &write("one.yaml", &request("one-name", include_str!("one_name.csr"))));

    let conditions = |name: &str| {
        plane.kubectl(&["get", "csr", name, "-o", "jsonpath={.status.conditions[*].type}"]).unwrap_or_default()
    };
    let issued = |name: &str| plane.kubectl(&["get", "csr", name, "-o", "jsonpath={.status.certificate}"]).unwrap();
    wait_for("the node's certificate", || !issued("one-name").is_empty());
    assert_eq!(conditions("two-names"), "", "a request that names two users was decided by itself");

    // Nor does an approval by mistake lead to a certificate.
    plane.kubectl(&["certificate", "approve", "two-names"]).unwrap();
    wait_for("the signer's refusal", || conditions("two-names") == "Approved Failed");
    assert_eq!(issued("two-names"), "");
}
