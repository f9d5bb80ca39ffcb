//! One whole decision for a Deployment: what to do with its ReplicaSets, and its new status.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStatus, ReplicaSet};
use k8s_openapi::jiff::Timestamp;

use super::{revision, rolling, scale, status};
use crate::common::int_or_percent::{scaled, surge_and_unavailable};
use crate::common::key::uid;

/// Observed state that the decision is based on.
pub(super) struct Observed<'a> {
    pub deployment: &'a Deployment,
    /// ReplicaSets that belong to the deployment.
    pub sets: &'a [Arc<ReplicaSet>],
    /// Uids of ReplicaSets with unfinished pods; only filled in for the Recreate strategy.
    pub running: &'a HashSet<String>,
}

#[derive(Debug, Default)]
pub(super) struct Plan {
    pub create: Option<ReplicaSet>,
    pub updates: Vec<Update>,
    pub deletions: Vec<Arc<ReplicaSet>>,
    pub status: DeploymentStatus,
    /// The deployment's own revision, written together with the status.
    pub revision: Option<String>,
    pub recheck: Option<Duration>,
    /// When set, nothing else is done.
    pub rollback: Option<Rollback>,
}

/// A ReplicaSet to write, and the change of its size.
#[derive(Debug)]
pub(super) struct Update {
    pub set: ReplicaSet,
    pub from: i32,
    pub to: i32,
}

/// The deployment with a former template restored and the rollback request removed.
#[derive(Debug)]
pub(super) struct Rollback {
    pub deployment: Deployment,
    pub done: Option<String>,
    pub warning: Option<(&'static str, String)>,
}

impl Plan {
    /// The deployment to write, if its status or revision changes.
    pub fn changed_deployment(&self, deployment: &Deployment) -> Option<Deployment> {
        let mut changed = deployment.clone();
        changed.status = Some(self.status.clone());
        if let Some(revision) = &self.revision {
            let annotations = changed.metadata.annotations.get_or_insert_default();
            annotations.insert(revision::REVISION.to_owned(), revision.clone());
        }
        let same = changed.status == deployment.status && changed.metadata == deployment.metadata;
        (!same).then_some(changed)
    }
}

pub(super) fn plan(observed: Observed, now: Timestamp) -> Plan {
    let Some(spec) = &observed.deployment.spec else { return Plan::default() };
    let mut work = Work::new(&observed, spec, now);
    if observed.deployment.metadata.deletion_timestamp.is_some() {
        work.sync_revision();
        return work.finish(false);
    }
    work.status = status::with_pause(work.status, spec, now);
    if spec.paused == Some(true) {
        work.sync_revision();
        scale::scale(&mut work);
        if revision::rollback_target(observed.deployment).is_none() {
            work.clean_up();
        }
        return work.finish(false);
    }
    if revision::rollback_target(observed.deployment).is_some() {
        work.sync_revision();
        let rollback = revision::rollback(observed.deployment, observed.sets);
        return Plan { rollback: Some(rollback), ..Plan::default() };
    }
    work.sync_revision();
    if scale::is_scaling(&work) {
        scale::scale(&mut work);
        return work.finish(false);
    }
    if recreates(observed.deployment) {
        recreate(&mut work, observed.running);
    } else {
        work.create_if_missing();
        rolling::roll(&mut work);
    }
    work.finish(true)
}

/// Deletes all old pods before it creates new ones.
fn recreate(work: &mut Work, running: &HashSet<String>) {
    let mut scaled_down = false;
    for old in &mut work.old {
        scaled_down |= old.resize(0, work.spec);
    }
    let new_uid = work.new.as_ref().map(|new| uid(&new.set));
    let old_pods =
        work.old.iter().any(|old| old.actual() > 0) || running.iter().any(|running| Some(running.as_str()) != new_uid);
    if scaled_down || old_pods {
        return;
    }
    work.create_if_missing();
    if let Some(new) = &mut work.new {
        new.resize(replicas(work.spec), work.spec);
    }
    if status::is_complete(work.deployment, &work.deployment.status.clone().unwrap_or_default()) {
        work.clean_up();
    }
}

/// State of a decision being computed.
pub(super) struct Work<'a> {
    pub deployment: &'a Deployment,
    pub spec: &'a DeploymentSpec,
    /// The revision of the current template, if there is one.
    pub new: Option<Set>,
    /// All others, oldest first.
    pub old: Vec<Set>,
    pub status: DeploymentStatus,
    pub now: Timestamp,
    revision: Option<String>,
    created: bool,
    deletions: Vec<Arc<ReplicaSet>>,
}

/// A ReplicaSet as observed and as it will be written.
pub(super) struct Set {
    pub observed: Option<Arc<ReplicaSet>>,
    pub set: ReplicaSet,
}

impl Set {
    fn of(observed: &Arc<ReplicaSet>) -> Self {
        Self { set: (**observed).clone(), observed: Some(observed.clone()) }
    }

    pub fn replicas(&self) -> i32 {
        replicas_of(&self.set)
    }

    /// The size before this decision; a set being created has always had its size.
    pub fn former_replicas(&self) -> i32 {
        self.observed.as_ref().map_or_else(|| self.replicas(), |observed| replicas_of(observed))
    }

    pub fn actual(&self) -> i32 {
        self.set.status.as_ref().map_or(0, |status| status.replicas)
    }

    pub fn available(&self) -> i32 {
        self.set.status.as_ref().map_or(0, |status| status.available_replicas.unwrap_or(0))
    }

    /// Sets the size, and the deployment's size in the annotations; returns whether the size changed.
    pub fn resize(&mut self, size: i32, spec: &DeploymentSpec) -> bool {
        if self.replicas() == size {
            return false;
        }
        self.force_resize(size, spec)
    }

    /// The same, but updates the annotations even when the size stays.
    pub fn force_resize(&mut self, size: i32, spec: &DeploymentSpec) -> bool {
        let changed = self.replicas() != size;
        self.set.spec.get_or_insert_default().replicas = Some(size);
        revision::annotate_size(&mut self.set, replicas(spec), replicas(spec) + max_surge(spec));
        changed
    }
}

impl<'a> Work<'a> {
    fn new(observed: &Observed<'a>, spec: &'a DeploymentSpec, now: Timestamp) -> Self {
        let mut sets = observed.sets.to_vec();
        sets.sort_by(|a, b| by_creation(a, b));
        let new = sets.iter().position(|set| revision::same_template(observed.deployment, set));
        let new = new.map(|at| Set::of(&sets.remove(at)));
        Self {
            deployment: observed.deployment,
            spec,
            new,
            old: sets.iter().map(Set::of).collect(),
            status: observed.deployment.status.clone().unwrap_or_default(),
            now,
            revision: None,
            created: false,
            deletions: Vec::new(),
        }
    }

    /// Gives the current template's ReplicaSet the newest revision.
    fn sync_revision(&mut self) {
        let next = revision::next(self.old.iter().map(|old| &old.set));
        let Some(new) = &mut self.new else { return };
        revision::annotate(self.deployment, &mut new.set, next);
        new.set.spec.get_or_insert_default().min_ready_seconds = self.spec.min_ready_seconds;
        self.revision = new.set.metadata.annotations.as_ref().and_then(|all| all.get(revision::REVISION)).cloned();
        let is_reported = status::condition(&self.status, status::PROGRESSING).is_some();
        if status::has_deadline(self.spec) && !is_reported {
            let message = format!("Found new replica set \"{}\"", super::name(&new.set));
            let found = status::new_condition(status::PROGRESSING, "True", "FoundNewReplicaSet", message, self.now);
            status::set_condition(&mut self.status, found);
        }
    }

    fn create_if_missing(&mut self) {
        if self.new.is_some() {
            return;
        }
        let next = revision::next(self.old.iter().map(|old| &old.set));
        let mut set = revision::new_replica_set(self.deployment, self.spec, next);
        let others = self.old.iter().map(Set::replicas).sum();
        set.spec.get_or_insert_default().replicas = Some(new_set_size(self.spec, others, 0));
        self.revision = Some(next.to_string());
        if status::has_deadline(self.spec) {
            let message = format!("Created new replica set \"{}\"", super::name(&set));
            let created = status::new_condition(status::PROGRESSING, "True", "NewReplicaSetCreated", message, self.now);
            status::set_condition(&mut self.status, created);
        }
        self.created = true;
        self.new = Some(Set { observed: None, set });
    }

    /// Deletes the oldest revisions beyond the history limit that have no pods left.
    pub fn clean_up(&mut self) {
        let Some(limit) = self.spec.revision_history_limit.filter(|limit| *limit != i32::MAX) else { return };
        let mut cleanable: Vec<&Set> =
            self.old.iter().filter(|old| old.set.metadata.deletion_timestamp.is_none()).collect();
        let surplus = cleanable.len().saturating_sub(usize::try_from(limit).unwrap_or(0));
        let number = |old: &Set| revision::of(&old.set).unwrap_or(0);
        cleanable.sort_by(|a, b| number(a).cmp(&number(b)).then_with(|| by_creation(&a.set, &b.set)));
        let idle = |old: &Set| {
            let observed = old.set.status.as_ref().and_then(|status| status.observed_generation).unwrap_or(0);
            old.actual() == 0 && old.replicas() == 0 && old.set.metadata.generation.unwrap_or(0) <= observed
        };
        let deletions = cleanable.into_iter().take(surplus).filter(|old| idle(old));
        self.deletions = deletions.filter_map(|old| old.observed.clone()).collect();
    }

    fn finish(self, with_progress: bool) -> Plan {
        let all: Vec<&Set> = self.old.iter().chain(&self.new).collect();
        let mut status = status::counted(self.deployment, self.spec, &self.status, &all, self.new.as_ref(), self.now);
        if with_progress {
            status = status::with_progress(
                self.deployment,
                self.spec,
                &self.status,
                status,
                &all,
                self.new.as_ref(),
                self.now,
            );
        }
        let recheck = if with_progress {
            status::next_progress_check(self.deployment, self.spec, &status, self.now)
        } else {
            None
        };
        let mut updates = Vec::new();
        let mut create = None;
        for Set { observed, set } in self.new.into_iter().chain(self.old) {
            match observed {
                None => create = Some(set),
                Some(observed) if *observed != set => {
                    updates.push(Update { from: replicas_of(&observed), to: replicas_of(&set), set });
                }
                Some(_) => {}
            }
        }
        Plan { create, updates, deletions: self.deletions, status, revision: self.revision, recheck, rollback: None }
    }
}

/// How large the current revision may be while others hold `others` pods.
pub(super) fn new_set_size(spec: &DeploymentSpec, others: i32, current: i32) -> i32 {
    if !is_rolling(spec) {
        return replicas(spec);
    }
    let rolling = spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
    let surge = surge.and_then(|surge| scaled(surge, replicas(spec), true)).unwrap_or(0);
    let room = replicas(spec) + surge - others - current;
    if room <= 0 { current } else { current + room.min(replicas(spec) - current) }
}

pub(super) fn replicas(spec: &DeploymentSpec) -> i32 {
    spec.replicas.unwrap_or(1)
}

pub(super) fn replicas_of(set: &ReplicaSet) -> i32 {
    set.spec.as_ref().map_or(1, |spec| spec.replicas.unwrap_or(1))
}

pub(super) fn is_rolling(spec: &DeploymentSpec) -> bool {
    spec.strategy.as_ref().and_then(|strategy| strategy.type_.as_deref()).is_none_or(|kind| kind == "RollingUpdate")
}

pub(super) fn recreates(deployment: &Deployment) -> bool {
    deployment.spec.as_ref().is_some_and(|spec| !is_rolling(spec))
}

fn fence_posts(spec: &DeploymentSpec) -> (i32, i32) {
    let rolling = spec.strategy.as_ref().and_then(|strategy| strategy.rolling_update.as_ref());
    let surge = rolling.and_then(|rolling| rolling.max_surge.as_ref());
    let unavailable = rolling.and_then(|rolling| rolling.max_unavailable.as_ref());
    surge_and_unavailable(surge, unavailable, replicas(spec)).unwrap_or((0, 0))
}

pub(super) fn max_surge(spec: &DeploymentSpec) -> i32 {
    if is_rolling(spec) { fence_posts(spec).0 } else { 0 }
}

pub(super) fn max_unavailable(spec: &DeploymentSpec) -> i32 {
    if is_rolling(spec) && replicas(spec) > 0 { fence_posts(spec).1.min(replicas(spec)) } else { 0 }
}

pub(super) fn by_creation(a: &ReplicaSet, b: &ReplicaSet) -> std::cmp::Ordering {
    let key = |set: &ReplicaSet| (set.metadata.creation_timestamp.clone(), set.metadata.name.clone());
    key(a).cmp(&key(b))
}

#[cfg(test)]
mod tests;
