//! Stabilizes a proposed replica count over time and keeps it within bounds and rate policies.

use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::{HPAScalingRules, HorizontalPodAutoscalerBehavior};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// Recent proposals and scale events of one autoscaler.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    proposals: Vec<(Timestamp, i32)>,
    /// Replicas added (or, below zero, removed).
    changes: Vec<(Timestamp, i32)>,
}

/// A condition's status, reason and message.
pub(super) type ConditionFields = (&'static str, &'static str, &'static str);

#[derive(Debug, PartialEq)]
pub(super) struct Limited {
    pub replicas: i32,
    pub able_to_scale: ConditionFields,
    pub scaling_limited: ConditionFields,
}

pub(super) struct Bounds<'a> {
    pub current: i32,
    pub min: i32,
    pub max: i32,
    pub behavior: Option<&'a HorizontalPodAutoscalerBehavior>,
    /// How long a higher proposal holds, unless the behavior sets another window.
    pub down_window: Duration,
}

const READY: ConditionFields = ("True", "ReadyForNewScale", "recommended size matches current size");
const SCALE_DOWN_STABILIZED: ConditionFields = (
    "True",
    "ScaleDownStabilized",
    "recent recommendations were higher than current one, applying the highest recent recommendation",
);
const SCALE_UP_STABILIZED: ConditionFields = (
    "True",
    "ScaleUpStabilized",
    "recent recommendations were lower than current one, applying the lowest recent recommendation",
);
const WITHIN: ConditionFields = ("False", "DesiredWithinRange", "the desired count is within the acceptable range");
const TOO_FEW: ConditionFields =
    ("True", "TooFewReplicas", "the desired replica count is less than the minimum replica count");
const TOO_MANY: ConditionFields =
    ("True", "TooManyReplicas", "the desired replica count is more than the maximum replica count");
const UP_LIMIT: ConditionFields =
    ("True", "ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate");
const DOWN_LIMIT: ConditionFields =
    ("True", "ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate");

impl History {
    /// The current size counts as a proposal, so that a restart does not scale down at once.
    pub fn start(&mut self, current: i32, now: Timestamp) {
        if self.proposals.is_empty() {
            self.proposals.push((now, current));
        }
    }

    pub fn note_change(&mut self, from: i32, to: i32, now: Timestamp) {
        const MAX_WINDOW: SignedDuration = SignedDuration::from_mins(30);
        self.changes.retain(|(at, _)| now.duration_since(*at) <= MAX_WINDOW);
        self.changes.push((now, to - from));
    }

    pub fn limit(&mut self, proposed: i32, bounds: &Bounds, now: Timestamp) -> Limited {
        let up = bounds.behavior.and_then(|behavior| behavior.scale_up.as_ref());
        let down = bounds.behavior.and_then(|behavior| behavior.scale_down.as_ref());
        let window = |rules: Option<&HPAScalingRules>, default: Duration| {
            let seconds = rules.and_then(|rules| rules.stabilization_window_seconds);
            let window = seconds.map_or(default, |seconds| Duration::from_secs(u64::try_from(seconds).unwrap_or(0)));
            SignedDuration::try_from(window).unwrap_or(SignedDuration::MAX)
        };
        let steadied =
            self.stabilize(proposed, bounds.current, window(up, Duration::ZERO), window(down, bounds.down_window), now);
        let able_to_scale = match steadied == proposed {
            true => READY,
            false if bounds.behavior.is_some() && proposed >= bounds.current => SCALE_UP_STABILIZED,
            false => SCALE_DOWN_STABILIZED,
        };
        let (replicas, scaling_limited) = match bounds.behavior {
            None => by_default(steadied, bounds),
            Some(_) => self.by_policies(steadied, bounds, up, down, now),
        };
        Limited { replicas, able_to_scale, scaling_limited }
    }

    /// Scales up only to the lowest of the recent proposals, down only to the highest.
    fn stabilize(
        &mut self,
        proposed: i32,
        current: i32,
        up: SignedDuration,
        down: SignedDuration,
        now: Timestamp,
    ) -> i32 {
        let within = |window: SignedDuration| {
            self.proposals.iter().filter(move |(at, _)| now.duration_since(*at) < window).map(|(_, replicas)| *replicas)
        };
        let min = within(up).chain([proposed]).min().unwrap_or(proposed);
        let greatest = within(down).chain([proposed]).max().unwrap_or(proposed);
        let longest = up.max(down);
        self.proposals.retain(|(at, _)| now.duration_since(*at) <= longest);
        self.proposals.push((now, proposed));
        current.max(min).min(greatest)
    }

    fn changed_within(&self, seconds: i32, now: Timestamp) -> i32 {
        let period = SignedDuration::from_secs(seconds.into());
        self.changes.iter().filter(|(at, _)| now.duration_since(*at) < period).map(|(_, change)| change).sum()
    }

    fn by_policies(
        &self,
        desired: i32,
        bounds: &Bounds,
        up: Option<&HPAScalingRules>,
        down: Option<&HPAScalingRules>,
        now: Timestamp,
    ) -> (i32, ConditionFields) {
        if desired > bounds.current {
            let limit = self.policy_limit(up, bounds.current, true, now).max(bounds.current);
            let (max, condition) = if bounds.max > limit { (limit, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
            if desired > max {
                return (max, condition);
            }
        } else if desired < bounds.current {
            let limit = self.policy_limit(down, bounds.current, false, now).min(bounds.current);
            let (min, condition) = if bounds.min < limit { (limit, DOWN_LIMIT) } else { (bounds.min, TOO_FEW) };
            if desired < min {
                return (min, condition);
            }
        }
        (desired, WITHIN)
    }

    /// The size that the policies allow; `selectPolicy` chooses the one with the largest or smallest change.
    fn policy_limit(&self, rules: Option<&HPAScalingRules>, current: i32, growing: bool, now: Timestamp) -> i32 {
        let unlimited = if growing { i32::MAX } else { 0 };
        let Some(rules) = rules else { return unlimited };
        let choice = rules.select_policy.as_deref().unwrap_or("Max");
        if choice == "Disabled" {
            return current;
        }
        let limits = rules.policies.iter().flatten().map(|policy| {
            let start = current - self.changed_within(policy.period_seconds, now);
            match (policy.type_.as_str(), growing) {
                ("Pods", true) => start.saturating_add(policy.value),
                ("Pods", false) => start - policy.value,
                (_, true) => (f64::from(start) * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i32,
                (_, false) => (f64::from(start) * (1.0 - f64::from(policy.value) / 100.0)) as i32,
            }
        });
        let farthest = (choice == "Min") != growing;
        if farthest { limits.max() } else { limits.min() }.unwrap_or(unlimited)
    }
}

/// Without a behavior: at most double the size, or four.
fn by_default(desired: i32, bounds: &Bounds) -> (i32, ConditionFields) {
    let limit = bounds.current.saturating_mul(2).max(4);
    let (max, condition) = if bounds.max > limit { (limit, UP_LIMIT) } else { (bounds.max, TOO_MANY) };
    if desired < bounds.min {
        (bounds.min, TOO_FEW)
    } else if desired > max {
        (max, condition)
    } else {
        (desired, WITHIN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn bounds(current: i32, behavior: Option<&HorizontalPodAutoscalerBehavior>) -> Bounds<'_> {
        Bounds { current, min: 1, max: 100, behavior, down_window: Duration::from_secs(300) }
    }

    fn behavior(value: Value) -> HorizontalPodAutoscalerBehavior {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn shrinking_waits_and_growing_is_bounded() {
        let mut history = History::default();
        history.start(10, at(0));
        let limited = history.limit(3, &bounds(10, None), at(10));
        assert_eq!((limited.replicas, limited.able_to_scale.1), (10, "ScaleDownStabilized"));
        assert_eq!(history.limit(3, &bounds(10, None), at(301)).replicas, 3);
        let grown = history.limit(50, &bounds(10, None), at(302));
        assert_eq!((grown.replicas, grown.scaling_limited.1), (20, "ScaleUpLimit"));
        let few = History::default().limit(0, &bounds(1, None), at(0));
        assert_eq!((few.replicas, few.scaling_limited.1), (1, "TooFewReplicas"));
        let many = History::default().limit(500, &bounds(90, None), at(0));
        assert_eq!((many.replicas, many.scaling_limited.1), (100, "TooManyReplicas"));
    }

    #[test]
    fn policies_set_the_pace() {
        let slow = behavior(json!({
            "scaleUp": {"stabilizationWindowSeconds": 0, "selectPolicy": "Max", "policies": [
                {"type": "Pods", "value": 4, "periodSeconds": 60}, {"type": "Percent", "value": 10, "periodSeconds": 60}]},
            "scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Min", "policies": [
                {"type": "Pods", "value": 4, "periodSeconds": 60}, {"type": "Percent", "value": 10, "periodSeconds": 60}]}
        }));
        let mut history = History::default();
        let up = history.limit(90, &bounds(10, Some(&slow)), at(0));
        assert_eq!((up.replicas, up.scaling_limited.1), (14, "ScaleUpLimit"));
        history.note_change(10, 14, at(0));
        assert_eq!(history.limit(90, &bounds(14, Some(&slow)), at(30)).replicas, 14, "the minute is not over");
        assert_eq!(history.limit(90, &bounds(14, Some(&slow)), at(61)).replicas, 18);
        let down = History::default().limit(1, &bounds(20, Some(&slow)), at(0));
        assert_eq!((down.replicas, down.scaling_limited.1), (18, "ScaleDownLimit"));
        let off = behavior(json!({"scaleDown": {"stabilizationWindowSeconds": 0, "selectPolicy": "Disabled"}}));
        assert_eq!(History::default().limit(1, &bounds(20, Some(&off)), at(0)).replicas, 20);
    }

    #[test]
    fn growing_can_be_steadied_too() {
        let stabilize = behavior(
            json!({"scaleUp": {"stabilizationWindowSeconds": 60}, "scaleDown": {"stabilizationWindowSeconds": 60}}),
        );
        let mut history = History::default();
        history.start(5, at(0));
        let limited = history.limit(9, &bounds(5, Some(&stabilize)), at(10));
        assert_eq!((limited.replicas, limited.able_to_scale.1), (5, "ScaleUpStabilized"));
        assert_eq!(history.limit(9, &bounds(5, Some(&stabilize)), at(61)).replicas, 9);
    }
}
