//! The paths that the server serves, the same for both versions of OpenAPI.

use crate::catalogue::{Catalogue, Group, Kind, Subresource, Verb, Version};

use super::operation::{MEDIA_TYPES, META, Names, Operation, OperationBuilder, PathItem, ResponseBody};
use super::parameters::{self, Parameter};

/// The paths of one version of a group, sorted, including its discovery document.
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

/// The path of a group's discovery document, or none for groups of custom resources.
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

fn of_kind(kind: &Kind, names: &Names, items: &mut Vec<PathItem>) {
    let scope = if kind.namespaced { "Namespaced" } else { "" };
    let within = if kind.namespaced { "/namespaces/{namespace}" } else { "" };
    let builder = OperationBuilder { kind, names, scope };
    let collection = format!("{}{within}/{}", names.root, kind.plural);

    let mut operations = Vec::new();
    if kind.verbs.contains(Verb::List) {
        operations.push(builder.list(""));
    }
    if kind.verbs.contains(Verb::Create) {
        operations.push(builder.create());
    }
    if kind.verbs.contains(Verb::DeleteCollection) {
        operations.push(builder.delete_collection());
    }
    items.extend(path_item(collection.clone(), builder.scope_parameters(false), operations));

    if kind.namespaced && kind.verbs.contains(Verb::List) {
        let list = builder.list("ForAllNamespaces");
        items.extend(path_item(
            format!("{}/{}", names.root, kind.plural),
            vec![parameters::PRETTY.clone()],
            vec![list],
        ));
    }

    let item = format!("{collection}/{{name}}");
    let operations = builder.item_operations();
    items.extend(path_item(item.clone(), builder.scope_parameters(true), operations));

    for subresource in &kind.subresources {
        of_subresource(&builder, subresource, &item, items);
    }
    if kind.verbs.contains(Verb::Watch) && !kind.custom {
        of_watch(&builder, within, items);
    }
}

fn of_subresource(builder: &OperationBuilder<'_>, subresource: &Subresource, item: &str, items: &mut Vec<PathItem>) {
    let path = format!("{item}/{}", subresource.name);
    let Some(connection) = connection(builder.kind, subresource) else {
        let operations = builder.subresource_operations(subresource);
        let mut parameters = builder.scope_parameters(true);
        if subresource.name == "log" {
            parameters.extend(parameters::LOG.iter().cloned());
        }
        items.extend(path_item(path, parameters, operations));
        return;
    };
    let mut parameters = builder.scope_parameters(true);
    parameters.retain(|parameter| *parameter != parameters::PRETTY);
    parameters.extend(connection.parameters.iter().cloned());
    let operations =
        |suffix: &str| connection.methods.iter().map(|method| builder.connect(subresource, method, suffix)).collect();
    items.extend(path_item(path.clone(), parameters.clone(), operations("")));
    if subresource.name == "proxy" {
        parameters.push(parameters::PROXY_PATH_SEGMENT.clone());
        items.extend(path_item(format!("{path}/{{path}}"), parameters, operations("WithPath")));
    }
}

fn of_watch(builder: &OperationBuilder<'_>, within: &str, items: &mut Vec<PathItem>) {
    let root = format!("{}/watch", builder.names.root);
    let plural = &builder.kind.plural;
    let listing: Vec<Parameter> = parameters::LIST.to_vec();
    let with = |mut parameters: Vec<Parameter>| {
        parameters.extend(listing.iter().cloned());
        parameters
    };
    if builder.kind.namespaced {
        let everywhere = builder.watch("watchlist", "", "ListForAllNamespaces");
        items.extend(path_item(format!("{root}/{plural}"), with(vec![parameters::PRETTY.clone()]), vec![everywhere]));
    }
    let list = builder.watch("watchlist", builder.scope, "List");
    items.extend(path_item(format!("{root}{within}/{plural}"), with(builder.scope_parameters(false)), vec![list]));
    let one = builder.watch("watch", builder.scope, "");
    items.extend(path_item(
        format!("{root}{within}/{plural}/{{name}}"),
        with(builder.scope_parameters(true)),
        vec![one],
    ));
}

/// Moves the parameters that all operations share to the path.
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

/// A subresource that connects to another endpoint, such as `exec` and `proxy`.
struct Connection {
    methods: &'static [&'static str],
    parameters: &'static [Parameter],
}

fn connection(kind: &Kind, subresource: &Subresource) -> Option<Connection> {
    const STREAM: &[&str] = &["get", "post"];
    const PROXY: &[&str] = &["get", "put", "post", "delete", "options", "head", "patch"];
    let (methods, parameters): (_, &[Parameter]) = match (kind.kind.as_str(), subresource.name.as_str()) {
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

fn document(path: String, description: &str, id: String, tag: &str, type_name: String) -> PathItem {
    let operation = Operation {
        method: "get",
        description: description.to_owned(),
        id,
        tag: tag.to_owned(),
        parameters: Vec::new(),
        body: None,
        consumes: MEDIA_TYPES,
        produces: MEDIA_TYPES,
        responses: vec![("200", ResponseBody::Type(type_name))],
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
        operation.responses = vec![("200", ResponseBody::Text)];
    }
    item
}
