//! Event streams: CRI's container events, and containerd's own events for versions that do not serve those.

/// A container event of CRI.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ContainerEventResponse {
    #[prost(string, tag = "1")]
    pub container_id: String,
    #[prost(enumeration = "ContainerEventType", tag = "2")]
    pub container_event_type: i32,
    #[prost(int64, tag = "3")]
    pub created_at: i64,
    #[prost(message, optional, tag = "4")]
    pub pod_sandbox_status: Option<super::PodSandboxStatus>,
}

/// The kind of a container event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum ContainerEventType {
    Created = 0,
    Started = 1,
    Stopped = 2,
    Deleted = 3,
}

/// containerd.services.events.v1: filters are joined by "or".
#[derive(Clone, PartialEq, prost::Message)]
pub struct SubscribeRequest {
    #[prost(string, repeated, tag = "1")]
    pub filters: Vec<String>,
}

/// An event of containerd with its topic.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Envelope {
    #[prost(message, optional, tag = "1")]
    pub timestamp: Option<Timestamp>,
    #[prost(string, tag = "2")]
    pub namespace: String,
    #[prost(string, tag = "3")]
    pub topic: String,
    #[prost(message, optional, tag = "4")]
    pub event: Option<Any>,
}

/// Time since 1970 (google.protobuf.Timestamp).
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct Timestamp {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// A message together with the name of its type (google.protobuf.Any).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// containerd.events.TaskExit; `id` differs from `container_id` when a process started by exec has exited.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TaskExit {
    #[prost(string, tag = "1")]
    pub container_id: String,
    #[prost(string, tag = "2")]
    pub id: String,
    #[prost(uint32, tag = "3")]
    pub pid: u32,
    #[prost(uint32, tag = "4")]
    pub exit_status: u32,
}

/// containerd.events.TaskOOM.
#[derive(Clone, PartialEq, prost::Message)]
pub struct TaskOom {
    #[prost(string, tag = "1")]
    pub container_id: String,
}
