//! Replaces the identity providers when the authentication configuration changes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::Authenticator;
use super::jwt::{self, JwtAuthenticators};
use crate::configuration_file;

/// How long new identity providers may take to be reachable before a changed configuration is given up.
const RELOAD_TIMEOUT: Duration = Duration::from_secs(60);
const HEALTH_INTERVAL: Duration = Duration::from_millis(200);

/// Replaces the identity providers whenever the configuration file changes, once the new ones can be used. An invalid
/// file, or one whose providers cannot be reached, changes nothing.
pub async fn watch_configuration(
    authenticator: Arc<Authenticator>,
    path: PathBuf,
    known: String,
    reserved: Vec<String>,
    stopping: tokio::sync::watch::Receiver<bool>,
) {
    let (sender, mut changes) = tokio::sync::watch::channel(None);
    let file = path.clone();
    let watching = configuration_file::watch(path, known, stopping, move |text| {
        sender.send_replace(Some(text.to_owned()));
    });
    let replacing = async {
        while changes.changed().await.is_ok() {
            let Some(text) = changes.borrow_and_update().clone() else { continue };
            let result = reloaded(&text, &reserved).await;
            crate::metrics::AUTHENTICATION_RELOADS.record(result.is_ok(), Timestamp::now());
            match result {
                Ok(providers) => {
                    authenticator.set_providers(providers);
                    tracing::info!(path = %file.display(), "reloaded authentication config");
                }
                Err(error) => {
                    tracing::error!(path = %file.display(), error, "failed to load authentication config");
                }
            }
        }
    };
    tokio::join!(watching, replacing);
}

async fn reloaded(text: &str, reserved: &[String]) -> Result<JwtAuthenticators, String> {
    let configuration = jwt::Configuration::parse(text, reserved).map_err(|error| error.to_string())?;
    let providers =
        JwtAuthenticators::start(&configuration, &jwt::Algorithm::ALL).map_err(|error| error.to_string())?;
    let deadline = tokio::time::Instant::now() + RELOAD_TIMEOUT;
    loop {
        let unhealthy = providers.unhealthy();
        if unhealthy.is_empty() {
            return Ok(providers);
        }
        if tokio::time::Instant::now() >= deadline {
            return Err(unhealthy.join(", "));
        }
        tokio::time::sleep(HEALTH_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::super::jwt::test_issuer::{TestIssuer, claims, initialized};
    use super::super::{External, INVALID_TOKEN, ServiceAccountTokens, TokenFile};
    use super::*;
    use crate::object_reader::tests::Fixed;

    /// A token of an identity provider, then with a changed configuration.
    #[tokio::test]
    async fn identity_providers_are_reloaded() {
        let issuer = TestIssuer::start().await;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("authentication.yaml");
        let text = |prefix: &str| {
            issuer.configuration(&format!("claimMappings: {{username: {{claim: sub, prefix: '{prefix}'}}}}"))
        };
        std::fs::write(&path, text("a:")).unwrap();
        let configuration = jwt::Configuration::parse(&text("a:"), &[]).unwrap();
        let providers = JwtAuthenticators::start(&configuration, &jwt::Algorithm::ALL).unwrap();
        initialized(&providers).await;
        let accounts = Arc::new(ServiceAccountTokens::for_tests());
        let external = External { providers, ..External::default() };
        let authenticator = Arc::new(Authenticator::new(TokenFile::parse("").unwrap(), accounts, external));
        let (stop, stopping) = tokio::sync::watch::channel(false);
        let following =
            tokio::spawn(watch_configuration(authenticator.clone(), path.clone(), text("a:"), vec![], stopping));
        let token = issuer.sign(&claims(&issuer, serde_json::json!({})));
        let objects = Fixed::new(vec![]);
        let audiences = ["https://issuer".to_owned()];
        let name = async || {
            let found = authenticator.token(&token, &audiences, &objects, Timestamp::now()).await;
            found.map(|found| (found.user.name, found.audiences))
        };
        assert_eq!(name().await, Ok(("a:ann".to_owned(), audiences.to_vec())));
        let elsewhere = authenticator.token(&token, &["other".to_owned()], &objects, Timestamp::now()).await;
        assert_eq!(elsewhere.map(|found| found.user.name), Err(INVALID_TOKEN.to_owned()));
        std::fs::write(&path, text("b:").replace("prefix", "prefixes")).unwrap();
        tokio::time::sleep(2 * configuration_file::CHECK_INTERVAL).await;
        assert_eq!(name().await.map(|(name, _)| name), Ok("a:ann".to_owned()), "an invalid file changes nothing");
        std::fs::write(&path, text("b:")).unwrap();
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while name().await.map(|(name, _)| name) != Ok("b:ann".to_owned()) {
            assert!(tokio::time::Instant::now() < deadline);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        stop.send_replace(true);
        following.await.unwrap();
    }
}
