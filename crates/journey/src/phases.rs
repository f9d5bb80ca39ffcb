//! Splits the timeline of one pod into consecutive phases, which add up to the total duration.

use serde::Serialize;

use crate::step::Step;

/// A phase of a pod's creation or deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Phase {
    /// The name of the phase.
    pub name: &'static str,
    /// The component that this phase waited for.
    #[serde(rename = "part")]
    pub component: &'static str,
    /// In microseconds.
    pub took: u64,
}

/// A phase lasts until the end of its last step.
struct Milestone {
    name: &'static str,
    component: &'static str,
    is_step: fn(&Step) -> bool,
}

const CREATION: &[Milestone] = &[
    Milestone { name: "request and controllers", component: "controllers", is_step: |step| step.is_request("create") },
    Milestone { name: "provisioning", component: "storage", is_step: |step| step.step == "provisioned" },
    Milestone { name: "scheduling", component: "scheduler", is_step: |step| step.step == "bound" },
    Milestone {
        name: "volumes",
        component: "kubelet",
        is_step: |step| matches!(&*step.step, "accepted" | "attached" | "staged" | "published" | "volume"),
    },
    Milestone { name: "sandbox and network", component: "kubelet", is_step: |step| step.step == "sandbox" },
    Milestone { name: "images", component: "kubelet", is_step: |step| step.step == "image" },
    Milestone {
        name: "containers",
        component: "kubelet",
        is_step: |step| step.step.starts_with("container-") || step.step == "hook",
    },
    Milestone { name: "probes and status", component: "api", is_step: |step| !step.field("state").is_empty() },
];

const DELETION: &[Milestone] = &[
    Milestone {
        name: "request",
        component: "api",
        is_step: |step| step.is_request("delete") && !step.is_final_delete(),
    },
    Milestone {
        name: "containers",
        component: "kubelet",
        is_step: |step| step.step.starts_with("container-") || step.step == "hook",
    },
    Milestone { name: "sandbox and network", component: "kubelet", is_step: |step| step.step == "sandbox-stopped" },
    Milestone { name: "volumes", component: "kubelet", is_step: |step| step.step == "volumes-removed" },
    Milestone { name: "last status and removal", component: "api", is_step: |step| step.step == "request" },
];

/// The phases of a pod from the start of the timeline until it was ready at `until`.
pub fn of_creation(steps: &[Step], pod: &str, started: u64, until: u64) -> Vec<Phase> {
    split(CREATION, steps, pod, started, until)
}

/// The phases of a pod's deletion.
pub fn of_deletion(steps: &[Step], pod: &str, started: u64, until: u64) -> Vec<Phase> {
    split(DELETION, steps, pod, started, until)
}

fn split(milestones: &[Milestone], steps: &[Step], pod: &str, started: u64, until: u64) -> Vec<Phase> {
    let own: Vec<&Step> = steps.iter().filter(|step| step.object == pod && step.end() <= until).collect();
    let mut reached = started;
    let mut phases = Vec::new();
    for Milestone { name, component, is_step } in milestones {
        let ends = own.iter().filter(|step| is_step(step)).map(|step| step.end());
        let Some(end) = ends.max().filter(|end| *end > reached) else { continue };
        phases.push(Phase { name, component, took: end - reached });
        reached = end;
    }
    phases
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::timeline::tests::steps;

    #[test]
    fn phases_add_up_to_the_total() {
        let steps = steps(
            "10 request pods/a/b verb=create state=Pending
             15 provisioned pods/a/b claim=c
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
        let phases = of_creation(&steps, "pods/a/b", 0, 95);
        let durations: Vec<(&str, u64)> = phases.iter().map(|phase| (phase.name, phase.took)).collect();
        assert_eq!(
            durations,
            [
                ("request and controllers", 15),
                ("provisioning", 5),
                ("scheduling", 5),
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
    fn a_step_that_was_not_waited_for_is_no_phase() {
        let steps = steps(
            "0 request pods/a/b verb=delete agent=kubectl
             10 container-stopped pods/a/b
             20 sandbox-stopped pods/a/b
             40 request pods/a/b verb=delete agent=kubelet
             50 request pods/a/b verb=removed",
        );
        let durations: Vec<(&str, u64)> =
            of_deletion(&steps, "pods/a/b", 0, 60).iter().map(|phase| (phase.name, phase.took)).collect();
        assert_eq!(
            durations,
            [("request", 5), ("containers", 10), ("sandbox and network", 10), ("last status and removal", 30)]
        );
    }
}
