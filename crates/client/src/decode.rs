//! Decodes objects of the typed API.
//!
//! Decoding is generic code of great size: that of a Pod consists of several hundred functions for each source of JSON. All
//! components decode from text alone, and the kinds that several of them use are compiled here; their crates refer to that code
//! where the compiler shares it, which it does at low levels of optimisation.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, StorageClass, VolumeAttachment, VolumeAttributesClass};
use serde::de::{DeserializeOwned, Error as _};
use serde_json::{Error, Value};

/// Decodes an object from the bytes of its JSON.
pub fn from_bytes<K: DeserializeOwned>(json: &[u8]) -> Result<K, Error> {
    serde_json::from_str(std::str::from_utf8(json).map_err(Error::custom)?)
}

/// Decodes an object from a value.
pub fn from_value<K: DeserializeOwned>(value: &Value) -> Result<K, Error> {
    serde_json::from_str(&value.to_string())
}

macro_rules! compile {
    ($($kind:ty),* $(,)?) => {
        $(const _: () = {
            #[used]
            static DECODE: fn(&str) -> Result<$kind, Error> = |json| serde_json::from_str(json);
            #[used]
            static ENCODE: fn(&$kind) -> Result<Vec<u8>, Error> = serde_json::to_vec;
        };)*
    };
}

compile!(
    CSIDriver,
    CSINode,
    ConfigMap,
    DeviceClass,
    EndpointSlice,
    Lease,
    Namespace,
    NetworkPolicy,
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    ResourceClaim,
    ResourceSlice,
    Secret,
    Service,
    ServiceAccount,
    StorageClass,
    VolumeAttachment,
    VolumeAttributesClass,
);

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn objects_are_decoded() {
        let value = json!({"metadata": {"name": "a"}});
        let node: Node = from_value(&value).unwrap();
        assert_eq!(node, from_bytes(value.to_string().as_bytes()).unwrap());
        assert_eq!(node.metadata.name.as_deref(), Some("a"));
        assert!(from_bytes::<Node>(b"{\"metadata\":{\"name\":\"\xff\"}}").is_err());
    }
}
