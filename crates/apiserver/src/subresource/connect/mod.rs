//! Subresources that connect to a node or pod: log, exec, attach, portforward and proxy.
//!
//! The request is forwarded to the kubelet, or to a pod or service behind a proxy, and the response is streamed back.
//! Upgraded connections are relayed byte by byte.

mod forward;
#[cfg(test)]
mod hostile_peer_tests;
mod html_links;
mod kubelet_query;
mod location;
mod log_options;

#[doc(hidden)]
pub use html_links::fuzzing;

use std::sync::Arc;

use http::header::UPGRADE;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::{Value, json};

use crate::authorized_request::AuthorizedRequest;
use crate::kinds::Resource;
use crate::persist::strategy::{AdmissionKind, Phase};
use crate::request::Operation;
use crate::request::Target;
use crate::resource_request::ResourceRequest;
use crate::response::HandlerResponse;
use crate::route::query::Query;
use crate::state::ApiServer;
use crate::watch::websocket;
use location::Location;

/// Whether a subresource connects to a node or pod.
pub fn is_connect(subresource: &str) -> bool {
    matches!(subresource, "log" | "exec" | "attach" | "portforward" | "proxy")
}

/// Forwards a request to a node or a pod.
pub async fn serve(
    server: &Arc<ApiServer>,
    resource: &Arc<Resource>,
    request: &mut AuthorizedRequest<'_>,
) -> Result<HandlerResponse, Status> {
    let target = &request.routed.target;
    require_create(server, request).await?;
    let call = ResourceRequest::new(&server.backend, resource, request);
    if target.subresource != "log" {
        let (kind, mut options) = options(&call);
        let kind = AdmissionKind { group: "", version: "v1", kind };
        for phase in [Phase::Mutate, Phase::Validate] {
            call.admit_as(kind, phase, Operation::Connect, &mut options, None, false).await?;
        }
    }
    if target.subresource == "log" {
        log_options::check(&call.target.name, call.query)?;
    }
    let location = match (target.resource.as_str(), target.subresource.as_str()) {
        ("pods", "proxy") => location::pod_proxy(&call)?,
        ("services", "proxy") => location::service_proxy(&call)?,
        ("nodes", "proxy") => location::node_proxy(&call)?,
        _ => match in_pod(&call)? {
            Some(location) => location,
            // A pod without a node has no log yet.
            None => return Ok(crate::response::text(200, "").into()),
        },
    };
    drop(call);
    if target.subresource == "proxy" {
        return forward::proxy(&server.kubelets, request, &location).await.map(HandlerResponse::from);
    }
    if target.subresource != "log" {
        if !request.parts.headers.contains_key(UPGRADE) {
            return Err(Status::bad_request("Upgrade request required"));
        }
        return forward::forward(&server.kubelets, request, &location, false).await.map(HandlerResponse::from);
    }
    // Kubelets send logs as plain responses: for a WebSocket client they are converted to messages here.
    let over_socket = websocket::is_requested(&request.parts.headers);
    let upgrade = over_socket.then(|| request.parts.headers.remove(UPGRADE)).flatten();
    let response = forward::forward(&server.kubelets, request, &location, true).await?;
    match upgrade {
        Some(_) => websocket::serve_body(request.parts, response.into_body()).map(HandlerResponse::from),
        None => Ok(response.into()),
    }
}

/// The options object that admission sees for a connect request, and its kind.
fn options(call: &ResourceRequest<'_>) -> (&'static str, Value) {
    let target = call.target;
    let query = call.query;
    let kind = match (target.resource.as_str(), target.subresource.as_str()) {
        ("pods", "exec") => "PodExecOptions",
        ("pods", "attach") => "PodAttachOptions",
        ("pods", "portforward") => "PodPortForwardOptions",
        ("services", _) => "ServiceProxyOptions",
        ("nodes", _) => "NodeProxyOptions",
        _ => "PodProxyOptions",
    };
    let mut object = json!({"kind": kind, "apiVersion": "v1"});
    match target.subresource.as_str() {
        "exec" | "attach" => {
            for name in ["stdin", "stdout", "stderr", "tty"] {
                if query.flag(name) == Some(true) {
                    object[name] = true.into();
                }
            }
            if query.has("container") {
                object["container"] = query.text("container").into();
            }
            let command: Vec<&str> = query.all("command").collect();
            if target.subresource == "exec" && !command.is_empty() {
                object["command"] = json!(command);
            }
        }
        "portforward" => {
            let ports: Vec<i64> = query.all("ports").filter_map(|port| port.parse().ok()).collect();
            if !ports.is_empty() {
                object["ports"] = json!(ports);
            }
        }
        _ => {
            let path = crate::route::target::tail(&target.path, target);
            if !path.is_empty() {
                object["path"] = path.into();
            }
        }
    }
    (kind, object)
}

/// A stream opened by GET, as WebSocket clients must do, needs the same permission as by POST.
async fn require_create(server: &ApiServer, request: &AuthorizedRequest<'_>) -> Result<(), Status> {
    let target = &request.routed.target;
    let streams = matches!(target.subresource.as_str(), "exec" | "attach" | "portforward");
    if streams && target.verb == "get" && request.parts.headers.contains_key(UPGRADE) {
        let create = Target { verb: "create".to_owned(), ..target.clone() };
        server.authorize(request.user, &create).await?;
    }
    Ok(())
}

/// The location of the log, command or port of a pod at its kubelet.
fn in_pod(call: &ResourceRequest<'_>) -> Result<Option<Location>, Status> {
    let target = call.target;
    let pod = call.backend.objects.get("", "pods", &target.namespace, &target.name).ok_or_else(|| call.not_found())?;
    let node = pod.text(&["spec", "nodeName"]);
    let of_pod = format!("{}/{}", target.namespace, target.name);
    let (path, query) = match target.subresource.as_str() {
        "portforward" => (format!("/portForward/{of_pod}"), kubelet_query::ports(call.query)),
        "log" => {
            let container = container(&pod, call.query)?;
            let names =
                ["follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream"];
            (format!("/containerLogs/{of_pod}/{container}"), kubelet_query::same(call.query, &names))
        }
        subresource => {
            let container = container(&pod, call.query)?;
            (format!("/{subresource}/{of_pod}/{container}"), kubelet_query::streams(call.query))
        }
    };
    if node.is_empty() {
        if target.subresource == "log" {
            return Ok(None);
        }
        return Err(Status::bad_request(format!("pod {} does not have a host assigned", target.name)));
    }
    location::kubelet(call, node, &path, &query).map(Some)
}

/// The container of the request: the named one, the annotated default, or the only one.
fn container(pod: &Value, query: &Query) -> Result<String, Status> {
    let names = |list: &str| -> Vec<String> {
        pod.items(&["spec", list]).iter().map(|container| container.text(&["name"]).to_owned()).collect()
    };
    let (own, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    let pod_name = pod.text(&["metadata", "name"]);
    let requested = query.text("container");
    if requested.is_empty() {
        let annotated = pod.text(&["metadata", "annotations", "kubectl.kubernetes.io/default-container"]);
        if own.iter().any(|name| name == annotated) {
            return Ok(annotated.to_owned());
        }
        if let [only] = own.as_slice() {
            return Ok(only.clone());
        }
        let mut text =
            format!("a container name must be specified for pod {pod_name}, choose one of: [{}]", own.join(" "));
        if !init.is_empty() {
            text.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
        }
        if !ephemeral.is_empty() {
            text.push_str(&format!(" or one of the ephemeral containers: [{}]", ephemeral.join(" ")));
        }
        return Err(Status::bad_request(text));
    }
    if [&own, &init, &ephemeral].into_iter().flatten().any(|name| name == requested) {
        return Ok(requested.to_owned());
    }
    Err(Status::bad_request(format!("container {requested} is not valid for pod {pod_name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_is_the_named_the_annotated_or_the_only_one() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]}});
        let chosen = |pod: &Value, query: &str| container(pod, &Query::parse(query)).map_err(|status| status.message);
        assert_eq!(chosen(&pod, "").unwrap(), "a");
        assert_eq!(chosen(&pod, "container=i").unwrap(), "i");
        assert_eq!(chosen(&pod, "container=x").unwrap_err(), "container x is not valid for pod p");
        pod["spec"]["containers"] = json!([{"name": "a"}, {"name": "b"}]);
        assert_eq!(
            chosen(&pod, "").unwrap_err(),
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
        );
    }
}
