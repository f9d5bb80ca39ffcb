//! What a request is once its path, its sender and its parameters are known: the input of every later step.

use std::collections::BTreeMap;

/// Who asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

pub const ANONYMOUS: &str = "system:anonymous";
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
pub const GROUP_MASTERS: &str = "system:masters";

impl User {
    pub fn named(name: &str, groups: &[&str]) -> Self {
        User { name: name.into(), groups: groups.iter().map(|group| (*group).into()).collect(), ..User::default() }
    }

    pub fn anonymous() -> Self {
        Self::named(ANONYMOUS, &[GROUP_UNAUTHENTICATED])
    }

    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// What is asked for, as authorization and admission see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or the lower-case HTTP method
    /// for a path that is not a resource.
    pub verb: String,
    pub group: String,
    pub version: String,
    /// The plural; empty for a path that is not a resource.
    pub resource: String,
    pub subresource: String,
    pub namespace: String,
    pub name: String,
    pub path: String,
    /// What list, watch and deletecollection select by, where the request says so; authorizers may look at it.
    pub field_selector: String,
    pub label_selector: String,
}

impl Target {
    pub fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }
}
