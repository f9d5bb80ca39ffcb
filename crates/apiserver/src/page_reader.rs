//! Restricts pages that show many objects, such as the journal, to the objects that a user may get.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use http::Method;
use http::request::Parts;
use knarr_api::catalogue::Catalogue;
use knarr_api::status::Status;

use crate::page::Reader;
use crate::provided::Provided;
use crate::request::{ANONYMOUS, Target, User};
use crate::state::ApiServer;

/// Whether every authenticated user may open a page, since it shows only the objects that the user may get.
pub fn is_open_to(user: &User, parts: &Parts) -> bool {
    parts.method == Method::GET && parts.uri.path() == "/journey" && user.name != ANONYMOUS
}

/// A user who reads a page, with the server that authorizes them.
pub struct UserReader {
    server: Arc<ApiServer>,
    user: User,
    reads_all: bool,
}

impl UserReader {
    /// The reader of the page that a request names.
    pub async fn new(server: &Arc<ApiServer>, user: &User, page: &Target) -> UserReader {
        let reads_all = server.authorize(user, page).await.is_ok();
        UserReader { server: server.clone(), user: user.clone(), reads_all }
    }
}

#[async_trait]
impl Reader for UserReader {
    fn reads_all(&self) -> bool {
        self.reads_all
    }

    async fn get(&self, object: &str) -> Result<(), Status> {
        if self.reads_all {
            return Ok(());
        }
        let targets = targets(&self.server.backend.kinds.load().catalogue, &self.server.discovery.provided, object);
        if targets.is_empty() {
            return Err(Status::new(403, "Forbidden", format!("{object} is of no kind that is served")));
        }
        for target in targets {
            self.server.authorize(&self.user, &target).await?;
        }
        Ok(())
    }
}

/// The requests that would get an object. Its name contains no group, so it stands for all kinds with this plural. Kinds whose
/// objects are computed are left out: they are never written, so no page shows them.
fn targets(catalogue: &Catalogue, provided: &Provided, object: &str) -> Vec<Target> {
    let parts: Vec<&str> = object.split('/').collect();
    let (plural, namespace, name) = match parts[..] {
        [plural, namespace, name] => (plural, namespace, name),
        [plural, name] => (plural, "", name),
        _ => return Vec::new(),
    };
    let is_named = !plural.is_empty() && !name.is_empty() && (parts.len() == 2 || !namespace.is_empty());
    let kinds = catalogue.kinds().filter(|kind| {
        is_named && kind.plural == plural && kind.namespaced == (parts.len() == 3) && provided.provider(kind).is_none()
    });
    let by_group: BTreeMap<&str, Target> = kinds
        .map(|kind| {
            let target = Target {
                verb: "get".to_owned(),
                group: kind.group.clone(),
                version: kind.version.clone(),
                resource: plural.to_owned(),
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                ..Target::default()
            };
            (kind.group.as_str(), target)
        })
        .collect();
    by_group.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_got_in_its_namespace_and_in_every_group_that_has_its_plural() {
        let catalogue = Catalogue::built_in();
        let provided = Provided::new(Vec::new());
        let found = |object: &str| -> Vec<String> {
            let path = |target: Target| {
                assert_eq!(target.verb, "get");
                format!("{}/{}/{}/{}", target.group, target.namespace, target.resource, target.name)
            };
            targets(&catalogue, &provided, object).into_iter().map(path).collect()
        };
        assert_eq!(found("pods/a/web"), ["/a/pods/web"]);
        assert_eq!(found("deployments/a/web"), ["apps/a/deployments/web"]);
        assert_eq!(found("nodes/one"), ["//nodes/one"]);
        assert_eq!(found("events/a/e"), ["/a/events/e", "events.k8s.io/a/events/e"]);
        for none in
            ["pods/web", "nodes/a/one", "pods//web", "pods/a/", "/a/web", "pods", "", "unknown/a/b", "pods/a/b/c"]
        {
            assert_eq!(found(none), Vec::<String>::new(), "{none}");
        }
    }
}
