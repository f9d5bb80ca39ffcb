//! Where the time went: the way of one pod cut into phases that follow each other, so that they add up to the whole.

use serde::Serialize;

use crate::step::Step;
use crate::story::is_request;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    pub name: &'static str,
    /// The part of the system that this phase waited for.
    pub part: &'static str,
    /// In microseconds.
    pub took: u64,
}

/// A phase lasts until the last of the steps that belong to it has ended.
struct Milestone {
    name: &'static str,
    part: &'static str,
    is_step: fn(&Step) -> bool,
}

const COMING: &[Milestone] = &[
    Milestone { name: "request and controllers", part: "controllers", is_step: |step| is_request(step, "create") },
    Milestone { name: "scheduling", part: "scheduler", is_step: |step| step.step == "bound" },
    Milestone { name: "volumes", part: "kubelet", is_step: |step| matches!(&*step.step, "accepted" | "volume") },
    Milestone { name: "sandbox and network", part: "kubelet", is_step: |step| step.step == "sandbox" },
    Milestone { name: "images", part: "kubelet", is_step: |step| step.step == "image" },
    Milestone {
        name: "containers",
        part: "kubelet",
        is_step: |step| step.step.starts_with("container-") || step.step == "hook",
    },
    Milestone { name: "probes and status", part: "api", is_step: |step| !step.field("state").is_empty() },
];

const GOING: &[Milestone] = &[
    Milestone { name: "request", part: "api", is_step: |step| is_request(step, "delete") && !is_let_go(step) },
    Milestone {
        name: "containers",
        part: "kubelet",
        is_step: |step| step.step.starts_with("container-") || step.step == "hook",
    },
    Milestone { name: "sandbox and network", part: "kubelet", is_step: |step| step.step == "sandbox-stopped" },
    Milestone { name: "volumes", part: "kubelet", is_step: |step| step.step == "volumes-removed" },
    Milestone { name: "last status and removal", part: "api", is_step: |step| step.step == "request" },
];

/// A node that has ended a pod deletes it once more, and for good.
pub(crate) fn is_let_go(step: &Step) -> bool {
    is_request(step, "delete") && step.field("agent") == "kubelet"
}

/// How a pod came to be ready: from when the story began until `until`.
pub fn coming(steps: &[Step], pod: &str, began: u64, until: u64) -> Vec<Phase> {
    cut(COMING, steps, pod, began, until)
}

/// How a pod went.
pub fn going(steps: &[Step], pod: &str, began: u64, until: u64) -> Vec<Phase> {
    cut(GOING, steps, pod, began, until)
}

fn cut(milestones: &[Milestone], steps: &[Step], pod: &str, began: u64, until: u64) -> Vec<Phase> {
    let own: Vec<&Step> = steps.iter().filter(|step| step.object == pod && step.ended() <= until).collect();
    let mut reached = began;
    let mut phases = Vec::new();
    for Milestone { name, part, is_step } in milestones {
        let ends = own.iter().filter(|step| is_step(step)).map(|step| step.ended());
        let Some(end) = ends.max().filter(|end| *end > reached) else { continue };
        phases.push(Phase { name, part, took: end - reached });
        reached = end;
    }
    phases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::story::tests::steps;

    #[test]
    fn phases_add_up_to_the_whole() {
        let steps = steps(
            "10 request pods/a/b verb=create state=Pending
             20 bound pods/a/b
             30 accepted pods/a/b
             30 volume pods/a/b
             40 sandbox pods/a/b
             50 image pods/a/b
             60 container-created pods/a/b
             70 container-started pods/a/b
             90 request pods/a/b verb=patch subresource=status state=Running,_ready
             99 container-started pods/a/b
             99 bound pods/a/other",
        );
        let phases = coming(&steps, "pods/a/b", 0, 95);
        let told: Vec<(&str, u64)> = phases.iter().map(|phase| (phase.name, phase.took)).collect();
        assert_eq!(
            told,
            [
                ("request and controllers", 15),
                ("scheduling", 10),
                ("volumes", 10),
                ("sandbox and network", 10),
                ("images", 10),
                ("containers", 20),
                ("probes and status", 20),
            ]
        );
        assert_eq!(phases.iter().map(|phase| phase.took).sum::<u64>(), 95);
    }

    #[test]
    fn what_was_not_waited_for_is_no_phase() {
        let steps = steps(
            "0 request pods/a/b verb=delete agent=kubectl
             10 container-stopped pods/a/b
             20 sandbox-stopped pods/a/b
             40 request pods/a/b verb=delete agent=kubelet
             50 request pods/a/b verb=removed",
        );
        let told: Vec<(&str, u64)> =
            going(&steps, "pods/a/b", 0, 60).iter().map(|phase| (phase.name, phase.took)).collect();
        assert_eq!(
            told,
            [("request", 5), ("containers", 10), ("sandbox and network", 10), ("last status and removal", 30)]
        );
    }
}
