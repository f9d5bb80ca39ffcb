//! Pinned images, which garbage collection must keep: imported images can't be pulled again.
//!
//! containerd stores the pin as a label of the image. Its CRI plugin reports it since 1.7; its own API does in every
//! version.

use std::collections::{HashMap, HashSet};

use crate::client::Runtime;
use crate::error::CallError;

const LABEL: &str = "io.cri-containerd.pinned";
const VALUE: &str = "pinned";

/// containerd.services.images.v1, as far as labels go.
#[derive(Clone, PartialEq, prost::Message)]
struct NamedImage {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(map = "string, string", tag = "2")]
    labels: HashMap<String, String>,
    /// Never written, because the mask leaves it out, but containerd 2 crashes without it.
    #[prost(message, optional, tag = "3")]
    target: Option<Target>,
}

/// A descriptor, of which no field is needed.
#[derive(Clone, PartialEq, prost::Message)]
struct Target {}

#[derive(Clone, PartialEq, prost::Message)]
struct ListRequest {
    #[prost(string, repeated, tag = "1")]
    filters: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListResponse {
    #[prost(message, repeated, tag = "1")]
    images: Vec<NamedImage>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UpdateRequest {
    #[prost(message, optional, tag = "1")]
    image: Option<NamedImage>,
    #[prost(message, optional, tag = "2")]
    mask: Option<FieldMask>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct FieldMask {
    #[prost(string, repeated, tag = "1")]
    paths: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UpdateResponse {
    #[prost(message, optional, tag = "1")]
    image: Option<NamedImage>,
}

impl Runtime {
    /// The names of the pinned images; none if the runtime is not containerd.
    pub async fn pinned_images(&self) -> Result<HashSet<String>, CallError> {
        let request = ListRequest { filters: vec![format!("labels.\"{LABEL}\"=={VALUE}")] };
        let path = "/containerd.services.images.v1.Images/List";
        match self.call_containerd::<_, ListResponse>("Images.List", path, request).await {
            Ok(response) => Ok(response.images.into_iter().map(|image| image.name).collect()),
            Err(error) if error.is_unimplemented() => Ok(HashSet::new()),
            Err(error) => Err(error),
        }
    }

    /// Pins an image.
    pub async fn pin_image(&self, name: &str) -> Result<(), CallError> {
        let labels = HashMap::from([(LABEL.to_owned(), VALUE.to_owned())]);
        let request = UpdateRequest {
            image: Some(NamedImage { name: name.to_owned(), labels, target: Some(Target {}) }),
            mask: Some(FieldMask { paths: vec![format!("labels.{LABEL}")] }),
        };
        let path = "/containerd.services.images.v1.Images/Update";
        self.call_containerd::<_, UpdateResponse>("Images.Update", path, request).await.map(drop)
    }
}
