//! Turns each kind of metric source into a proposed replica count.

use std::sync::Arc;

use k8s_openapi::api::autoscaling::v1::Scale;
use k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricSource, ContainerResourceMetricStatus, ExternalMetricSource, ExternalMetricStatus,
    HPAScalingRules, HorizontalPodAutoscaler, MetricIdentifier, MetricSpec, MetricStatus, MetricTarget,
    MetricValueStatus, ObjectMetricSource, ObjectMetricStatus, PodsMetricSource, PodsMetricStatus,
    ResourceMetricSource, ResourceMetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use k8s_openapi::jiff::Timestamp;
use knarr_client::quantity::{self, Format, Quantity, milli_value};

use super::metrics::Metrics;
use super::replicas::{self, InitialDelays, Observed, Proposal, Samples, Target, Tolerance};
use crate::common::messages;
use crate::settings::Settings;

/// The proposal of one metric.
pub(super) struct Reading {
    pub replicas: i32,
    pub name: String,
    pub status: MetricStatus,
}

/// Why a metric has no proposal: the reason and message of the condition.
pub(super) struct MetricError {
    pub reason: &'static str,
    pub message: String,
    /// The error's text where several metrics are reported together.
    pub summary: String,
}

pub(super) struct Reader<'a> {
    metrics: Metrics<'a>,
    selector: &'a str,
    pods: &'a [Arc<Pod>],
    current: i32,
    running: i32,
    initial_delays: InitialDelays,
    tolerance: Tolerance,
    now: Timestamp,
}

const NO_RESOURCE_TARGET: &str = "invalid resource metric source: neither an average utilization target nor an average \
    value (usage) target was set";

impl<'a> Reader<'a> {
    pub fn new(
        metrics: Metrics<'a>,
        settings: &Settings,
        autoscaler: &HorizontalPodAutoscaler,
        scale: &Scale,
        selector: &'a str,
        pods: &'a [Arc<Pod>],
        now: Timestamp,
    ) -> Self {
        Self {
            metrics,
            selector,
            pods,
            current: scale.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(0),
            running: scale.status.as_ref().map_or(0, |status| status.replicas),
            initial_delays: InitialDelays {
                cpu_initialization: settings.autoscaler.cpu_initialization_period,
                initial_readiness: settings.autoscaler.initial_readiness_delay,
            },
            tolerance: tolerance(autoscaler, settings.autoscaler.tolerance),
            now,
        }
    }

    pub async fn read(&self, spec: &MetricSpec) -> Result<Reading, MetricError> {
        if let Some(source) = &spec.resource {
            self.read_resource(source).await
        } else if let Some(source) = &spec.container_resource {
            self.read_container(source).await
        } else if let Some(source) = &spec.pods {
            self.read_pods(source).await
        } else if let Some(source) = &spec.object {
            self.read_object(source).await
        } else if let Some(source) = &spec.external {
            self.read_external(source).await
        } else {
            let text = format!("unknown metric source type \"{}\"", spec.type_);
            Err(MetricError { reason: "InvalidMetricSourceType", message: text.clone(), summary: text })
        }
    }

    fn observed<'o>(&'o self, samples: Samples, resource: Option<&'o str>, container: Option<&'o str>) -> Observed<'o> {
        Observed {
            pods: self.pods,
            samples,
            resource,
            container,
            current: self.current,
            initial_delays: self.initial_delays,
            tolerance: self.tolerance,
            now: self.now,
        }
    }

    /// The proposal for a resource of whole pods or of one container, and whether it is by utilization.
    async fn by_resource(
        &self,
        name: &str,
        target: &MetricTarget,
        container: Option<&str>,
    ) -> Result<(Proposal, bool), String> {
        let (target, word) = resource_target(target).ok_or(NO_RESOURCE_TARGET)?;
        let samples = self.metrics.of_resource(name, self.selector, container).await;
        let samples = samples.map_err(|text| format!("unable to get metrics for resource {name}: {text}"));
        let proposal =
            samples.and_then(|samples| replicas::by_pods(self.observed(samples, Some(name), container), target));
        let proposal = proposal.map_err(|text| format!("failed to get {name} {word}: {text}"))?;
        Ok((proposal, matches!(target, Target::Utilization(_))))
    }

    async fn read_resource(&self, source: &ResourceMetricSource) -> Result<Reading, MetricError> {
        let resource = &source.name;
        let (proposal, by_utilization) = self.by_resource(resource, &source.target, None).await.map_err(|text| {
            unreadable("FailedGetResourceMetric", &format!("{resource} resource metric value"), text)
        })?;
        let name = match by_utilization {
            true => format!("{resource} resource utilization (percentage of request)"),
            false => format!("{resource} resource"),
        };
        let part = ResourceMetricStatus { name: resource.clone(), current: value_of_resource(resource, &proposal) };
        let status = MetricStatus { type_: "Resource".to_owned(), resource: Some(part), ..MetricStatus::default() };
        Ok(Reading { replicas: proposal.replicas, name, status })
    }

    async fn read_container(&self, source: &ContainerResourceMetricSource) -> Result<Reading, MetricError> {
        let (resource, container) = (&source.name, &source.container);
        let (proposal, by_utilization) =
            self.by_resource(resource, &source.target, Some(container)).await.map_err(|text| {
                unreadable("FailedGetContainerResourceMetric", &format!("{container} container metric value"), text)
            })?;
        let name = match by_utilization {
            true => format!("{resource} container resource utilization (percentage of request)"),
            false => format!("{resource} resource"),
        };
        let part = ContainerResourceMetricStatus {
            name: resource.clone(),
            container: container.clone(),
            current: value_of_resource(resource, &proposal),
        };
        let kind = "ContainerResource".to_owned();
        let status = MetricStatus { type_: kind, container_resource: Some(part), ..MetricStatus::default() };
        Ok(Reading { replicas: proposal.replicas, name, status })
    }

    async fn read_pods(&self, source: &PodsMetricSource) -> Result<Reading, MetricError> {
        let metric = &source.metric;
        let target = Target::Average(source.target.average_value.as_ref().map_or(0, milli_value));
        let samples = self.metrics.of_pods(&metric.name, self.selector, metric.selector.as_ref()).await;
        let proposal = samples
            .map_err(|text| format!("unable to get metric {}: {text}", metric.name))
            .and_then(|samples| replicas::by_pods(self.observed(samples, None, None), target))
            .map_err(|text| unreadable("FailedGetPodsMetric", "pods metric value", text))?;
        let current = MetricValueStatus { average_value: decimal(proposal.average), ..MetricValueStatus::default() };
        let part = PodsMetricStatus { metric: metric.clone(), current };
        let status = MetricStatus { type_: "Pods".to_owned(), pods: Some(part), ..MetricStatus::default() };
        Ok(Reading { replicas: proposal.replicas, name: format!("pods metric {}", metric.name), status })
    }

    async fn read_object(&self, source: &ObjectMetricSource) -> Result<Reading, MetricError> {
        let fail = |text: String| unreadable("FailedGetObjectMetric", "object metric value", text);
        let (object, metric) = (&source.described_object, &source.metric);
        let value = self.metrics.of_object(object, &metric.name, metric.selector.as_ref()).await.map_err(|text| {
            let (kind, namespace) = (&object.kind, self.metrics.namespace);
            let text = format!("unable to get metric {}: {kind} on {namespace} {}/{text}", metric.name, object.name);
            match source.target.average_value {
                Some(_) => further(fail(text), |text| format!("failed to get {} object metric: {text}", metric.name)),
                None => fail(text),
            }
        })?;
        let (proposal, current) = self.by_one_value(value, &source.target).ok_or_else(|| {
            fail("invalid object metric source: neither a value target nor an average value target was set".to_owned())
        })?;
        let part = ObjectMetricStatus { described_object: object.clone(), metric: metric.clone(), current };
        let status = MetricStatus { type_: "Object".to_owned(), object: Some(part), ..MetricStatus::default() };
        let name = match source.target.average_value {
            Some(_) => external_name(metric),
            None => format!("{} metric {}", object.kind, metric.name),
        };
        Ok(Reading { replicas: proposal.replicas, name, status })
    }

    async fn read_external(&self, source: &ExternalMetricSource) -> Result<Reading, MetricError> {
        let metric = &source.metric;
        let what = format!("{} external metric value", metric.name);
        let fail = |text: String| unreadable("FailedGetExternalMetric", &what, text);
        let value = self.metrics.external(&metric.name, metric.selector.as_ref()).await.map_err(|text| {
            let (namespace, selector) = (self.metrics.namespace, messages::selector(metric.selector.as_ref()));
            let text = format!("unable to get external metric {namespace}/{}/{selector}: {text}", metric.name);
            further(fail(text), |text| match source.target.average_value {
                Some(_) => format!("failed to get {} external metric: {text}", metric.name),
                None => format!("failed to get external metric {}: {text}", metric.name),
            })
        })?;
        let (proposal, current) = self.by_one_value(value, &source.target).ok_or_else(|| {
            fail(
                "invalid external metric source: neither a value target nor an average value target was set".to_owned(),
            )
        })?;
        let part = ExternalMetricStatus { metric: metric.clone(), current };
        let status = MetricStatus { type_: "External".to_owned(), external: Some(part), ..MetricStatus::default() };
        Ok(Reading { replicas: proposal.replicas, name: external_name(metric), status })
    }

    fn by_one_value(&self, value: i64, target: &MetricTarget) -> Option<(Proposal, MetricValueStatus)> {
        if let Some(average) = &target.average_value {
            let proposal = replicas::by_average(value, milli_value(average), self.running, self.tolerance);
            let value_status =
                MetricValueStatus { average_value: decimal(proposal.average), ..MetricValueStatus::default() };
            return Some((proposal, value_status));
        }
        let desired = milli_value(target.value.as_ref()?);
        let proposal =
            replicas::by_value(value, desired, self.current, replicas::count_ready(self.pods), self.tolerance);
        Some((proposal, MetricValueStatus { value: decimal(value), ..MetricValueStatus::default() }))
    }
}

fn decimal(milli: i64) -> Option<ApiQuantity> {
    Some(quantity::to_api(&Quantity::from_milli(milli, Format::DecimalSi)))
}

fn external_name(metric: &MetricIdentifier) -> String {
    format!("external metric {}({})", metric.name, messages::selector(metric.selector.as_ref()))
}

/// The same failure with more context for the report over all metrics.
fn further(error: MetricError, wrap: impl Fn(&str) -> String) -> MetricError {
    MetricError { summary: error.summary.replace(&error.message, &wrap(&error.message)), ..error }
}

fn unreadable(reason: &'static str, what: &str, text: String) -> MetricError {
    MetricError { reason, summary: format!("failed to get {what}: {text}"), message: text }
}

/// The target, and the name of the resource.
fn resource_target(target: &MetricTarget) -> Option<(Target, &'static str)> {
    if let Some(average) = &target.average_value {
        return Some((Target::Average(milli_value(average)), "usage"));
    }
    target.average_utilization.map(|percent| (Target::Utilization(percent), "utilization"))
}

fn value_of_resource(resource: &str, proposal: &Proposal) -> MetricValueStatus {
    let format = if resource == "memory" { Format::BinarySi } else { Format::DecimalSi };
    MetricValueStatus {
        average_utilization: proposal.utilization,
        average_value: Some(quantity::to_api(&Quantity::from_milli(proposal.average, format))),
        value: None,
    }
}

fn tolerance(autoscaler: &HorizontalPodAutoscaler, default: f64) -> Tolerance {
    let behavior = autoscaler.spec.behavior.as_ref();
    let own = |rules: Option<&HPAScalingRules>| {
        rules.and_then(|rules| rules.tolerance.as_ref()).map_or(default, |own| quantity::of(own).as_f64())
    };
    Tolerance {
        up: own(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
        down: own(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
    }
}
