//! Namespace and name: the keys of work queues.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;

#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// Empty for cluster-wide kinds.
    pub namespace: String,
    pub name: String,
}

impl Key {
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    pub fn of(object: &impl Resource) -> Self {
        Self::of_meta(object.meta())
    }

    pub fn of_meta(meta: &ObjectMeta) -> Self {
        Self::new(meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""))
    }
}

impl std::fmt::Display for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.namespace.is_empty() {
            out.write_str(&self.name)
        } else {
            write!(out, "{}/{}", self.namespace, self.name)
        }
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{self}")
    }
}

pub fn name(object: &impl Resource) -> &str {
    object.meta().name.as_deref().unwrap_or("")
}

pub fn namespace(object: &impl Resource) -> &str {
    object.meta().namespace.as_deref().unwrap_or("")
}

pub fn uid(object: &impl Resource) -> &str {
    object.meta().uid.as_deref().unwrap_or("")
}
