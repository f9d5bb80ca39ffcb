//! The runtime handler of a pod's RuntimeClass.

use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::node::v1::RuntimeClass;
use kube::Api;

use crate::api_text::api_text;
use crate::context::Context;
use crate::pod;

/// The empty name is the runtime's default.
pub async fn handler(context: &Context, pod: &Pod) -> Result<String, String> {
    let Some(name) = pod::spec(pod).runtime_class_name.as_deref().filter(|name| !name.is_empty()) else {
        return Ok(String::new());
    };
    let classes: Api<RuntimeClass> = Api::all(context.client.clone());
    match classes.get_opt(name).await {
        Ok(Some(class)) => Ok(class.handler),
        Ok(None) => Err(format!("failed to get sandbox runtime: runtimeclass.node.k8s.io \"{name}\" not found")),
        Err(error) => Err(format!("failed to get sandbox runtime: {}", api_text(&error))),
    }
}
