//! All informers of a process: one per kind and selector, started when first asked for.

use std::any::{Any, TypeId};
use std::collections::HashMap;
use std::sync::Arc;

use http::Request;
use http::header::{ACCEPT, HeaderValue};
use kube::api::ApiResource;
use kube::client::Body;
use kube::runtime::watcher::{self, watcher};
use kube::{Api, Client, Resource};
use parking_lot::Mutex;

use crate::informer::{self, Informer, Metadata, Object, only_identity};

/// Large enough that a list takes few requests, small enough that its pages stay a few megabytes.
const PAGE: u32 = 1000;

#[derive(Clone)]
pub struct Informers {
    client: Client,
    /// Asks for objects without what informers would drop.
    lean: Client,
    running: Arc<Mutex<HashMap<Followed, Arc<dyn Any + Send + Sync>>>>,
    /// By kind, a `fn(&mut K)` that drops from each object what nobody here reads.
    reducers: Arc<HashMap<TypeId, Box<dyn Any + Send + Sync>>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Followed {
    object: TypeId,
    /// Group, version and plural of a kind known only at run time.
    resource: Option<(String, String, String)>,
    fields: String,
    labels: String,
}

impl Informers {
    pub fn new(client: Client) -> Self {
        let (asked, namespace) = (client.clone(), client.default_namespace().to_owned());
        let lean = tower::service_fn(move |request| {
            let asked = asked.clone();
            async move { asked.send(without_managed_fields(request)).await }
        });
        let lean = Client::new(lean, namespace);
        Self { client, lean, running: Arc::default(), reducers: Arc::default() }
    }

    /// Keeps objects of a kind smaller: `reduce` takes out what none of this process' readers needs. Such objects must not
    /// be written back whole. To be called before informers are asked for.
    pub fn reducing<K: Object>(mut self, reduce: fn(&mut K)) -> Self {
        if let Some(reducers) = Arc::get_mut(&mut self.reducers) {
            reducers.insert(TypeId::of::<K>(), Box::new(reduce));
        }
        self
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Everything of a kind.
    pub fn of<K: Object + Resource<DynamicType = ()>>(&self) -> Arc<Informer<K>> {
        self.selected("", "")
    }

    /// What of a kind the selectors let through; an empty selector lets everything through.
    pub fn selected<K: Object + Resource<DynamicType = ()>>(&self, fields: &str, labels: &str) -> Arc<Informer<K>> {
        let followed =
            Followed { object: TypeId::of::<K>(), resource: None, fields: fields.into(), labels: labels.into() };
        self.shared(followed, || {
            let mut config = config();
            config.field_selector = (!fields.is_empty()).then(|| fields.to_owned());
            config.label_selector = (!labels.is_empty()).then(|| labels.to_owned());
            let reduce =
                self.reducers.get(&TypeId::of::<K>()).and_then(|reduce| reduce.downcast_ref::<fn(&mut K)>()).copied();
            Informer::start(watcher(Api::<K>::all(self.lean.clone()), config), move |object: &mut K| {
                informer::without_managed_fields(object);
                if let Some(reduce) = reduce {
                    reduce(object);
                }
            })
        })
    }

    /// Identity and owners of everything of a kind known only at run time.
    pub fn metadata(&self, resource: &ApiResource) -> Arc<Informer<Metadata>> {
        self.shared(followed_metadata(resource), || {
            let api = Api::<Metadata>::all_with(self.lean.clone(), resource);
            Informer::start(watcher(api, config()), only_identity)
        })
    }

    /// Ends the informer of a kind that is no longer served, once its users have let it go.
    pub fn forget_metadata(&self, resource: &ApiResource) {
        self.running.lock().remove(&followed_metadata(resource));
    }

    fn shared<K: Object>(&self, followed: Followed, start: impl FnOnce() -> Informer<K>) -> Arc<Informer<K>> {
        let mut running = self.running.lock();
        if let Some(informer) = running.get(&followed)
            && let Ok(informer) = informer.clone().downcast::<Informer<K>>()
        {
            return informer;
        }
        let informer = Arc::new(start());
        running.insert(followed, informer.clone());
        informer
    }
}

/// Asks that who set which fields be left out of the answer, as few servers know how to: to read it is much of the work.
/// A request that does not say what it accepts takes JSON.
fn without_managed_fields(mut request: Request<Body>) -> Request<Body> {
    let accepted = request.headers().get(ACCEPT).map_or(&b"application/json"[..], HeaderValue::as_bytes);
    if let Ok(lean) = HeaderValue::from_bytes(&[accepted, b";managedFields=none"].concat()) {
        request.headers_mut().insert(ACCEPT, lean);
    }
    request
}

fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

fn followed_metadata(resource: &ApiResource) -> Followed {
    Followed {
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
    fn objects_are_asked_for_without_managed_fields() {
        let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        for (accepted, asked) in [
            (None, "application/json;managedFields=none".to_owned()),
            (Some(metadata), format!("{metadata};managedFields=none")),
        ] {
            let request = accepted.into_iter().fold(Request::builder(), |request, value| request.header(ACCEPT, value));
            let request = without_managed_fields(request.body(Body::empty()).expect("a request"));
            assert_eq!(request.headers().get_all(ACCEPT).iter().collect::<Vec<_>>(), [asked.as_str()]);
        }
    }
}
