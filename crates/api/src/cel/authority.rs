//! Questions to the authorizer, put together step by step: `authorizer.group('apps').resource('deployments').check('get')`.

use std::fmt::Debug;

pub(super) const AUTHORIZER: &str = "kubernetes.authorization.Authorizer";
pub(super) const PATH_CHECK: &str = "kubernetes.authorization.PathCheck";
pub(super) const GROUP_CHECK: &str = "kubernetes.authorization.GroupCheck";
pub(super) const RESOURCE_CHECK: &str = "kubernetes.authorization.ResourceCheck";
pub(super) const DECISION: &str = "kubernetes.authorization.Decision";

/// Who answers questions.
pub trait Authorize: Debug + Sync {
    /// Whether what is asked is allowed, and why.
    fn decide(&self, question: &Question) -> Result<(bool, String), String>;
    /// The question whether the request at hand is allowed, but for its verb.
    fn of_request(&self) -> Question;
}

/// What is asked. Without a service account it is about the user of the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Question {
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

/// How far a question was asked.
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

/// A question on its way to the authorizer.
#[derive(Clone, Debug)]
pub struct Authority<'a> {
    /// The step of the expression that built this value.
    pub stage: Stage,
    pub asked: &'a dyn Authorize,
    pub question: Question,
}

impl<'a> Authority<'a> {
    pub fn new(asked: &'a dyn Authorize) -> Self {
        Authority { stage: Stage::Authorizer, asked, question: Question::default() }
    }

    pub(super) fn of_request(&self) -> Self {
        Authority { stage: Stage::Resource, asked: self.asked, question: self.asked.of_request() }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// The reason of the decision.
    pub reason: String,
    /// The error of the authorizer, if it failed.
    pub error: Option<String>,
}
