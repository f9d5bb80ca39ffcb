//! The timeline of one object, built from the recorded steps of it and its dependents.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::message;
use crate::outcome::{self, Outcome};
use crate::phases::Phase;
use crate::step::Step;

/// What happened to an object and its dependents.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// The object, as in `pods/default/web`.
    pub object: String,
    /// Its creation, and its deletion, if any.
    #[serde(rename = "chapters")]
    pub sections: Vec<Section>,
}

/// The creation or the deletion of an object.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Section {
    /// `creation` or `deletion`.
    pub title: &'static str,
    /// The start of the first step, in microseconds since 1970.
    #[serde(rename = "began")]
    pub started: u64,
    /// From the start of the first step to the end of the last one, in microseconds.
    pub took: u64,
    /// The result.
    #[serde(flatten)]
    pub outcome: Outcome,
    /// The steps in order.
    #[serde(rename = "moments")]
    pub entries: Vec<Entry>,
}

/// A rendered step.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Entry {
    /// Microseconds after the start of the section.
    pub after: u64,
    /// The duration in microseconds.
    pub took: u64,
    /// The component that executed the step.
    #[serde(rename = "part")]
    pub component: &'static str,
    /// The object of the step.
    pub object: String,
    /// What happened.
    #[serde(rename = "what")]
    pub message: String,
    /// Additional information.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    /// The process that recorded the step.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// How often the same message was repeated, without a different one in between.
    #[serde(skip_serializing_if = "is_zero")]
    pub repeated: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Which steps a timeline includes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// Repeated messages are counted instead of listed.
    #[default]
    Changes,
    /// Every step.
    All,
}

/// The title of the first section.
pub const CREATION: &str = "creation";
/// The title of the second section.
pub const DELETION: &str = "deletion";

/// Builds the timeline of an object; `None` when no step is known.
pub fn build_timeline(steps: &[Step], object: &str, detail: Detail) -> Option<Timeline> {
    let since = created(steps, object);
    let family = family(steps, object, since);
    let mut own: Vec<Step> =
        steps.iter().filter(|step| family.contains(step.object.as_str()) && step.end() >= since).cloned().collect();
    own.extend(reachable(steps, &own));
    own.sort_by_key(|step| (step.started, step.end()));
    if own.is_empty() {
        return None;
    }
    // An object without finalizers and grace period is removed at once, without a delete step before.
    let is_deletion = |step: &&Step| step.object == object && (step.is_request("delete") || step.is_request("removed"));
    let end = own.iter().find(is_deletion).map(|step| step.started);
    let split = own.partition_point(|step| end.is_none_or(|end| step.started < end));
    let (creation, deletion) = own.split_at(split);
    let creation = section(CREATION, creation, detail, |started| outcome::of_creation(creation, started));
    let deletion = section(DELETION, deletion, detail, |started| outcome::of_deletion(deletion, object, started));
    Some(Timeline { object: object.to_owned(), sections: [creation, deletion].into_iter().flatten().collect() })
}

/// When the newest object of this name was created; 0 when that step is no longer in the journal.
fn created(steps: &[Step], object: &str) -> u64 {
    let creations = steps.iter().filter(|step| step.object == object && step.is_request("create"));
    creations.map(|step| step.started).max().unwrap_or(0)
}

/// The object with its direct and indirect dependents.
fn family<'s>(steps: &'s [Step], object: &'s str, since: u64) -> BTreeSet<&'s str> {
    let mut children: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.started >= since && !step.field("owner").is_empty()) {
        children.entry(step.field("owner")).or_default().push(&step.object);
    }
    let mut family = BTreeSet::from([object]);
    let mut unvisited = vec![object];
    while let Some(parent) = unvisited.pop() {
        for child in children.get(parent).into_iter().flatten() {
            if family.insert(child) {
                unvisited.push(child);
            }
        }
    }
    family
}

/// A watcher of a Service may see a change before its writer gets the response: at most this many microseconds.
const MAX_LEAD: u64 = 100_000;

/// How many of a Service's steps are attributed to pods, and compared for that, at most: each pod of a Service has one for each
/// node, and whoever may upload steps chooses how many pods and nodes there are.
const MAX_REACHED: usize = 10_000;
const MAX_COMPARED: usize = 4_000_000;

/// When each node's proxy and DNS had processed that a pod became ready in a Service, or no longer is: the first step of
/// the Service after that of the endpoint. Attributed to the pod.
fn reachable(steps: &[Step], own: &[Step]) -> Vec<Step> {
    let mut by_service: BTreeMap<&str, Vec<&Step>> = BTreeMap::new();
    for step in steps.iter().filter(|step| message::is_reachability(&step.step)) {
        by_service.entry(&step.object).or_default().push(step);
    }
    let (mut found, mut compared) = (Vec::new(), 0);
    let mut reported = BTreeSet::new();
    for joined in own.iter().filter(|step| !step.field("service").is_empty()) {
        let (service, condition) = (joined.field("service"), joined.field("condition"));
        // The addresses of pods that are not ready are not used.
        if condition == "not ready" || !reported.insert((&joined.object, service, condition)) {
            continue;
        }
        let reachability = by_service.get(service).map_or(&[][..], Vec::as_slice);
        compared += reachability.len();
        if found.len() > MAX_REACHED || compared > MAX_COMPARED {
            break;
        }
        let after = reachability.iter().filter(|step| step.end() > joined.started);
        let is_just_before =
            |step: &&&Step| step.end() <= joined.started && step.end().saturating_add(MAX_LEAD) > joined.started;
        let just_before = reachability.iter().rev().filter(is_just_before);
        let mut seen = BTreeSet::new();
        for step in after.chain(just_before) {
            if seen.insert((&step.step, &step.process)) {
                let mut step = Step::clone(step);
                step.object.clone_from(&joined.object);
                step.fields.insert("for".into(), service.to_owned());
                found.push(step);
            }
        }
    }
    found
}

fn section(
    title: &'static str,
    steps: &[Step],
    detail: Detail,
    outcome: impl FnOnce(u64) -> Outcome,
) -> Option<Section> {
    let started = steps.first()?.started;
    let end = steps.iter().map(Step::end).max()?;
    let mut entries: Vec<Entry> = Vec::new();
    // The position of the last entry of each topic of an object.
    let mut last: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for step in steps {
        let (message, more) = message::render(step);
        let topic = (step.object.as_str(), message::topic(step));
        if let Some(position) = last.get(&topic)
            && detail == Detail::Changes
            && entries[*position].message == message
        {
            entries[*position].repeated += 1;
            continue;
        }
        last.insert(topic, entries.len());
        entries.push(Entry {
            after: step.started - started,
            took: step.took,
            component: message::component(step),
            object: step.object.clone(),
            message,
            detail: more,
            process: step.process.clone(),
            repeated: 0,
        });
    }
    Some(Section { title, started, took: end - started, outcome: outcome(started), entries })
}

impl Section {
    /// The outcome, or the total duration.
    pub fn summary(&self) -> String {
        match self.outcome.message.as_str() {
            "" => format!("{} in total", message::duration(self.took)),
            message => message.to_owned(),
        }
    }

    /// The phases of the pod that everything waited for.
    pub fn phases(&self) -> &[Phase] {
        &self.outcome.phases
    }
}

impl Timeline {
    /// The heading of the phases of a section.
    pub fn phases_heading(&self, section: &Section) -> String {
        match section.outcome.slowest.as_str() {
            own if own == self.object => "where the time went".to_owned(),
            slowest => format!("where the time went ({}, the last)", self.short(slowest)),
        }
    }

    /// An object's name without its namespace if that is also the timeline's.
    pub fn short<'a>(&self, object: &'a str) -> std::borrow::Cow<'a, str> {
        let namespace = |path: &str| path.split('/').nth(1).map(str::to_owned).filter(|_| path.split('/').count() == 3);
        match (namespace(&self.object), namespace(object)) {
            (Some(own), Some(other)) if own == other => object.replacen(&format!("/{own}/"), "/", 1).into(),
            _ => object.into(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Steps as `time step object field=value…`, each of 5 µs.
    pub fn steps(text: &str) -> Vec<Step> {
        let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        lines
            .map(|line| {
                let mut columns = line.split(' ');
                let mut column = || columns.next().unwrap();
                let (started, step, object) = (column().parse().unwrap(), column().to_owned(), column().to_owned());
                let fields = columns.map(|field| field.split_once('=').unwrap());
                Step {
                    started,
                    took: 5,
                    step: step.into(),
                    object,
                    process: "one".to_owned(),
                    fields: fields.map(|(name, value)| (name.to_owned().into(), value.replace('_', " "))).collect(),
                }
            })
            .collect()
    }

    fn entries_of(text: &str, object: &str) -> Vec<(&'static str, u64, String)> {
        let timeline = build_timeline(&steps(text), object, Detail::Changes).unwrap();
        let of = |section: &Section| {
            let (title, started) = (section.title, section.started);
            section.entries.iter().map(|entry| (title, started + entry.after, entry.object.clone())).collect()
        };
        timeline.sections.iter().flat_map(|section| -> Vec<_> { of(section) }).collect()
    }

    const ROLLOUT: &str = "
        10 request deployments/a/web verb=create
        20 request replicasets/a/web-1 verb=create owner=deployments/a/web
        30 request pods/a/web-1-x verb=create owner=replicasets/a/web-1
        31 request pods/a/other verb=create
        40 bound pods/a/web-1-x node=n
        50 request pods/a/web-1-x verb=patch subresource=status state=Running,_ready
        54 endpoint pods/a/web-1-x service=services/a/web condition=not_ready
        55 proxied services/a/web
        60 endpoint pods/a/web-1-x service=services/a/web condition=ready
        70 proxied services/a/web
        80 proxied services/a/web
        90 request deployments/a/web verb=delete
        95 request pods/a/web-1-x verb=delete";

    #[test]
    fn a_deployment_includes_its_dependents() {
        let objects: Vec<u64> = entries_of(ROLLOUT, "deployments/a/web").iter().map(|entry| entry.1).collect();
        assert_eq!(objects, [10, 20, 30, 40, 50, 54, 60, 70, 90, 95]);
    }

    #[test]
    fn reachability_is_attributed_to_the_pod_once_it_is_ready() {
        let entries = entries_of(ROLLOUT, "pods/a/web-1-x");
        assert!(entries.contains(&(CREATION, 70, "pods/a/web-1-x".to_owned())), "{entries:?}");
        assert!(!entries.iter().any(|(_, at, _)| *at == 55), "{entries:?}");
    }

    #[test]
    fn the_deletion_is_a_separate_section() {
        let timeline = build_timeline(&steps(ROLLOUT), "deployments/a/web", Detail::Changes).unwrap();
        let sections: Vec<(&str, usize)> =
            timeline.sections.iter().map(|section| (section.title, section.entries.len())).collect();
        assert_eq!(sections, [(CREATION, 8), (DELETION, 2)]);
    }

    #[test]
    fn an_object_removed_at_once_has_a_deletion_too() {
        let text =
            "10 request jobs/a/j verb=create\n 20 request jobs/a/j verb=removed\n 30 request pods/a/j-1 verb=delete";
        assert_eq!(
            entries_of(text, "jobs/a/j"),
            [(CREATION, 10, "jobs/a/j".to_owned()), (DELETION, 20, "jobs/a/j".to_owned())]
        );
    }

    #[test]
    fn only_the_newest_object_of_a_name_is_included() {
        let again =
            "10 request pods/a/b verb=create\n 20 request pods/a/b verb=delete\n 30 request pods/a/b verb=create";
        assert_eq!(entries_of(again, "pods/a/b"), [(CREATION, 30, "pods/a/b".to_owned())]);
    }

    #[test]
    fn an_unknown_object_has_no_timeline() {
        assert_eq!(build_timeline(&steps(ROLLOUT), "pods/a/unknown", Detail::Changes), None);
    }

    #[test]
    fn repeated_messages_are_counted() {
        let text = "
            1 reconciled jobs/a/j controller=job
            2 probe jobs/a/j probe=Readiness container=c result=passed
            3 reconciled jobs/a/j controller=job
            4 probe jobs/a/j probe=Readiness container=c result=failed
            5 probe jobs/a/j probe=Readiness container=c result=passed
            6 reconciled jobs/a/j controller=job";
        let count = |detail| {
            let timeline = build_timeline(&steps(text), "jobs/a/j", detail).unwrap();
            timeline.sections[0].entries.iter().map(|entry| (entry.after, entry.repeated)).collect::<Vec<_>>()
        };
        assert_eq!(count(Detail::Changes), [(0, 2), (1, 0), (3, 0), (4, 0)]);
        assert_eq!(count(Detail::All).len(), 6);
    }

    #[test]
    fn steps_of_many_pods_and_nodes_do_not_multiply() {
        let joined = |number| format!("10 endpoint pods/a/b service=services/a/web condition=c{number}\n");
        let mut all = steps(&(0..400).map(joined).collect::<String>());
        let mut named = steps(&"20 named services/a/web\n".repeat(400));
        named.iter_mut().enumerate().for_each(|(number, step)| step.process = number.to_string());
        all.append(&mut named);
        let timeline = build_timeline(&all, "pods/a/b", Detail::All).unwrap();
        let entries = timeline.sections[0].entries.len();
        assert!((10_000..12_000).contains(&entries), "{entries}");
    }

    #[test]
    fn names_omit_a_shared_namespace() {
        let timeline = Timeline { object: "deployments/a/web".into(), sections: Vec::new() };
        for (object, expected) in [("pods/a/x", "pods/x"), ("pods/b/x", "pods/b/x"), ("nodes/n", "nodes/n")] {
            assert_eq!(timeline.short(object), expected);
        }
    }
}
