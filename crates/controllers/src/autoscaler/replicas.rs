//! Computes how many replicas bring a metric to its target.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use knarr_client::pod_resources::is_sidecar;
use knarr_client::{pod, quantity};

use crate::common::key::name;

/// One pod's value in thousandths, and when and over how long it was measured.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub value: i64,
    pub at: Timestamp,
    pub window: Duration,
}

pub(super) type Samples = BTreeMap<String, Sample>;

/// How far from its target a metric may be before the size changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tolerance {
    pub up: f64,
    pub down: f64,
}

impl Tolerance {
    fn covers(self, ratio: f64) -> bool {
        1.0 - self.down <= ratio && ratio <= 1.0 + self.up
    }
}

/// How long the metrics of young pods are ignored.
#[derive(Clone, Copy, Debug)]
pub(super) struct InitialDelays {
    pub cpu_initialization: Duration,
    pub initial_readiness: Duration,
}

#[derive(Debug, Default)]
struct Groups {
    ready: usize,
    unready: Vec<String>,
    missing: Vec<String>,
    ignored: Vec<String>,
}

fn group(
    pods: &[Arc<Pod>],
    samples: &Samples,
    resource: Option<&str>,
    initial_delays: InitialDelays,
    now: Timestamp,
) -> Groups {
    let mut groups = Groups::default();
    for each in pods {
        let key = name(&**each).to_owned();
        if pod::is_terminating(each) || pod::phase(each) == "Failed" {
            groups.ignored.push(key);
        } else if pod::phase(each) == "Pending" {
            groups.unready.push(key);
        } else {
            match samples.get(&key) {
                None => groups.missing.push(key),
                Some(sample) if resource == Some("cpu") && is_too_young(each, sample, initial_delays, now) => {
                    groups.unready.push(key)
                }
                Some(_) => groups.ready += 1,
            }
        }
    }
    groups
}

/// Pods use more CPU while they start than afterwards.
fn is_too_young(each: &Pod, sample: &Sample, initial_delays: InitialDelays, now: Timestamp) -> bool {
    let started = each.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|at| at.0);
    let (Some(ready), Some(started)) = (pod::condition(each, "Ready"), started) else { return true };
    let plus = |at: Timestamp, length: Duration| {
        at.saturating_add(SignedDuration::try_from(length).unwrap_or(SignedDuration::MAX)).unwrap_or(Timestamp::MAX)
    };
    let turned = ready.last_transition_time.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0);
    if plus(started, initial_delays.cpu_initialization) > now {
        ready.status == "False" || sample.at < plus(turned, sample.window)
    } else {
        ready.status == "False" && plus(started, initial_delays.initial_readiness) > turned
    }
}

/// A proposal: replicas, the average use in thousandths, and the utilization in percent where there is one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Proposal {
    pub replicas: i32,
    pub average: i64,
    pub utilization: Option<i32>,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    /// Percent of the pods' requests.
    Utilization(i32),
    /// Thousandths per pod.
    Average(i64),
}

pub(super) struct Observed<'a> {
    pub pods: &'a [Arc<Pod>],
    pub samples: Samples,
    pub resource: Option<&'a str>,
    pub container: Option<&'a str>,
    pub current: i32,
    pub initial_delays: InitialDelays,
    pub tolerance: Tolerance,
    pub now: Timestamp,
}

/// From one value per pod.
pub(super) fn by_pods(observed: Observed, target: Target) -> Result<Proposal, String> {
    let Observed { pods, mut samples, resource, container, current, initial_delays, tolerance, now } = observed;
    if samples.is_empty() {
        return Err("no metrics returned from resource metrics API".to_owned());
    }
    if pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".to_owned());
    }
    let groups = group(pods, &samples, resource, initial_delays, now);
    for pod in groups.ignored.iter().chain(&groups.unready) {
        samples.remove(pod);
    }
    if samples.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
    }
    let requests = match target {
        Target::Utilization(_) => requests(pods, resource.unwrap_or(""), container)?,
        Target::Average(_) => BTreeMap::new(),
    };
    let (ratio, average, utilization) = usage(&samples, &requests, target)?;
    let proposal = |replicas: i32| Proposal { replicas, average, utilization };
    let rebalance = !groups.unready.is_empty() && ratio > 1.0;
    if !rebalance && groups.missing.is_empty() {
        if tolerance.covers(ratio) {
            return Ok(proposal(current));
        }
        return Ok(proposal((ratio * groups.ready as f64).ceil() as i32));
    }
    // Pods without a value are assumed to have the value that makes the change smaller.
    let assumed = |pod: &str, growing: bool| match (growing, target) {
        (true, _) => 0,
        (false, Target::Average(value)) => value,
        (false, Target::Utilization(percent)) => {
            requests.get(pod).copied().unwrap_or(0) * i64::from(percent.max(100)) / 100
        }
    };
    let mut fill = |pods: &[String], growing: bool| {
        for pod in pods {
            samples.insert(pod.clone(), Sample { value: assumed(pod, growing), at: now, window: Duration::ZERO });
        }
    };
    if ratio < 1.0 {
        fill(&groups.missing, false);
    } else if ratio > 1.0 {
        fill(&groups.missing, true);
    }
    if rebalance {
        fill(&groups.unready, true);
    }
    let (new_ratio, _, _) = usage(&samples, &requests, target)?;
    let turned = (ratio < 1.0 && new_ratio > 1.0) || (ratio > 1.0 && new_ratio < 1.0);
    if tolerance.covers(new_ratio) || turned {
        return Ok(proposal(current));
    }
    let replicas = (new_ratio * samples.len() as f64).ceil() as i32;
    let backwards = (new_ratio < 1.0 && replicas > current) || (new_ratio > 1.0 && replicas < current);
    Ok(proposal(if backwards { current } else { replicas }))
}

/// The ratio of usage to target, the average usage, and the utilization.
fn usage(
    samples: &Samples,
    requests: &BTreeMap<String, i64>,
    target: Target,
) -> Result<(f64, i64, Option<i32>), String> {
    let total: i64 = samples.values().map(|sample| sample.value).sum();
    let count = samples.len() as i64;
    match target {
        Target::Average(desired) => {
            let average = total / count;
            Ok((average as f64 / desired.max(1) as f64, average, None))
        }
        Target::Utilization(percent) => {
            let requested = samples.keys().filter_map(|pod| requests.get(pod)).sum::<i64>();
            if requested == 0 {
                return Err("no metrics returned matched known pods".to_owned());
            }
            let known: i64 =
                samples.iter().filter(|(pod, _)| requests.contains_key(*pod)).map(|(_, sample)| sample.value).sum();
            let utilization = (known * 100 / requested) as i32;
            Ok((f64::from(utilization) / f64::from(percent.max(1)), total / count, Some(utilization)))
        }
    }
}

/// Requests of each pod, or of one container of it, in thousandths.
fn requests(pods: &[Arc<Pod>], resource: &str, container: Option<&str>) -> Result<BTreeMap<String, i64>, String> {
    let mut all = BTreeMap::new();
    for pod in pods {
        let Some(spec) = &pod.spec else { continue };
        let whole =
            spec.resources.as_ref().and_then(|resources| resources.requests.as_ref()).filter(|_| container.is_none());
        if let Some(whole) = whole.and_then(|whole| whole.get(resource)) {
            all.insert(name(&**pod).to_owned(), quantity::milli_value(whole));
            continue;
        }
        let sidecars = spec.init_containers.iter().flatten();
        let sidecars = sidecars.filter(|container| is_sidecar(container));
        let chosen: Vec<&Container> = spec
            .containers
            .iter()
            .chain(sidecars)
            .filter(|each| container.is_none_or(|desired| desired == each.name))
            .collect();
        if chosen.is_empty()
            && let Some(container) = container
        {
            return Err(format!("container {container} not found in Pod {}", name(&**pod)));
        }
        let mut request = 0;
        for each in chosen {
            let own = each.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get(resource));
            let Some(own) = own else {
                return Err(format!(
                    "missing request for {resource} in container {} of Pod {}",
                    each.name,
                    name(&**pod)
                ));
            };
            request += quantity::milli_value(own);
        }
        all.insert(name(&**pod).to_owned(), request);
    }
    Ok(all)
}

/// From one value for the whole target: in proportion to the ready pods.
pub(super) fn by_value(value: i64, target: i64, current: i32, ready: usize, tolerance: Tolerance) -> Proposal {
    let ratio = value as f64 / target.max(1) as f64;
    let replicas = if current == 0 {
        // With no ready pod the ratio itself is the replica count.
        ratio.ceil() as i32
    } else if tolerance.covers(ratio) {
        current
    } else {
        (ratio * ready as f64).ceil() as i32
    };
    Proposal { replicas, average: value, utilization: None }
}

/// From one value for the whole target, divided by a target value per pod.
pub(super) fn by_average(value: i64, target: i64, current: i32, tolerance: Tolerance) -> Proposal {
    let target = target.max(1);
    let ratio = value as f64 / (target as f64 * f64::from(current.max(1)));
    let replicas =
        if current > 0 && tolerance.covers(ratio) { current } else { (value as f64 / target as f64).ceil() as i32 };
    let average = if current > 0 { (value as f64 / f64::from(current)).ceil() as i64 } else { 0 };
    Proposal { replicas, average, utilization: None }
}

pub(super) fn count_ready(pods: &[Arc<Pod>]) -> usize {
    pods.iter().filter(|pod| pod::phase(pod) == "Running" && pod::is_ready(pod)).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn now() -> Timestamp {
        "2026-01-01T01:00:00Z".parse().unwrap()
    }

    fn pods(states: &[&str]) -> Vec<Arc<Pod>> {
        let pod = |(n, state): (usize, &&str)| {
            let (phase, ready) = match *state {
                "ready" => ("Running", "True"),
                "unready" => ("Running", "False"),
                other => (other, "False"),
            };
            let value = json!({"metadata": {"name": format!("p{n}")},
                "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
                "status": {"phase": phase, "startTime": "2026-01-01T00:00:00Z",
                    "conditions": [{"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-01T00:00:10Z"}]}});
            Arc::new(serde_json::from_value(value).unwrap())
        };
        states.iter().enumerate().map(pod).collect()
    }

    fn propose(states: &[&str], values: &[Option<i64>], target: Target, current: i32) -> Result<i32, String> {
        let pods = pods(states);
        let sample = |(n, value): (usize, &Option<i64>)| {
            Some((format!("p{n}"), Sample { value: (*value)?, at: now(), window: Duration::from_secs(60) }))
        };
        let observed = Observed {
            pods: &pods,
            samples: values.iter().enumerate().filter_map(sample).collect(),
            resource: Some("cpu"),
            container: None,
            current,
            initial_delays: InitialDelays {
                cpu_initialization: Duration::from_secs(300),
                initial_readiness: Duration::from_secs(30),
            },
            tolerance: Tolerance { up: 0.1, down: 0.1 },
            now: now(),
        };
        by_pods(observed, target).map(|proposal| proposal.replicas)
    }

    #[test]
    fn proposals_by_utilization() {
        let half = Target::Utilization(50);
        let three = ["ready", "ready", "ready"];
        for (case, states, values, expected) in [
            ("double", &three[..], vec![Some(1000), Some(1000), Some(1000)], Ok(6)),
            ("within tolerance", &three, vec![Some(520), Some(520), Some(520)], Ok(3)),
            ("half", &three, vec![Some(250), Some(250), Some(250)], Ok(2)),
            ("one unready does not count", &["ready", "ready", "Pending"], vec![Some(1000), Some(1000), None], Ok(4)),
            ("missing slows growth", &three, vec![Some(1000), Some(1000), None], Ok(4)),
            ("missing stops shrinking", &three, vec![Some(300), Some(300), None], Ok(3)),
            ("failed ones are ignored", &["ready", "ready", "Failed"], vec![Some(1000), Some(1000), Some(9000)], Ok(4)),
        ] {
            assert_eq!(propose(states, &values, half, 3), expected, "{case}");
        }
        assert!(propose(&three, &[], half, 3).is_err());
    }

    #[test]
    fn proposals_by_average_and_by_one_value() {
        assert_eq!(propose(&["ready", "ready"], &[Some(300), Some(300)], Target::Average(100), 2), Ok(6));
        let tolerance = Tolerance { up: 0.1, down: 0.1 };
        assert_eq!(by_value(20_000, 10_000, 3, 3, tolerance).replicas, 6);
        assert_eq!(by_value(10_500, 10_000, 3, 3, tolerance).replicas, 3);
        assert_eq!(by_average(90_000, 10_000, 3, tolerance).replicas, 9);
        assert_eq!(by_average(31_000, 10_000, 3, tolerance).replicas, 3);
    }
}
