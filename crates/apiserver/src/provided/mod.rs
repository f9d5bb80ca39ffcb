//! Kinds whose objects are computed on request instead of being stored.
//!
//! A provided kind is described by a custom resource definition, so that discovery, OpenAPI, selectors and tables work for
//! it. After authorization its [`Provider`] computes the objects. An APIService with a Service for the same group version
//! takes precedence, so that an installed server replaces this one.

pub mod resource_metrics;

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use knarr_api::catalogue::{Kind, Verb};
use knarr_api::selector::SelectableFields;
use knarr_api::status::Status;
use knarr_api::value::Read;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::custom::{self, CustomType};
use crate::kinds::path_of;
use crate::object_reader::ObjectReader;
use crate::request::User;
use crate::resource_request::ResourceRequest;
use crate::response::{self, Body, IncludeObject, Tables, partial};
use crate::route::accept::{Format, Shape};
use crate::route::options::ListOptions;
use crate::selection::Selection;

/// The server that a provider is part of.
#[async_trait]
pub trait ProvidingServer: Send + Sync {
    /// The stored objects.
    fn objects(&self) -> &dyn ObjectReader;

    /// Turns true when the server stops.
    fn stopping(&self) -> watch::Receiver<bool>;

    /// Handles a request of this user like that of every client.
    async fn send(self: Arc<Self>, request: Request<Empty<Bytes>>, user: User) -> Response<Body>;
}

/// Computes the objects of one kind.
#[async_trait]
pub trait Provider: Send + Sync {
    /// All objects of a namespace, or of all namespaces if it is empty, sorted by namespace and name.
    async fn list(&self, server: &Arc<dyn ProvidingServer>, namespace: &str) -> Result<Vec<Value>, Status>;

    /// One object.
    async fn get(&self, server: &Arc<dyn ProvidingServer>, namespace: &str, name: &str) -> Result<Value, Status>;

    /// The cells of a table after the name, in the order of the columns of the definition.
    fn cells(&self, object: &Value) -> Vec<Value>;
}

/// A kind to be served.
pub struct ProvidedKind {
    /// A CustomResourceDefinition with one version; its storage settings are ignored.
    pub definition: Value,
    pub provider: Arc<dyn Provider>,
}

/// All provided kinds; they do not change while the server runs.
#[derive(Default)]
pub struct Provided(Vec<Served>);

struct Served {
    kind: Arc<Kind>,
    custom: Arc<CustomType>,
    provider: Arc<dyn Provider>,
}

impl Provided {
    pub fn new(kinds: Vec<ProvidedKind>) -> Provided {
        let served = kinds.into_iter().filter_map(|ProvidedKind { definition, provider }| {
            let (mut kind, custom) = custom::without_storage(&definition)?;
            kind.verbs = [Verb::Get, Verb::List].into_iter().collect();
            Some(Served { kind: Arc::new(kind), custom: Arc::new(custom), provider })
        });
        Provided(served.collect())
    }

    /// Whether a kind of the group is provided.
    pub fn serves(&self, group: &str) -> bool {
        self.0.iter().any(|served| served.kind.group == group)
    }

    /// The kinds with their types.
    pub fn kinds(&self) -> impl Iterator<Item = (Arc<Kind>, Arc<CustomType>)> + Clone {
        self.0.iter().map(|served| (served.kind.clone(), served.custom.clone()))
    }

    /// The types by the path of their kind.
    pub fn by_path(&self) -> HashMap<String, Arc<CustomType>> {
        self.kinds().map(|(kind, custom)| (path_of(&kind.group, &kind.version, &kind.plural), custom)).collect()
    }

    /// The provider of a kind.
    pub fn provider(&self, kind: &Kind) -> Option<&Arc<dyn Provider>> {
        let same = |own: &Kind| own.group == kind.group && own.version == kind.version && own.plural == kind.plural;
        self.0.iter().find(|served| same(&served.kind)).map(|served| &served.provider)
    }
}

/// Handles a request for a provided kind.
pub async fn serve(
    server: &Arc<dyn ProvidingServer>,
    provider: &dyn Provider,
    call: &ResourceRequest<'_>,
    verb: Verb,
    format: &Format,
) -> Result<Response<Body>, Status> {
    let include = IncludeObject::of(format, call.query)?;
    match verb {
        Verb::Get => {
            let object = provider.get(server, &call.target.namespace, &call.target.name).await?;
            Ok(shaped(call, provider, vec![object], format, include, false))
        }
        Verb::List => {
            let options = ListOptions::parse(call.query, false)?;
            let selection = Selection::parse(call.resource, &options.label_selector, &options.field_selector)?;
            let fields = SelectableFields::of(&call.resource.kind);
            let mut objects = provider.list(server, &call.target.namespace).await?;
            objects.retain(|object| {
                selection.labels.matches(object["metadata"]["labels"].as_object())
                    && fields.matches(&selection.fields, object)
            });
            Ok(shaped(call, provider, objects, format, include, true))
        }
        _ => Err(Status::method_not_allowed()),
    }
}

fn shaped(
    call: &ResourceRequest<'_>,
    provider: &dyn Provider,
    mut objects: Vec<Value>,
    format: &Format,
    include: IncludeObject,
    list: bool,
) -> Response<Body> {
    let resource = call.resource;
    match format.shape {
        Shape::Table => {
            let cells = |object: &Value| {
                let name = object.at(&["metadata", "name"]).clone();
                std::iter::once(name).chain(provider.cells(object)).collect()
            };
            let tables = Tables::new(resource, format.meta_version, include);
            response::value(&tables.with_cells(json!({}), objects, cells), 200, format)
        }
        Shape::Partial | Shape::PartialList => {
            let items: Vec<Value> =
                objects.iter().map(|object| partial(resource, object, format.meta_version)).collect();
            let whole = json!({
                "kind": "PartialObjectMetadataList", "apiVersion": format!("meta.k8s.io/{}", format.meta_version),
                "metadata": {}, "items": items,
            });
            response::value(if list { &whole } else { &whole["items"][0] }, 200, format)
        }
        Shape::Whole if !list => response::value(&objects.remove(0), 200, format),
        Shape::Whole => {
            let whole = json!({
                "kind": resource.kind.list_kind, "apiVersion": resource.kind.api_version(), "metadata": {},
                "items": objects,
            });
            response::value(&whole, 200, format)
        }
    }
}
