//! Events: what components tell people about objects.
//!
//! Recording never waits: an event goes to a background task over a bounded channel and is dropped when that is full, since
//! losing an event is better than slowing the work it speaks of.

mod correlator;
mod lanes;
mod recent;
mod recorder;
mod series;
mod writer;

pub use recorder::EventRecorder;
pub use series::SeriesRecorder;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Resource;

/// Events waiting to be written before further ones are dropped.
const QUEUED: usize = 4096;
/// Writes under way at once. Few, since events must not hold up the writes they tell of.
const CONCURRENT_WRITES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// What an event says of which object it is about.
pub fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    let meta = object.meta();
    ObjectReference {
        api_version: Some(K::api_version(&()).into_owned()),
        kind: Some(K::kind(&()).into_owned()),
        name: meta.name.clone(),
        namespace: meta.namespace.clone(),
        uid: meta.uid.clone(),
        resource_version: meta.resource_version.clone(),
        field_path: None,
    }
}

/// Events live in their object's namespace; those of cluster-wide objects in `default`.
fn namespace_of(object: &ObjectReference) -> String {
    object.namespace.clone().filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| "default".to_owned())
}

fn name_for(object: &ObjectReference, nanoseconds: i128) -> String {
    // The API refuses names beyond 253 characters; the stamp alone keeps the shortened name unique.
    const LONGEST: usize = 253;
    let stamp = format!(".{nanoseconds:x}");
    let name = object.name.as_deref().unwrap_or("");
    let end = name.len().min(LONGEST - stamp.len());
    format!("{}{stamp}", &name[..end])
}
