//! The operations that a path supports: method, parameters, body and responses.

use crate::catalogue::{GroupVersionKind, Kind, Subresource, Verb};

use super::parameters::{self, Parameter};

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

pub(super) const MEDIA_TYPES: &[&str] =
    &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const WATCHABLE_MEDIA_TYPES: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const CUSTOM_MEDIA_TYPES: &[&str] = &["application/json", "application/yaml"];
const LOG_MEDIA_TYPES: &[&str] =
    &["text/plain", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const ANY_MEDIA_TYPE: &[&str] = &["*/*"];
const PATCH_TYPES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const CUSTOM_PATCH_TYPES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

/// A path and its operations.
#[derive(Debug)]
pub(super) struct PathItem {
    pub path: String,
    /// The parameters of every operation of the path.
    pub parameters: Vec<Parameter>,
    pub operations: Vec<Operation>,
}

/// One method of a path.
#[derive(Debug)]
pub(super) struct Operation {
    pub method: &'static str,
    pub description: String,
    pub id: String,
    pub tag: String,
    pub parameters: Vec<Parameter>,
    pub body: Option<Body>,
    pub consumes: &'static [&'static str],
    pub produces: &'static [&'static str],
    pub responses: Vec<(&'static str, ResponseBody)>,
    pub action: Option<&'static str>,
    pub kind: Option<GroupVersionKind>,
}

/// The type of a request body.
#[derive(Debug, Clone)]
pub(super) struct Body {
    pub type_name: String,
    pub required: bool,
}

/// The content of a response.
#[derive(Debug, Clone)]
pub(super) enum ResponseBody {
    Type(String),
    Text,
}

/// The names of a group version in paths, operation ids and tags.
pub(super) struct Names {
    pub root: String,
    pub camel: String,
    pub tag: String,
}

impl Names {
    /// The names of this group version.
    pub fn of(group: &str, version: &str) -> Names {
        let root = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        let short = match group {
            "" => "core",
            _ => group.strip_suffix(".k8s.io").unwrap_or(group),
        };
        let camel: String = short.split('.').map(capitalized).collect();
        let mut tag = camel.clone();
        if let Some(first) = tag.get_mut(..1) {
            first.make_ascii_lowercase();
        }
        Names { root, camel: camel + &capitalized(version), tag: format!("{tag}_{version}") }
    }
}

/// Builds the operations of one kind.
pub(super) struct OperationBuilder<'a> {
    pub kind: &'a Kind,
    pub names: &'a Names,
    pub scope: &'static str,
}

impl OperationBuilder<'_> {
    /// The parameters that all operations of a path share.
    pub fn scope_parameters(&self, named: bool) -> Vec<Parameter> {
        let mut parameters = vec![parameters::PRETTY.clone()];
        if self.kind.namespaced {
            parameters.push(parameters::NAMESPACE.clone());
        }
        if named {
            parameters.push(parameters::name_of(&self.kind.kind));
        }
        parameters
    }

    fn operation(&self, method: &'static str, id: String, description: String) -> Operation {
        let custom = self.kind.custom;
        Operation {
            method,
            description,
            id,
            tag: self.names.tag.clone(),
            parameters: Vec::new(),
            body: None,
            consumes: if custom { CUSTOM_MEDIA_TYPES } else { ANY_MEDIA_TYPE },
            produces: if custom { CUSTOM_MEDIA_TYPES } else { MEDIA_TYPES },
            responses: Vec::new(),
            action: None,
            kind: Some(self.kind.group_version_kind()),
        }
    }

    /// Lists objects, in one namespace or in all.
    pub fn list(&self, suffix: &str) -> Operation {
        let Kind { kind, .. } = self.kind;
        let scope = if suffix.is_empty() { self.scope } else { "" };
        let watches = if self.kind.verbs.contains(Verb::Watch) && !self.kind.custom { "list or watch" } else { "list" };
        let id = format!("list{}{scope}{kind}{suffix}", self.names.camel);
        Operation {
            parameters: parameters::LIST.to_vec(),
            produces: if self.kind.custom { CUSTOM_MEDIA_TYPES } else { WATCHABLE_MEDIA_TYPES },
            responses: vec![("200", ResponseBody::Type(self.kind.list_type_name()))],
            action: Some("list"),
            ..self.operation("get", id, format!("{watches} objects of kind {kind}"))
        }
    }

    /// Creates an object.
    pub fn create(&self) -> Operation {
        let Kind { kind, type_name, .. } = self.kind;
        let id = format!("create{}{}{kind}", self.names.camel, self.scope);
        Operation {
            parameters: parameters::WRITE.to_vec(),
            body: Some(Body { type_name: type_name.clone(), required: true }),
            responses: responses(type_name, &["200", "201", "202"]),
            action: Some("post"),
            ..self.operation("post", id, format!("create {}{kind}", article(kind)))
        }
    }

    /// Deletes the objects that selectors match.
    pub fn delete_collection(&self) -> Operation {
        let Kind { kind, .. } = self.kind;
        let id = format!("delete{}Collection{}{kind}", self.names.camel, self.scope);
        let parameters: &[Parameter] =
            if self.kind.custom { &parameters::LIST } else { &parameters::DELETE_COLLECTION };
        Operation {
            parameters: parameters.to_vec(),
            body: (!self.kind.custom).then(delete_options),
            responses: responses(&format!("{META}Status"), &["200"]),
            action: Some("deletecollection"),
            ..self.operation("delete", id, format!("delete collection of {kind}"))
        }
    }

    /// The operations of one object that the kind has.
    pub fn item_operations(&self) -> Vec<Operation> {
        let Kind { kind, type_name, .. } = self.kind;
        let mut operations = Vec::new();
        if self.kind.verbs.contains(Verb::Get) {
            operations.push(self.read(type_name, "", ""));
        }
        if self.kind.verbs.contains(Verb::Update) {
            operations.push(self.replace(type_name, "", ""));
        }
        if self.kind.verbs.contains(Verb::Delete) {
            let id = format!("delete{}{}{kind}", self.names.camel, self.scope);
            let response = if returns_deleted_object(type_name) { type_name.clone() } else { format!("{META}Status") };
            operations.push(Operation {
                parameters: parameters::DELETE.to_vec(),
                body: Some(delete_options()),
                responses: responses(&response, &["200", "202"]),
                action: Some("delete"),
                ..self.operation("delete", id, format!("delete {}{kind}", article(kind)))
            });
        }
        if self.kind.verbs.contains(Verb::Patch) {
            operations.push(self.patch(type_name, "", ""));
        }
        operations
    }

    /// The operations of a subresource that is an object.
    pub fn subresource_operations(&self, subresource: &Subresource) -> Vec<Operation> {
        let suffix = capitalized(&subresource.name);
        let what = format!("{} of ", subresource.name);
        let type_name = type_of(&subresource.kind, self.kind);
        let mut operations = Vec::new();
        if subresource.verbs.contains(Verb::Get) {
            operations.push(self.read(&type_name, &what, &suffix));
        }
        if subresource.verbs.contains(Verb::Update) {
            operations.push(self.replace(&type_name, &what, &suffix));
        }
        if subresource.verbs.contains(Verb::Create) {
            let Kind { kind, .. } = self.kind;
            let id = format!("create{}{}{kind}{suffix}", self.names.camel, self.scope);
            operations.push(Operation {
                parameters: parameters::WRITE.to_vec(),
                body: Some(Body { type_name: type_name.clone(), required: true }),
                responses: responses(&type_name, &["200", "201", "202"]),
                action: Some("post"),
                ..self.operation("post", id, format!("create {what}{}{kind}", article(kind)))
            });
        }
        if subresource.verbs.contains(Verb::Patch) {
            operations.push(self.patch(&type_name, &what, &suffix));
        }
        for operation in &mut operations {
            // The scale of a custom kind has the kind of its parent here.
            if !self.kind.custom {
                operation.kind = Some(subresource.kind.clone());
            }
            if subresource.name == "log" && !self.kind.custom {
                operation.produces = LOG_MEDIA_TYPES;
                operation.responses = vec![("200", ResponseBody::Text)];
            }
        }
        operations
    }

    fn read(&self, type_name: &str, what: &str, suffix: &str) -> Operation {
        let Kind { kind, .. } = self.kind;
        let id = format!("read{}{}{kind}{suffix}", self.names.camel, self.scope);
        let parameters = if self.kind.custom { vec![parameters::RESOURCE_VERSION.clone()] } else { Vec::new() };
        Operation {
            parameters,
            responses: responses(type_name, &["200"]),
            action: Some("get"),
            ..self.operation("get", id, format!("read {what}the specified {kind}"))
        }
    }

    fn replace(&self, type_name: &str, what: &str, suffix: &str) -> Operation {
        let Kind { kind, .. } = self.kind;
        let id = format!("replace{}{}{kind}{suffix}", self.names.camel, self.scope);
        Operation {
            parameters: parameters::WRITE.to_vec(),
            body: Some(Body { type_name: type_name.to_owned(), required: true }),
            responses: responses(type_name, &["200", "201"]),
            action: Some("put"),
            ..self.operation("put", id, format!("replace {what}the specified {kind}"))
        }
    }

    fn patch(&self, type_name: &str, what: &str, suffix: &str) -> Operation {
        let Kind { kind, .. } = self.kind;
        let id = format!("patch{}{}{kind}{suffix}", self.names.camel, self.scope);
        let codes: &[&str] = if self.kind.custom { &["200"] } else { &["200", "201"] };
        Operation {
            parameters: parameters::PATCH.to_vec(),
            body: Some(Body { type_name: format!("{META}Patch"), required: true }),
            consumes: if self.kind.custom { CUSTOM_PATCH_TYPES } else { PATCH_TYPES },
            responses: responses(type_name, codes),
            action: Some("patch"),
            ..self.operation("patch", id, format!("partially update {what}the specified {kind}"))
        }
    }

    /// Connects to a subresource that is a stream or a proxy.
    pub fn connect(&self, subresource: &Subresource, method: &'static str, suffix: &str) -> Operation {
        let Kind { kind, .. } = self.kind;
        let (scope, camel) = (self.scope, &self.names.camel);
        let id =
            format!("connect{camel}{}{scope}{kind}{}{suffix}", capitalized(method), capitalized(&subresource.name));
        let description = format!("connect {} requests to {} of {kind}", method.to_uppercase(), subresource.name);
        Operation {
            produces: ANY_MEDIA_TYPE,
            responses: vec![("200", ResponseBody::Text)],
            action: Some("connect"),
            kind: Some(subresource.kind.clone()),
            ..self.operation(method, id, description)
        }
    }

    /// Watches by the deprecated path.
    pub fn watch(&self, action: &'static str, scope: &str, suffix: &str) -> Operation {
        let Kind { kind, .. } = self.kind;
        let id = format!("watch{}{scope}{kind}{suffix}", self.names.camel);
        let description = if action == "watch" {
            format!(
                "watch changes to an object of kind {kind}. deprecated: use the 'watch' parameter with a list operation \
                 instead, filtered to a single item with the 'fieldSelector' parameter."
            )
        } else {
            format!(
                "watch individual changes to a list of {kind}. deprecated: use the 'watch' parameter with a list operation \
                 instead."
            )
        };
        Operation {
            produces: WATCHABLE_MEDIA_TYPES,
            responses: responses(&format!("{META}WatchEvent"), &["200"]),
            action: Some(action),
            ..self.operation("get", id, description)
        }
    }
}

fn responses(type_name: &str, codes: &[&'static str]) -> Vec<(&'static str, ResponseBody)> {
    codes.iter().map(|code| (*code, ResponseBody::Type(type_name.to_owned()))).collect()
}

fn delete_options() -> Body {
    Body { type_name: format!("{META}DeleteOptions"), required: false }
}

/// The name of the type that is read and written at a subresource.
fn type_of(kind: &GroupVersionKind, parent: &Kind) -> String {
    if (&kind.group, &kind.version, &kind.kind) == (&parent.group, &parent.version, &parent.kind) {
        return parent.type_name.clone();
    }
    let found = crate::schema::builtin().kind(&kind.group, &kind.version, &kind.kind);
    found.and_then(|node| node.get().name.as_deref()).unwrap_or_default().to_owned()
}

/// Whether deletion of the kind returns the object instead of a Status.
fn returns_deleted_object(type_name: &str) -> bool {
    const CORE: [&str; 7] = [
        "PersistentVolume",
        "PersistentVolumeClaim",
        "Pod",
        "PodTemplate",
        "ResourceQuota",
        "Service",
        "ServiceAccount",
    ];
    const STORAGE: [&str; 5] = ["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"];
    if let Some(kind) = type_name.strip_prefix("io.k8s.api.core.v1.") {
        return CORE.contains(&kind);
    }
    if let Some(kind) = type_name.strip_prefix("io.k8s.api.storage.v1.") {
        return STORAGE.contains(&kind);
    }
    type_name.starts_with("io.k8s.api.resource.v1.")
}

fn article(kind: &str) -> &'static str {
    if kind.ends_with('s') && !kind.ends_with("ss") {
        return "";
    }
    if kind.starts_with(['A', 'E', 'I', 'O', 'U']) { "an " } else { "a " }
}

fn capitalized(word: &str) -> String {
    let mut word = word.to_owned();
    if let Some(first) = word.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    word
}
