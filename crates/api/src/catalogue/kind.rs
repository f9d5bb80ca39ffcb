//! A kind of the catalogue: its names, verbs, subresources and storage.

use std::fmt;

use super::Verbs;

/// One kind in one version: its discovery data and its storage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kind {
    /// Empty for the core group.
    pub group: String,
    /// The API version, such as `v1`.
    pub version: String,
    /// The kind, such as `Pod`.
    pub kind: String,
    /// The kind of its list, such as `PodList`.
    pub list_kind: String,
    /// The resource name in paths, such as `pods`.
    pub plural: String,
    /// The singular resource name, such as `pod`.
    pub singular: String,
    /// Short names for command lines, such as `po`.
    pub short_names: Vec<String>,
    /// Categories of resources, such as `all`.
    pub categories: Vec<String>,
    /// Whether objects are in namespaces.
    pub namespaced: bool,
    /// The supported verbs.
    pub verbs: Verbs,
    /// The subresources, such as `status`.
    pub subresources: Vec<Subresource>,
    /// The name of the type in the schema table and in OpenAPI.
    pub type_name: String,
    /// `None` for kinds that are not stored, such as access reviews.
    pub storage: Option<Storage>,
    /// Whether it comes from a custom resource definition.
    pub custom: bool,
    /// The selectable fields of a custom kind, such as `spec.color`.
    pub selectable: Vec<String>,
}

/// A path below an object, such as `status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Subresource {
    /// The name in paths, such as `status`.
    pub name: String,
    /// The kind that is read and written there.
    pub kind: GroupVersionKind,
    /// The supported verbs.
    pub verbs: Verbs,
}

/// The storage prefix and version of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// Starts with `/registry/` and ends with a slash.
    pub prefix: String,
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version, such as `v1`.
    pub version: String,
}

/// A group, version and kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// The API group; empty for the core group.
    pub group: String,
    /// The API version, such as `v1`.
    pub version: String,
    /// The kind, such as `Pod`.
    pub kind: String,
}

impl Kind {
    /// `v1` or `apps/v1`.
    pub fn api_version(&self) -> String {
        join_version(&self.group, &self.version)
    }

    /// The subresource of that name.
    pub fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|subresource| subresource.name == name)
    }

    /// The group, version and kind.
    pub fn group_version_kind(&self) -> GroupVersionKind {
        GroupVersionKind { group: self.group.clone(), version: self.version.clone(), kind: self.kind.clone() }
    }

    /// The name of the type of its lists.
    pub fn list_type_name(&self) -> String {
        let package = self.type_name.strip_suffix(&self.kind).unwrap_or(&self.type_name);
        [package, &self.list_kind].concat()
    }
}

impl Storage {
    /// The storage of a custom resource.
    pub fn custom(group: &str, plural: &str, version: &str) -> Storage {
        Storage { prefix: format!("/registry/{group}/{plural}/"), group: group.to_owned(), version: version.to_owned() }
    }

    /// The key of one object; `namespace` is `None` for cluster-wide kinds.
    pub fn key(&self, namespace: Option<&str>, name: &str) -> String {
        match namespace {
            Some(namespace) => [&self.prefix, namespace, "/", name].concat(),
            None => [&self.prefix, name].concat(),
        }
    }

    /// The prefix of all keys in a namespace, or of all keys.
    pub fn range(&self, namespace: Option<&str>) -> String {
        match namespace {
            Some(namespace) => [&self.prefix, namespace, "/"].concat(),
            None => self.prefix.clone(),
        }
    }
}

impl GroupVersionKind {
    /// Parses an object's `apiVersion` and `kind`.
    pub fn new(api_version: &str, kind: &str) -> GroupVersionKind {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        GroupVersionKind { group: group.to_owned(), version: version.to_owned(), kind: kind.to_owned() }
    }

    /// The `apiVersion` of objects, such as `apps/v1`.
    pub fn api_version(&self) -> String {
        join_version(&self.group, &self.version)
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

fn join_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { [group, "/", version].concat() }
}
