//! Collects the files of config map, secret, downward API and projected volumes.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, KeyToPath, Pod, VolumeProjection};
use k8s_openapi::jiff::Timestamp;

use super::atomic::File;
use super::memory_budget::MemoryBudget;
use super::{VolumeError, VolumeMounter};
use crate::downward_api::{field_value, resource_value};
use crate::objects::Kind;
use crate::pod;

pub struct VolumeFiles {
    pub kind: &'static str,
    pub files: BTreeMap<String, File>,
    pub renew_at: Option<Timestamp>,
}

const DEFAULT_MODE: i32 = 0o644;

/// The files of one volume by path. A volume may name one key thousands of times: it is refused before its files fill the memory of
/// this process, whether they are written to memory or to disk.
struct Files<'a> {
    by_path: BTreeMap<String, File>,
    budget: &'a MemoryBudget,
}

impl<'a> Files<'a> {
    fn new(budget: &'a MemoryBudget) -> Self {
        Self { by_path: BTreeMap::new(), budget }
    }

    fn insert(&mut self, path: &str, file: File) -> Result<(), VolumeError> {
        self.budget.spend(file.content.len())?;
        self.by_path.insert(path.to_owned(), file);
        Ok(())
    }
}

/// None when the volume is of another kind.
pub async fn collect(mounter: &VolumeMounter<'_>) -> Result<Option<VolumeFiles>, VolumeError> {
    let volume = mounter.volume;
    // Projected volumes wait for one source while they hold the files of others, all at the same time: they share one budget. A
    // config map is written to disk as soon as it is read, and may be as large as another volume of the pod.
    let on_disk = MemoryBudget::default();
    let mut files = Files::new(if volume.config_map.is_some() { &on_disk } else { mounter.memory });
    let mut renew_at = None;
    let kind = if let Some(source) = &volume.config_map {
        let selection =
            KeySelection { items: source.items.as_deref(), optional: source.optional, mode: source.default_mode };
        keys(mounter, Kind::ConfigMap, &source.name, &selection, &mut files).await?;
        "configmap"
    } else if let Some(source) = &volume.secret {
        let name = source.secret_name.as_deref().unwrap_or_default();
        let selection =
            KeySelection { items: source.items.as_deref(), optional: source.optional, mode: source.default_mode };
        keys(mounter, Kind::Secret, name, &selection, &mut files).await?;
        "secret"
    } else if let Some(source) = &volume.downward_api {
        fields(mounter, source.items.as_deref(), source.default_mode, &mut files)?;
        "downward-api"
    } else if let Some(source) = &volume.projected {
        let mut failures = Vec::new();
        for projection in source.sources.iter().flatten() {
            match project(mounter, projection, source.default_mode, &mut files).await {
                Ok(renew) => renew_at = [renew_at, renew].into_iter().flatten().min(),
                Err(error) => failures.push(error),
            }
        }
        match failures.pop() {
            Some(only) if failures.is_empty() => return Err(only),
            Some(last) => {
                let texts: Vec<String> = failures.iter().chain([&last]).map(ToString::to_string).collect();
                return Err(VolumeError::Several(texts.join(", ")));
            }
            None => {}
        }
        "projected"
    } else {
        return Ok(None);
    };
    Ok(Some(VolumeFiles { kind, files: files.by_path, renew_at }))
}

struct KeySelection<'a> {
    items: Option<&'a [KeyToPath]>,
    optional: Option<bool>,
    mode: Option<i32>,
}

async fn project(
    mounter: &VolumeMounter<'_>,
    projection: &VolumeProjection,
    mode: Option<i32>,
    files: &mut Files<'_>,
) -> Result<Option<Timestamp>, VolumeError> {
    if let Some(source) = &projection.config_map {
        let selection = KeySelection { items: source.items.as_deref(), optional: source.optional, mode };
        keys(mounter, Kind::ConfigMap, &source.name, &selection, files).await?;
    }
    if let Some(source) = &projection.secret {
        let selection = KeySelection { items: source.items.as_deref(), optional: source.optional, mode };
        keys(mounter, Kind::Secret, &source.name, &selection, files).await?;
    }
    if let Some(source) = &projection.downward_api {
        fields(mounter, source.items.as_deref(), mode, files)?;
    }
    if let Some(source) = &projection.cluster_trust_bundle {
        let content = super::trust_bundle::trust_bundle(mounter.context, source).await?;
        files.insert(&source.path, for_the_user(mounter, file(content.into_bytes(), None, mode)))?;
    }
    if let Some(source) = &projection.service_account_token {
        let audience = source.audience.as_deref().unwrap_or_default();
        let tokens = &mounter.context.tokens;
        let token = tokens.get(mounter.pod, audience, source.expiration_seconds.unwrap_or(3600)).await?;
        let content = file(token.value.clone().into_bytes(), None, mode);
        files.insert(&source.path, for_the_user(mounter, content))?;
        return Ok(Some(token.renew_at));
    }
    Ok(None)
}

/// Restricts a token to the pod's user: if all containers run as one user, that user owns the file; with an `fsGroup`
/// the group may read it; otherwise every user in the pod may.
fn for_the_user(mounter: &VolumeMounter<'_>, file: File) -> File {
    let owner = only_user(mounter.pod);
    let mode = if owner.is_some() || mounter.group().is_some() { 0o600 } else { file.mode };
    File { mode, owner, ..file }
}

/// The user that all containers run as.
fn only_user(pod: &Pod) -> Option<u32> {
    let spec = pod::spec(pod);
    let shared = spec.security_context.as_ref().and_then(|context| context.run_as_user);
    let plain = spec.init_containers.iter().flatten().chain(&spec.containers);
    let mut users =
        plain.map(|container| container.security_context.as_ref().and_then(|own| own.run_as_user).or(shared));
    let first = users.next().flatten().and_then(|user| u32::try_from(user).ok());
    first.filter(|first| users.all(|other| other == Some((*first).into())))
}

fn file(content: Vec<u8>, own: Option<i32>, default: Option<i32>) -> File {
    let mode = own.or(default).unwrap_or(DEFAULT_MODE);
    File { content, mode: u32::try_from(mode).unwrap_or(0o644) & 0o777, owner: None }
}

async fn keys(
    mounter: &VolumeMounter<'_>,
    kind: Kind,
    name: &str,
    selection: &KeySelection<'_>,
    files: &mut Files<'_>,
) -> Result<(), VolumeError> {
    let optional = selection.optional == Some(true);
    let Some(object) = mounter.objects.get(kind, pod::namespace(mounter.pod), name).await? else {
        if optional {
            return Ok(());
        }
        return Err(VolumeError::Missing { kind: kind.lower(), name: name.to_string() });
    };
    match selection.items.filter(|items| !items.is_empty()) {
        None => {
            for (key, content) in object.data.iter().chain(&object.binary) {
                files.insert(key, file(content.clone(), None, selection.mode))?;
            }
        }
        Some(items) => {
            for item in items {
                match object.data.get(&item.key).or_else(|| object.binary.get(&item.key)) {
                    Some(content) => {
                        files.insert(&item.path, file(content.clone(), item.mode, selection.mode))?;
                    }
                    None if optional => {}
                    None if kind == Kind::ConfigMap => return Err(VolumeError::MissingConfig(item.key.clone())),
                    None => return Err(VolumeError::MissingSecret(item.key.clone())),
                }
            }
        }
    }
    Ok(())
}

fn fields(
    mounter: &VolumeMounter<'_>,
    items: Option<&[DownwardAPIVolumeFile]>,
    mode: Option<i32>,
    files: &mut Files<'_>,
) -> Result<(), VolumeError> {
    for item in items.into_iter().flatten() {
        let text = if let Some(field) = &item.field_ref {
            field_value(mounter.pod, &field.field_path, mounter.downward)?
        } else if let Some(resource) = &item.resource_field_ref {
            resource_value(mounter.pod, None, resource, mounter.downward)?
        } else {
            continue;
        };
        files.insert(&item.path, file(text.into_bytes(), item.mode, mode))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_named_many_times_does_not_fill_memory() {
        let budget = MemoryBudget::default();
        let mut files = Files::new(&budget);
        let content = vec![0; 1 << 20];
        let mut insert = |number: usize| files.insert(&format!("f{number}"), file(content.clone(), None, None));
        assert_eq!((0..15_000).take_while(|number| insert(*number).is_ok()).count(), 64);
        assert_eq!(files.by_path.len(), 64);
    }
}
