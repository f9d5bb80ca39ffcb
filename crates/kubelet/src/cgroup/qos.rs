//! The QoS class of a pod, which decides who loses resources first when the node runs short.

pub use knarr_client::pod_resources::{QosClass, qos_class};
