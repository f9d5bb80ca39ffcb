//! What is known of a request before a handler sees it: its sender, its user and its target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use serde_json::{Value, json};

/// Where a request came from, as far as its connection shows.
#[derive(Clone, Debug)]
pub enum Sender {
    /// Over a network, with the user that a verified client certificate names.
    Remote(Option<Arc<User>>),
    /// Over a network, with a certificate that proves nothing: without other credentials the request is unauthorized.
    Refused,
    /// Over a network, from a server that authenticated the user and names it in headers.
    FrontProxy,
    /// From this process, as a user that needs no proof.
    Trusted(Arc<User>),
}

/// When a request finished the stages before its handler.
#[derive(Clone, Copy, Debug)]
pub struct StageTimes {
    pub started: Instant,
    pub authenticated: Instant,
    pub authorized: Instant,
}

impl StageTimes {
    /// A request that arrives now.
    pub fn start() -> StageTimes {
        let now = Instant::now();
        StageTimes { started: now, authenticated: now, authorized: now }
    }
}

/// The user who sends a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    /// Attributes that authenticators and impersonation add.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// The user of requests without credentials.
pub const ANONYMOUS: &str = "system:anonymous";
/// The group of the anonymous user.
pub const GROUP_UNAUTHENTICATED: &str = "system:unauthenticated";
/// The group of all authenticated users.
pub const GROUP_AUTHENTICATED: &str = "system:authenticated";
/// The group that may do everything.
pub const GROUP_MASTERS: &str = "system:masters";

impl User {
    /// A user with a name and groups.
    pub fn named(name: &str, groups: &[&str]) -> Self {
        User { name: name.into(), groups: groups.iter().map(|group| (*group).into()).collect(), ..User::default() }
    }

    /// The anonymous user.
    pub fn anonymous() -> Self {
        Self::named(ANONYMOUS, &[GROUP_UNAUTHENTICATED])
    }

    /// The `UserInfo` of the API, without empty fields.
    pub fn info(&self) -> Value {
        let mut info = json!({"username": self.name});
        if !self.uid.is_empty() {
            info["uid"] = self.uid.as_str().into();
        }
        if !self.groups.is_empty() {
            info["groups"] = json!(self.groups);
        }
        if !self.extra.is_empty() {
            info["extra"] = json!(self.extra);
        }
        info
    }

    /// Whether the user is in a group.
    pub fn is_in(&self, group: &str) -> bool {
        self.groups.iter().any(|own| own == group)
    }
}

/// What a request is for, as authorization and admission see it.
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
    /// The selectors of list, watch and deletecollection, which authorizers may check.
    pub field_selector: String,
    pub label_selector: String,
}

impl Target {
    /// Whether the path is that of a resource.
    pub fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }
}

/// The operation of a request, as admission names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    /// The name in policies and webhooks.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// An audit annotation of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Annotation {
    pub key: String,
    pub value: String,
    /// Whether it reveals contents of the request.
    pub of_request: bool,
}

/// Audit annotations that admission adds; carried in the response's extensions.
#[derive(Clone, Debug, Default)]
pub struct AuditAnnotations(pub Vec<Annotation>);
