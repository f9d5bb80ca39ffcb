//! The `authorizer` variable, which builds access checks step by step:
//! `authorizer.group('apps').resource('deployments').check('get')`.

use std::fmt::Debug;

pub(super) const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
pub(super) const PATH_CHECK: &str = "kubernetes.authorization.PathCheck";
pub(super) const GROUP_CHECK: &str = "kubernetes.authorization.GroupCheck";
pub(super) const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";
pub(super) const DECISION: &str = "kubernetes.authorization.Decision";

/// The authorizer behind the variable.
pub trait Authorize: Debug + Sync {
    /// Whether the access is allowed, and the reason.
    fn decide(&self, check: &AccessCheck) -> Result<(bool, String), String>;
    /// The access check of the current request, without its verb.
    fn of_request(&self) -> AccessCheck;
}

/// An access to check: that of a service account, or of the user of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccessCheck {
    /// Namespace and name.
    pub service_account: Option<(String, String)>,
    /// The path of a non-resource request.
    pub path: String,
    /// The verb, such as `get`.
    pub verb: String,
    /// The API group of the resource.
    pub group: String,
    /// The API version of the resource.
    pub version: String,
    /// The plural resource name.
    pub resource: String,
    /// The subresource, or empty.
    pub subresource: String,
    /// The namespace, or empty.
    pub namespace: String,
    /// The name of the object, or empty.
    pub name: String,
    /// The field selector of a list or watch.
    pub field_selector: String,
    /// The label selector of a list or watch.
    pub label_selector: String,
}

/// The step of an expression: which functions can be called next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Authorizer,
    Path,
    Group,
    Resource,
}

impl Stage {
    pub(super) fn type_name(self) -> &'static str {
        match self {
            Stage::Authorizer => AUTHORIZER,
            Stage::Path => PATH_CHECK,
            Stage::Group => GROUP_CHECK,
            Stage::Resource => RESOURCE_CHECK,
        }
    }
}

/// The value of `authorizer` and of the functions called on it.
#[derive(Clone, Debug)]
pub struct AuthorizerValue<'a> {
    /// The step of the expression that built this value.
    pub stage: Stage,
    /// The authorizer that decides.
    pub backend: &'a dyn Authorize,
    /// The access check so far.
    pub check: AccessCheck,
}

impl<'a> AuthorizerValue<'a> {
    /// The value of the variable itself.
    pub fn new(backend: &'a dyn Authorize) -> Self {
        AuthorizerValue { stage: Stage::Authorizer, backend, check: AccessCheck::default() }
    }

    pub(super) fn of_request(&self) -> Self {
        AuthorizerValue { stage: Stage::Resource, backend: self.backend, check: self.backend.of_request() }
    }
}

/// The decision of the authorizer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// The reason of the decision.
    pub reason: String,
    /// The error of the authorizer, if it failed.
    pub error: Option<String>,
}
