//! Bringing files' objects about, and taking them away.

use anyhow::Context as _;
use knarr_client::kube::api::{DeleteParams, Patch, PatchParams};
use knarr_client::kube::core::DynamicObject;
use knarr_client::kube::discovery::{self, Scope};
use knarr_client::kube::{self, Api, Client};

use super::file::Manifest;
use super::record::{Made, Record};
use crate::complaint::complaint;

const MANAGER: &str = "knarr-manifests";
/// Names the file that an object comes from: one that somebody took over is not deleted.
const MARK: &str = "knarr.dev/manifest";

/// Applies a file's objects and deletes those that it held before. Tells whether all of it succeeded.
pub async fn apply(client: &Client, record: &mut Record, file: &str, manifest: &Manifest) -> bool {
    let before = record.of(file);
    let wanted: Vec<Made> = manifest.objects.iter().map(Made::of).collect();
    // Recorded first: what is made must be known, whatever happens next.
    let mut all = before.clone();
    all.extend(wanted.iter().filter(|made| !before.contains(made)).cloned());
    if !remember(record, file, all) {
        return false;
    }
    let mut is_done = true;
    for object in &manifest.objects {
        if let Err(error) = apply_one(client, file, object).await {
            complain(record, file, &Made::of(object), &error, "cannot apply");
            is_done = false;
        }
    }
    let mut left = wanted.clone();
    for made in before.into_iter().filter(|made| !wanted.contains(made)) {
        if let Err(error) = delete_one(client, file, &made).await {
            complain(record, file, &made, &error, "cannot delete");
            left.push(made);
            is_done = false;
        }
    }
    if is_done {
        record.succeeded(file);
    }
    remember(record, file, left) && is_done
}

/// Says why something failed, once.
fn complain(record: &mut Record, file: &str, made: &Made, error: &anyhow::Error, what: &str) {
    let error = complaint(error);
    if record.is_news(file, &format!("{} {} {error}", made.kind, made.name)) {
        tracing::warn!(file, kind = made.kind, name = made.name, error, "{what}; it is tried again every few seconds");
    }
}

/// Deletes what a file made that is gone, the last made first. Tells whether all of it succeeded.
pub async fn delete_all(client: &Client, record: &mut Record, file: &str) -> bool {
    let mut left = Vec::new();
    for made in record.of(file).into_iter().rev() {
        if let Err(error) = delete_one(client, file, &made).await {
            complain(record, file, &made, &error, "cannot delete");
            left.insert(0, made);
        }
    }
    let is_done = left.is_empty();
    if is_done {
        tracing::info!(file, "what a manifest made was deleted");
    }
    remember(record, file, left) && is_done
}

fn remember(record: &mut Record, file: &str, made: Vec<Made>) -> bool {
    let written = record.set(file, made);
    if let Err(error) = &written {
        tracing::error!(error = format!("{error:#}"), "what manifests make cannot be remembered");
    }
    written.is_ok()
}

async fn apply_one(client: &Client, file: &str, object: &DynamicObject) -> anyhow::Result<()> {
    let made = Made::of(object);
    let api = api(client, &made).await?;
    let mut marked = object.clone();
    marked.metadata.annotations.get_or_insert_default().insert(MARK.to_owned(), file.to_owned());
    api.patch(&made.name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&marked)).await?;
    Ok(())
}

async fn delete_one(client: &Client, file: &str, made: &Made) -> anyhow::Result<()> {
    let api = match api(client, made).await {
        Ok(api) => api,
        // With its kind all objects went.
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

async fn api(client: &Client, made: &Made) -> anyhow::Result<Api<DynamicObject>> {
    let known = discovery::pinned_kind(client, &made.kind()).await;
    let (resource, capabilities) = known.with_context(|| {
        let version = if made.group.is_empty() { made.version.clone() } else { format!("{}/{}", made.group, made.version) };
        format!("the cluster has no kind {} in {version}: check kind and apiVersion, or make its CustomResourceDefinition first", made.kind)
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
