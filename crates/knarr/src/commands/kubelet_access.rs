//! Flags that say who may use the endpoints of a standalone kubelet.

use std::time::Duration;

use clap::{ArgAction, Args, ValueEnum};
use knarr_kubelet::{DecisionLifetimes, EndpointAccess};

use super::leadership::duration;

#[derive(Args, Clone, Debug)]
pub struct KubeletAccessArguments {
    /// Treat requests without credentials as those of system:anonymous instead of refusing them.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = false, default_missing_value = "true")]
    pub anonymous_auth: bool,
    /// Authenticate bearer tokens with the API server; otherwise tokens are ignored.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    pub authentication_token_webhook: bool,
    /// How long reviews of tokens are cached.
    #[arg(long, default_value = "2m0s", value_parser = duration)]
    pub authentication_token_webhook_cache_ttl: Duration,
    /// Who decides about requests to the kubelet's server: the API server, or nobody.
    #[arg(long, value_enum, default_value_t = AuthorizationMode::Webhook)]
    pub authorization_mode: AuthorizationMode,
    /// How long allowed requests are cached.
    #[arg(long, default_value = "2m0s", value_parser = duration)]
    pub authorization_webhook_cache_authorized_ttl: Duration,
    /// How long denied requests are cached.
    #[arg(long, default_value = "30s", value_parser = duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Duration,
    /// Port where health, pods, statistics and metrics are served to everybody, without TLS; 0 disables it.
    #[arg(long, default_value_t = 0)]
    pub read_only_port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum AuthorizationMode {
    #[value(name = "Webhook")]
    Webhook,
    #[value(name = "AlwaysAllow")]
    AlwaysAllow,
}

impl KubeletAccessArguments {
    pub fn access(&self) -> EndpointAccess {
        let lifetimes = DecisionLifetimes {
            allowed: self.authorization_webhook_cache_authorized_ttl,
            denied: self.authorization_webhook_cache_unauthorized_ttl,
        };
        EndpointAccess {
            anonymous: self.anonymous_auth,
            tokens: self.authentication_token_webhook.then_some(self.authentication_token_webhook_cache_ttl),
            decisions: (self.authorization_mode == AuthorizationMode::Webhook).then_some(lifetimes),
        }
    }

    pub fn read_only_port(&self) -> Option<u16> {
        (self.read_only_port > 0).then_some(self.read_only_port)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        access: KubeletAccessArguments,
    }

    fn of(arguments: &str) -> KubeletAccessArguments {
        Command::try_parse_from(std::iter::once("kubelet").chain(arguments.split_whitespace()))
            .expect("arguments")
            .access
    }

    #[test]
    fn endpoints_are_open_only_if_asked_for() {
        assert_eq!((of("").access(), of("").read_only_port()), (EndpointAccess::default(), None));
        let open = of(
            "--anonymous-auth --authentication-token-webhook=false --authorization-mode=AlwaysAllow --read-only-port=10255",
        );
        let expected = EndpointAccess { anonymous: true, tokens: None, decisions: None };
        assert_eq!((open.access(), open.read_only_port()), (expected, Some(10255)));
    }
}
