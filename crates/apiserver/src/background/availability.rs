//! The controller that checks aggregated API servers, discovers what they serve and updates the status of APIServices.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use http::Request;
use http_body_util::Full;
use knarr_api::value::Read;
use knarr_api::{openapi, time};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::aggregate::discovery::read_resources;
use crate::aggregate::{Aggregation, OpenApiParts, Remote};
use crate::metrics;
use crate::object_reader::ObjectReader;
use crate::request::{GROUP_MASTERS, Sender, User};
use crate::resource_changes::ResourceChanges;
use crate::state::ApiServer;

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";
/// How often available servers are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// How often all are checked while one is unavailable.
const UNAVAILABLE_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// How often the OpenAPI document of a server is read.
const OPENAPI_INTERVAL: Duration = Duration::from_secs(60);

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";

/// The `Available` condition of a group version.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Availability {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Availability {
    fn unavailable(reason: &'static str, message: String) -> Availability {
        Availability { status: "False", reason, message }
    }
}

/// Watches APIServices and checks their servers until the server stops.
pub async fn run(server: Arc<ApiServer>) {
    let Some(resource) = server.backend.kinds.load().resource(GROUP, "v1", PLURAL).cloned() else { return };
    let mut documents = Documents::default();
    let Some(mut changes) = ResourceChanges::open(&server, resource.range(""), PLURAL).await else { return };
    loop {
        let interval = check_all(&server, &mut documents).await;
        if !changes.next(interval).await {
            return;
        }
    }
}

/// Checks all aggregated servers once; returns the interval until the next check, if there are any.
async fn check_all(server: &Arc<ApiServer>, documents: &mut Documents) -> Option<Duration> {
    let objects = server.backend.objects.list(GROUP, PLURAL, "");
    let mut remotes: Vec<(Remote, Arc<Value>)> = Vec::new();
    let mut local: Vec<Arc<Value>> = Vec::new();
    for object in objects {
        match Remote::read(&object) {
            Some(remote) => remotes.push((remote, object)),
            None => local.push(object),
        }
    }
    let previous = server.discovery.aggregation.remotes().all.clone();
    let checks = remotes.into_iter().map(|(mut remote, object)| {
        let before = previous.iter().find(|before| before.name == remote.name).cloned();
        async move {
            let availability = check(server, &remote).await;
            remote.available = availability.status == "True";
            if !remote.available && before.as_ref().is_none_or(|before| before.available) {
                metrics::BECAME_UNAVAILABLE.add(&[&remote.name, availability.reason], 1);
            }
            remote.resources = before.and_then(|before| before.resources.clone());
            if remote.available
                && let Some(resources) = fetch_resources(&server.discovery.aggregation, &remote).await
            {
                remote.resources = Some(Arc::new(resources));
            }
            update_status(server, &object, &availability).await;
            Arc::new(remote)
        }
    });
    let all: Vec<Arc<Remote>> = join_all(checks).await;
    let unavailable = |remote: &Arc<Remote>| if remote.available { 0.0 } else { 1.0 };
    // What this server serves itself is always available.
    let local = local.iter().map(|object| (vec![object.text(&["metadata", "name"])], 0.0));
    metrics::UNAVAILABLE
        .replace(all.iter().map(|remote| (vec![remote.name.as_str()], unavailable(remote))).chain(local));
    let interval = match (all.is_empty(), all.iter().all(|remote| remote.available)) {
        (true, _) => None,
        (false, true) => Some(CHECK_INTERVAL),
        (false, false) => Some(UNAVAILABLE_CHECK_INTERVAL),
    };
    documents.refresh(&server.discovery.aggregation, &all).await;
    server.discovery.aggregation.set(all, documents.parts.clone());
    interval
}

/// The OpenAPI v2 documents of aggregated servers, as far as they are merged, and when they were read.
#[derive(Default)]
struct Documents {
    parts: OpenApiParts,
    read: BTreeMap<String, Instant>,
}

impl Documents {
    /// Reads the documents that are due. One that cannot be read stays what it was.
    async fn refresh(&mut self, aggregation: &Aggregation, all: &[Arc<Remote>]) {
        let exists = |name: &String| all.iter().any(|remote| remote.name == *name);
        self.parts.retain(|name, _| exists(name));
        self.read.retain(|name, _| exists(name));
        let is_due = |remote: &&Arc<Remote>| {
            let read = self.read.get(&remote.name);
            remote.available && read.is_none_or(|at| at.elapsed() >= OPENAPI_INTERVAL)
        };
        let reads =
            all.iter().filter(is_due).map(|remote| async move { (remote, fetch_openapi(aggregation, remote).await) });
        for (remote, part) in join_all(reads).await {
            self.read.insert(remote.name.clone(), Instant::now());
            if let Some(part) = part {
                self.parts.insert(remote.name.clone(), Arc::new(part));
            }
        }
    }
}

/// What a server adds to the OpenAPI v2 document: only paths of its own group version.
async fn fetch_openapi(aggregation: &Aggregation, remote: &Remote) -> Option<Value> {
    let (code, body) = match remote.get(aggregation, "/openapi/v2", "application/json").await {
        Ok(response) => response,
        Err(error) => {
            tracing::debug!(%error, name = remote.name, "cannot read the OpenAPI document of an aggregated server");
            return None;
        }
    };
    let document: Value = serde_json::from_slice(&body).ok().filter(|_| code.is_success())?;
    Some(openapi::v2_part(document, &format!("/apis/{}/{}/", remote.group, remote.version)))
}

async fn check(server: &ApiServer, remote: &Remote) -> Availability {
    if let Some(availability) = check_service(&*server.backend.objects, remote) {
        return availability;
    }
    let path = format!("/apis/{}/{}", remote.group, remote.version);
    let url = format!("https://{}{path}", remote.destination.authority());
    let failed = |why: String| {
        Availability::unavailable("FailedDiscoveryCheck", format!("failing or missing response from {url}: {why}"))
    };
    match remote.get(&server.discovery.aggregation, &path, "application/json").await {
        Ok((code, _)) if code.is_success() => {
            Availability { status: "True", reason: "Passed", message: "all checks passed".to_owned() }
        }
        Ok((code, _)) => failed(format!("bad status from {url}: {}", code.as_u16())),
        Err(why) => failed(format!("Get \"{url}\": {why}")),
    }
}

/// Why the service itself is unavailable, if it is.
fn check_service(objects: &dyn ObjectReader, remote: &Remote) -> Option<Availability> {
    let (namespace, name) = remote.service();
    let Some(service) = objects.get("", "services", namespace, name) else {
        return Some(Availability::unavailable(
            "ServiceNotFound",
            format!("service/{name} in {namespace:?} is not present"),
        ));
    };
    if !matches!(service.text(&["spec", "type"]), "" | "ClusterIP") {
        return None;
    }
    let expected = i64::from(remote.destination.port);
    let ports = service.items(&["spec", "ports"]);
    let Some(port) = ports.iter().find(|port| port.integer(&["port"]) == Some(expected)) else {
        let message = format!("service/{name} in {namespace:?} is not listening on port {expected}");
        return Some(Availability::unavailable("ServicePortError", message));
    };
    let slices = objects.list("discovery.k8s.io", "endpointslices", namespace);
    let own: Vec<_> = slices
        .iter()
        .filter(|slice| slice.text(&["metadata", "labels", "kubernetes.io/service-name"]) == name)
        .collect();
    if own.is_empty() {
        let message = format!("cannot find endpointslices for service/{name} in {namespace:?}");
        return Some(Availability::unavailable("EndpointsNotFound", message));
    }
    let port_name = port.text(&["name"]);
    let serves = |slice: &Value| {
        let ready = |one: &Value| one.flag(&["conditions", "ready"]) != Some(false);
        slice.items(&["endpoints"]).iter().any(ready)
            && slice.items(&["ports"]).iter().any(|port| port.text(&["name"]) == port_name && port.has(&["port"]))
    };
    if own.iter().any(|slice| serves(slice)) {
        return None;
    }
    let message =
        format!("endpointslices for service/{name} in {namespace:?} have no addresses with port name {port_name:?}");
    Some(Availability::unavailable("MissingEndpoints", message))
}

/// The resources of a group version, from aggregated or legacy discovery.
async fn fetch_resources(aggregation: &Aggregation, remote: &Remote) -> Option<Value> {
    if let Ok((code, body)) = remote.get(aggregation, "/apis", AGGREGATED).await
        && code.is_success()
        && let Ok(document) = serde_json::from_slice::<Value>(&body)
        && document.text(&["kind"]) == "APIGroupDiscoveryList"
    {
        let groups = document.items(&["items"]).iter();
        let group = groups.into_iter().find(|group| group.text(&["metadata", "name"]) == remote.group)?;
        let version = group.items(&["versions"]).iter().find(|own| own.text(&["version"]) == remote.version)?;
        return Some(version.at(&["resources"]).clone());
    }
    let path = format!("/apis/{}/{}", remote.group, remote.version);
    let (code, body) = remote.get(aggregation, &path, "application/json").await.ok()?;
    let document: Value = serde_json::from_slice(&body).ok().filter(|_| code.is_success())?;
    Some(read_resources(&document, &remote.group, &remote.version))
}

/// Updates the status of an APIService if its availability changed.
async fn update_status(server: &Arc<ApiServer>, object: &Value, availability: &Availability) {
    let conditions = object.items(&["status", "conditions"]);
    let known = conditions.iter().find(|condition| condition.text(&["type"]) == "Available");
    let same = |field: &str, value: &str| known.is_some_and(|known| known.text(&[field]) == value);
    if same("status", availability.status)
        && same("reason", availability.reason)
        && same("message", &availability.message)
    {
        return;
    }
    let since = match known {
        Some(known) if known.text(&["status"]) == availability.status => known.text(&["lastTransitionTime"]).to_owned(),
        _ => time::seconds(jiff::Timestamp::now()),
    };
    let condition = json!({
        "type": "Available", "status": availability.status, "reason": availability.reason, "message": availability.message,
        "lastTransitionTime": since,
    });
    let others = conditions.iter().filter(|condition| condition.text(&["type"]) != "Available").cloned();
    let conditions: Vec<Value> = others.chain([condition]).collect();
    let name = object.text(&["metadata", "name"]);
    let request = Request::patch(format!("/apis/{GROUP}/v1/{PLURAL}/{name}/status"))
        .header("content-type", "application/merge-patch+json")
        .header("user-agent", "kube-apiserver")
        .body(Full::new(Bytes::from(json!({"status": {"conditions": conditions}}).to_string())));
    let Ok(request) = request else { return };
    let sender = Sender::Trusted(Arc::new(User::named("system:apiserver", &[GROUP_MASTERS])));
    let code = server.handle(request, &sender).await.status().as_u16();
    if !matches!(code, 200..=299 | 404 | 409) {
        tracing::warn!(name, code, "cannot update the status of an API service");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object_reader::tests::Fixed;

    #[test]
    fn services_must_exist_and_have_endpoints() {
        let remote = Remote::read(
            &json!({"metadata": {"name": "v1.example.com"}, "spec": {"group": "example.com", "version": "v1",
            "service": {"namespace": "n", "name": "s", "port": 443}}}),
        )
        .unwrap();
        let service = (
            "",
            "services",
            json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {"ports": [{"port": 443, "name": "a"}]}}),
        );
        let slice = |ready: bool| {
            (
                "discovery.k8s.io",
                "endpointslices",
                json!({
                    "metadata": {"name": "s-1", "namespace": "n", "labels": {"kubernetes.io/service-name": "s"}},
                    "ports": [{"name": "a", "port": 8443}], "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}],
                }),
            )
        };
        let reason = |objects| check_service(&Fixed::new(objects), &remote).map(|availability| availability.reason);
        assert_eq!(reason(vec![]), Some("ServiceNotFound"));
        assert_eq!(reason(vec![service.clone()]), Some("EndpointsNotFound"));
        assert_eq!(reason(vec![service.clone(), slice(false)]), Some("MissingEndpoints"));
        assert_eq!(reason(vec![service, slice(true)]), None);
    }
}
