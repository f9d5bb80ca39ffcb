//! Flags for authorities of single signers of certificate requests, in place of one for all.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use knarr_controllers::SigningAuthority;

#[derive(Args, Clone, Debug, Default)]
pub struct SignerArguments {
    /// CA certificate (PEM) that signs client certificates, in place of --cluster-signing-cert-file.
    #[arg(long)]
    pub cluster_signing_kube_apiserver_client_cert_file: Option<PathBuf>,
    /// Private key (PEM) of that CA certificate.
    #[arg(long)]
    pub cluster_signing_kube_apiserver_client_key_file: Option<PathBuf>,
    /// CA certificate (PEM) that signs client certificates of kubelets.
    #[arg(long)]
    pub cluster_signing_kubelet_client_cert_file: Option<PathBuf>,
    /// Private key (PEM) of that CA certificate.
    #[arg(long)]
    pub cluster_signing_kubelet_client_key_file: Option<PathBuf>,
    /// CA certificate (PEM) that signs serving certificates of kubelets.
    #[arg(long)]
    pub cluster_signing_kubelet_serving_cert_file: Option<PathBuf>,
    /// Private key (PEM) of that CA certificate.
    #[arg(long)]
    pub cluster_signing_kubelet_serving_key_file: Option<PathBuf>,
}

impl SignerArguments {
    /// The authorities by the names of their signers. The messages are those of kube-controller-manager.
    pub fn authorities(&self, has_common: bool) -> anyhow::Result<BTreeMap<String, SigningAuthority>> {
        let mut authorities = BTreeMap::new();
        let given = [
            (
                "kubernetes.io/kubelet-serving",
                "cluster-signing-kubelet-serving",
                &self.cluster_signing_kubelet_serving_cert_file,
                &self.cluster_signing_kubelet_serving_key_file,
            ),
            (
                "kubernetes.io/kube-apiserver-client-kubelet",
                "cluster-signing-kube-apiserver-client",
                &self.cluster_signing_kubelet_client_cert_file,
                &self.cluster_signing_kubelet_client_key_file,
            ),
            (
                "kubernetes.io/kube-apiserver-client",
                "cluster-signing-kube-apiserver",
                &self.cluster_signing_kube_apiserver_client_cert_file,
                &self.cluster_signing_kube_apiserver_client_key_file,
            ),
        ];
        for (signer, name, certificate, key) in given {
            match (certificate, key) {
                (None, None) => {}
                (None, Some(_)) => bail!("{name:?}: cannot specify key without cert"),
                (Some(_), None) => bail!("{name:?}: cannot specify cert without key"),
                (Some(_), Some(_)) if has_common => bail!(
                    "cannot specify --cluster-signing-{{cert,key}}-file and other --cluster-signing-*-file flags at the same \
                     time"
                ),
                (Some(certificate), Some(key)) => {
                    let authority = SigningAuthority { certificate: read(certificate)?, key: read(key)? };
                    authorities.insert(signer.to_owned(), authority);
                }
            }
        }
        Ok(authorities)
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn authorities_belong_to_signers() {
        let directory = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = directory.path().join(name);
            std::fs::write(&path, name).unwrap();
            Some(path)
        };
        let both = SignerArguments {
            cluster_signing_kubelet_serving_cert_file: file("crt"),
            cluster_signing_kubelet_serving_key_file: file("key"),
            ..SignerArguments::default()
        };
        let authorities = both.authorities(false).unwrap();
        let found = &authorities["kubernetes.io/kubelet-serving"];
        assert_eq!((found.certificate.as_str(), found.key.as_str(), authorities.len()), ("crt", "key", 1));
        let message =
            |arguments: &SignerArguments, has_common| arguments.authorities(has_common).unwrap_err().to_string();
        assert!(message(&both, true).starts_with("cannot specify --cluster-signing-{cert,key}-file and other"));
        let one =
            SignerArguments { cluster_signing_kubelet_client_key_file: file("key"), ..SignerArguments::default() };
        assert_eq!(message(&one, false), "\"cluster-signing-kube-apiserver-client\": cannot specify key without cert");
    }
}
