//! An object as its JSON text.
//!
//! Informers of all kinds receive it from the same watch code and decode it on arrival: that code is large, and would be compiled
//! once for every kind.

use std::borrow::Cow;
use std::fmt;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::api::ApiResource;
use kube::core::DynamicResourceScope;
use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{DeserializeOwned, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::value::RawValue;

/// The text of an object. Of its metadata, only the resource version is there, which a watch resumes from.
#[derive(Clone)]
pub(crate) struct ObjectText {
    metadata: ObjectMeta,
    json: Box<RawValue>,
}

impl ObjectText {
    /// The object.
    pub fn decode<K: DeserializeOwned>(&self) -> serde_json::Result<K> {
        serde_json::from_str(self.json.get())
    }
}

/// Objects may be Secrets.
impl fmt::Debug for ObjectText {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ObjectText({} bytes)", self.json.get().len())
    }
}

impl<'de> Deserialize<'de> for ObjectText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Head {
            #[serde(default)]
            metadata: Version,
        }
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            resource_version: Option<String>,
        }
        let json = deserializer.deserialize_newtype_struct(RAW_VALUE, TextVisitor)?;
        let head: Head = serde_json::from_str(json.get()).map_err(D::Error::custom)?;
        let metadata = ObjectMeta { resource_version: head.metadata.resource_version, ..ObjectMeta::default() };
        Ok(Self { metadata, json })
    }
}

/// The name by which serde_json's deserializer recognises that a text is requested. Others treat it as any name.
const RAW_VALUE: &str = "$serde_json::private::RawValue";

/// Accepts a text, or else any value: serde buffers an event whose type comes after its object.
struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Box<RawValue>;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, text: A) -> Result<Self::Value, A::Error> {
        Deserialize::deserialize(MapAccessDeserializer::new(text))
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, value: D) -> Result<Self::Value, D::Error> {
        let value = serde_json::Value::deserialize(value)?;
        serde_json::value::to_raw_value(&value).map_err(D::Error::custom)
    }
}

impl Resource for ObjectText {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::{ObjectList, WatchEvent};

    #[test]
    fn events_and_lists_contain_texts() {
        let object = r#"{"metadata":{"name":"a","resourceVersion":"7"},"data":{"key":"value"}}"#;
        let events = [
            format!(r#"{{"type":"MODIFIED","object":{object}}}"#),
            format!(r#"{{"object":{object},"type":"MODIFIED"}}"#),
        ];
        let texts = events.map(|event| match serde_json::from_str::<WatchEvent<ObjectText>>(&event) {
            Ok(WatchEvent::Modified(text)) => text,
            other => panic!("{event}: {other:?}"),
        });
        let list = format!(r#"{{"kind":"ConfigMapList","items":[{object}],"metadata":{{"resourceVersion":"9"}}}}"#);
        let list: ObjectList<ObjectText> = serde_json::from_str(&list).unwrap();
        for text in texts.iter().chain(&list.items) {
            assert_eq!(text.meta().resource_version.as_deref(), Some("7"));
            let decoded: ConfigMap = text.decode().unwrap();
            assert_eq!(decoded.metadata.name.as_deref(), Some("a"));
            assert_eq!(decoded.data.unwrap()["key"], "value");
        }
        assert!(!format!("{texts:?}").contains("value"), "a text may be a Secret");
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in ["7", "null", r#"{"metadata":{"resourceVersion":7}}"#] {
            assert!(serde_json::from_str::<ObjectText>(text).is_err(), "{text}");
        }
        let text: ObjectText = serde_json::from_str(r#"{"data":[]}"#).unwrap();
        assert!(text.decode::<ConfigMap>().is_err());
    }
}
