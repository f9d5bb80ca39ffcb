//! Applies the objects of manifest files, and deletes those that are removed.

use anyhow::Context as _;
use knarr_client::kube::api::{DeleteParams, Patch, PatchParams};
use knarr_client::kube::core::DynamicObject;
use knarr_client::kube::discovery::{self, Scope};
use knarr_client::kube::{self, Api, Client};

use super::file::Manifest;
use super::record::{ManifestObject, Record};
use crate::error_message::error_message;

const MANAGER: &str = "knarr-manifests";
/// Annotation with the file that an object comes from: an object that somebody took over is not deleted.
const MARK: &str = "knarr.dev/manifest";

/// Applies a file's objects and deletes those that it no longer contains. Returns whether all succeeded.
pub async fn apply(client: &Client, record: &mut Record, file: &str, manifest: &Manifest) -> bool {
    let before = record.of(file);
    let desired: Vec<ManifestObject> = manifest.objects.iter().map(ManifestObject::of).collect();
    // Recorded first: created objects must be known, whatever happens next.
    let mut all = before.clone();
    all.extend(desired.iter().filter(|made| !before.contains(made)).cloned());
    if !save_record(record, file, all) {
        return false;
    }
    let mut is_done = true;
    for object in &manifest.objects {
        if let Err(error) = apply_one(client, file, object).await {
            log_failure(record, file, &ManifestObject::of(object), &error, "cannot apply");
            is_done = false;
        }
    }
    let mut left = desired.clone();
    for made in before.into_iter().filter(|made| !desired.contains(made)) {
        if let Err(error) = delete_one(client, file, &made).await {
            log_failure(record, file, &made, &error, "cannot delete");
            left.push(made);
            is_done = false;
        }
    }
    if is_done {
        record.succeeded(file);
    }
    save_record(record, file, left) && is_done
}

/// Logs a failure, once.
fn log_failure(record: &mut Record, file: &str, made: &ManifestObject, error: &anyhow::Error, what: &str) {
    let error = error_message(error);
    if record.is_new_message(file, &format!("{} {} {error}", made.kind, made.name)) {
        tracing::warn!(file, kind = made.kind, name = made.name, error, "{what}; retrying every few seconds");
    }
}

/// Deletes the objects of a removed file, the last created first. Returns whether all succeeded.
pub async fn delete_all(client: &Client, record: &mut Record, file: &str) -> bool {
    let mut left = Vec::new();
    for made in record.of(file).into_iter().rev() {
        if let Err(error) = delete_one(client, file, &made).await {
            log_failure(record, file, &made, &error, "cannot delete");
            left.insert(0, made);
        }
    }
    let is_done = left.is_empty();
    if is_done {
        tracing::info!(file, "deleted the objects of a removed manifest");
    }
    save_record(record, file, left) && is_done
}

fn save_record(record: &mut Record, file: &str, made: Vec<ManifestObject>) -> bool {
    let written = record.set(file, made);
    if let Err(error) = &written {
        tracing::error!(error = format!("{error:#}"), "cannot record the objects of manifests");
    }
    written.is_ok()
}

async fn apply_one(client: &Client, file: &str, object: &DynamicObject) -> anyhow::Result<()> {
    let made = ManifestObject::of(object);
    let api = api(client, &made).await?;
    let mut marked = object.clone();
    marked.metadata.annotations.get_or_insert_default().insert(MARK.to_owned(), file.to_owned());
    api.patch(&made.name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&marked)).await?;
    Ok(())
}

async fn delete_one(client: &Client, file: &str, made: &ManifestObject) -> anyhow::Result<()> {
    let api = match api(client, made).await {
        Ok(api) => api,
        // The kind is gone, and with it all its objects.
        Err(error) if is_unknown_kind(&error) => return Ok(()),
        Err(error) => return Err(error),
    };
    let Some(current) = api.get_opt(&made.name).await? else { return Ok(()) };
    let marked = current.metadata.annotations.as_ref().and_then(|all| all.get(MARK));
    if marked.is_none_or(|from| from != file) {
        return Ok(());
    }
    match api.delete(&made.name, &DeleteParams::background()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        deleted => deleted.map(drop).map_err(anyhow::Error::from),
    }
}

async fn api(client: &Client, made: &ManifestObject) -> anyhow::Result<Api<DynamicObject>> {
    let known = discovery::pinned_kind(client, &made.kind()).await;
    let (resource, capabilities) = known.with_context(|| {
        let version = if made.group.is_empty() { made.version.clone() } else { format!("{}/{}", made.group, made.version) };
        format!("the cluster has no kind {} in {version}: check kind and apiVersion, or create its CustomResourceDefinition first", made.kind)
    })?;
    Ok(match capabilities.scope {
        Scope::Cluster => Api::all_with(client.clone(), &resource),
        Scope::Namespaced => {
            Api::namespaced_with(client.clone(), made.namespace.as_deref().unwrap_or("default"), &resource)
        }
    })
}

fn is_unknown_kind(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<kube::Error>() {
        Some(kube::Error::Api(status)) => status.code == 404,
        Some(kube::Error::Discovery(_)) => true,
        _ => false,
    }
}
