//! Which kinds the server serves, each at the version it prefers.

use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use kube::api::ApiResource;
use kube::core::discovery::v2::{APIGroupDiscoveryList, APIVersionDiscovery};
use parking_lot::Mutex;
use tokio::time::Instant;

#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    pub resource: ApiResource,
    pub namespaced: bool,
    pub verbs: Vec<String>,
    /// Whether it has the scale subresource.
    pub has_scale: bool,
}

impl Kind {
    /// "deployments.apps", "configmaps".
    pub fn full_name(&self) -> String {
        match self.resource.group.as_str() {
            "" => self.resource.plural.clone(),
            group => format!("{}.{group}", self.resource.plural),
        }
    }

    pub fn can(&self, verb: &str) -> bool {
        self.verbs.iter().any(|known| known == verb)
    }
}

/// The resources found, and the groups whose server did not respond.
#[derive(Debug, Default)]
pub struct Discovered {
    pub kinds: Vec<Kind>,
    pub silent: Vec<String>,
}

pub async fn discover(client: &Client) -> kube::Result<Discovered> {
    let (core, groups) =
        tokio::try_join!(client.list_core_api_versions_aggregated(), client.list_api_groups_aggregated())?;
    let mut discovered = read(core);
    let others = read(groups);
    discovered.kinds.extend(others.kinds);
    discovered.silent.extend(others.silent);
    Ok(discovered)
}

/// The kinds as last discovered, for controllers that look up one for each of many objects.
#[derive(Default)]
pub struct KnownKinds(Mutex<Option<(Arc<Vec<Kind>>, Instant)>>);

impl KnownKinds {
    /// How long a kind stays known.
    const MAX_AGE: Duration = Duration::from_secs(30);
    /// How long a kind stays unknown: objects may name kinds that nobody serves.
    const MIN_AGE: Duration = Duration::from_secs(1);

    pub async fn find(&self, client: &Client, is_meant: impl Fn(&Kind) -> bool) -> kube::Result<Option<Kind>> {
        let known = self.0.lock().clone();
        let find = |kinds: &[Kind]| kinds.iter().find(|kind| is_meant(kind)).cloned();
        if let Some((kinds, since)) = known {
            let found = find(&kinds);
            let max_age = if found.is_some() { Self::MAX_AGE } else { Self::MIN_AGE };
            if since.elapsed() < max_age {
                return Ok(found);
            }
        }
        let kinds = Arc::new(discover(client).await?.kinds);
        let found = find(&kinds);
        *self.0.lock() = Some((kinds, Instant::now()));
        Ok(found)
    }
}

/// Versions come in the server's order of preference; a resource is listed at the first version that has it.
fn read(list: APIGroupDiscoveryList) -> Discovered {
    let mut discovered = Discovered::default();
    for group in list.items {
        let name = group.metadata.and_then(|meta| meta.name).unwrap_or_default();
        let mut observed: Vec<String> = Vec::new();
        for version in group.versions {
            if version.freshness.as_deref() == Some("Stale") {
                discovered.silent.push(format!("{name}/{}", version.version.as_deref().unwrap_or("")));
            }
            for kind in kinds(&name, version) {
                if !observed.contains(&kind.resource.plural) {
                    observed.push(kind.resource.plural.clone());
                    discovered.kinds.push(kind);
                }
            }
        }
    }
    discovered
}

fn kinds(group: &str, version: APIVersionDiscovery) -> Vec<Kind> {
    let number = version.version.unwrap_or_default();
    let api_version = if group.is_empty() { number.clone() } else { format!("{group}/{number}") };
    let kind = |resource: kube::core::discovery::v2::APIResourceDiscovery| {
        Some(Kind {
            resource: ApiResource {
                group: group.to_owned(),
                version: number.clone(),
                api_version: api_version.clone(),
                kind: resource.response_kind.and_then(|kind| kind.kind)?,
                plural: resource.resource?,
            },
            namespaced: resource.scope.as_deref() == Some("Namespaced"),
            has_scale: resource.subresources.iter().any(|part| part.subresource.as_deref() == Some("scale")),
            verbs: resource.verbs,
        })
    };
    version.resources.into_iter().filter_map(kind).collect()
}
