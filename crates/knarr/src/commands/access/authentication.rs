//! Authentication by identity providers and by the token webhook, from the flags and the AuthenticationConfiguration file.

use std::time::Duration;

use anyhow::{Context, bail};
use knarr_apiserver::authenticate::jwt::{Algorithm, Anonymous, Configuration, JwtAuthenticators, OidcFlags};
use knarr_apiserver::authenticate::{External, TokenWebhook};
use knarr_apiserver::outbound::ConfiguredWebhook;

use super::{AccessArguments, issuers, read};

/// How long the token webhook may take.
const WEBHOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// What the flags and the file say.
struct Configured {
    /// The identity providers, and the signature algorithms that they may use.
    providers: Option<(Configuration, Vec<Algorithm>)>,
    anonymous: Anonymous,
    webhook: Option<ConfiguredWebhook>,
    /// The text of the configuration file.
    text: Option<String>,
}

/// Refuses what cannot be used; no key is fetched.
pub fn check(arguments: &AccessArguments) -> anyhow::Result<()> {
    configured(arguments).map(drop)
}

/// The authenticators, and the text of the configuration file. Providers start to fetch their keys.
pub fn start(arguments: &AccessArguments) -> anyhow::Result<(External, Option<String>)> {
    let Configured { providers, anonymous, webhook, text } = configured(arguments)?;
    let mut external =
        External { bootstrap_tokens: arguments.enable_bootstrap_token_auth, anonymous, ..External::default() };
    if let Some((configuration, algorithms)) = providers {
        external.providers = JwtAuthenticators::start(&configuration, &algorithms)?;
    }
    external.webhook = webhook.map(|webhook| {
        let version = &arguments.authentication_token_webhook_version;
        TokenWebhook::new(webhook, version, arguments.authentication_token_webhook_cache_ttl)
    });
    Ok((external, text))
}

fn configured(arguments: &AccessArguments) -> anyhow::Result<Configured> {
    let (oidc, reserved) = (oidc(arguments), issuers(arguments));
    let (mut text, mut anonymous, mut providers) = (None, None, None);
    if let Some(path) = &arguments.authentication_config {
        if oidc.is_set() {
            bail!("authentication-config file and oidc-* flags are mutually exclusive");
        }
        let given = read(path)?;
        let configuration = Configuration::parse(&given, &reserved).with_context(|| {
            format!("failed to load authentication configuration from file {:?}", path.display().to_string())
        })?;
        anonymous = configuration.anonymous.clone();
        providers = Some((configuration, Algorithm::ALL.to_vec()));
        text = Some(given);
    } else if let Some(issuer) = oidc.issuer()? {
        providers = Some((Configuration::of_issuer(issuer, &reserved)?, oidc.algorithms()?));
    }
    let anonymous = match (anonymous, arguments.anonymous_auth) {
        (Some(_), Some(_)) => bail!(
            "anonymous: Forbidden: --anonymous-auth flag cannot be set when anonymous field is configured in \
             authentication configuration file"
        ),
        (Some(configured), None) => configured,
        (None, Some(false)) => Anonymous::Never,
        (None, _) => Anonymous::Everywhere,
    };
    let webhook = arguments.authentication_token_webhook_config_file.as_ref();
    let webhook = webhook.map(|path| ConfiguredWebhook::read(path, WEBHOOK_TIMEOUT)).transpose()?;
    Ok(Configured { providers, anonymous, webhook, text })
}

fn oidc(arguments: &AccessArguments) -> OidcFlags {
    OidcFlags {
        issuer_url: arguments.oidc_issuer_url.clone(),
        client_id: arguments.oidc_client_id.clone(),
        ca_file: arguments.oidc_ca_file.clone(),
        username_claim: arguments.oidc_username_claim.clone(),
        username_prefix: arguments.oidc_username_prefix.clone(),
        groups_claim: arguments.oidc_groups_claim.clone(),
        groups_prefix: arguments.oidc_groups_prefix.clone(),
        signing_algs: arguments.oidc_signing_algs.clone(),
        required_claims: arguments.oidc_required_claim.clone(),
    }
}
