//! The status of a HelmChart.

use anyhow::Context as _;
use knarr_client::kube::api::{Patch, PatchParams};
use knarr_client::kube::core::DynamicObject;
use knarr_client::kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

pub async fn write_status(
    api: &Api<DynamicObject>,
    chart: &DynamicObject,
    failure: Option<&str>,
) -> anyhow::Result<()> {
    let status = json!({"status": {"conditions": conditions(failure)}});
    if chart.data.get("status") == status.get("status") {
        return Ok(());
    }
    let patched = api.patch_status(&chart.name_any(), &PatchParams::default(), &Patch::Merge(&status)).await;
    patched.map(drop).context("cannot write the status")
}

fn conditions(failure: Option<&str>) -> Value {
    match failure {
        None => json!([
            {"type": "Failed", "status": "False", "reason": "Installed", "message": ""},
            {"type": "Installed", "status": "True", "reason": "Installed", "message": ""},
        ]),
        Some(message) => json!([
            {"type": "Failed", "status": "True", "reason": "HelmFailed", "message": message},
            {"type": "Installed", "status": "False", "reason": "HelmFailed", "message": message},
        ]),
    }
}
