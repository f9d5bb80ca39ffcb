//! Creates the Service `kube-dns` in `kube-system`, by which the cluster DNS is found. It reserves the DNS address, so that no
//! other Service gets it. Its service-proxy-name label makes service proxies ignore the address: every node serves it itself.

use std::net::IpAddr;
use std::time::Duration;

use k8s_openapi::api::core::v1::Service;
use knarr_client::kube::api::{Api, PostParams};
use knarr_client::kube::{self, Client};
use serde_json::{Value, json};

const NAMESPACE: &str = "kube-system";
const NAME: &str = "kube-dns";
const RETRY: Duration = Duration::from_secs(2);

/// Creates the Service if it does not exist. An existing one, for another DNS server, is left as it is.
pub async fn ensure_service(client: Client, addresses: Vec<IpAddr>) {
    if addresses.is_empty() {
        return;
    }
    let api = Api::<Service>::namespaced(client, NAMESPACE);
    loop {
        match ensure(&api, &addresses).await {
            Ok(()) => return,
            Err(error) => tracing::warn!(%error, "cannot create the DNS Service"),
        }
        tokio::time::sleep(RETRY).await;
    }
}

async fn ensure(api: &Api<Service>, addresses: &[IpAddr]) -> Result<(), kube::Error> {
    if api.get_opt(NAME).await?.is_some() {
        return Ok(());
    }
    let desired = serde_json::from_value(service(addresses)).map_err(kube::Error::SerdeError)?;
    match api.create(&PostParams::default(), &desired).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        result => result.map(drop),
    }
}

fn service(addresses: &[IpAddr]) -> Value {
    let families: Vec<&str> = addresses.iter().map(|address| if address.is_ipv4() { "IPv4" } else { "IPv6" }).collect();
    let labels = json!({
        "k8s-app": "kube-dns",
        "kubernetes.io/cluster-service": "true",
        "kubernetes.io/name": "KnarrDNS",
        "service.kubernetes.io/service-proxy-name": "knarr-dns",
    });
    json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "clusterIP": addresses.first(),
            "clusterIPs": addresses,
            "ipFamilies": families,
            "ipFamilyPolicy": if addresses.len() > 1 { "PreferDualStack" } else { "SingleStack" },
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_service_holds_the_addresses_and_is_left_to_the_nodes() {
        let made: Service =
            serde_json::from_value(service(&["10.96.0.10".parse().unwrap(), "fd00::a".parse().unwrap()])).unwrap();
        let spec = made.spec.unwrap();
        assert_eq!(spec.cluster_ips.unwrap(), ["10.96.0.10", "fd00::a"]);
        assert_eq!(spec.ip_families.unwrap(), ["IPv4", "IPv6"]);
        assert!(made.metadata.labels.unwrap().contains_key("service.kubernetes.io/service-proxy-name"));
    }
}
