//! Secrets of calls. Their values never reach a log: `Debug` prints neither key nor value.

use std::fmt;

use super::StringMap;

/// One entry of a `map<string, string> secrets` field: on the wire a map is a list of such pairs.
///
/// A type of its own instead of a map, so that no message with secrets can print them by a derived `Debug`.
#[derive(Clone, PartialEq, Eq, prost::Message)]
#[prost(skip_debug)]
pub struct Secret {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

impl fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("***stripped***")
    }
}

/// The `secrets` field of a request.
pub fn secrets<K: Into<String>, V: Into<String>>(entries: impl IntoIterator<Item = (K, V)>) -> Vec<Secret> {
    entries.into_iter().map(|(key, value)| Secret { key: key.into(), value: value.into() }).collect()
}

/// A context whose values may be credentials: pod tokens in `volume_context`, sessions in `publish_context`.
/// Prints only the keys.
pub(super) struct Keys<'a>(pub &'a StringMap);

impl fmt::Debug for Keys<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.0.keys()).finish()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::messages::{CreateVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest};

    #[test]
    fn secrets_and_tokens_are_never_printed() {
        let secrets = secrets([("user", "hunter2")]);
        let context = StringMap::from([("csi.storage.k8s.io/serviceAccount.tokens".into(), "hunter2".into())]);
        let create = CreateVolumeRequest { name: "pvc-1".into(), secrets: secrets.clone(), ..Default::default() };
        let stage =
            NodeStageVolumeRequest { secrets: secrets.clone(), publish_context: context.clone(), ..Default::default() };
        let publish = NodePublishVolumeRequest {
            secrets,
            volume_context: context.clone(),
            publish_context: context,
            ..Default::default()
        };
        let printed = format!("{create:?} {create:#?} {stage:?} {publish:?} {publish:#?}");
        assert!(printed.contains("pvc-1") && printed.contains("serviceAccount.tokens"), "{printed}");
        assert!(!printed.contains("hunter2"), "{printed}");
    }

    #[test]
    fn secrets_are_a_map_on_the_wire() {
        #[derive(Clone, PartialEq, prost::Message)]
        struct AsMap {
            #[prost(btree_map = "string, string", tag = "5")]
            secrets: StringMap,
        }
        let request = CreateVolumeRequest { secrets: secrets([("a", "1"), ("b", "2")]), ..Default::default() };
        let decoded = AsMap::decode(request.encode_to_vec().as_slice()).expect("decodes as a map");
        assert_eq!(decoded.secrets, StringMap::from([("a".into(), "1".into()), ("b".into(), "2".into())]));
        let back = CreateVolumeRequest::decode(decoded.encode_to_vec().as_slice()).expect("decodes as entries");
        assert_eq!(back, request);
    }
}
