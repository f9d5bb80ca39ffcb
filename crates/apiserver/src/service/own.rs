//! The Service by which everything in the cluster finds the API server, and what is behind it.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use http::Method;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use serde_json::{Value, json};

use super::range::first_address;
use crate::server::Server;
use crate::start::write;

const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";

/// Makes the Service `kubernetes` and points it at the address this server is reached by.
pub async fn publish(server: &Arc<Server>, ranges: &[String], advertised: SocketAddr) -> Result<(), Status> {
    let Some(address) = ranges.first().and_then(|range| first_address(range)) else { return Ok(()) };
    ensure(server, "", "services", NAME, &service(address, advertised.port())).await?;
    if advertised.ip().is_loopback() {
        tracing::info!("only this machine reaches the server: its service has no endpoints");
        return Ok(());
    }
    ensure(server, "", "endpoints", NAME, &endpoints(advertised)).await?;
    ensure(server, "discovery.k8s.io", "endpointslices", NAME, &slice(advertised)).await
}

/// Makes an object, or gives it back the parts that matter.
async fn ensure(
    server: &Arc<Server>,
    group: &'static str,
    plural: &'static str,
    name: &str,
    wanted: &Value,
) -> Result<(), Status> {
    let path = write::Path { group, version: "v1", plural, namespace: NAMESPACE, name };
    let Some(current) = server.objects.get(group, plural, NAMESPACE, name) else {
        return write::send(server, Method::POST, &path, wanted).await;
    };
    let mut mended = (*current).clone();
    for part in ["subsets", "addressType", "endpoints", "ports"] {
        if wanted.has(&[part]) {
            mended.set(&[part], wanted.at(&[part]).clone());
        }
    }
    if wanted.has(&["spec"]) {
        mended.set(&["spec", "ports"], wanted.at(&["spec", "ports"]).clone());
    }
    if mended == *current { Ok(()) } else { write::send(server, Method::PUT, &path, &mended).await }
}

fn service(address: IpAddr, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"component": "apiserver", "provider": "kubernetes"}},
        "spec": {
            "type": "ClusterIP", "clusterIP": address.to_string(), "sessionAffinity": "None",
            "ports": [{"name": "https", "protocol": "TCP", "port": 443, "targetPort": port}],
        },
    })
}

fn endpoints(advertised: SocketAddr) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": NAME, "namespace": NAMESPACE, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{
            "addresses": [{"ip": advertised.ip().to_string()}],
            "ports": [{"name": "https", "port": advertised.port(), "protocol": "TCP"}],
        }],
    })
}

fn slice(advertised: SocketAddr) -> Value {
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": if advertised.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{"addresses": [advertised.ip().to_string()], "conditions": {"ready": true}}],
        "ports": [{"name": "https", "port": advertised.port(), "protocol": "TCP"}],
    })
}
