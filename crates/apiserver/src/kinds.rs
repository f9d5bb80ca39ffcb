//! The kinds this server serves right now, each with all that serving it needs.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use knarr_api::catalogue::{Catalogue, Kind, Storage};
use knarr_api::schema::{NodeRef, builtin};
use knarr_api::status::Named;
use knarr_rules::{KindRules, rules_of};

use serde_json::Value;

use crate::custom::CustomType;
use crate::response::table;

/// One resource in one version.
pub struct Resource {
    pub kind: Arc<Kind>,
    pub rules: &'static dyn KindRules,
    pub custom: Option<Arc<CustomType>>,
    /// How stored objects begin, up to and with the brace that opens the metadata.
    head: Box<[u8]>,
    /// Whether stored objects are in the version that is served here.
    same_version: bool,
    descriptions: OpenDescriptions,
    /// The columns of its tables, made when the first is asked for.
    columns: OnceLock<Value>,
}

/// An immutable view of all kinds; a new one is made when custom resource definitions change.
pub struct Kinds {
    pub catalogue: Catalogue,
    pub descriptions: OpenDescriptions,
    resources: HashMap<Box<str>, Arc<Resource>>,
    /// By group and plural, each in the version it is stored in: every request looks for some of them several times.
    stored: HashMap<Box<str>, HashMap<Box<str>, Arc<Resource>>>,
}

/// Unpacks what the fields of the built-in kinds mean, in words, for as long as the answer is held: a function from a
/// type's name and a field's to the text. An empty field stands for the type itself.
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

    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }
}

/// How resources are told apart: `apps/v1/deployments`.
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

    /// The definitions of its table's columns.
    pub fn columns(&self) -> &Value {
        self.columns.get_or_init(|| table::columns(self, &*(self.descriptions)()))
    }

    pub fn head(&self) -> &[u8] {
        &self.head
    }

    /// Whether what is stored can be sent as it is.
    pub fn is_stored_version(&self) -> bool {
        self.same_version
    }

    pub fn storage(&self) -> Option<&Storage> {
        self.kind.storage.as_ref()
    }

    /// The version in which objects are stored, and in which rules look at them.
    pub fn stored_version(&self) -> &str {
        self.kind.storage.as_ref().map_or(&self.kind.version, |storage| &storage.version)
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
    pub fn named(&self) -> Named<'_> {
        Named { group: &self.kind.group, name: &self.kind.plural }
    }

    /// The kind as messages name it: `Deployment.apps`.
    /// Events are those of the core group, whichever group they are asked for in.
    pub fn kind_named(&self) -> Named<'_> {
        let group = if self.kind.group == "events.k8s.io" { "" } else { &self.kind.group };
        Named { group, name: &self.kind.kind }
    }

    /// The schema of the served version.
    pub fn schema(&self) -> Option<NodeRef<'_>> {
        match &self.custom {
            Some(custom) => Some(custom.node()),
            None => builtin().node_named(&self.kind.type_name),
        }
    }

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

/// Built-in kinds begin with `kind`, custom ones with `apiVersion`, as clients are used to.
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

/// No descriptions at all, for tests and for who needs none.
pub fn no_descriptions() -> OpenDescriptions {
    Arc::new(|| Box::new(|_, _| None))
}
