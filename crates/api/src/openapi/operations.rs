//! Which paths the server answers, and how: the same for both versions of OpenAPI.

use crate::catalogue::{Catalogue, Group, GroupVersionKind, Kind, Subresource, Verb, Version};

use super::parameters::{self, Parameter};

pub(super) const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

pub(super) const ANSWERS: &[&str] = &["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const STREAMS: &[&str] = &[
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
    "application/json;stream=watch",
    "application/vnd.kubernetes.protobuf;stream=watch",
];
const CUSTOM_ANSWERS: &[&str] = &["application/json", "application/yaml"];
const LOGS: &[&str] = &["text/plain", "application/json", "application/yaml", "application/vnd.kubernetes.protobuf"];
const ANYTHING: &[&str] = &["*/*"];
const PATCHES: &[&str] = &[
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
];
const CUSTOM_PATCHES: &[&str] =
    &["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

/// A path and what can be done there.
#[derive(Debug)]
pub(super) struct PathItem {
    pub path: String,
    /// What every operation of the path takes.
    pub parameters: Vec<Parameter>,
    pub operations: Vec<Operation>,
}

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
    pub responses: Vec<(&'static str, Answer)>,
    pub action: Option<&'static str>,
    pub kind: Option<GroupVersionKind>,
}

#[derive(Debug, Clone)]
pub(super) struct Body {
    pub type_name: String,
    pub required: bool,
}

#[derive(Debug, Clone)]
pub(super) enum Answer {
    Type(String),
    Text,
}

/// The paths of one version of a group, with its own at the front.
pub(super) fn of_version(group: &Group, version: &Version) -> Vec<PathItem> {
    let names = Names::of(&group.name, &version.name);
    let mut items = Vec::new();
    if version.kinds.iter().any(|kind| !kind.custom) {
        let type_name = format!("{META}APIResourceList");
        let id = format!("get{}APIResources", names.camel);
        items.push(document(format!("{}/", names.root), "get available resources", id, &names.tag, type_name));
    }
    for kind in &version.kinds {
        of_kind(kind, &names, &mut items);
    }
    items.sort_by(|a, b| a.path.cmp(&b.path));
    items
}

/// The path of a group's own document; custom groups describe none.
pub(super) fn of_group(group: &Group) -> Option<PathItem> {
    if group.versions.iter().flat_map(|version| &version.kinds).all(|kind| kind.custom) {
        return None;
    }
    let names = Names::of(&group.name, "");
    Some(if group.name.is_empty() {
        let type_name = format!("{META}APIVersions");
        document("/api/".to_owned(), "get available API versions", "getCoreAPIVersions".to_owned(), "core", type_name)
    } else {
        let id = format!("get{}APIGroup", names.camel);
        let tag = names.tag.trim_end_matches('_');
        let path = format!("/apis/{}/", group.name);
        document(path, "get information of a group", id, tag, format!("{META}APIGroup"))
    })
}

/// `/apis/`, `/version/` and the two documents about service account tokens.
pub(super) fn of_server() -> Vec<PathItem> {
    let list = document(
        "/apis/".to_owned(),
        "get available API versions",
        "getAPIVersions".to_owned(),
        "apis",
        format!("{META}APIGroupList"),
    );
    let mut version = document(
        "/version/".to_owned(),
        "get the version information for this server",
        "getCodeVersion".to_owned(),
        "version",
        "io.k8s.apimachinery.pkg.version.Info".to_owned(),
    );
    let only_json: &[&str] = &["application/json"];
    for operation in &mut version.operations {
        (operation.consumes, operation.produces) = (only_json, only_json);
    }
    let issuer = text_document(
        "/.well-known/openid-configuration/",
        "get service account issuer OpenID configuration, also known as the 'OIDC discovery doc'",
        "getServiceAccountIssuerOpenIDConfiguration",
        "WellKnown",
        only_json,
    );
    let keys = text_document(
        "/openid/v1/jwks/",
        "get service account issuer OpenID JSON Web Key Set (contains public token verification keys)",
        "getServiceAccountIssuerOpenIDKeyset",
        "openid",
        &["application/jwk-set+json"],
    );
    vec![issuer, list, keys, version]
}

/// Every path, sorted.
pub(super) fn all(catalogue: &Catalogue) -> Vec<PathItem> {
    let mut items = of_server();
    for group in catalogue.groups() {
        items.extend(of_group(group));
        for version in &group.versions {
            items.extend(of_version(group, version));
        }
    }
    items.sort_by(|a, b| a.path.cmp(&b.path));
    items
}

/// How a group version is named in paths, operations and tags.
struct Names {
    root: String,
    camel: String,
    tag: String,
}

impl Names {
    fn of(group: &str, version: &str) -> Names {
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

fn of_kind(kind: &Kind, names: &Names, items: &mut Vec<PathItem>) {
    let scope = if kind.namespaced { "Namespaced" } else { "" };
    let within = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
    let maker = Maker { kind, names, scope };
    let collection = format!("{}{within}/{}", names.root, kind.plural);

    let mut operations = Vec::new();
    if kind.verbs.contains(Verb::List) {
        operations.push(maker.list(""));
    }
    if kind.verbs.contains(Verb::Create) {
        operations.push(maker.create());
    }
    if kind.verbs.contains(Verb::DeleteCollection) {
        operations.push(maker.delete_collection());
    }
    items.extend(path_item(collection.clone(), maker.scope_parameters(false), operations));

    if kind.namespaced && kind.verbs.contains(Verb::List) {
        let list = maker.list("ForAllNamespaces");
        items.extend(path_item(
            format!("{}/{}", names.root, kind.plural),
            vec![parameters::PRETTY.clone()],
            vec![list],
        ));
    }

    let item = format!("{collection}/{{name}}");
    let operations = maker.item_operations();
    items.extend(path_item(item.clone(), maker.scope_parameters(true), operations));

    for part in &kind.subresources {
        of_subresource(&maker, part, &item, items);
    }
    if kind.verbs.contains(Verb::Watch) && !kind.custom {
        of_watch(&maker, within, items);
    }
}

fn of_subresource(maker: &Maker<'_>, part: &Subresource, item: &str, items: &mut Vec<PathItem>) {
    let path = format!("{item}/{}", part.name);
    let Some(connection) = connection(maker.kind, part) else {
        let operations = maker.subresource_operations(part);
        let mut parameters = maker.scope_parameters(true);
        if part.name == "log" {
            parameters.extend(parameters::LOG.iter().cloned());
        }
        items.extend(path_item(path, parameters, operations));
        return;
    };
    let mut parameters = maker.scope_parameters(true);
    parameters.retain(|parameter| *parameter != parameters::PRETTY);
    parameters.extend(connection.parameters.iter().cloned());
    let operations =
        |suffix: &str| connection.methods.iter().map(|method| maker.connect(part, method, suffix)).collect();
    items.extend(path_item(path.clone(), parameters.clone(), operations("")));
    if part.name == "proxy" {
        parameters.push(parameters::PROXY_PATH_SEGMENT.clone());
        items.extend(path_item(format!("{path}/{{path}}"), parameters, operations("WithPath")));
    }
}

fn of_watch(maker: &Maker<'_>, within: &str, items: &mut Vec<PathItem>) {
    let root = format!("{}/watch", maker.names.root);
    let plural = &maker.kind.plural;
    let listing: Vec<Parameter> = parameters::LIST.to_vec();
    let with = |mut parameters: Vec<Parameter>| {
        parameters.extend(listing.iter().cloned());
        parameters
    };
    if maker.kind.namespaced {
        let everywhere = maker.watch("watchlist", "", "ListForAllNamespaces");
        items.extend(path_item(format!("{root}/{plural}"), with(vec![parameters::PRETTY.clone()]), vec![everywhere]));
    }
    let list = maker.watch("watchlist", maker.scope, "List");
    items.extend(path_item(format!("{root}{within}/{plural}"), with(maker.scope_parameters(false)), vec![list]));
    let one = maker.watch("watch", maker.scope, "");
    items.extend(path_item(format!("{root}{within}/{plural}/{{name}}"), with(maker.scope_parameters(true)), vec![one]));
}

/// What is common to all operations of a path is stated at the path.
fn path_item(path: String, mut parameters: Vec<Parameter>, mut operations: Vec<Operation>) -> Option<PathItem> {
    let first = operations.first()?;
    let common: Vec<Parameter> = first
        .parameters
        .iter()
        .filter(|parameter| operations.iter().all(|operation| operation.parameters.contains(parameter)))
        .cloned()
        .collect();
    for operation in &mut operations {
        operation.parameters.retain(|parameter| !common.contains(parameter));
    }
    parameters.extend(common);
    parameters.sort_by(|a, b| (a.name, a.place.name()).cmp(&(b.name, b.place.name())));
    Some(PathItem { path, parameters, operations })
}

/// A subresource that is a connection to something else.
struct Connection {
    methods: &'static [&'static str],
    parameters: &'static [Parameter],
}

fn connection(kind: &Kind, part: &Subresource) -> Option<Connection> {
    const STREAM: &[&str] = &["get", "post"];
    const PROXY: &[&str] = &["get", "put", "post", "delete", "options", "head", "patch"];
    let (methods, parameters): (_, &[Parameter]) = match (kind.kind.as_str(), part.name.as_str()) {
        _ if kind.custom => return None,
        ("Pod", "attach") => (STREAM, &parameters::ATTACH),
        ("Pod", "exec") => (STREAM, &parameters::EXEC),
        ("Pod", "portforward") => (STREAM, &parameters::PORT_FORWARD),
        ("Pod", "proxy") => (PROXY, &parameters::POD_PROXY),
        ("Node", "proxy") => (PROXY, &parameters::NODE_PROXY),
        ("Service", "proxy") => (PROXY, &parameters::SERVICE_PROXY),
        _ => return None,
    };
    Some(Connection { methods, parameters })
}

/// Makes the operations of one kind.
struct Maker<'a> {
    kind: &'a Kind,
    names: &'a Names,
    scope: &'static str,
}

impl Maker<'_> {
    fn scope_parameters(&self, named: bool) -> Vec<Parameter> {
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
            consumes: if custom { CUSTOM_ANSWERS } else { ANYTHING },
            produces: if custom { CUSTOM_ANSWERS } else { ANSWERS },
            responses: Vec::new(),
            action: None,
            kind: Some(self.kind.group_version_kind()),
        }
    }

    fn list(&self, suffix: &str) -> Operation {
        let Kind { kind, .. } = self.kind;
        let scope = if suffix.is_empty() { self.scope } else { "" };
        let watches = if self.kind.verbs.contains(Verb::Watch) && !self.kind.custom { "list or watch" } else { "list" };
        let id = format!("list{}{scope}{kind}{suffix}", self.names.camel);
        Operation {
            parameters: parameters::LIST.to_vec(),
            produces: if self.kind.custom { CUSTOM_ANSWERS } else { STREAMS },
            responses: vec![("200", Answer::Type(self.kind.list_type_name()))],
            action: Some("list"),
            ..self.operation("get", id, format!("{watches} objects of kind {kind}"))
        }
    }

    fn create(&self) -> Operation {
        let Kind { kind, type_name, .. } = self.kind;
        let id = format!("create{}{}{kind}", self.names.camel, self.scope);
        Operation {
            parameters: parameters::WRITE.to_vec(),
            body: Some(Body { type_name: type_name.clone(), required: true }),
            responses: answers(type_name, &["200", "201", "202"]),
            action: Some("post"),
            ..self.operation("post", id, format!("create {}{kind}", article(kind)))
        }
    }

    fn delete_collection(&self) -> Operation {
        let Kind { kind, .. } = self.kind;
        let id = format!("delete{}Collection{}{kind}", self.names.camel, self.scope);
        let parameters: &[Parameter] =
            if self.kind.custom { &parameters::LIST } else { &parameters::DELETE_COLLECTION };
        Operation {
            parameters: parameters.to_vec(),
            body: (!self.kind.custom).then(delete_options),
            responses: answers(&format!("{META}Status"), &["200"]),
            action: Some("deletecollection"),
            ..self.operation("delete", id, format!("delete collection of {kind}"))
        }
    }

    fn item_operations(&self) -> Vec<Operation> {
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
            let answer = if answers_deleted(type_name) { type_name.clone() } else { format!("{META}Status") };
            operations.push(Operation {
                parameters: parameters::DELETE.to_vec(),
                body: Some(delete_options()),
                responses: answers(&answer, &["200", "202"]),
                action: Some("delete"),
                ..self.operation("delete", id, format!("delete {}{kind}", article(kind)))
            });
        }
        if self.kind.verbs.contains(Verb::Patch) {
            operations.push(self.patch(type_name, "", ""));
        }
        operations
    }

    fn subresource_operations(&self, part: &Subresource) -> Vec<Operation> {
        let suffix = capitalized(&part.name);
        let what = format!("{} of ", part.name);
        let type_name = type_of(&part.kind, self.kind);
        let mut operations = Vec::new();
        if part.verbs.contains(Verb::Get) {
            operations.push(self.read(&type_name, &what, &suffix));
        }
        if part.verbs.contains(Verb::Update) {
            operations.push(self.replace(&type_name, &what, &suffix));
        }
        if part.verbs.contains(Verb::Create) {
            let Kind { kind, .. } = self.kind;
            let id = format!("create{}{}{kind}{suffix}", self.names.camel, self.scope);
            operations.push(Operation {
                parameters: parameters::WRITE.to_vec(),
                body: Some(Body { type_name: type_name.clone(), required: true }),
                responses: answers(&type_name, &["200", "201", "202"]),
                action: Some("post"),
                ..self.operation("post", id, format!("create {what}{}{kind}", article(kind)))
            });
        }
        if part.verbs.contains(Verb::Patch) {
            operations.push(self.patch(&type_name, &what, &suffix));
        }
        for operation in &mut operations {
            // A custom kind's scale is said to be of the kind itself.
            if !self.kind.custom {
                operation.kind = Some(part.kind.clone());
            }
            if part.name == "log" && !self.kind.custom {
                operation.produces = LOGS;
                operation.responses = vec![("200", Answer::Text)];
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
            responses: answers(type_name, &["200"]),
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
            responses: answers(type_name, &["200", "201"]),
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
            consumes: if self.kind.custom { CUSTOM_PATCHES } else { PATCHES },
            responses: answers(type_name, codes),
            action: Some("patch"),
            ..self.operation("patch", id, format!("partially update {what}the specified {kind}"))
        }
    }

    fn connect(&self, part: &Subresource, method: &'static str, suffix: &str) -> Operation {
        let Kind { kind, .. } = self.kind;
        let (scope, camel) = (self.scope, &self.names.camel);
        let id = format!("connect{camel}{}{scope}{kind}{}{suffix}", capitalized(method), capitalized(&part.name));
        let description = format!("connect {} requests to {} of {kind}", method.to_uppercase(), part.name);
        Operation {
            produces: ANYTHING,
            responses: vec![("200", Answer::Text)],
            action: Some("connect"),
            kind: Some(part.kind.clone()),
            ..self.operation(method, id, description)
        }
    }

    fn watch(&self, action: &'static str, scope: &str, suffix: &str) -> Operation {
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
            produces: STREAMS,
            responses: answers(&format!("{META}WatchEvent"), &["200"]),
            action: Some(action),
            ..self.operation("get", id, description)
        }
    }
}

fn document(path: String, description: &str, id: String, tag: &str, type_name: String) -> PathItem {
    let operation = Operation {
        method: "get",
        description: description.to_owned(),
        id,
        tag: tag.to_owned(),
        parameters: Vec::new(),
        body: None,
        consumes: ANSWERS,
        produces: ANSWERS,
        responses: vec![("200", Answer::Type(type_name))],
        action: None,
        kind: None,
    };
    PathItem { path, parameters: Vec::new(), operations: vec![operation] }
}

fn text_document(path: &str, description: &str, id: &str, tag: &str, produces: &'static [&'static str]) -> PathItem {
    let mut item = document(path.to_owned(), description, id.to_owned(), tag, String::new());
    for operation in &mut item.operations {
        operation.consumes = &[];
        operation.produces = produces;
        operation.responses = vec![("200", Answer::Text)];
    }
    item
}

fn answers(type_name: &str, codes: &[&'static str]) -> Vec<(&'static str, Answer)> {
    codes.iter().map(|code| (*code, Answer::Type(type_name.to_owned()))).collect()
}

fn delete_options() -> Body {
    Body { type_name: format!("{META}DeleteOptions"), required: false }
}

/// The type that is read and written at a subresource.
fn type_of(kind: &GroupVersionKind, parent: &Kind) -> String {
    if (&kind.group, &kind.version, &kind.kind) == (&parent.group, &parent.version, &parent.kind) {
        return parent.type_name.clone();
    }
    let found = crate::schema::builtin().kind(&kind.group, &kind.version, &kind.kind);
    found.and_then(|node| node.get().name.as_deref()).unwrap_or_default().to_owned()
}

/// Kinds whose deletion answers the object instead of a Status.
fn answers_deleted(type_name: &str) -> bool {
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
