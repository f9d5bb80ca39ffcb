//! Reads metrics from the APIs that serve them.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::CrossVersionObjectReference;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{APIGroup, LabelSelector, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use knarr_client::go_duration;
use knarr_client::quantity::milli_value;
use knarr_client::selector;
use kube::Client;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::replicas::{Sample, Samples};
use crate::common::discovery::{Kind, KnownKinds};
use crate::common::messages;
use crate::error::{has_code, message};

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct List<T> {
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Deserialize)]
struct PodMetrics {
    metadata: ObjectMeta,
    timestamp: Timestamp,
    #[serde(default)]
    window: String,
    #[serde(default)]
    containers: Vec<ContainerMetrics>,
}

#[derive(Deserialize)]
struct ContainerMetrics {
    name: String,
    usage: BTreeMap<String, Quantity>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetricValue {
    #[serde(default)]
    described_object: DescribedObject,
    timestamp: Timestamp,
    window_seconds: Option<u64>,
    value: Quantity,
}

#[derive(Default, Deserialize)]
struct DescribedObject {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct ExternalValue {
    value: Quantity,
}

pub(super) struct Metrics<'a> {
    pub client: &'a Client,
    pub kinds: &'a KnownKinds,
    pub namespace: &'a str,
}

impl Metrics<'_> {
    /// Usage of a resource by each pod, or by one container of it.
    pub async fn of_resource(
        &self,
        resource: &str,
        selector: &str,
        container: Option<&str>,
    ) -> Result<Samples, String> {
        let path = format!(
            "/apis/metrics.k8s.io/v1beta1/namespaces/{}/pods?labelSelector={}",
            self.namespace,
            encoded(selector)
        );
        let list: List<PodMetrics> = self
            .get(&path, "pods.metrics.k8s.io")
            .await
            .map_err(|error| format!("unable to fetch metrics from resource metrics API: {error}"))?;
        if list.items.is_empty() {
            return Err("no metrics returned from resource metrics API".to_owned());
        }
        let mut samples = Samples::new();
        for pod in list.items {
            let chosen = pod.containers.iter().filter(|each| container.is_none_or(|desired| desired == each.name));
            let usage: Option<Vec<i64>> = chosen.map(|each| each.usage.get(resource).map(milli_value)).collect();
            let Some(usage) = usage.filter(|usage| !usage.is_empty()) else { continue };
            let sample = Sample { value: usage.iter().sum(), at: pod.timestamp, window: window(&pod.window) };
            samples.insert(pod.metadata.name.unwrap_or_default(), sample);
        }
        Ok(samples)
    }

    /// A metric of each of the pods.
    pub async fn of_pods(
        &self,
        metric: &str,
        selector: &str,
        chosen: Option<&LabelSelector>,
    ) -> Result<Samples, String> {
        let chosen = metric_selector("metricLabelSelector", chosen)?;
        let path = format!("namespaces/{}/pods/*/{metric}?labelSelector={}{chosen}", self.namespace, encoded(selector));
        let list: List<MetricValue> = self
            .custom(&path, metric)
            .await
            .map_err(|error| format!("unable to fetch metrics from custom metrics API: {error}"))?;
        if list.items.is_empty() {
            return Err("no metrics returned from custom metrics API".to_owned());
        }
        let sample = |value: MetricValue| {
            let window = Duration::from_secs(value.window_seconds.unwrap_or(60));
            (value.described_object.name, Sample { value: milli_value(&value.value), at: value.timestamp, window })
        };
        Ok(list.items.into_iter().map(sample).collect())
    }

    /// A metric that describes one object.
    pub async fn of_object(
        &self,
        object: &CrossVersionObjectReference,
        metric: &str,
        chosen: Option<&LabelSelector>,
    ) -> Result<i64, String> {
        let group =
            object.api_version.as_deref().and_then(|version| version.split_once('/')).map_or("", |(group, _)| group);
        let is_meant = |kind: &Kind| kind.resource.group == group && kind.resource.kind == object.kind;
        let kind = self.kinds.find(self.client, is_meant).await.map_err(|error| message(&error))?;
        let kind = kind.ok_or_else(|| format!("no matches for kind \"{}\" in group \"{group}\"", object.kind))?;
        let resource = match group {
            "" => kind.resource.plural,
            group => format!("{}.{group}", kind.resource.plural),
        };
        let place = if kind.namespaced { format!("namespaces/{}/", self.namespace) } else { String::new() };
        let chosen = metric_selector("metricLabelSelector", chosen)?;
        let chosen = chosen.strip_prefix('&').map(|chosen| format!("?{chosen}")).unwrap_or_default();
        let path = format!("{place}{resource}/{}/{metric}{chosen}", object.name);
        let list: List<MetricValue> = self
            .custom(&path, metric)
            .await
            .map_err(|error| format!("unable to fetch metrics from custom metrics API: {error}"))?;
        let value = list.items.first().ok_or_else(|| {
            let text = "the custom metrics API server reported that the described object has no such metric";
            format!("unable to fetch metrics from custom metrics API: {text}")
        })?;
        Ok(milli_value(&value.value))
    }

    /// The sum of an external metric.
    pub async fn external(&self, metric: &str, chosen: Option<&LabelSelector>) -> Result<i64, String> {
        let chosen = metric_selector("labelSelector", chosen)?;
        let chosen = chosen.strip_prefix('&').map(|chosen| format!("?{chosen}")).unwrap_or_default();
        let path = format!("/apis/external.metrics.k8s.io/v1beta1/namespaces/{}/{metric}{chosen}", self.namespace);
        let list: List<ExternalValue> = self
            .get(&path, &format!("{metric}.external.metrics.k8s.io"))
            .await
            .map_err(|error| format!("unable to fetch metrics from external metrics API: {error}"))?;
        if list.items.is_empty() {
            return Err("no metrics returned from external metrics API".to_owned());
        }
        Ok(list.items.iter().map(|each| milli_value(&each.value)).sum())
    }

    /// Queries the custom metrics API at the newest version it serves.
    async fn custom<T: DeserializeOwned>(&self, path: &str, metric: &str) -> Result<T, String> {
        const GROUP: &str = "custom.metrics.k8s.io";
        let request =
            http::Request::get(format!("/apis/{GROUP}")).body(Vec::new()).map_err(|error| error.to_string())?;
        let group: APIGroup = match self.client.request(request).await {
            Err(error) if has_code(&error, 404) => return Err(format!("no custom metrics API ({GROUP}) registered")),
            result => result.map_err(|error| messages::refusal(&error, "get", GROUP))?,
        };
        let serves = |version: &&&str| group.versions.iter().any(|served| served.version == **version);
        let Some(version) = ["v1beta2", "v1beta1"].iter().find(serves) else {
            return Err(format!("no known available metric versions found for {GROUP}"));
        };
        self.get(&format!("/apis/{GROUP}/{version}/{path}"), &format!("{metric}.{GROUP}")).await
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, resource: &str) -> Result<T, String> {
        let request = http::Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
        self.client.request(request).await.map_err(|error| messages::refusal(&error, "get", resource))
    }
}

fn metric_selector(parameter: &str, selector: Option<&LabelSelector>) -> Result<String, String> {
    let Some(selector) = selector else { return Ok(String::new()) };
    let selector = selector::of(selector).map_err(|error| error.to_string())?;
    Ok(if selector.is_everything() {
        String::new()
    } else {
        format!("&{parameter}={}", encoded(&selector.to_string()))
    })
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
            other => format!("%{other:02X}"),
        })
        .collect()
}

/// The window a value was measured over ("30s", "1m0s"); a minute when it is missing.
fn window(text: &str) -> Duration {
    go_duration::parse_positive(text).unwrap_or(Duration::from_secs(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_requests() {
        assert_eq!(encoded("app in (a,b)"), "app%20in%20%28a%2Cb%29");
        assert_eq!(window("30s"), Duration::from_secs(30));
        assert_eq!(window("1m0s"), Duration::from_secs(60));
        assert_eq!(window(""), Duration::from_secs(60));
        let selector =
            LabelSelector { match_labels: Some([("a".to_owned(), "b".to_owned())].into()), ..Default::default() };
        assert_eq!(metric_selector("labelSelector", Some(&selector)).unwrap(), "&labelSelector=a%3Db");
        assert_eq!(metric_selector("labelSelector", None).unwrap(), "");
    }
}
