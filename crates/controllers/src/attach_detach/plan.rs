//! Decides which nodes a volume is attached to and detached from. Pure: time comes in as the age of the process.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;

use super::messages;
use super::names::VolumeId;

/// A volume that a lost node does not release is detached after this time.
pub(super) const MAX_WAIT_FOR_UNMOUNT: Duration = Duration::from_secs(6 * 60);
/// An attachment that is not reported as attached after this time has failed; it is waited for again after a backoff.
const ATTACH_TIMEOUT: Duration = Duration::from_secs(120);
const INITIAL_BACKOFF: Duration = Duration::from_millis(500);
const MAX_BACKOFF: Duration = Duration::from_secs(122);

/// What the API shows of a volume.
pub(super) struct Observed {
    pub id: VolumeId,
    /// The PersistentVolume's name, or the inline volume's.
    pub name: String,
    /// Whether several nodes may have it attached at once.
    pub shared: bool,
    /// Pods that need it, by node.
    pub desired: BTreeMap<String, Vec<Arc<Pod>>>,
    /// Its VolumeAttachments, by node.
    pub attachments: BTreeMap<String, Attachment>,
    /// Whether volumes are detached from lost nodes after [`MAX_WAIT_FOR_UNMOUNT`].
    pub force_detach_on_timeout: bool,
}

/// A VolumeAttachment and its node.
pub(super) struct Attachment {
    pub state: State,
    /// Whether the node has it mounted, by its `volumesInUse`.
    pub in_use: bool,
    pub node_ready: bool,
    /// Whether an administrator confirmed that the node is shut down.
    pub out_of_service: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    /// The driver has not attached it yet.
    Pending,
    Attached,
    /// The driver reported an error; it retries by itself.
    Failed(String),
    /// The VolumeAttachment is being deleted.
    Detaching,
}

/// The state of a volume on a node that is kept between two runs of [`plan`].
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Since when the attachment is waited for.
    pub attaching_since: Option<Duration>,
    /// Since when the volume is no longer needed on the node.
    pub unneeded_since: Option<Duration>,
    multi_attach_reported: bool,
    failures: u32,
    retry_at: Duration,
}

#[derive(Debug, PartialEq)]
pub(super) enum Action {
    /// Create the VolumeAttachment.
    Attach { node: String },
    /// The driver attached it: report that to the pods on the node.
    ReportAttached { node: String },
    /// Report an error to a pod.
    ReportFailure { node: String, pod: (String, String), message: String },
    /// Delete the VolumeAttachment; with `verify`, only if the node has not mounted the volume meanwhile.
    Detach { node: String, verify: bool },
}

/// What to do now, and when to plan again although nothing has changed.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plan {
    pub actions: Vec<Action>,
    pub again_at: Option<Duration>,
}

impl Plan {
    fn wake(&mut self, at: Duration) {
        self.again_at = Some(self.again_at.map_or(at, |earlier| earlier.min(at)));
    }
}

impl Memory {
    /// Starts the next backoff; returns whether the previous one is over.
    fn back_off(&mut self, now: Duration) -> bool {
        if now < self.retry_at {
            return false;
        }
        let doubled = INITIAL_BACKOFF.saturating_mul(1u32.checked_shl(self.failures).unwrap_or(u32::MAX));
        self.failures = self.failures.saturating_add(1);
        self.retry_at = now + doubled.min(MAX_BACKOFF);
        true
    }

    /// Ends the backoff: an attempt succeeded, or something else is attempted from now on.
    fn start_over(&mut self) {
        (self.failures, self.retry_at, self.multi_attach_reported) = (0, Duration::ZERO, false);
    }

    /// Records that a request for this node failed.
    pub fn fail(&mut self, now: Duration) {
        self.retry_at = Duration::ZERO;
        self.back_off(now);
    }
}

/// Detaches come first, so that a pod that moved to another node waits no longer than necessary.
pub(super) fn plan(observed: &Observed, memory: &mut BTreeMap<String, Memory>, now: Duration) -> Plan {
    let mut plan = Plan::default();
    for (node, attachment) in &observed.attachments {
        if !observed.desired.contains_key(node) {
            plan_detach(observed, node, attachment, memory.entry(node.clone()).or_default(), now, &mut plan);
        }
    }
    let mut exclusive_taken = !observed.shared && !observed.attachments.is_empty();
    for (node, pods) in by_age(&observed.desired) {
        let memory = memory.entry(node.clone()).or_default();
        if memory.unneeded_since.take().is_some() {
            memory.start_over();
        }
        if let Some(attachment) = observed.attachments.get(node) {
            plan_wait(observed, node, pods, &attachment.state, memory, now, &mut plan);
        } else if !exclusive_taken {
            if now < memory.retry_at {
                plan.wake(memory.retry_at);
                continue;
            }
            exclusive_taken = !observed.shared;
            memory.attaching_since = Some(now);
            plan.wake(now + ATTACH_TIMEOUT);
            plan.actions.push(Action::Attach { node: node.clone() });
        } else if !observed.attachments.is_empty() && !memory.multi_attach_reported {
            memory.multi_attach_reported = true;
            report_multi_attach(observed, node, pods, &mut plan);
        }
    }
    memory.retain(|node, _| observed.desired.contains_key(node) || observed.attachments.contains_key(node));
    plan
}

/// The nodes, that of the oldest pod first: of several pods that need an exclusive volume it gets the volume.
fn by_age(desired: &BTreeMap<String, Vec<Arc<Pod>>>) -> Vec<(&String, &Vec<Arc<Pod>>)> {
    let mut nodes: Vec<_> = desired.iter().collect();
    nodes.sort_by_key(|(_, pods)| pods.iter().map(|pod| pod.metadata.creation_timestamp.clone()).min());
    nodes
}

fn plan_detach(
    observed: &Observed,
    node: &str,
    attachment: &Attachment,
    memory: &mut Memory,
    now: Duration,
    plan: &mut Plan,
) {
    memory.attaching_since = None;
    memory.multi_attach_reported = false;
    if attachment.state == State::Detaching {
        return;
    }
    if memory.unneeded_since.is_none() {
        memory.start_over();
    }
    let since = *memory.unneeded_since.get_or_insert(now);
    let timed_out = now.saturating_sub(since) >= MAX_WAIT_FOR_UNMOUNT && observed.force_detach_on_timeout;
    let is_forced = attachment.out_of_service || timed_out && !attachment.node_ready;
    if attachment.in_use && !is_forced {
        if !timed_out {
            plan.wake(since + MAX_WAIT_FOR_UNMOUNT);
        }
        return;
    }
    if now < memory.retry_at {
        return plan.wake(memory.retry_at);
    }
    plan.actions.push(Action::Detach { node: node.to_owned(), verify: !is_forced });
}

/// The VolumeAttachment exists and is needed: reports its outcome.
fn plan_wait(
    observed: &Observed,
    node: &str,
    pods: &[Arc<Pod>],
    state: &State,
    memory: &mut Memory,
    now: Duration,
    plan: &mut Plan,
) {
    let error = match state {
        State::Attached => {
            memory.start_over();
            if memory.attaching_since.take().is_some() {
                plan.actions.push(Action::ReportAttached { node: node.to_owned() });
            }
            return;
        }
        State::Pending => {
            let since = *memory.attaching_since.get_or_insert(now);
            if now < since + ATTACH_TIMEOUT {
                return plan.wake(since + ATTACH_TIMEOUT);
            }
            messages::attach_timeout(&observed.id)
        }
        State::Failed(message) => message.clone(),
        State::Detaching => "volume attachment is being deleted".to_owned(),
    };
    memory.attaching_since.get_or_insert(now);
    if memory.back_off(now) {
        if *state == State::Pending {
            memory.attaching_since = Some(memory.retry_at);
        }
        let message = messages::attach_failed(&observed.name, &error);
        for pod in pods {
            let (pod, message) = (key_of(pod), message.clone());
            plan.actions.push(Action::ReportFailure { node: node.to_owned(), pod, message });
        }
    }
    plan.wake(memory.retry_at);
}

fn report_multi_attach(observed: &Observed, node: &str, pods: &[Arc<Pod>], plan: &mut Plan) {
    let holders: Vec<(String, String)> = observed
        .attachments
        .keys()
        .filter(|other| *other != node)
        .flat_map(|other| observed.desired.get(other).into_iter().flatten())
        .map(|pod| key_of(pod))
        .collect();
    for pod in pods {
        let key = key_of(pod);
        let message = messages::multi_attach(&observed.name, &key.0, &holders);
        plan.actions.push(Action::ReportFailure { node: node.to_owned(), pod: key, message });
    }
}

fn key_of(pod: &Pod) -> (String, String) {
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    (text(&pod.metadata.namespace), text(&pod.metadata.name))
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
