//! Images as volumes.

use k8s_openapi::api::core::v1::{Container, ImageVolumeSource, Pod};

use super::{Mounted, VolumeError};
use crate::context::Context;

/// The image is made present here; mounting it is the runtime's part.
pub async fn mount(
    context: &Context,
    pod: &Pod,
    name: &str,
    source: &ImageVolumeSource,
) -> Result<Mounted, VolumeError> {
    let reference = source.reference.clone().unwrap_or_default();
    let stand_in = Container {
        name: name.to_string(),
        image: Some(reference.clone()),
        image_pull_policy: source.pull_policy.clone(),
        ..Default::default()
    };
    context.images.ensure_for_volume(context, pod, &stand_in).await.map_err(VolumeError::Image)?;
    Ok(Mounted { path: Default::default(), read_only: true, relabel: false, image: Some(reference) })
}
