//! The Service `kubernetes`, by which pods reach the API servers, and its endpoints.
//!
//! Each server holds a lease under its address. The endpoints are the addresses of all leases, so that servers which
//! share a store agree on them. The address of a stopped server leaves them when its lease expires.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use knarr_store::{Error, Range, Store};
use serde_json::{Value, json};

use crate::loopback;
use crate::persist::store_error;
use crate::service::first_address;
use crate::state::ApiServer;

const NAME: &str = "kubernetes";
const NAMESPACE: &str = "default";

const LEASES: &str = "/registry/masterleases/";
const LEASE_DURATION: Duration = Duration::from_secs(15);
const RENEW_INTERVAL: Duration = Duration::from_secs(10);
/// How often the write of a lease is retried when others write it too.
const MAX_LEASE_RETRIES: usize = 4;

/// Keeps the Service and its endpoints up to date until the server stops, and then removes this server from them.
pub async fn run(server: Arc<ApiServer>, ranges: Vec<String>, advertised: SocketAddr) {
    let mut stopping = server.backend.stopping.clone();
    loop {
        tokio::select! {
            () = tokio::time::sleep(RENEW_INTERVAL) => {}
            _ = stopping.wait_for(|stopping| *stopping) => break,
        }
        if let Err(error) = publish(&server, &ranges, advertised).await {
            tracing::warn!(%error, "cannot update the service of the API servers");
        }
    }
    if let Err(error) = withdraw(&server, advertised).await {
        tracing::warn!(%error, "cannot leave the endpoints of the API servers");
    }
}

/// Creates the Service `kubernetes` with the addresses of the API servers as its endpoints.
pub async fn publish(server: &Arc<ApiServer>, ranges: &[String], advertised: SocketAddr) -> Result<(), Status> {
    let Some(address) = ranges.first().and_then(|range| first_address(range)) else { return Ok(()) };
    ensure(server, "", "services", NAME, &service(address, advertised.port())).await?;
    if advertised.ip().is_loopback() {
        tracing::info!("the server listens on loopback only: its service has no endpoints");
        return Ok(());
    }
    renew_lease(&*server.backend.store, advertised.ip()).await?;
    let mut addresses = leased(&*server.backend.store, advertised.is_ipv4())?;
    // The lease just written may not be visible yet.
    addresses.insert(advertised.ip());
    set_endpoints(server, &addresses, advertised.port()).await
}

/// Removes this server from the endpoints. The last server stays: clients without an endpoint could not recover.
async fn withdraw(server: &Arc<ApiServer>, advertised: SocketAddr) -> Result<(), Status> {
    let key = lease_key(advertised.ip());
    if let Some(entry) = server.backend.store.peek(&key) {
        server.backend.store.delete(&key, entry.revision).await.map_err(store_error)?;
    }
    let mut addresses = leased(&*server.backend.store, advertised.is_ipv4())?;
    addresses.remove(&advertised.ip());
    if addresses.is_empty() { Ok(()) } else { set_endpoints(server, &addresses, advertised.port()).await }
}

async fn set_endpoints(server: &Arc<ApiServer>, addresses: &BTreeSet<IpAddr>, port: u16) -> Result<(), Status> {
    ensure(server, "", "endpoints", NAME, &endpoints(addresses, port)).await?;
    ensure(server, "discovery.k8s.io", "endpointslices", NAME, &slice(addresses, port)).await
}

fn lease_key(address: IpAddr) -> String {
    format!("{LEASES}{address}")
}

async fn renew_lease(store: &dyn Store, address: IpAddr) -> Result<(), Status> {
    let key = lease_key(address);
    let lease = json!({"kind": "Endpoints", "apiVersion": "v1", "subsets": [{"addresses": [{"ip": address}]}]});
    let value = Bytes::from(lease.to_string());
    let mut retries = MAX_LEASE_RETRIES;
    loop {
        let wrote = match store.peek(&key) {
            Some(entry) => store.update(&key, value.clone(), entry.revision, Some(LEASE_DURATION)).await,
            None => store.create(&key, value.clone(), Some(LEASE_DURATION)).await,
        };
        match wrote {
            Ok(_) => return Ok(()),
            Err(Error::Conflict { .. } | Error::Exists(_)) if retries > 0 => retries -= 1,
            Err(error) => return Err(store_error(error)),
        }
        // This process may not have seen the latest write yet.
        store.sync().await.map_err(store_error)?;
    }
}

/// The addresses of servers with a lease, of one family, because an EndpointSlice has only one.
fn leased(store: &dyn Store, v4: bool) -> Result<BTreeSet<IpAddr>, Status> {
    let page = store.peek_range(&Range { prefix: LEASES, ..Range::default() }).map_err(store_error)?;
    let addresses = page.entries.iter().filter_map(|entry| entry.key.strip_prefix(LEASES)?.parse::<IpAddr>().ok());
    Ok(addresses.filter(|address| address.is_ipv4() == v4).collect())
}

/// Creates an object, or restores its relevant fields.
async fn ensure(
    server: &Arc<ApiServer>,
    group: &'static str,
    plural: &'static str,
    name: &str,
    desired: &Value,
) -> Result<(), Status> {
    let path = loopback::ObjectPath { group, version: "v1", plural, namespace: NAMESPACE, name };
    let Some(current) = server.backend.objects.get(group, plural, NAMESPACE, name) else {
        return loopback::send(server, Method::POST, &path, desired).await;
    };
    let mut revised = (*current).clone();
    for field in ["subsets", "addressType", "endpoints", "ports"] {
        if desired.has(&[field]) {
            revised.set(&[field], desired.at(&[field]).clone());
        }
    }
    if desired.has(&["spec"]) {
        revised.set(&["spec", "ports"], desired.at(&["spec", "ports"]).clone());
    }
    if revised == *current { Ok(()) } else { loopback::send(server, Method::PUT, &path, &revised).await }
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

fn endpoints(addresses: &BTreeSet<IpAddr>, port: u16) -> Value {
    let addresses: Vec<Value> = addresses.iter().map(|address| json!({"ip": address.to_string()})).collect();
    json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": NAME, "namespace": NAMESPACE, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{
            "addresses": addresses,
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
        }],
    })
}

fn slice(addresses: &BTreeSet<IpAddr>, port: u16) -> Value {
    let v4 = addresses.first().is_none_or(IpAddr::is_ipv4);
    let ready = |address: &IpAddr| json!({"addresses": [address.to_string()], "conditions": {"ready": true}});
    let endpoints: Vec<Value> = addresses.iter().map(ready).collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": NAME, "namespace": NAMESPACE, "labels": {"kubernetes.io/service-name": NAME}},
        "addressType": if v4 { "IPv4" } else { "IPv6" },
        "endpoints": endpoints,
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_tests::Cluster;

    const SERVICE: &str = "/api/v1/namespaces/default/services/kubernetes";
    const ENDPOINTS: &str = "/api/v1/namespaces/default/endpoints/kubernetes";
    const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";

    fn ranges() -> Vec<String> {
        vec!["10.96.0.0/24".to_owned()]
    }

    async fn addresses(cluster: &Cluster) -> (Vec<String>, Vec<String>) {
        let endpoints = cluster.json("GET", ENDPOINTS, Value::Null).await.1;
        let slice = cluster.json("GET", SLICE, Value::Null).await.1;
        let of = |items: &[Value], path: &dyn Fn(&Value) -> &Value| -> Vec<String> {
            items.iter().filter_map(|item| path(item).as_str()).map(str::to_owned).collect()
        };
        let subsets = endpoints.items(&["subsets"]).first().cloned().unwrap_or_default();
        (
            of(subsets.items(&["addresses"]), &|one| &one["ip"]),
            of(slice.items(&["endpoints"]), &|one| &one["addresses"][0]),
        )
    }

    #[tokio::test]
    async fn deleted_objects_are_restored() {
        let cluster = Cluster::new().await;
        for path in [SERVICE, ENDPOINTS, SLICE] {
            assert_eq!(cluster.json("DELETE", path, Value::Null).await.0, 200, "{path}");
        }
        publish(cluster.server(), &ranges(), "10.0.0.1:6443".parse().unwrap()).await.unwrap();
        let (code, service) = cluster.json("GET", SERVICE, Value::Null).await;
        assert_eq!((code, service["spec"]["clusterIP"].as_str()), (200, Some("10.96.0.1")));
        let own = vec!["10.0.0.1".to_owned()];
        assert_eq!(addresses(&cluster).await, (own.clone(), own));
    }

    #[tokio::test]
    async fn all_servers_with_a_lease_are_endpoints() {
        let cluster = Cluster::new().await;
        let server = cluster.server();
        let (first, second) = ("10.0.0.1:6443".parse().unwrap(), "10.0.0.2:6443".parse().unwrap());
        publish(server, &ranges(), second).await.unwrap();
        let both = vec!["10.0.0.1".to_owned(), "10.0.0.2".to_owned()];
        assert_eq!(addresses(&cluster).await, (both.clone(), both.clone()));
        publish(server, &ranges(), first).await.unwrap();
        assert_eq!(addresses(&cluster).await, (both.clone(), both));
        withdraw(server, second).await.unwrap();
        let left = vec!["10.0.0.1".to_owned()];
        assert_eq!(addresses(&cluster).await, (left.clone(), left.clone()));
        withdraw(server, first).await.unwrap();
        assert_eq!(addresses(&cluster).await, (left.clone(), left), "the last server stays");
    }
}
