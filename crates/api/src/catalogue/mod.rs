//! The served kinds, with their discovery data, storage keys and types.
//!
//! A [`Catalogue`] is an immutable value behind one pointer. Built-in kinds come from `kinds.txt`; when custom resource
//! definitions change, a new catalogue is built with [`Catalogue::with_custom`] and swapped in. [`RuntimeConfig`] selects the
//! built-in versions, of which `optional_kinds.txt` has those that are not served by default.

mod kind;
mod runtime_config;
mod table;
mod verbs;
mod version;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

pub use kind::{GroupVersionKind, Kind, Storage, Subresource};
pub use runtime_config::{RuntimeConfig, RuntimeConfigError, Selection};
pub use table::CatalogueError;
pub use verbs::{Verb, Verbs};
pub use version::compare_versions;

/// The priority of groups of custom resources.
pub const CUSTOM_GROUP_PRIORITY: u32 = 1000;
/// The priority of versions of custom resources.
pub const CUSTOM_VERSION_PRIORITY: u32 = 100;

/// A snapshot of all served kinds. Cloning copies a pointer.
#[derive(Debug, Clone)]
pub struct Catalogue {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    groups: Vec<Group>,
    /// Positions in `groups`, sorted by the group's name.
    by_name: Vec<usize>,
}

/// A group with its versions, the preferred one first.
#[derive(Debug, Clone)]
pub struct Group {
    /// Empty for the core group.
    pub name: String,
    /// The priority in discovery; higher ones come first.
    pub priority: u32,
    /// The versions, the preferred one first.
    pub versions: Vec<Version>,
}

/// A version of a group with its kinds, sorted by plural name.
#[derive(Debug, Clone)]
pub struct Version {
    /// The name, such as `v1`.
    pub name: String,
    /// The priority in discovery; higher ones come first.
    pub priority: u32,
    /// The kinds, sorted by plural name.
    pub kinds: Vec<Arc<Kind>>,
}

impl Catalogue {
    /// The built-in kinds that Kubernetes serves by default.
    pub fn built_in() -> Catalogue {
        static BUILT_IN: OnceLock<Catalogue> = OnceLock::new();
        BUILT_IN
            .get_or_init(|| {
                let table = table::parse(include_str!("kinds.txt")).expect("kinds.txt is part of the program");
                Catalogue::from_groups(table.groups)
            })
            .clone()
    }

    /// These kinds and the given custom ones. A custom kind never replaces another of the same name.
    pub fn with_custom(&self, kinds: impl IntoIterator<Item = Arc<Kind>>) -> Catalogue {
        let mut groups: BTreeMap<String, Group> =
            self.groups().iter().map(|group| (group.name.clone(), group.clone())).collect();
        for kind in kinds {
            let group = groups.entry(kind.group.clone()).or_insert_with(|| Group {
                name: kind.group.clone(),
                priority: CUSTOM_GROUP_PRIORITY,
                versions: Vec::new(),
            });
            let version = match group.versions.iter().position(|version| version.name == kind.version) {
                Some(position) => &mut group.versions[position],
                None => {
                    group.versions.push(Version {
                        name: kind.version.clone(),
                        priority: CUSTOM_VERSION_PRIORITY,
                        kinds: Vec::new(),
                    });
                    group.versions.last_mut().expect("a version was just added")
                }
            };
            if version.kinds.iter().all(|other| other.plural != kind.plural && other.kind != kind.kind) {
                version.kinds.push(kind);
            }
        }
        Catalogue::from_groups(groups.into_values().collect())
    }

    fn from_groups(mut groups: Vec<Group>) -> Catalogue {
        // The core group has its own root, so it is first, regardless of its priority.
        groups.sort_by(|a, b| {
            (!a.name.is_empty(), Reverse(a.priority), &a.name).cmp(&(!b.name.is_empty(), Reverse(b.priority), &b.name))
        });
        for group in &mut groups {
            group.versions.sort_by(|a, b| b.priority.cmp(&a.priority).then_with(|| compare_versions(&b.name, &a.name)));
            for version in &mut group.versions {
                version.kinds.sort_by(|a, b| a.plural.cmp(&b.plural));
            }
        }
        let mut by_name: Vec<usize> = (0..groups.len()).collect();
        by_name.sort_by(|a, b| groups[*a].name.cmp(&groups[*b].name));
        Catalogue { inner: Arc::new(Inner { groups, by_name }) }
    }

    /// All groups as discovery orders them; the core group is the first.
    pub fn groups(&self) -> &[Group] {
        &self.inner.groups
    }

    /// The group of that name.
    pub fn group(&self, name: &str) -> Option<&Group> {
        let Inner { groups, by_name } = &*self.inner;
        let at = by_name.binary_search_by(|position| groups[*position].name.as_str().cmp(name)).ok()?;
        Some(&groups[by_name[at]])
    }

    /// The version of a group.
    pub fn version(&self, group: &str, version: &str) -> Option<&Version> {
        self.group(group)?.versions.iter().find(|candidate| candidate.name == version)
    }

    /// The kind of a request path.
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Kind>> {
        let kinds = &self.version(group, version)?.kinds;
        let at = kinds.binary_search_by(|kind| kind.plural.as_str().cmp(plural)).ok()?;
        Some(&kinds[at])
    }

    /// The kind that an object's `apiVersion` and `kind` name.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Kind>> {
        self.version(group, version)?.kinds.iter().find(|candidate| candidate.kind == kind)
    }

    /// The kind in the preferred version of a resource.
    pub fn preferred(&self, group: &str, plural: &str) -> Option<&Arc<Kind>> {
        let group = self.group(group)?;
        group.versions.iter().find_map(|version| {
            let at = version.kinds.binary_search_by(|kind| kind.plural.as_str().cmp(plural)).ok()?;
            Some(&version.kinds[at])
        })
    }

    /// All kinds in all versions.
    pub fn kinds(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.inner.groups.iter().flat_map(|group| &group.versions).flat_map(|version| &version.kinds)
    }

    /// Whether both are the same snapshot, so that data derived from one is still valid.
    pub fn same(&self, other: &Catalogue) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn custom(group: &str, version: &str, plural: &str, kind: &str) -> Arc<Kind> {
        Arc::new(Kind {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: kind.to_owned(),
            list_kind: format!("{kind}List"),
            plural: plural.to_owned(),
            singular: kind.to_lowercase(),
            short_names: Vec::new(),
            categories: Vec::new(),
            namespaced: true,
            verbs: Verbs::ALL,
            subresources: Vec::new(),
            type_name: String::new(),
            storage: Some(Storage::custom(group, plural, version)),
            custom: true,
            selectable: Vec::new(),
        })
    }

    #[test]
    fn built_in_kinds_are_complete() {
        let catalogue = Catalogue::built_in();
        let kinds = catalogue.kinds().count();
        let subresources: usize = catalogue.kinds().map(|kind| kind.subresources.len()).sum();
        assert_eq!((kinds, subresources), (68, 45));
    }

    #[test]
    fn kinds_are_found_by_path_and_by_kind() {
        let catalogue = Catalogue::built_in();
        let pods = catalogue.resource("", "v1", "pods").unwrap();
        assert_eq!(pods.kind, "Pod");
        assert_eq!(pods.list_kind, "PodList");
        assert_eq!(pods.type_name, "io.k8s.api.core.v1.Pod");
        assert_eq!(pods.subresource("eviction").unwrap().kind.to_string(), "policy/v1, Kind=Eviction");
        assert!(Arc::ptr_eq(pods, catalogue.kind("", "v1", "Pod").unwrap()));
        assert!(catalogue.resource("apps", "v1beta1", "deployments").is_none());
        assert!(catalogue.resource("", "v1", "deployments").is_none());
        assert_eq!(catalogue.preferred("autoscaling", "horizontalpodautoscalers").unwrap().version, "v2");
    }

    #[test]
    fn keys_are_laid_out_as_in_kubernetes() {
        let catalogue = Catalogue::built_in();
        for (group, plural, prefix) in [
            ("", "pods", "/registry/pods/"),
            ("", "services", "/registry/services/specs/"),
            ("", "endpoints", "/registry/services/endpoints/"),
            ("", "nodes", "/registry/minions/"),
            ("", "replicationcontrollers", "/registry/controllers/"),
            ("networking.k8s.io", "ingresses", "/registry/ingress/"),
            ("apps", "deployments", "/registry/deployments/"),
            (
                "apiextensions.k8s.io",
                "customresourcedefinitions",
                "/registry/apiextensions.k8s.io/customresourcedefinitions/",
            ),
            ("apiregistration.k8s.io", "apiservices", "/registry/apiregistration.k8s.io/apiservices/"),
        ] {
            let kind = catalogue.resource(group, "v1", plural).unwrap();
            assert_eq!(kind.storage.as_ref().unwrap().prefix, prefix, "{plural}");
        }
        let pods = catalogue.resource("", "v1", "pods").unwrap();
        assert_eq!(pods.storage.as_ref().unwrap().key(Some("web"), "one"), "/registry/pods/web/one");
        for plural in ["bindings", "componentstatuses"] {
            assert!(catalogue.resource("", "v1", plural).unwrap().storage.is_none(), "{plural}");
        }
    }

    #[test]
    fn versions_of_one_resource_share_a_store() {
        let catalogue = Catalogue::built_in();
        let old = catalogue.resource("autoscaling", "v1", "horizontalpodautoscalers").unwrap();
        let new = catalogue.resource("autoscaling", "v2", "horizontalpodautoscalers").unwrap();
        assert_eq!(old.storage, new.storage);
        let core = catalogue.resource("", "v1", "events").unwrap();
        let grouped = catalogue.resource("events.k8s.io", "v1", "events").unwrap();
        assert_eq!(core.storage, grouped.storage);
    }

    #[test]
    fn groups_are_ordered_by_priority_then_name() {
        let names: Vec<String> = Catalogue::built_in().groups().iter().map(|group| group.name.clone()).collect();
        assert_eq!(&names[..4], ["", "apiregistration.k8s.io", "apps", "events.k8s.io"]);
        assert_eq!(&names[names.len() - 3..], ["discovery.k8s.io", "resource.k8s.io", "flowcontrol.apiserver.k8s.io"]);
    }

    #[test]
    fn custom_kinds_come_last_with_their_newest_version_first() {
        let catalogue = Catalogue::built_in().with_custom([
            custom("shop.example.com", "v1beta1", "carts", "Cart"),
            custom("shop.example.com", "v2", "carts", "Cart"),
            custom("shop.example.com", "v10", "carts", "Cart"),
            custom("apps", "v1", "deployments", "Deployment"),
        ]);
        let group = catalogue.groups().last().unwrap();
        assert_eq!(group.name, "shop.example.com");
        let versions: Vec<&str> = group.versions.iter().map(|version| version.name.as_str()).collect();
        assert_eq!(versions, ["v10", "v2", "v1beta1"]);
        assert!(!catalogue.resource("apps", "v1", "deployments").unwrap().custom);
        assert_eq!(
            catalogue.preferred("shop.example.com", "carts").unwrap().storage.as_ref().unwrap().key(Some("a"), "b"),
            "/registry/shop.example.com/carts/a/b"
        );
    }
}
