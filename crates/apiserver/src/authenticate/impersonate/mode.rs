//! The modes of impersonation, and the authorization checks of each.

use knarr_api::field::{Errors, Path};
use knarr_api::status::Status;
use knarr_rules::common::domain_path;

use super::{node, service_account};
use crate::authorize::{Authorizer, Decision, forbidden};
use crate::request::{ANONYMOUS, GROUP_AUTHENTICATED, GROUP_MASTERS, GROUP_UNAUTHENTICATED, Target, User};

const AUTHENTICATION_GROUP: &str = "authentication.k8s.io";

/// From how many values on a single check of all of them is tried first.
const MANY_CHECKS: usize = 4;

/// The mode by which a user is impersonated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A service account impersonates the node that its pod runs on.
    AssociatedNode,
    ArbitraryNode,
    ServiceAccount,
    /// Users that are neither nodes nor service accounts, with all their attributes.
    UserInfo,
    /// Without constraint on the request.
    Legacy,
}

/// All modes, in the order in which they are tried.
pub const MODES: [Mode; 5] =
    [Mode::AssociatedNode, Mode::ArbitraryNode, Mode::ServiceAccount, Mode::UserInfo, Mode::Legacy];

impl Mode {
    fn name(self) -> &'static str {
        self.constraint().strip_prefix("impersonate:").unwrap_or_default()
    }

    /// The verb of a constrained mode; empty for the legacy mode.
    pub fn constraint(self) -> &'static str {
        match self {
            Mode::AssociatedNode => "impersonate:associated-node",
            Mode::ArbitraryNode => "impersonate:arbitrary-node",
            Mode::ServiceAccount => "impersonate:serviceaccount",
            Mode::UserInfo => "impersonate:user-info",
            Mode::Legacy => "",
        }
    }

    /// Whether the mode depends on the request that is made.
    pub fn is_constrained(self) -> bool {
        self != Mode::Legacy
    }

    fn verb(self) -> &'static str {
        if self.is_constrained() { self.constraint() } else { "impersonate" }
    }

    /// Whether the mode is for impersonating this user at all.
    fn applies(self, wanted: &User, requestor: &User) -> bool {
        let names_only = wanted.uid.is_empty() && wanted.groups.is_empty() && wanted.extra.is_empty();
        match self {
            Mode::AssociatedNode => names_only && is_associated(requestor, &wanted.name),
            Mode::ArbitraryNode => names_only && node(&wanted.name).is_some(),
            Mode::ServiceAccount => names_only && service_account(&wanted.name).is_some(),
            Mode::UserInfo => node(&wanted.name).is_none() && service_account(&wanted.name).is_none(),
            Mode::Legacy => true,
        }
    }
}

/// Whether a service account's token says that its pod runs on this node.
fn is_associated(requestor: &User, wanted: &str) -> bool {
    const NODE_NAME: &str = "authentication.kubernetes.io/node-name";
    let associated = match requestor.extra.get(NODE_NAME).map(Vec::as_slice) {
        Some([name]) => name,
        _ => "",
    };
    service_account(&requestor.name).is_some() && node(wanted).is_some_and(|name| name == associated)
}

/// A request that is to be made on behalf of a user.
pub struct Attempt<'a> {
    pub wanted: &'a User,
    pub requestor: &'a User,
    pub request: &'a Target,
    pub authorizer: &'a dyn Authorizer,
}

impl Attempt<'_> {
    /// The impersonated user if the mode allows the attempt; `None` if it is not for such a user.
    pub async fn by(&self, mode: Mode) -> Result<Option<User>, Status> {
        if !mode.applies(self.wanted, self.requestor) {
            return Ok(None);
        }
        let checks = Checks { mode, requestor: &authorized_as(mode, self.requestor), authorizer: self.authorizer };
        if mode.is_constrained() {
            let verb = format!("impersonate-on:{}:{}", mode.name(), self.request.verb);
            checks.authorize(&Target { verb, ..self.request.clone() }).await?;
        }
        checks.username(&self.wanted.name).await?;
        checks.uid(&self.wanted.uid).await?;
        checks.groups(&self.wanted.groups).await?;
        checks.extra(self.wanted).await?;
        Ok(Some(complete(mode, self.wanted.clone())))
    }
}

/// The requestor as authorizers see it. That a service account is on the node it impersonates is established before; of its
/// attributes only the keys are shown, so that one rule holds for its pods on all nodes.
fn authorized_as(mode: Mode, requestor: &User) -> User {
    let mut requestor = requestor.clone();
    if mode == Mode::AssociatedNode {
        let keys = std::mem::take(&mut requestor.extra).into_keys().collect();
        requestor.extra.insert("authentication.kubernetes.io/associated-node-keys".to_owned(), keys);
    }
    requestor
}

/// The checks of one mode: one for each attribute of the impersonated user.
struct Checks<'a> {
    mode: Mode,
    requestor: &'a User,
    authorizer: &'a dyn Authorizer,
}

impl Checks<'_> {
    async fn authorize(&self, target: &Target) -> Result<(), Status> {
        match self.authorizer.authorize(self.requestor, target).await {
            Decision::Allow(_) => Ok(()),
            refused => Err(self.refuse(target, refused.reason())),
        }
    }

    fn refuse(&self, target: &Target, reason: &str) -> Status {
        forbidden(self.requestor, target, reason)
    }

    fn target(&self, group: &str, resource: &str, name: &str) -> Target {
        Target {
            verb: self.mode.verb().into(),
            group: group.into(),
            version: "v1".into(),
            resource: resource.into(),
            name: name.into(),
            ..Target::default()
        }
    }

    /// The API group of users, groups, nodes and service accounts in checks.
    fn group(&self) -> &'static str {
        if self.mode.is_constrained() { AUTHENTICATION_GROUP } else { "" }
    }

    async fn username(&self, name: &str) -> Result<(), Status> {
        let mut target = self.target(self.group(), "users", name);
        if let Some(node) = node(name).filter(|_| self.mode.is_constrained()) {
            let any_node = self.mode == Mode::AssociatedNode;
            target = self.target(self.group(), "nodes", if any_node { "*" } else { node });
        } else if let Some((namespace, name)) = service_account(name) {
            target = Target { namespace: namespace.into(), ..self.target(self.group(), "serviceaccounts", name) };
        }
        self.authorize(&target).await
    }

    async fn uid(&self, uid: &str) -> Result<(), Status> {
        if uid.is_empty() {
            return Ok(());
        }
        self.authorize(&self.target(AUTHENTICATION_GROUP, "uids", uid)).await
    }

    async fn groups(&self, groups: &[String]) -> Result<(), Status> {
        let target = |name: &str| self.target(self.group(), "groups", name);
        if self.mode.is_constrained() {
            if groups.iter().any(String::is_empty) {
                return Err(self.refuse(&target(""), "impersonating the empty string group is not allowed"));
            }
            if groups.iter().any(|group| group == GROUP_MASTERS) {
                let reason = "impersonating the system:masters group is not allowed";
                return Err(self.refuse(&target(GROUP_MASTERS), reason));
            }
            if groups.len() >= MANY_CHECKS && self.authorize(&target("*")).await.is_ok() {
                return Ok(());
            }
        }
        for group in groups {
            self.authorize(&target(group)).await?;
        }
        Ok(())
    }

    async fn extra(&self, wanted: &User) -> Result<(), Status> {
        let target = |key: &str, value: &str| Target {
            subresource: key.into(),
            ..self.target(AUTHENTICATION_GROUP, "userextras", value)
        };
        let extra = &wanted.extra;
        if self.mode.is_constrained() && !extra.is_empty() {
            for (key, values) in extra {
                validate_extra(key, values).map_err(|reason| self.refuse(&target("", ""), &reason))?;
            }
            let is_large = extra.len() >= MANY_CHECKS || extra.values().map(Vec::len).sum::<usize>() >= MANY_CHECKS;
            if is_large && self.authorize(&target("*", "*")).await.is_ok() {
                return Ok(());
            }
        }
        for (key, values) in extra {
            for value in values {
                self.authorize(&target(key, value)).await?;
            }
        }
        Ok(())
    }
}

/// Constrained modes accept no attribute that an authenticator could not have set.
fn validate_extra(key: &str, values: &[String]) -> Result<(), String> {
    if key.is_empty() {
        return Err("impersonating the empty string key in extra is not allowed".to_owned());
    }
    let mut errors = Errors::new();
    let root = Path::root("extra");
    domain_path::validate(&mut errors, &root.child("key"), key);
    let errors: Vec<String> = errors.0.iter().map(ToString::to_string).collect();
    match errors.as_slice() {
        [] => {}
        [one] => return Err(format!("impersonating an invalid key in extra is not allowed: {one}")),
        several => {
            return Err(format!("impersonating an invalid key in extra is not allowed: [{}]", several.join(", ")));
        }
    }
    if key.chars().any(char::is_uppercase) {
        return Err(format!("impersonating a non-lowercase key in extra is not allowed: {key:?}"));
    }
    if values.is_empty() {
        return Err("impersonating empty values in extra is not allowed".to_owned());
    }
    if values.iter().any(String::is_empty) {
        return Err("impersonating the empty string value in extra is not allowed".to_owned());
    }
    Ok(())
}

/// Adds the groups that the user would have after authentication.
fn complete(mode: Mode, mut user: User) -> User {
    if user.groups.is_empty() {
        if let Some((namespace, _)) = service_account(&user.name) {
            user.groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
        } else if mode.is_constrained() && node(&user.name).is_some() {
            user.groups = vec!["system:nodes".into()];
        }
    }
    let is_anonymous = user.name == ANONYMOUS;
    let is_complete = user.is_in(GROUP_UNAUTHENTICATED) || (!is_anonymous && user.is_in(GROUP_AUTHENTICATED));
    if !is_complete {
        user.groups.push(if is_anonymous { GROUP_UNAUTHENTICATED } else { GROUP_AUTHENTICATED }.to_owned());
    }
    user
}
