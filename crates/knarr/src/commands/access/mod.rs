//! Flags of the API server that say who its users are and what they may do: authentication, authorization, certificates
//! and service-account tokens. Names and defaults are those of kube-apiserver.

mod authentication;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::{ArgAction, Args};
use jiff::SignedDuration;
use knarr_apiserver::authenticate::{self, RequestHeaders, ServiceAccountTokens, TokenSettings};
use knarr_apiserver::authorize::{self, AuthorizationFlags, Configuration as Authorization, PreparedChain};
use knarr_apiserver::configuration_file::{self, duration};
use knarr_apiserver::pki::{NamedCertificate, Pki, TlsSettings};
use knarr_apiserver::startup::AccessSettings;
use knarr_apiserver::state::ApiServer;
use knarr_supervisor::Supervisor;

use crate::tls_arguments::TlsArguments;

/// Issuer and audience of service account tokens.
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Access to the API")]
pub struct AccessArguments {
    /// AuthenticationConfiguration file: identity providers, and where requests may be anonymous.
    #[arg(long)]
    pub authentication_config: Option<PathBuf>,
    /// Accept requests without credentials as user system:anonymous.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub anonymous_auth: Option<bool>,
    /// URL of an OpenID Connect issuer whose tokens are accepted.
    #[arg(long, default_value = "")]
    pub oidc_issuer_url: String,
    /// Client ID that tokens of the OpenID Connect issuer must be for.
    #[arg(long, default_value = "")]
    pub oidc_client_id: String,
    /// CA certificates (PEM) of the OpenID Connect issuer; by default those of the host.
    #[arg(long)]
    pub oidc_ca_file: Option<PathBuf>,
    /// Claim that is the user name [default: sub].
    #[arg(long)]
    pub oidc_username_claim: Option<String>,
    /// Prefix of user names; `-` for none [default: the issuer's URL and #, except for the claim email].
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub oidc_username_prefix: String,
    /// Claim that is the list of groups.
    #[arg(long, default_value = "")]
    pub oidc_groups_claim: String,
    /// Prefix of groups.
    #[arg(long, default_value = "")]
    pub oidc_groups_prefix: String,
    /// Accepted signature algorithms [default: RS256].
    #[arg(long, value_delimiter = ',')]
    pub oidc_signing_algs: Vec<String>,
    /// Claim that tokens must have: name=value; may be repeated.
    #[arg(long)]
    pub oidc_required_claim: Vec<String>,
    /// Accept the tokens of Secrets of the type bootstrap.kubernetes.io/token.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    pub enable_bootstrap_token_auth: bool,
    /// Kubeconfig of a webhook that knows the users of tokens.
    #[arg(long)]
    pub authentication_token_webhook_config_file: Option<PathBuf>,
    /// Version of TokenReview for the token webhook: v1 or v1beta1.
    #[arg(long, default_value = "v1beta1", value_parser = ["v1", "v1beta1"])]
    pub authentication_token_webhook_version: String,
    /// How long answers of the token webhook are cached.
    #[arg(long, default_value = "2m0s", value_parser = duration)]
    pub authentication_token_webhook_cache_ttl: Duration,

    /// Authorizers in order: Node, RBAC, Webhook, ABAC, AlwaysAllow, AlwaysDeny [default: Node,RBAC].
    #[arg(long, value_delimiter = ',')]
    pub authorization_mode: Vec<String>,
    /// Policy file of the ABAC authorizer, one JSON object a line.
    #[arg(long)]
    pub authorization_policy_file: Option<PathBuf>,
    /// Kubeconfig of the authorization webhook.
    #[arg(long)]
    pub authorization_webhook_config_file: Option<PathBuf>,
    /// Version of SubjectAccessReview for the authorization webhook: v1 or v1beta1 [default: v1beta1].
    #[arg(long, value_parser = ["v1", "v1beta1"])]
    pub authorization_webhook_version: Option<String>,
    /// How long the authorization webhook's permissions are cached [default: 5m0s].
    #[arg(long, value_parser = duration)]
    pub authorization_webhook_cache_authorized_ttl: Option<Duration>,
    /// How long the authorization webhook's refusals are cached [default: 30s].
    #[arg(long, value_parser = duration)]
    pub authorization_webhook_cache_unauthorized_ttl: Option<Duration>,
    /// AuthorizationConfiguration file: the authorizers in order, with several webhooks.
    #[arg(long)]
    pub authorization_config: Option<PathBuf>,

    /// Issuer of service account tokens; if repeated, the first signs and all are accepted.
    #[arg(long)]
    pub service_account_issuer: Vec<String>,
    /// Keys (PEM) whose service account tokens are accepted, besides the signing key; may be repeated.
    #[arg(long)]
    pub service_account_key_file: Vec<PathBuf>,
    /// Private key (PEM) that signs service account tokens; by default one of the data directory.
    #[arg(long)]
    pub service_account_signing_key_file: Option<PathBuf>,
    /// URL of the key set in the discovery document, if it is not served below the issuer.
    #[arg(long)]
    pub service_account_jwks_uri: Option<String>,
    /// Longest validity of service account tokens.
    #[arg(long, default_value = "0s", value_parser = duration)]
    pub service_account_max_token_expiration: Duration,
    /// Extend the tokens that pods get by default to a year.
    #[arg(long, action = ArgAction::Set, num_args = 0..=1, default_value_t = true, default_missing_value = "true")]
    pub service_account_extend_token_expiration: bool,
    /// Audiences of the API; by default the issuers of service account tokens.
    #[arg(long, value_delimiter = ',')]
    pub api_audiences: Vec<String>,

    /// Serving certificate (PEM, with intermediates), in place of one by the cluster's own authority.
    #[arg(long, requires = "tls_private_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// Private key (PEM) of the serving certificate.
    #[arg(long, requires = "tls_cert_file")]
    pub tls_private_key_file: Option<PathBuf>,
    /// Serving certificate for some names: certificate,key[:name,name]; may be repeated.
    #[arg(long)]
    pub tls_sni_cert_key: Vec<NamedCertificate>,
    /// Serve HTTP/1.1 alone.
    #[arg(long, num_args = 0..=1, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    pub disable_http2_serving: bool,
    #[command(flatten)]
    pub tls: TlsArguments,
    /// CA certificates (PEM) of users' client certificates, in addition to the cluster's own.
    #[arg(long)]
    pub client_ca_file: Option<PathBuf>,
    /// CA certificates (PEM) of proxies that authenticate users, in addition to the cluster's own.
    #[arg(long)]
    pub requestheader_client_ca_file: Option<PathBuf>,
    /// Names that certificates of such proxies may have; by default any.
    #[arg(long, value_delimiter = ',')]
    pub requestheader_allowed_names: Vec<String>,
    /// Headers in which proxies send the user name [default: X-Remote-User].
    #[arg(long, value_delimiter = ',')]
    pub requestheader_username_headers: Vec<String>,
    /// Headers in which proxies send the user's UID [default: X-Remote-Uid].
    #[arg(long, value_delimiter = ',')]
    pub requestheader_uid_headers: Vec<String>,
    /// Headers in which proxies send the groups [default: X-Remote-Group].
    #[arg(long, value_delimiter = ',')]
    pub requestheader_group_headers: Vec<String>,
    /// Prefixes of headers in which proxies send more of the user [default: X-Remote-Extra-].
    #[arg(long, value_delimiter = ',')]
    pub requestheader_extra_headers_prefix: Vec<String>,
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The issuers whose tokens are this server's own.
pub fn issuers(arguments: &AccessArguments) -> Vec<String> {
    match arguments.service_account_issuer.as_slice() {
        [] => vec![ISSUER.to_owned()],
        issuers => issuers.to_vec(),
    }
}

/// How this server serves TLS. `keeps_own` leaves the cluster's own certificate to pods and nodes.
pub fn tls_settings(arguments: &AccessArguments, keeps_own: bool) -> TlsSettings {
    let proxies = arguments.requestheader_client_ca_file.clone();
    TlsSettings {
        certificate: arguments.tls_cert_file.clone().zip(arguments.tls_private_key_file.clone()),
        by_name: arguments.tls_sni_cert_key.clone(),
        keeps_own,
        algorithms: arguments.tls.algorithms(),
        without_http2: arguments.disable_http2_serving,
        client_authorities: arguments.client_ca_file.clone(),
        proxy_authorities: proxies.map(|file| (file, arguments.requestheader_allowed_names.clone())),
    }
}

/// PEM of all authorities of users and of front proxies.
pub fn authorities(arguments: &AccessArguments, pki: &Pki) -> anyhow::Result<(String, String)> {
    let with = |own: &str, added: &Option<PathBuf>| -> anyhow::Result<String> {
        Ok(match added {
            None => own.to_owned(),
            Some(path) => format!("{}\n{}", own.trim_end(), read(path)?),
        })
    };
    Ok((
        with(&pki.authority.certificate, &arguments.client_ca_file)?,
        with(&pki.front_proxy_authority.certificate, &arguments.requestheader_client_ca_file)?,
    ))
}

pub fn service_accounts(arguments: &AccessArguments, pki: &Pki) -> anyhow::Result<ServiceAccountTokens> {
    let issuers = issuers(arguments);
    for (index, issuer) in issuers.iter().enumerate() {
        if issuer.is_empty() {
            bail!("service-account-issuer should not be an empty string");
        }
        if issuers[..index].contains(issuer) {
            bail!("service-account-issuer {issuer:?} is already specified");
        }
    }
    if let Some(uri) = &arguments.service_account_jwks_uri
        && !uri.starts_with("https://")
    {
        bail!("service-account-jwks-uri requires https scheme, parsed as: {uri}");
    }
    let longest = arguments.service_account_max_token_expiration;
    if !longest.is_zero() && !(3600..=1 << 32).contains(&longest.as_secs()) {
        bail!("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds");
    }
    let settings = TokenSettings {
        audiences: if arguments.api_audiences.is_empty() { issuers.clone() } else { arguments.api_audiences.clone() },
        issuers,
        keys_uri: arguments.service_account_jwks_uri.clone(),
        max_expiration: (!longest.is_zero()).then(|| SignedDuration::from_secs(longest.as_secs() as i64)),
        extends_expiration: arguments.service_account_extend_token_expiration,
    };
    let signing = match &arguments.service_account_signing_key_file {
        Some(path) => read(path)?,
        None => pki.service_account_key.clone(),
    };
    let more: Vec<String> =
        arguments.service_account_key_file.iter().map(|path| read(path)).collect::<Result<_, _>>()?;
    Ok(ServiceAccountTokens::new(&signing, &more, settings)?)
}

/// Files that are read again when they change, with what was read.
pub struct WatchedFiles {
    authentication: Option<(PathBuf, String)>,
    authorization: Option<(PathBuf, String)>,
}

/// Refuses settings and files that cannot be used. Nothing is started, and no connection is opened.
pub fn check(arguments: &AccessArguments) -> anyhow::Result<()> {
    authentication::check(arguments)?;
    let (authorization, _) = authorization(arguments)?;
    PreparedChain::new(&authorization).context("invalid authorization config")?;
    Ok(())
}

/// The settings of authentication and authorization.
pub fn settings(arguments: &AccessArguments) -> anyhow::Result<(AccessSettings, WatchedFiles)> {
    let (authentication, authentication_text) = authentication::start(arguments)?;
    let (authorization, authorization_text) = authorization(arguments)?;
    let names = |given: &[String], default: Vec<String>| if given.is_empty() { default } else { given.to_vec() };
    let default = RequestHeaders::default();
    let request_headers = RequestHeaders {
        username: names(&arguments.requestheader_username_headers, default.username),
        uid: names(&arguments.requestheader_uid_headers, default.uid),
        group: names(&arguments.requestheader_group_headers, default.group),
        extra_prefixes: names(&arguments.requestheader_extra_headers_prefix, default.extra_prefixes),
    };
    let settings = AccessSettings {
        authentication,
        authorization: PreparedChain::new(&authorization).context("invalid authorization config")?,
        encryption: None,
        request_headers,
        proxy_names: arguments.requestheader_allowed_names.clone(),
    };
    let watched = WatchedFiles {
        authentication: arguments.authentication_config.clone().zip(authentication_text),
        authorization: arguments.authorization_config.clone().zip(authorization_text),
    };
    Ok((settings, watched))
}

fn authorization(arguments: &AccessArguments) -> anyhow::Result<(Authorization, Option<String>)> {
    if let Some(path) = &arguments.authorization_config {
        let is_flagged = !arguments.authorization_mode.is_empty()
            || arguments.authorization_webhook_config_file.is_some()
            || arguments.authorization_webhook_version.is_some()
            || arguments.authorization_webhook_cache_authorized_ttl.is_some()
            || arguments.authorization_webhook_cache_unauthorized_ttl.is_some();
        if is_flagged {
            bail!(
                "--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags \
                 are defined"
            );
        }
        let text = read(path)?;
        let configuration = Authorization::parse(&text, arguments.authorization_policy_file.as_deref())
            .with_context(|| format!("cannot use {}", path.display()))?;
        return Ok((configuration, Some(text)));
    }
    let flags = AuthorizationFlags {
        modes: arguments.authorization_mode.clone(),
        policy_file: arguments.authorization_policy_file.clone(),
        webhook_config_file: arguments.authorization_webhook_config_file.clone(),
        webhook_version: arguments.authorization_webhook_version.clone().unwrap_or_else(|| "v1beta1".to_owned()),
        authorized_ttl: arguments.authorization_webhook_cache_authorized_ttl.unwrap_or(Duration::from_secs(300)),
        unauthorized_ttl: arguments.authorization_webhook_cache_unauthorized_ttl.unwrap_or(Duration::from_secs(30)),
    };
    Ok((Authorization::of_flags(&flags)?, None))
}

/// Reads configuration files and certificates again when they change.
pub fn watch_files(
    arguments: &AccessArguments,
    watched: WatchedFiles,
    server: &Arc<ApiServer>,
    pki: &Arc<Pki>,
    supervisor: &Supervisor,
) {
    if let Some((path, text)) = watched.authentication {
        let (server, reserved) = (server.clone(), issuers(arguments));
        supervisor.restart("authentication-config", move || {
            let authenticator = server.security.authenticator.clone();
            let stopping = server.backend.stopping.clone();
            authenticate::watch_configuration(authenticator, path.clone(), text.clone(), reserved.clone(), stopping)
        });
    }
    if let Some((path, text)) = watched.authorization {
        let (server, policies) = (server.clone(), arguments.authorization_policy_file.clone());
        supervisor.restart("authorization-config", move || {
            let chain = server.security.authorization.clone();
            let stopping = server.backend.stopping.clone();
            authorize::watch_configuration(chain, path.clone(), text.clone(), policies.clone(), stopping)
        });
    }
    for path in pki.serving.files() {
        let (server, pki) = (server.clone(), pki.clone());
        supervisor.restart(format!("certificates of {}", path.display()), move || {
            let (pki, shown) = (pki.clone(), path.display().to_string());
            let known = std::fs::read_to_string(&path).unwrap_or_default();
            configuration_file::watch(path.clone(), known, server.backend.stopping.clone(), move |_| {
                match pki.serving.reload() {
                    Ok(()) => tracing::info!(path = shown, "reloaded certificates"),
                    Err(error) => tracing::warn!(path = shown, %error, "cannot reload certificates"),
                }
            })
        });
    }
}

#[cfg(test)]
mod tests;
