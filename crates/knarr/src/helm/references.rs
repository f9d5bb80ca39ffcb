//! Reads the Secrets and the ConfigMap that a chart names, in its own namespace.

use anyhow::Context as _;
use knarr_client::k8s_openapi::api::core::v1::{ConfigMap, Secret};
use knarr_client::kube::{Api, Client};

use super::access::{Data, Sources};
use super::release::SecretValue;
use super::spec::{ChartSpec, NameReference, SecretReference};

/// The values that the Secrets of a chart or a configuration hold, in order.
pub async fn values(client: &Client, namespace: &str, spec: &ChartSpec) -> anyhow::Result<Vec<SecretValue>> {
    let mut values = Vec::new();
    for reference in spec.values_secrets.iter().filter(|reference| !reference.keys.is_empty()) {
        let found = secret(client, namespace, &reference.name).await?;
        values.extend(selected(reference, found)?);
    }
    Ok(values)
}

/// A Secret whose updates are ignored is optional, and so are its keys.
fn selected(reference: &SecretReference, found: Option<Data>) -> anyhow::Result<Vec<SecretValue>> {
    let (name, is_optional) = (&reference.name, reference.ignore_updates);
    let Some(data) = found else {
        anyhow::ensure!(is_optional, "there is no Secret {name}");
        return Ok(Vec::new());
    };
    let mut values = Vec::new();
    for key in &reference.keys {
        match data.get(key) {
            Some(content) => values.push(SecretValue { content: content.clone(), ignores_updates: is_optional }),
            None => anyhow::ensure!(is_optional, "Secret {name} has no key {key}"),
        }
    }
    Ok(values)
}

/// What the chart names to get at its repository or registry.
pub async fn sources(client: &Client, namespace: &str, spec: &ChartSpec) -> anyhow::Result<Sources> {
    Ok(Sources {
        auth: named(client, namespace, spec.auth_secret.as_ref()).await?,
        registry: named(client, namespace, spec.docker_registry_secret.as_ref()).await?,
        authorities: match &spec.repo_ca_config_map {
            Some(reference) => Some(config_map(client, namespace, &reference.name).await?),
            None => None,
        },
    })
}

async fn named(client: &Client, namespace: &str, reference: Option<&NameReference>) -> anyhow::Result<Option<Data>> {
    let Some(NameReference { name }) = reference else { return Ok(None) };
    let found = secret(client, namespace, name).await?;
    found.map(Some).with_context(|| format!("there is no Secret {name}"))
}

async fn secret(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Option<Data>> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let secret = secrets.get_opt(name).await.with_context(|| format!("cannot read Secret {name}"))?;
    let data =
        |secret: Secret| secret.data.unwrap_or_default().into_iter().map(|(key, value)| (key, value.0)).collect();
    Ok(secret.map(data))
}

async fn config_map(client: &Client, namespace: &str, name: &str) -> anyhow::Result<Data> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let map = maps.get(name).await.with_context(|| format!("cannot read ConfigMap {name}"))?;
    let texts = map.data.unwrap_or_default().into_iter().map(|(key, text)| (key, text.into_bytes()));
    Ok(texts.chain(map.binary_data.unwrap_or_default().into_iter().map(|(key, bytes)| (key, bytes.0))).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_whose_updates_are_ignored_may_be_missing() {
        let reference =
            |ignore_updates| SecretReference { name: "s".into(), keys: vec!["a".into(), "b".into()], ignore_updates };
        let data = || Some(Data::from([("a".to_owned(), b"x: 1".to_vec())]));
        let value = |ignores_updates| SecretValue { content: b"x: 1".to_vec(), ignores_updates };
        assert_eq!(selected(&reference(true), data()).unwrap(), [value(true)]);
        assert_eq!(selected(&reference(true), None).unwrap(), []);
        assert!(selected(&reference(false), data()).unwrap_err().to_string().contains("no key b"));
        assert!(selected(&reference(false), None).unwrap_err().to_string().contains("no Secret s"));
    }
}
