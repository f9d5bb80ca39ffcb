//! The kubelet's serving certificate that the cluster's authority signs.

use std::sync::Arc;

use super::ServingCertificate;
use crate::CertificateFiles;
use crate::context::Context;
use crate::node::certificates;

/// Requests a serving certificate from the cluster's authority, uses it as soon as it is signed, and renews it.
pub async fn keep_certificate(context: Arc<Context>, certificate: ServingCertificate) {
    let settings = &context.settings;
    let directory = settings.root.join("pki");
    let purpose = certificates::Purpose::Serving {
        names: vec![settings.node_name.clone()],
        addresses: context.addresses.iter().filter_map(|address| address.parse().ok()).collect(),
    };
    let metrics = &context.metrics;
    let in_use = std::cell::Cell::new(tokio::time::Instant::now());
    let put = |files: &CertificateFiles| {
        if let Err(error) = certificate.replace(&files.certificate, &files.key) {
            tracing::warn!(%error, "cannot use the signed serving certificate");
        }
    };
    if let Err(error) = certificates::finish_replacement(&directory, &purpose) {
        tracing::warn!(%error, "cannot finish the interrupted replacement of the serving certificate");
    }
    let known = certificates::files(&directory, &purpose);
    if known.certificate.exists() {
        put(&known);
    }
    let renewed = move |result: Result<&CertificateFiles, ()>| match result {
        Ok(files) => {
            let age = in_use.replace(tokio::time::Instant::now()).elapsed();
            metrics.observe("kubelet_certificate_manager_server_rotation_seconds", &[], age);
            put(files);
        }
        Err(()) => metrics.count("kubelet_server_expiration_renew_errors", &[]),
    };
    let (client, node) = (context.client.clone(), settings.node_name.clone());
    certificates::keep(client, node, directory, purpose, settings.client_ca.clone(), renewed).await;
}
