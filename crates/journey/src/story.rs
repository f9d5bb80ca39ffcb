//! The story of one object, from the steps that were recorded of it and of all that came of it.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

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
    /// After how many microseconds everything in it was ready for the first time, where that is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ready: Option<u64>,
    pub moments: Vec<Moment>,
}

/// A step, in words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// Microseconds after the chapter began.
    pub after: u64,
    pub took: u64,
    /// Which part of the system did it.
    pub part: &'static str,
    pub object: String,
    pub what: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub process: String,
    /// How often the same happened in a row.
    #[serde(skip_serializing_if = "is_one")]
    pub times: u32,
}

fn is_one(number: &u32) -> bool {
    *number == 1
}

pub const COMING: &str = "how it came to be";
pub const GOING: &str = "how it went";

/// Tells the story of an object; `None` when nothing is known of it.
pub fn tell(steps: &[Step], object: &str) -> Option<Story> {
    let since = created(steps, object);
    let family = family(steps, object, since);
    let mut own: Vec<&Step> =
        steps.iter().filter(|step| family.contains(step.object.as_str()) && step.ended() >= since).collect();
    own.extend(reachable(steps, &own));
    own.sort_by_key(|step| (step.began, step.ended()));
    if own.is_empty() {
        return None;
    }
    let end = own.iter().find(|step| step.object == object && is_request(step, "delete")).map(|step| step.began);
    let split = own.partition_point(|step| end.is_none_or(|end| step.began < end));
    let (coming, going) = own.split_at(split);
    let chapters = [chapter(COMING, coming), chapter(GOING, going)].into_iter().flatten().collect();
    Some(Story { object: object.to_owned(), chapters })
}

fn is_request(step: &Step, verb: &str) -> bool {
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

/// For each Service that a pod joined or left: when each node's proxy and DNS had learnt of it.
fn reachable<'s>(steps: &'s [Step], own: &[&Step]) -> Vec<&'s Step> {
    let mut found: Vec<&Step> = Vec::new();
    for joined in own.iter().filter(|step| !step.field("service").is_empty()) {
        let mut heard = BTreeSet::new();
        let after = steps.iter().filter(|step| step.object == joined.field("service") && step.ended() > joined.began);
        for step in after.filter(|step| words::tells_reach(&step.step)) {
            if heard.insert((&step.step, &step.process)) && !found.iter().any(|known| std::ptr::eq(*known, step)) {
                found.push(step);
            }
        }
    }
    found
}

fn chapter(title: &'static str, steps: &[&Step]) -> Option<Chapter> {
    let began = steps.first()?.began;
    let ended = steps.iter().map(|step| step.ended()).max()?;
    let mut moments: Vec<Moment> = Vec::new();
    for step in steps {
        let moment = Moment {
            after: step.began - began,
            took: step.took,
            part: words::part(step),
            object: step.object.clone(),
            what: words::what(step),
            process: step.process.clone(),
            times: 1,
        };
        match moments.last_mut() {
            Some(last) if (last.part, &last.object, &last.what) == (moment.part, &moment.object, &moment.what) => {
                last.times += 1;
                last.took += moment.took;
            }
            _ => moments.push(moment),
        }
    }
    let ready = if title == COMING { ready(steps, began) } else { None };
    Some(Chapter { title, began, took: ended - began, ready, moments })
}

/// When the last of the pods was reported ready for the first time.
fn ready(steps: &[&Step], began: u64) -> Option<u64> {
    let mut pods: BTreeMap<&str, Option<u64>> = BTreeMap::new();
    for step in steps.iter().filter(|step| step.object.starts_with("pods/")) {
        let first = pods.entry(&step.object).or_default();
        if first.is_none() && step.field("state").ends_with("ready") {
            *first = Some(step.ended() - began);
        }
    }
    let all: Option<Vec<u64>> = pods.into_values().collect();
    all?.into_iter().max()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps as `time step object field=value…`.
    fn steps(text: &str) -> Vec<Step> {
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
                    fields: fields.map(|(name, value)| (name.to_owned().into(), value.to_owned())).collect(),
                }
            })
            .collect()
    }

    fn told(text: &str, object: &str) -> Vec<(&'static str, u64, String)> {
        let story = tell(&steps(text), object).unwrap();
        let of = |chapter: &Chapter| {
            let title = chapter.title;
            let began = chapter.began;
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
        50 request pods/a/web-1-x verb=patch subresource=status state=Running,ready
        60 endpoint pods/a/web-1-x service=services/a/web
        55 proxied services/a/web
        70 proxied services/a/web
        80 proxied services/a/web
        90 request deployments/a/web verb=delete
        95 request pods/a/web-1-x verb=delete";

    #[test]
    fn a_deployment_is_told_with_all_it_made() {
        let objects: Vec<u64> = told(ROLLOUT, "deployments/a/web").iter().map(|moment| moment.1).collect();
        assert_eq!(objects, [10, 20, 30, 40, 50, 60, 70, 90, 95]);
    }

    #[test]
    fn its_end_is_a_chapter_of_its_own() {
        let story = tell(&steps(ROLLOUT), "deployments/a/web").unwrap();
        let chapters: Vec<(&str, usize, Option<u64>)> =
            story.chapters.iter().map(|chapter| (chapter.title, chapter.moments.len(), chapter.ready)).collect();
        assert_eq!(chapters, [(COMING, 7, Some(45)), (GOING, 2, None)]);
    }

    #[test]
    fn only_the_newest_of_a_name_is_told() {
        let again =
            "10 request pods/a/b verb=create\n 20 request pods/a/b verb=delete\n 30 request pods/a/b verb=create";
        assert_eq!(told(again, "pods/a/b"), [(COMING, 30, "pods/a/b".to_owned())]);
    }

    #[test]
    fn what_is_unknown_has_no_story() {
        assert_eq!(tell(&steps(ROLLOUT), "pods/a/nobody"), None);
    }

    #[test]
    fn the_same_in_a_row_is_told_once() {
        let text = "1 reconciled deployments/a/web controller=deployment\n 9 reconciled deployments/a/web controller=deployment";
        let story = tell(&steps(text), "deployments/a/web").unwrap();
        assert_eq!(story.chapters[0].moments.len(), 1);
        assert_eq!((story.chapters[0].moments[0].times, story.chapters[0].moments[0].took), (2, 10));
    }
}
