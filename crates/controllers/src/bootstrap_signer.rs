//! Signs the public ConfigMap `cluster-info` with every bootstrap token, so that a host which has only a token can
//! verify what it reads before it trusts any certificate.

use std::collections::BTreeMap;
use std::sync::Arc;

use aws_lc_rs::hmac;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::jiff::Timestamp;
use knarr_client::{WorkQueue, run_workers, time};

use crate::Context;
use crate::common::key::{name, namespace};
use crate::common::requests::replace;
use crate::error::{Result, ignore_not_found, is_conflict};
use crate::token_cleaner::{BOOTSTRAP_TOKEN, expiration};

const NAMESPACE: &str = "kube-public";
const NAME: &str = "cluster-info";
/// The key that is signed, and the prefix of the signatures' keys.
const SIGNED: &str = "kubeconfig";
const SIGNATURE: &str = "jws-kubeconfig-";

pub async fn run(context: Context) {
    let secrets = context.informers.selected::<Secret>(&format!("type={BOOTSTRAP_TOKEN}"), "");
    let maps = context.informers.selected::<ConfigMap>(&format!("metadata.name={NAME}"), "");
    // Every change triggers the same sync.
    let queue: Arc<WorkQueue<()>> = WorkQueue::new();
    let (on_secret, on_map) = (queue.clone(), queue.clone());
    secrets.on_change(move |_| on_secret.add(()));
    maps.on_change(move |_| on_map.add(()));
    secrets.synced().await;
    maps.synced().await;
    let again = queue.clone();
    run_workers(queue, 1, move |()| {
        let (context, again) = (context.clone(), again.clone());
        let (secrets, map) = (secrets.list(), maps.get(NAMESPACE, NAME));
        async move {
            let now = context.clock.now();
            let mut tokens = BTreeMap::new();
            for secret in &secrets {
                tokens.extend(token_of(secret, now));
                // The signature is removed when the token expires.
                if let Some(at) = expiration(secret).filter(|at| *at > now) {
                    again.add_after((), time::until(now, at));
                }
            }
            match map.and_then(|map| signed(&map, &tokens)) {
                Some(changed) => write(&context, &changed).await,
                None => Ok(()),
            }
        }
    })
    .await;
}

async fn write(context: &Context, map: &ConfigMap) -> Result<()> {
    match ignore_not_found(replace(&context.client, map).await) {
        // The conflicting change triggers another sync.
        Err(error) if is_conflict(&error) => Ok(()),
        result => Ok(result.map(drop)?),
    }
}

/// The id and secret of a token that may sign.
fn token_of(secret: &Secret, now: Timestamp) -> Option<(String, String)> {
    let data = |key: &str| {
        let text = secret.data.as_ref()?.get(key)?;
        String::from_utf8(text.0.clone()).ok().filter(|text| !text.is_empty())
    };
    let id = data("token-id")?;
    let is_named_so = name(secret).strip_prefix("bootstrap-token-") == Some(&*id) && namespace(secret) == "kube-system";
    let is_over = data("expiration").is_some() && expiration(secret).is_none_or(|at| at <= now);
    let may_sign = data("usage-bootstrap-signing").as_deref() == Some("true");
    let token = data("token-secret")?;
    (is_named_so && !is_over && may_sign).then_some((id, token))
}

/// The ConfigMap with a signature for each token and no other; `None` when it is up to date.
fn signed(map: &ConfigMap, tokens: &BTreeMap<String, String>) -> Option<ConfigMap> {
    let data = map.data.as_ref()?;
    let content = data.get(SIGNED)?;
    let mut desired: BTreeMap<String, String> = data.clone();
    desired.retain(|key, _| !key.starts_with(SIGNATURE));
    for (id, token) in tokens {
        desired.insert(format!("{SIGNATURE}{id}"), signature(content, id, token));
    }
    (desired != *data).then(|| ConfigMap { data: Some(desired), ..map.clone() })
}

/// A detached JSON web signature (HS256).
fn signature(content: &str, id: &str, token: &str) -> String {
    let header = URL_SAFE_NO_PAD.encode(format!("{{\"alg\":\"HS256\",\"kid\":{}}}", serde_json::Value::from(id)));
    let key = hmac::Key::new(hmac::HMAC_SHA256, token.as_bytes());
    let tag = hmac::sign(&key, format!("{header}.{}", URL_SAFE_NO_PAD.encode(content)).as_bytes());
    format!("{header}..{}", URL_SAFE_NO_PAD.encode(tag))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn secret(name: &str, data: &[(&str, &str)]) -> Secret {
        let data: BTreeMap<&str, String> =
            data.iter().map(|(key, value)| (*key, base64::engine::general_purpose::STANDARD.encode(value))).collect();
        serde_json::from_value(json!({"metadata": {"name": name, "namespace": "kube-system"}, "data": data})).unwrap()
    }

    #[test]
    fn tokens_that_may_sign_are_found() {
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let good = [("token-id", "abcdef"), ("token-secret", "s"), ("usage-bootstrap-signing", "true")];
        let with = |more: &[(&'static str, &'static str)]| [&good[..], more].concat();
        for (name, data, found) in [
            ("bootstrap-token-abcdef", with(&[]), true),
            ("bootstrap-token-other1", with(&[]), false),
            ("bootstrap-token-abcdef", with(&[("expiration", "2026-01-02T00:00:00Z")]), true),
            ("bootstrap-token-abcdef", with(&[("expiration", "2025-01-02T00:00:00Z")]), false),
            ("bootstrap-token-abcdef", with(&[("expiration", "soon")]), false),
            ("bootstrap-token-abcdef", good[..2].to_vec(), false),
        ] {
            assert_eq!(token_of(&secret(name, &data), now).is_some(), found, "{name} {data:?}");
        }
    }

    #[test]
    fn a_map_is_signed_once_for_each_token() {
        let map: ConfigMap =
            serde_json::from_value(json!({"data": {"kubeconfig": "payload", "jws-kubeconfig-gone00": "x"}})).unwrap();
        let tokens = BTreeMap::from([("abcdef".to_owned(), "secret".to_owned())]);
        let changed = signed(&map, &tokens).unwrap();
        let keys: Vec<&str> = changed.data.as_ref().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["jws-kubeconfig-abcdef", "kubeconfig"]);
        assert!(signed(&changed, &tokens).is_none());
        assert!(signed(&ConfigMap::default(), &tokens).is_none());
    }

    #[test]
    fn signatures_equal_those_of_kubernetes() {
        let rendered = signature("payload", "abcdef", "0123456789abcdef");
        let (header, tag) = rendered.split_once("..").unwrap();
        assert_eq!(URL_SAFE_NO_PAD.decode(header).unwrap(), br#"{"alg":"HS256","kid":"abcdef"}"#);
        assert_eq!(tag, "pQpAf41KnbpDpf53Otu_ufAeAbWD9CSytTS_WpoG4Mc");
    }
}
