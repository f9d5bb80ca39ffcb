//! The kinds that this server serves now, built-in and custom.

mod columns;

pub use columns::rule_columns;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use knarr_api::catalogue::{Catalogue, Kind, Storage};
use knarr_api::schema::{NodeRef, builtin};
use knarr_api::status::GroupResource;
use knarr_rules::{KindRules, rules_of};
use serde_json::Value;

use crate::custom::CustomType;

/// A resource in one version, with all that is needed to serve it.
pub struct Resource {
    pub kind: Arc<Kind>,
    pub rules: &'static dyn KindRules,
    pub custom: Option<Arc<CustomType>>,
    /// The first bytes of stored objects, up to and including the opening brace of the metadata.
    head: Box<[u8]>,
    /// Whether stored objects are in the version that is served here.
    same_version: bool,
    descriptions: OpenDescriptions,
    /// The columns of its tables, built for the first table.
    columns: OnceLock<Value>,
}

/// An immutable snapshot of all kinds; a new one is built when custom resource definitions change.
pub struct Kinds {
    pub catalogue: Catalogue,
    pub descriptions: OpenDescriptions,
    resources: HashMap<Box<str>, Arc<Resource>>,
    /// By group and plural, each in its stored version: every request looks up some of them several times.
    stored: HashMap<Box<str>, HashMap<Box<str>, Arc<Resource>>>,
}

/// Unpacks the documentation of the fields of built-in kinds, which stays in memory as long as the result is held: a
/// function from the name of a type and a field to the text. An empty field means the type itself.
pub type OpenDescriptions = Arc<dyn Fn() -> Box<dyn Fn(&str, &str) -> Option<String>> + Send + Sync>;

impl Kinds {
    pub fn new(
        catalogue: Catalogue,
        custom: &HashMap<String, Arc<CustomType>>,
        descriptions: OpenDescriptions,
    ) -> Kinds {
        let mut resources = HashMap::new();
        for kind in catalogue.kinds() {
            let path = path_of(&kind.group, &kind.version, &kind.plural);
            let custom = if kind.custom { custom.get(&path).cloned() } else { None };
            resources
                .insert(path.into_boxed_str(), Arc::new(Resource::new(kind.clone(), custom, descriptions.clone())));
        }
        let mut kinds = Kinds { catalogue, descriptions, resources, stored: HashMap::new() };
        kinds.stored = kinds.all_stored();
        kinds
    }

    /// The resource of a served version.
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.resources.get(path_of(group, version, plural).as_str())
    }

    /// The resource in the version it is stored in, whichever that is.
    pub fn stored(&self, group: &str, plural: &str) -> Option<&Arc<Resource>> {
        self.stored.get(group)?.get(plural)
    }

    fn all_stored(&self) -> HashMap<Box<str>, HashMap<Box<str>, Arc<Resource>>> {
        let mut stored: HashMap<Box<str>, HashMap<Box<str>, Arc<Resource>>> = HashMap::new();
        for kind in self.catalogue.kinds() {
            let (group, plural) = (kind.group.as_str(), kind.plural.as_str());
            if let Some(preferred) = self.catalogue.preferred(group, plural)
                && let Some(storage) = &preferred.storage
                && let Some(resource) = self
                    .resource(&storage.group, &storage.version, plural)
                    .or_else(|| self.resource(group, &preferred.version, plural))
            {
                stored.entry(group.into()).or_default().insert(plural.into(), resource.clone());
            }
        }
        stored
    }

    /// All served resources.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }
}

/// The key of a resource: `apps/v1/deployments`.
pub fn path_of(group: &str, version: &str, plural: &str) -> String {
    [group, "/", version, "/", plural].concat()
}

impl Resource {
    fn new(kind: Arc<Kind>, custom: Option<Arc<CustomType>>, descriptions: OpenDescriptions) -> Resource {
        let (head, same_version) = match &kind.storage {
            Some(storage) => (head_of(&kind, storage), storage.version == kind.version && storage.group == kind.group),
            None => (Vec::new(), true),
        };
        let rules = rules_of(&kind.group, &kind.kind);
        Resource { rules, custom, head: head.into(), same_version, kind, descriptions, columns: OnceLock::new() }
    }

    /// The column definitions of its tables.
    pub fn columns(&self) -> &Value {
        self.columns.get_or_init(|| columns::columns(self, &*(self.descriptions)()))
    }

    /// The first bytes of stored objects, up to and including the opening brace of the metadata.
    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Whether the stored version is the served one.
    pub fn is_stored_version(&self) -> bool {
        self.same_version
    }

    /// Where objects are stored; `None` if they are not.
    pub fn storage(&self) -> Option<&Storage> {
        self.kind.storage.as_ref()
    }

    /// The version in which objects are stored, and which rules see.
    pub fn stored_version(&self) -> &str {
        self.kind.storage.as_ref().map_or(&self.kind.version, |storage| &storage.version)
    }

    /// The warning that every request for a deprecated kind gets.
    pub fn deprecation(&self) -> Option<&str> {
        if let Some(custom) = &self.custom {
            return custom.deprecation.as_deref();
        }
        match self.kind.plural.as_str() {
            _ if !self.kind.group.is_empty() => None,
            "componentstatuses" => Some("v1 ComponentStatus is deprecated in v1.19+"),
            "endpoints" => Some("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice"),
            _ => None,
        }
    }

    /// The key of an object; `namespace` is ignored for cluster-wide kinds.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        let namespace = self.kind.namespaced.then_some(namespace);
        self.storage().map(|storage| storage.key(namespace, name)).unwrap_or_default()
    }

    /// The prefix of the keys of a namespace's objects, or of all when it is empty.
    pub fn range(&self, namespace: &str) -> String {
        let namespace = Some(namespace).filter(|namespace| self.kind.namespaced && !namespace.is_empty());
        self.storage().map(|storage| storage.range(namespace)).unwrap_or_default()
    }

    /// The resource as messages name it: `deployments.apps`.
    pub fn named(&self) -> GroupResource<'_> {
        GroupResource { group: &self.kind.group, name: &self.kind.plural }
    }

    /// The kind as messages name it: `Deployment.apps`.
    /// Events are named as of the core group, in both of their groups.
    pub fn kind_named(&self) -> GroupResource<'_> {
        let group = if self.kind.group == "events.k8s.io" { "" } else { &self.kind.group };
        GroupResource { group, name: &self.kind.kind }
    }

    /// The schema of the served version.
    pub fn schema(&self) -> Option<NodeRef<'_>> {
        match &self.custom {
            Some(custom) => Some(custom.node()),
            None => builtin().node_named(&self.kind.type_name),
        }
    }

    /// Whether this is the resource of a group and plural.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        self.kind.group == group && self.kind.plural == plural
    }

    /// The part of a key after the kind's prefix, as namespace and name.
    pub fn split_key<'k>(&self, key: &'k str) -> (&'k str, &'k str) {
        let prefix = self.storage().map_or(0, |storage| storage.prefix.len());
        let rest = key.get(prefix..).unwrap_or_default();
        if self.kind.namespaced { rest.split_once('/').unwrap_or(("", rest)) } else { ("", rest) }
    }
}

/// Built-in kinds start with `kind`, custom ones with `apiVersion`, as in Kubernetes.
fn head_of(kind: &Kind, storage: &Storage) -> Vec<u8> {
    let api_version = if storage.group.is_empty() {
        storage.version.clone()
    } else {
        format!("{}/{}", storage.group, storage.version)
    };
    let (kind_text, version_text) = (serde_json::json!(kind.kind), serde_json::json!(api_version));
    if kind.custom {
        format!("{{\"apiVersion\":{version_text},\"kind\":{kind_text},\"metadata\":{{").into_bytes()
    } else {
        format!("{{\"kind\":{kind_text},\"apiVersion\":{version_text},\"metadata\":{{").into_bytes()
    }
}

/// No descriptions, for tests.
pub fn no_descriptions() -> OpenDescriptions {
    Arc::new(|| Box::new(|_, _| None))
}
