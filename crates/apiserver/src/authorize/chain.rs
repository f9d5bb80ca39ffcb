//! The chain of authorizers, which can be replaced while the server runs.

use std::path::PathBuf;
use std::sync::Arc;

use arc_swap::ArcSwap;
use async_trait::async_trait;
use tokio::sync::watch;

use super::abac::Abac;
use super::configuration::{Authority, Configuration, ConfigurationError};
use super::webhook::{WebhookAuthorizer, WebhookSettings};
use super::{Authorizer, Decision, UserRules};
use crate::configuration_file;
use crate::request::{GROUP_MASTERS, Target, User};

/// Authorizers in order.
struct Chain(Vec<Member>);

/// A chain whose files were read, but whose built-in authorizers are missing.
#[derive(Default)]
pub struct PreparedChain(Option<Vec<Prepared>>);

enum Prepared {
    Node,
    Rbac,
    Other(Member),
}

struct Member {
    authorizer: Arc<dyn Authorizer>,
    /// Whether it asks another server.
    is_remote: bool,
}

/// The authorizers that need the cluster's objects.
#[derive(Clone)]
pub struct BuiltIn {
    pub node: Arc<dyn Authorizer>,
    pub rbac: Arc<dyn Authorizer>,
}

/// A chain that is replaced when its configuration changes. Members of `system:masters` may do everything, so that an
/// administrator can fix a broken policy.
pub struct ReloadableChain {
    built_in: BuiltIn,
    current: ArcSwap<Chain>,
}

struct AlwaysAllow;

impl Authorizer for AlwaysAllow {
    fn decide(&self, _user: &User, _target: &Target) -> Decision {
        Decision::Allow(String::new())
    }

    fn rules(&self, _user: &User, _namespace: &str) -> UserRules {
        let all = || vec!["*".to_owned()];
        let resources = super::Rule { verbs: all(), groups: all(), resources: all(), ..Default::default() };
        let paths = super::Rule { verbs: all(), paths: all(), ..Default::default() };
        UserRules { roles: vec![Arc::new(vec![resources, paths])], missing_roles: Vec::new() }
    }
}

struct AlwaysDeny;

impl Authorizer for AlwaysDeny {
    fn decide(&self, _user: &User, _target: &Target) -> Decision {
        Decision::NoOpinion("Everything is forbidden.".to_owned())
    }
}

impl ReloadableChain {
    pub fn new(built_in: BuiltIn, prepared: PreparedChain) -> Self {
        let chain = prepared.complete(&built_in);
        ReloadableChain { built_in, current: ArcSwap::from_pointee(chain) }
    }

    /// Replaces the chain.
    pub fn reload(&self, configuration: &Configuration) -> Result<(), ConfigurationError> {
        let prepared = PreparedChain::new(configuration)?;
        self.current.store(Arc::new(prepared.complete(&self.built_in)));
        Ok(())
    }
}

impl PreparedChain {
    pub fn new(configuration: &Configuration) -> Result<Self, ConfigurationError> {
        let local = |authorizer: Arc<dyn Authorizer>| Prepared::Other(Member { authorizer, is_remote: false });
        let prepared = configuration.authorizers().iter().map(|authority| {
            Ok(match authority {
                Authority::Node => Prepared::Node,
                Authority::Rbac => Prepared::Rbac,
                Authority::AlwaysAllow => local(Arc::new(AlwaysAllow)),
                Authority::AlwaysDeny => local(Arc::new(AlwaysDeny)),
                Authority::Abac(path) => local(Arc::new(Abac::read(path)?)),
                Authority::Webhook(webhook) => {
                    let settings = WebhookSettings {
                        name: webhook.name.clone(),
                        version: webhook.version.clone(),
                        authorized_ttl: webhook.authorized_ttl,
                        unauthorized_ttl: webhook.unauthorized_ttl,
                        denies_on_failure: webhook.denies_on_failure,
                        conditions: webhook.conditions(),
                    };
                    let authorizer = Arc::new(WebhookAuthorizer::new(webhook.connect()?, settings));
                    Prepared::Other(Member { authorizer, is_remote: true })
                }
            })
        });
        Ok(PreparedChain(Some(prepared.collect::<Result<_, ConfigurationError>>()?)))
    }

    fn complete(self, built_in: &BuiltIn) -> Chain {
        let prepared = self.0.unwrap_or_else(|| vec![Prepared::Node, Prepared::Rbac]);
        let local = |authorizer: &Arc<dyn Authorizer>| Member { authorizer: authorizer.clone(), is_remote: false };
        let members = prepared.into_iter().map(|prepared| match prepared {
            Prepared::Node => local(&built_in.node),
            Prepared::Rbac => local(&built_in.rbac),
            Prepared::Other(member) => member,
        });
        Chain(members.collect())
    }
}

/// What authorizers said so far.
#[derive(Default)]
struct Progress {
    reasons: Vec<String>,
    errors: Vec<String>,
}

impl Progress {
    /// Takes one authorizer's decision; returns the final one if there is nothing more to ask.
    fn add(&mut self, decision: Decision) -> Option<Decision> {
        match decision {
            Decision::NoOpinion(reason) => {
                self.reasons.extend(Some(reason).filter(|reason| !reason.is_empty()));
                None
            }
            Decision::Failed { error, is_final } => {
                self.errors.push(error);
                is_final.then(|| self.failed())
            }
            decided => Some(decided),
        }
    }

    fn failed(&self) -> Decision {
        let error = match self.errors.as_slice() {
            [one] => one.clone(),
            many => format!("[{}]", many.join(", ")),
        };
        Decision::Failed { error, is_final: true }
    }

    fn end(self) -> Decision {
        if self.errors.is_empty() { Decision::NoOpinion(self.reasons.join("\n")) } else { self.failed() }
    }
}

#[async_trait]
impl Authorizer for ReloadableChain {
    fn decide(&self, user: &User, target: &Target) -> Decision {
        if user.is_in(GROUP_MASTERS) {
            return Decision::Allow(String::new());
        }
        let mut progress = Progress::default();
        for member in &self.current.load_full().0 {
            if let Some(decision) = progress.add(member.authorizer.decide(user, target)) {
                return decision;
            }
        }
        progress.end()
    }

    async fn authorize(&self, user: &User, target: &Target) -> Decision {
        if user.is_in(GROUP_MASTERS) {
            return Decision::Allow(String::new());
        }
        let mut progress = Progress::default();
        for member in &self.current.load_full().0 {
            let decision = if member.is_remote {
                member.authorizer.authorize(user, target).await
            } else {
                member.authorizer.decide(user, target)
            };
            if let Some(decision) = progress.add(decision) {
                return decision;
            }
        }
        progress.end()
    }

    fn rules(&self, user: &User, namespace: &str) -> UserRules {
        let mut all = UserRules::default();
        for member in &self.current.load_full().0 {
            let own = member.authorizer.rules(user, namespace);
            all.roles.extend(own.roles);
            all.missing_roles.extend(own.missing_roles);
        }
        all
    }
}

/// Replaces the chain whenever the configuration file changes; an invalid file changes nothing.
pub async fn watch_configuration(
    chain: Arc<ReloadableChain>,
    path: PathBuf,
    known: String,
    policy_file: Option<PathBuf>,
    stopping: watch::Receiver<bool>,
) {
    configuration_file::watch(path.clone(), known, stopping, move |text| {
        let reloaded =
            Configuration::parse(text, policy_file.as_deref()).and_then(|configuration| chain.reload(&configuration));
        crate::metrics::AUTHORIZATION_RELOADS.record(reloaded.is_ok(), jiff::Timestamp::now());
        match reloaded {
            Ok(()) => tracing::info!(path = %path.display(), "reloaded authorization config"),
            Err(error) => tracing::warn!(path = %path.display(), %error, "error reloading authorization config"),
        }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Says(Decision);

    impl Authorizer for Says {
        fn decide(&self, _: &User, _: &Target) -> Decision {
            self.0.clone()
        }
    }

    fn chain(decisions: &[Decision]) -> ReloadableChain {
        let says = |decision: &Decision| -> Arc<dyn Authorizer> { Arc::new(Says(decision.clone())) };
        let built_in = BuiltIn { node: Arc::new(AlwaysDeny), rbac: Arc::new(AlwaysDeny) };
        let members = decisions.iter().map(|one| Member { authorizer: says(one), is_remote: false }).collect();
        ReloadableChain { built_in, current: ArcSwap::from_pointee(Chain(members)) }
    }

    #[tokio::test]
    async fn the_first_that_allows_or_denies_decides() {
        let allow = || Decision::Allow("a".into());
        let deny = || Decision::Deny("d".into());
        let unsure = |reason: &str| Decision::NoOpinion(reason.into());
        let failed = |is_final| Decision::Failed { error: "e".into(), is_final };
        let (ann, target) = (User::named("ann", &[]), Target::default());
        for (decisions, expected) in [
            (vec![unsure(""), allow()], allow()),
            (vec![unsure("x"), deny(), allow()], deny()),
            (vec![unsure("x"), unsure(""), unsure("y")], unsure("x\ny")),
            (vec![failed(false), allow()], allow()),
            (vec![failed(false), unsure("x")], failed(true)),
            (vec![failed(true), allow()], failed(true)),
            (vec![], unsure("")),
        ] {
            let chain = chain(&decisions);
            assert_eq!(chain.authorize(&ann, &target).await, expected, "{decisions:?}");
            assert_eq!(chain.decide(&ann, &target), expected, "{decisions:?}");
            let master = User::named("root", &[GROUP_MASTERS]);
            assert_eq!(chain.authorize(&master, &target).await, Decision::Allow(String::new()));
        }
    }

    #[tokio::test]
    async fn a_changed_file_replaces_the_chain() {
        let head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n";
        let first = format!("{head}- {{type: AlwaysDeny, name: a}}\n");
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authorization.yaml");
        std::fs::write(&path, &first).unwrap();
        let built_in = BuiltIn { node: Arc::new(AlwaysDeny), rbac: Arc::new(AlwaysDeny) };
        let chain = Arc::new(ReloadableChain::new(
            built_in,
            PreparedChain::new(&Configuration::parse(&first, None).unwrap()).unwrap(),
        ));
        let (stop, stopping) = watch::channel(false);
        let following = tokio::spawn(watch_configuration(chain.clone(), path.clone(), first, None, stopping));
        let ann = User::named("ann", &[]);
        let is_allowed = || chain.decide(&ann, &Target::default()) == Decision::Allow(String::new());
        assert!(!is_allowed());
        std::fs::write(&path, format!("{head}- {{type: Nonsense, name: a}}\n")).unwrap();
        tokio::time::sleep(2 * configuration_file::CHECK_INTERVAL).await;
        assert!(!is_allowed(), "an invalid file changes nothing");
        std::fs::write(&path, format!("{head}- {{type: AlwaysAllow, name: b}}\n")).unwrap();
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        while !is_allowed() {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        stop.send_replace(true);
        following.await.unwrap();
    }
}
