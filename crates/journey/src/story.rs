//! The story of one object, from the steps that were recorded of it and of all that came of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::outcome::{self, Outcome};
use crate::phases::Phase;
use crate::step::Step;
use crate::words;

/// What happened to an object and to what it made.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Story {
    pub object: String,
    /// How it came to be, and how it went, if it did.
    pub chapters: Vec<Chapter>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Chapter {
    pub title: &'static str,
    /// In microseconds since 1970.
    pub began: u64,
    /// From the first step's beginning to the last one's end, in microseconds.
    pub took: u64,
    #[serde(flatten)]
    pub outcome: Outcome,
    pub moments: Vec<Moment>,
}

/// A step, in words.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Moment {
    /// Microseconds after the chapter began.
    pub after: u64,
    pub took: u64,
    /// Which part of the system did it.
    pub part: &'static str,
    pub object: String,
    pub what: String,
    /// More of it, for those who want to know.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// How often the same was said of it again, with nothing new in between.
    #[serde(skip_serializing_if = "is_zero")]
    pub repeated: u32,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// How much is told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Telling {
    /// What is said again with nothing new in between is counted.
    #[default]
    News,
    /// Every step.
    Everything,
}

pub const COMING: &str = "how it came to be";
pub const GOING: &str = "how it went";

/// Tells the story of an object; `None` when nothing is known of it.
pub fn tell(steps: &[Step], object: &str, telling: Telling) -> Option<Story> {
    let since = created(steps, object);
    let family = family(steps, object, since);
    let mut own: Vec<Step> =
        steps.iter().filter(|step| family.contains(step.object.as_str()) && step.ended() >= since).cloned().collect();
    own.extend(reachable(steps, &own));
    own.sort_by_key(|step| (step.began, step.ended()));
    if own.is_empty() {
        return None;
    }
    // What nothing keeps goes at once, without a time between.
    let ends = |step: &&Step| step.object == object && (is_request(step, "delete") || is_request(step, "removed"));
    let end = own.iter().find(ends).map(|step| step.began);
    let split = own.partition_point(|step| end.is_none_or(|end| step.began < end));
    let (coming, going) = own.split_at(split);
    let coming = chapter(COMING, coming, telling, |began| outcome::of_coming(coming, began));
    let going = chapter(GOING, going, telling, |began| outcome::of_going(going, object, began));
    Some(Story { object: object.to_owned(), chapters: [coming, going].into_iter().flatten().collect() })
}

pub(crate) fn is_request(step: &Step, verb: &str) -> bool {
    step.step == "request" && step.field("verb") == verb && step.field("subresource").is_empty()
}

/// When the newest object of this name was asked for; 0 when that is forgotten.
fn created(steps: &[Step], object: &str) -> u64 {
    let creations = steps.iter().filter(|step| step.object == object && is_request(step, "create"));
    creations.map(|step| step.began).max().unwrap_or(0)
}

/// The object with all that it made, and what that made.
fn family<'s>(steps: &'s [Step], object: &'s str, since: u64) -> BTreeSet<&'s str> {
    let mut children: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.began >= since && !step.field("owner").is_empty()) {
        children.entry(step.field("owner")).or_default().push(&step.object);
    }
    let mut family = BTreeSet::from([object]);
    let mut unasked = vec![object];
    while let Some(parent) = unasked.pop() {
        for child in children.get(parent).into_iter().flatten() {
            if family.insert(child) {
                unasked.push(child);
            }
        }
    }
    family
}

/// Who follows a Service may hear of a change before its writer has its answer: by so many microseconds at most.
const HEARD_EARLY: u64 = 100_000;

/// When each node's proxy and DNS had learnt that a pod is ready in a Service, or no longer is: a step of the Service that
/// follows the endpoint's is the first to know of it. Told as the pod's own.
fn reachable(steps: &[Step], own: &[Step]) -> Vec<Step> {
    let mut found = Vec::new();
    let mut told = BTreeSet::new();
    for joined in own.iter().filter(|step| !step.field("service").is_empty()) {
        let (service, condition) = (joined.field("service"), joined.field("condition"));
        // The addresses of pods that are not ready are used by nobody.
        if condition == "not ready" || !told.insert((&joined.object, service, condition)) {
            continue;
        }
        let reach = || steps.iter().filter(|step| step.object == service && words::tells_reach(&step.step));
        let after = reach().filter(|step| step.ended() > joined.began);
        let just_before =
            reach().rev().filter(|step| step.ended() <= joined.began && step.ended() + HEARD_EARLY > joined.began);
        let mut heard = BTreeSet::new();
        for step in after.chain(just_before) {
            if heard.insert((&step.step, &step.process)) {
                let mut step = step.clone();
                step.object.clone_from(&joined.object);
                step.fields.insert("for".into(), service.to_owned());
                found.push(step);
            }
        }
    }
    found
}

fn chapter(
    title: &'static str,
    steps: &[Step],
    telling: Telling,
    outcome: impl FnOnce(u64) -> Outcome,
) -> Option<Chapter> {
    let began = steps.first()?.began;
    let ended = steps.iter().map(Step::ended).max()?;
    let mut moments: Vec<Moment> = Vec::new();
    // What was said last of a matter of an object, as its place among the moments.
    let mut last: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for step in steps {
        let (what, detail) = words::what(step);
        let matter = (step.object.as_str(), words::matter(step));
        if let Some(place) = last.get(&matter)
            && telling == Telling::News
            && moments[*place].what == what
        {
            moments[*place].repeated += 1;
            continue;
        }
        last.insert(matter, moments.len());
        moments.push(Moment {
            after: step.began - began,
            took: step.took,
            part: words::part(step),
            object: step.object.clone(),
            what,
            detail,
            process: step.process.clone(),
            repeated: 0,
        });
    }
    Some(Chapter { title, began, took: ended - began, outcome: outcome(began), moments })
}

impl Chapter {
    /// What came of it, in words.
    pub fn in_words(&self) -> String {
        let all = words::duration(self.took);
        match self.outcome.words.as_str() {
            "" => format!("{all} in all"),
            words => words.to_owned(),
        }
    }

    pub fn phases(&self) -> &[Phase] {
        &self.outcome.phases
    }
}

impl Story {
    /// What the phases of a chapter are about.
    pub fn whose_time(&self, chapter: &Chapter) -> String {
        match chapter.outcome.slowest.as_str() {
            own if own == self.object => "where the time went".to_owned(),
            slowest => format!("where the time went ({}, the last)", self.short(slowest)),
        }
    }

    /// An object's name as it is told beside the story's own: without the namespace they share.
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
                let mut words = line.split(' ');
                let mut word = || words.next().unwrap();
                let (began, step, object) = (word().parse().unwrap(), word().to_owned(), word().to_owned());
                let fields = words.map(|field| field.split_once('=').unwrap());
                Step {
                    began,
                    took: 5,
                    step: step.into(),
                    object,
                    process: "one".to_owned(),
                    fields: fields.map(|(name, value)| (name.to_owned().into(), value.replace('_', " "))).collect(),
                }
            })
            .collect()
    }

    fn told(text: &str, object: &str) -> Vec<(&'static str, u64, String)> {
        let story = tell(&steps(text), object, Telling::News).unwrap();
        let of = |chapter: &Chapter| {
            let (title, began) = (chapter.title, chapter.began);
            chapter.moments.iter().map(|moment| (title, began + moment.after, moment.object.clone())).collect()
        };
        story.chapters.iter().flat_map(|chapter| -> Vec<_> { of(chapter) }).collect()
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
    fn a_deployment_is_told_with_all_it_made() {
        let objects: Vec<u64> = told(ROLLOUT, "deployments/a/web").iter().map(|moment| moment.1).collect();
        assert_eq!(objects, [10, 20, 30, 40, 50, 54, 60, 70, 90, 95]);
    }

    #[test]
    fn reach_is_told_of_the_pod_once_it_is_ready() {
        let told = told(ROLLOUT, "pods/a/web-1-x");
        assert!(told.contains(&(COMING, 70, "pods/a/web-1-x".to_owned())), "{told:?}");
        assert!(!told.iter().any(|(_, at, _)| *at == 55), "{told:?}");
    }

    #[test]
    fn its_end_is_a_chapter_of_its_own() {
        let story = tell(&steps(ROLLOUT), "deployments/a/web", Telling::News).unwrap();
        let chapters: Vec<(&str, usize)> =
            story.chapters.iter().map(|chapter| (chapter.title, chapter.moments.len())).collect();
        assert_eq!(chapters, [(COMING, 8), (GOING, 2)]);
    }

    #[test]
    fn what_goes_at_once_has_an_end_too() {
        let text =
            "10 request jobs/a/j verb=create\n 20 request jobs/a/j verb=removed\n 30 request pods/a/j-1 verb=delete";
        assert_eq!(told(text, "jobs/a/j"), [(COMING, 10, "jobs/a/j".to_owned()), (GOING, 20, "jobs/a/j".to_owned())]);
    }

    #[test]
    fn only_the_newest_of_a_name_is_told() {
        let again =
            "10 request pods/a/b verb=create\n 20 request pods/a/b verb=delete\n 30 request pods/a/b verb=create";
        assert_eq!(told(again, "pods/a/b"), [(COMING, 30, "pods/a/b".to_owned())]);
    }

    #[test]
    fn what_is_unknown_has_no_story() {
        assert_eq!(tell(&steps(ROLLOUT), "pods/a/nobody", Telling::News), None);
    }

    #[test]
    fn what_is_said_again_is_counted() {
        let text = "
            1 reconciled jobs/a/j controller=job
            2 probe jobs/a/j probe=Readiness container=c result=passed
            3 reconciled jobs/a/j controller=job
            4 probe jobs/a/j probe=Readiness container=c result=failed
            5 probe jobs/a/j probe=Readiness container=c result=passed
            6 reconciled jobs/a/j controller=job";
        let count = |telling| {
            let story = tell(&steps(text), "jobs/a/j", telling).unwrap();
            story.chapters[0].moments.iter().map(|moment| (moment.after, moment.repeated)).collect::<Vec<_>>()
        };
        assert_eq!(count(Telling::News), [(0, 2), (1, 0), (3, 0), (4, 0)]);
        assert_eq!(count(Telling::Everything).len(), 6);
    }

    #[test]
    fn names_are_told_without_the_namespace_they_share() {
        let story = Story { object: "deployments/a/web".into(), chapters: Vec::new() };
        for (object, expected) in [("pods/a/x", "pods/x"), ("pods/b/x", "pods/b/x"), ("nodes/n", "nodes/n")] {
            assert_eq!(story.short(object), expected);
        }
    }
}
