//! Recorders of Kubernetes events.
//!
//! Recording never blocks: an event goes to a background task over a bounded channel and is dropped when that is full,
//! since losing an event is better than delaying the work that it reports.

mod correlator;
mod lru_map;
mod recorder;
mod serial_writes;
mod series;
mod writer;

pub use recorder::EventRecorder;
pub use series::SeriesRecorder;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::jiff::Timestamp;
use kube::Resource;
use tokio::time::Instant;

/// The maximum number of events that wait to be written; more are dropped.
const MAX_QUEUED: usize = 4096;
/// Longer messages are cut. They repeat texts of objects, such as the names of all containers of a pod.
const MAX_MESSAGE_BYTES: usize = 10 << 10;
/// Concurrent writes. Few, since events must not delay the writes that they report.
const CONCURRENT_WRITES: usize = 4;

/// The type of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventType {
    /// Information only.
    Normal,
    /// Something may need attention.
    Warning,
}

impl EventType {
    /// The API's name of the type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

/// The time of an event: by the wall clock for what is written, by the monotonic clock for how long ago it was. A step of the wall
/// clock must neither lift rate limits nor end series.
#[derive(Clone, Copy)]
struct Now {
    wall: Timestamp,
    monotonic: Instant,
}

impl Now {
    fn read() -> Self {
        Now { wall: Timestamp::now(), monotonic: Instant::now() }
    }
}

/// The reference by which an event names its object.
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

/// Events are created in their object's namespace; those of cluster-scoped objects in `default`.
fn namespace_of(object: &ObjectReference) -> String {
    object.namespace.clone().filter(|namespace| !namespace.is_empty()).unwrap_or_else(|| "default".to_owned())
}

fn shortened(mut message: String) -> String {
    message.truncate(message.floor_char_boundary(MAX_MESSAGE_BYTES));
    message
}

fn name_for(object: &ObjectReference, nanoseconds: i128) -> String {
    // The API refuses names longer than 253 characters; the stamp keeps a truncated name unique.
    const MAX_NAME_LENGTH: usize = 253;
    let stamp = format!(".{nanoseconds:x}");
    let name = object.name.as_deref().unwrap_or("");
    let end = name.floor_char_boundary(MAX_NAME_LENGTH - stamp.len());
    format!("{}{stamp}", &name[..end])
}
