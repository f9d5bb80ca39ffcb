//! The informers of a process: one per kind and selector, started on first use.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use futures::StreamExt;
use http::Request;
use http::header::{ACCEPT, HeaderValue};
use kube::api::ApiResource;
use kube::client::Body;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;

use crate::informer::{self, Events, Informer, Metadata, Object, ObjectText, only_identity};

/// Large enough for few requests per list, small enough that a page stays within a few megabytes.
const PAGE_SIZE: u32 = 1000;

/// The informers of a process. Clones share them.
#[derive(Clone)]
pub struct Informers {
    client: Client,
    /// Requests objects without managed fields, which informers would remove.
    lean: Client,
    running: Arc<Mutex<HashMap<WatchKey, Arc<dyn Any + Send + Sync>>>>,
    /// By kind, a `fn(&mut K)` that removes from each object what this process does not read.
    transforms: Arc<HashMap<TypeId, Box<dyn Any + Send + Sync>>>,
}

#[derive(PartialEq, Eq, Hash)]
struct WatchKey {
    object: TypeId,
    /// Group, version and plural of a kind known only at run time.
    resource: Option<(String, String, String)>,
    fields: String,
    labels: String,
}

impl Informers {
    /// Informers that list and watch with `client`.
    pub fn new(client: Client) -> Self {
        let lean = accepting(&client, ";managedFields=none");
        Self { client, lean, running: Arc::default(), transforms: Arc::default() }
    }

    /// Leaves out changes of nodes that are nothing but heartbeats, which would reach every process that watches nodes.
    /// The times of heartbeats and the resource versions of nodes in the cache are then old. Call this before the first
    /// informer is started.
    pub fn without_heartbeats(self) -> Self {
        Self { lean: accepting(&self.client, ";managedFields=none;heartbeats=none"), ..self }
    }

    /// Makes objects of a kind smaller: `transform` removes what this process does not read. Such objects must not be
    /// written back with an update. Call this before the first informer is started.
    pub fn with_transform<K: Object>(mut self, transform: fn(&mut K)) -> Self {
        if let Some(transforms) = Arc::get_mut(&mut self.transforms) {
            transforms.insert(TypeId::of::<K>(), Box::new(transform));
        }
        self
    }

    /// The client that lists and watches.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The informer of all objects of a kind.
    pub fn of<K: Object + Resource<DynamicType = ()>>(&self) -> Arc<Informer<K>> {
        self.selected("", "")
    }

    /// The informer of the objects of a kind that match the selectors; an empty selector matches everything.
    pub fn selected<K: Object + Resource<DynamicType = ()>>(&self, fields: &str, labels: &str) -> Arc<Informer<K>> {
        let key = WatchKey { object: TypeId::of::<K>(), resource: None, fields: fields.into(), labels: labels.into() };
        self.shared(key, || {
            let mut config = config();
            config.field_selector = (!fields.is_empty()).then(|| fields.to_owned());
            config.label_selector = (!labels.is_empty()).then(|| labels.to_owned());
            let transform = self
                .transforms
                .get(&TypeId::of::<K>())
                .and_then(|transform| transform.downcast_ref::<fn(&mut K)>())
                .copied();
            let resource = ApiResource::erase::<K>(&());
            Informer::start(texts(self.lean.clone(), resource, config), move |text: ObjectText| {
                let mut object: K = text.decode()?;
                informer::without_managed_fields(&mut object);
                if let Some(transform) = transform {
                    transform(&mut object);
                }
                Ok(object)
            })
        })
    }

    /// The informer of identity and owners of all objects of a kind known only at run time.
    pub fn metadata(&self, resource: &ApiResource) -> Arc<Informer<Metadata>> {
        self.shared(metadata_key(resource), || {
            let api = Api::<Metadata>::all_with(self.lean.clone(), resource);
            Informer::start(
                move || watcher(api.clone(), config()).boxed(),
                |mut object: Metadata| {
                    only_identity(&mut object);
                    Ok(object)
                },
            )
        })
    }

    /// Removes the informer of a kind that is no longer served; it stops when its last user drops it.
    pub fn remove_metadata(&self, resource: &ApiResource) {
        self.running.lock().remove(&metadata_key(resource));
    }

    fn shared<K: Object>(&self, key: WatchKey, start: impl FnOnce() -> Informer<K>) -> Arc<Informer<K>> {
        let mut running = self.running.lock();
        if let Some(informer) = running.get(&key)
            && let Ok(informer) = informer.clone().downcast::<Informer<K>>()
        {
            return informer;
        }
        let informer = Arc::new(start());
        running.insert(key, informer.clone());
        informer
    }
}

/// Opens watches of the texts of a kind's objects. Not generic, so that the watch is compiled once.
fn texts(client: Client, resource: ApiResource, config: watcher::Config) -> impl Fn() -> Events<ObjectText> {
    let api = Api::<ObjectText>::all_with(client, &resource);
    move || watcher(api.clone(), config.clone()).boxed()
}

/// A client that requests less than whole objects, whose parsing is expensive: without managed fields, for example.
/// Servers that do not support the parameters ignore them.
fn accepting(client: &Client, parameters: &'static str) -> Client {
    let (inner, namespace) = (client.clone(), client.default_namespace().to_owned());
    let lean = tower::service_fn(move |request| {
        let inner = inner.clone();
        async move { inner.send(with_accept_parameters(request, parameters)).await }
    });
    Client::new(lean, namespace)
}

/// A request without an `Accept` header accepts JSON.
fn with_accept_parameters(mut request: Request<Body>, parameters: &str) -> Request<Body> {
    let accepted = request.headers().get(ACCEPT).map_or(&b"application/json"[..], HeaderValue::as_bytes);
    if let Ok(lean) = HeaderValue::from_bytes(&[accepted, parameters.as_bytes()].concat()) {
        request.headers_mut().insert(ACCEPT, lean);
    }
    request
}

fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE_SIZE)
}

fn metadata_key(resource: &ApiResource) -> WatchKey {
    WatchKey {
        object: TypeId::of::<Metadata>(),
        resource: Some((resource.group.clone(), resource.version.clone(), resource.plural.clone())),
        fields: String::new(),
        labels: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_requested_without_managed_fields() {
        let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        for (accepted, expected) in [
            (None, "application/json;managedFields=none".to_owned()),
            (Some(metadata), format!("{metadata};managedFields=none")),
        ] {
            let request = accepted.into_iter().fold(Request::builder(), |request, value| request.header(ACCEPT, value));
            let request = request.body(Body::empty()).expect("a request");
            let request = with_accept_parameters(request, ";managedFields=none");
            assert_eq!(request.headers().get_all(ACCEPT).iter().collect::<Vec<_>>(), [expected.as_str()]);
        }
    }
}
