//! Subresources that reach into a node: logs, commands, ports and proxies.
//!
//! What the client asks is asked again of the kubelet (or of a pod behind a proxy), and the answer is passed on as it
//! comes. Upgraded connections are joined byte by byte, whatever is spoken over them.

#[cfg(test)]
mod attacks;
mod forward;
mod links;
mod location;
mod log_options;
mod trust;

#[doc(hidden)]
pub use links::fuzzing;
pub use trust::{Kubelets, Trust};

use std::sync::Arc;

use http::header::UPGRADE;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::{Value, json};

use crate::admit::Operation;
use crate::authorized_request::AuthorizedRequest;
use crate::kinds::Resource;
use crate::persist::strategy::{AdmissionKind, Phase};
use crate::request::Target;
use crate::resource_request::ResourceRequest;
use crate::response::HandlerResponse;
use crate::route::query::Query;
use crate::state::ApiServer;
use crate::watch::websocket;
use location::Location;

pub fn is_connect(subresource: &str) -> bool {
    matches!(subresource, "log" | "exec" | "attach" | "portforward" | "proxy")
}

/// Answers a request by asking a node or a pod.
pub async fn serve(
    server: &Arc<ApiServer>,
    resource: &Arc<Resource>,
    request: &mut AuthorizedRequest<'_>,
) -> Result<HandlerResponse, Status> {
    let target = &request.routed.target;
    require_create(server, request)?;
    let call = ResourceRequest::new(server, resource, request);
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
            // A pod without a node has said nothing yet.
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
    // Kubelets send logs as plain answers: one that is wanted over a WebSocket is put into messages here.
    let over_socket = websocket::is_wanted(&request.parts.headers);
    let upgrade = over_socket.then(|| request.parts.headers.remove(UPGRADE)).flatten();
    let response = forward::forward(&server.kubelets, request, &location, true).await?;
    match upgrade {
        Some(_) => websocket::serve_body(request.parts, response.into_body()).map(HandlerResponse::from),
        None => Ok(response.into()),
    }
}

/// What admission sees of a request that reaches into a node: its parameters as an object, and that object's kind.
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

/// Opening a stream by GET, as WebSocket clients must, needs the same right as by POST.
fn require_create(server: &ApiServer, request: &AuthorizedRequest<'_>) -> Result<(), Status> {
    let target = &request.routed.target;
    let streams = matches!(target.subresource.as_str(), "exec" | "attach" | "portforward");
    if streams && target.verb == "get" && request.parts.headers.contains_key(UPGRADE) {
        let create = Target { verb: "create".to_owned(), ..target.clone() };
        server.authorize(request.user, &create)?;
    }
    Ok(())
}

/// Where the kubelet answers for a pod's log, command or port.
fn in_pod(call: &ResourceRequest<'_>) -> Result<Option<Location>, Status> {
    let target = call.target;
    let pod = call.server.objects.get("", "pods", &target.namespace, &target.name).ok_or_else(|| call.not_found())?;
    let node = pod.text(&["spec", "nodeName"]);
    let of_pod = format!("{}/{}", target.namespace, target.name);
    let (path, query) = match target.subresource.as_str() {
        "portforward" => (format!("/portForward/{of_pod}"), location::ports(call.query)),
        "log" => {
            let container = container(&pod, call.query)?;
            let names =
                ["follow", "previous", "timestamps", "sinceSeconds", "sinceTime", "tailLines", "limitBytes", "stream"];
            (format!("/containerLogs/{of_pod}/{container}"), location::same(call.query, &names))
        }
        subresource => {
            let container = container(&pod, call.query)?;
            (format!("/{subresource}/{of_pod}/{container}"), location::streams(call.query))
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

/// The container that is meant: the one that is named, the marked one, or the only one.
fn container(pod: &Value, query: &Query) -> Result<String, Status> {
    let names = |list: &str| -> Vec<String> {
        pod.items(&["spec", list]).iter().map(|container| container.text(&["name"]).to_owned()).collect()
    };
    let (own, init, ephemeral) = (names("containers"), names("initContainers"), names("ephemeralContainers"));
    let pod_name = pod.text(&["metadata", "name"]);
    let asked = query.text("container");
    if asked.is_empty() {
        let marked = pod.text(&["metadata", "annotations", "kubectl.kubernetes.io/default-container"]);
        if own.iter().any(|name| name == marked) {
            return Ok(marked.to_owned());
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
    if [&own, &init, &ephemeral].into_iter().flatten().any(|name| name == asked) {
        return Ok(asked.to_owned());
    }
    Err(Status::bad_request(format!("container {asked} is not valid for pod {pod_name}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_container_is_named_marked_or_the_only_one() {
        let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}], "initContainers": [{"name": "i"}]}});
        let ask = |pod: &Value, query: &str| container(pod, &Query::parse(query)).map_err(|status| status.message);
        assert_eq!(ask(&pod, "").unwrap(), "a");
        assert_eq!(ask(&pod, "container=i").unwrap(), "i");
        assert_eq!(ask(&pod, "container=x").unwrap_err(), "container x is not valid for pod p");
        pod["spec"]["containers"] = json!([{"name": "a"}, {"name": "b"}]);
        assert_eq!(
            ask(&pod, "").unwrap_err(),
            "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]"
        );
    }
}
