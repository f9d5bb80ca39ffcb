//! Writes the kubeconfig of one user of this cluster.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::Leaf;

/// The content of the kubeconfig; it contains a private key.
pub fn kubeconfig(server: &str, authority: &str, user: &str, leaf: &Leaf) -> String {
    let data = |pem: &str| STANDARD.encode(pem);
    format!(
        "apiVersion: v1\nkind: Config\nclusters:\n- name: knarr\n  cluster:\n    server: {server}\n    \
         certificate-authority-data: {}\ncontexts:\n- name: knarr\n  context:\n    cluster: knarr\n    user: {user}\n\
         current-context: knarr\nusers:\n- name: {user}\n  user:\n    client-certificate-data: {}\n    \
         client-key-data: {}\n",
        data(authority),
        data(&leaf.certificate),
        data(&leaf.key)
    )
}
