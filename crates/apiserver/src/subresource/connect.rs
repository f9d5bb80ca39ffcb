//! Subresources that reach into a node: logs, commands, ports and proxies.

use std::sync::Arc;

use knarr_api::status::Status;

use crate::kinds::Resource;
use crate::server::{Admitted, Answer, Server};

/// How this server calls kubelets.
#[derive(Default)]
pub struct Kubelets;

pub fn is_connect(subresource: &str) -> bool {
    matches!(subresource, "log" | "exec" | "attach" | "portforward" | "proxy")
}

pub async fn serve(
    _server: &Arc<Server>,
    _resource: &Arc<Resource>,
    _request: &mut Admitted<'_>,
) -> Result<Answer, Status> {
    Err(Status::no_such_resource())
}
