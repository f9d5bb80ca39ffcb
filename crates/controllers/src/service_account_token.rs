//! Fills secrets of type service account token, and deletes them with the account.
//!
//! The API server signs: the token is requested like any client may, bound to the secret, so that the controllers need no
//! key and the token expires with its secret.

use std::sync::Arc;

use k8s_openapi::ByteString;
use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use knarr_client::{Change, WorkQueue, run_workers};
use kube::Api;
use kube::api::PostParams;

use crate::Context;
use crate::common::Key;
use crate::common::key::{name, namespace, uid};
use crate::common::requests::{delete, replace};
use crate::error::{Error, Result, ignore_not_found, is_conflict};
use crate::token_cleaner::{ACCOUNT_NAME, ACCOUNT_UID, account_of, account_tokens};

/// The maximum lifetime of a token; to revoke it, delete the secret.
const LIFETIME_SECONDS: i64 = 1 << 32;

pub async fn run(context: Context) {
    let accounts = context.informers.of::<ServiceAccount>();
    let secrets = account_tokens(&context);
    let queue: Arc<WorkQueue<Key>> = WorkQueue::new();
    let on_secret = queue.clone();
    secrets.on_change(move |change| {
        if !matches!(change, Change::Deleted(_)) {
            on_secret.add(Key::of(&**change.latest()));
        }
    });
    let (on_account, tokens) = (queue.clone(), secrets.clone());
    accounts.on_change(move |change| {
        if let Change::Deleted(account) = change {
            for secret in tokens.in_namespace(namespace(&**account)) {
                on_account.add(Key::of(&*secret));
            }
        }
    });
    accounts.synced().await;
    secrets.synced().await;
    let workers = context.settings.concurrent_syncs.of("concurrent-serviceaccount-token-syncs");
    run_workers(queue, workers, move |key: Key| {
        let (context, accounts, secrets) = (context.clone(), accounts.clone(), secrets.clone());
        async move {
            let Some(secret) = secrets.get(&key.namespace, &key.name) else { return Ok::<(), Error>(()) };
            let Some((account, desired)) = account_of(&secret) else { return Ok(()) };
            let is_its = |account: &ServiceAccount| desired.is_none_or(|desired| desired == uid(account));
            if let Some(account) = accounts.get(&key.namespace, account).filter(|account| is_its(account)) {
                return fill(&context, &account, &secret).await;
            }
            let api: Api<ServiceAccount> = Api::namespaced(context.client.clone(), &key.namespace);
            match api.get_opt(account).await?.filter(|account| is_its(account)) {
                Some(account) => fill(&context, &account, &secret).await,
                None => delete(&context.client, &*secret, None).await,
            }
        }
    })
    .await;
}

/// What a secret is missing.
#[derive(Debug, Default, PartialEq)]
struct MissingKeys {
    authority: bool,
    namespace: bool,
    token: bool,
}

fn missing_keys(secret: &Secret, authority: Option<&str>) -> MissingKeys {
    let value = |key: &str| secret.data.as_ref().and_then(|data| data.get(key)).map_or(&[][..], |value| &value.0);
    MissingKeys {
        authority: authority.is_some_and(|authority| value("ca.crt") != authority.as_bytes()),
        namespace: value("namespace").is_empty(),
        token: value("token").is_empty(),
    }
}

async fn fill(context: &Context, account: &ServiceAccount, secret: &Secret) -> Result<()> {
    let authority = context.settings.root_ca.as_deref();
    let missing_keys = missing_keys(secret, authority);
    if missing_keys == MissingKeys::default() || secret.metadata.deletion_timestamp.is_some() {
        return Ok(());
    }
    let mut filled = secret.clone();
    let data = filled.data.get_or_insert_default();
    let mut put = |key: &str, value: &str| data.insert(key.to_owned(), ByteString(value.as_bytes().to_vec()));
    if let Some(authority) = authority.filter(|_| missing_keys.authority) {
        put("ca.crt", authority);
    }
    if missing_keys.namespace {
        put("namespace", namespace(secret));
    }
    if missing_keys.token {
        put("token", &new_token(context, account, secret).await?);
    }
    let annotations = filled.metadata.annotations.get_or_insert_default();
    annotations.insert(ACCOUNT_NAME.to_owned(), name(account).to_owned());
    annotations.insert(ACCOUNT_UID.to_owned(), uid(account).to_owned());
    match ignore_not_found(replace(&context.client, &filled).await) {
        // A conflicting change came first, and queues the secret again.
        Err(error) if is_conflict(&error) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

async fn new_token(context: &Context, account: &ServiceAccount, secret: &Secret) -> Result<String> {
    let request = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: None,
            expiration_seconds: Some(LIFETIME_SECONDS),
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Secret".to_owned()),
                name: Some(name(secret).to_owned()),
                uid: Some(uid(secret).to_owned()),
            }),
        }),
        ..TokenRequest::default()
    };
    let api: Api<ServiceAccount> = Api::namespaced(context.client.clone(), namespace(account));
    let result = api.create_token_request(name(account), &PostParams::default(), &request).await?;
    let token = result.status.and_then(|status| status.token).filter(|token| !token.is_empty());
    token.ok_or_else(|| Error::Later("the server's response has no token".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn missing_keys_are_found() {
        let secret = |data: serde_json::Value| -> Secret { serde_json::from_value(json!({"data": data})).unwrap() };
        let full = json!({"ca.crt": "Y2E=", "namespace": "bnM=", "token": "dA=="});
        assert_eq!(missing_keys(&secret(full.clone()), Some("ca")), MissingKeys::default());
        assert_eq!(missing_keys(&secret(full.clone()), None), MissingKeys::default());
        assert!(missing_keys(&secret(full), Some("another")).authority);
        let nothing = MissingKeys { authority: true, namespace: true, token: true };
        assert_eq!(missing_keys(&secret(json!({})), Some("ca")), nothing);
    }
}
