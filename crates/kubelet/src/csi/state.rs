//! Which pods use which CSI volumes on this node, and how far each volume is. In memory only: it is rebuilt from the
//! records on disk when the kubelet starts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use super::volume::VolumeId;
use crate::objects::Notify;

/// How far staging or publishing is. What a driver may have done although the call failed is undone like what it did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Progress {
    #[default]
    Not,
    Uncertain,
    Done,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeState {
    pub spec_name: String,
    pub block: bool,
    pub persistent: bool,
    /// None while it is unknown whether the control plane attaches it, after a restart.
    pub attachable: Option<bool>,
    pub staged: Progress,
    /// The size in bytes that this node knows the volume to have.
    pub size: Option<i64>,
    /// The driver cannot expand the volume while it is in use.
    pub expand_offline_only: bool,
    /// An expansion failed for good, and may be given up if the claim asks for another size now.
    pub expand_failed: bool,
    /// The pods that use the volume, and how far it is published for each.
    pub users: BTreeMap<String, Progress>,
    /// The name by which each pod has it: several persistent volumes can refer to the same volume.
    pub names: BTreeMap<String, String>,
}

impl VolumeState {
    /// The name that the paths of the pod's volume have.
    pub fn name_for(&self, uid: &str) -> &str {
        self.names.get(uid).unwrap_or(&self.spec_name)
    }
}

/// What a pod's worker waits for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Condition {
    /// The driver registers.
    Driver(String),
    /// The node's status names the volume as in use.
    Reported(String),
    /// The node's status names the volume as attached.
    Attached(String),
}

#[derive(Default)]
struct Inner {
    volumes: BTreeMap<VolumeId, VolumeState>,
    locks: HashMap<VolumeId, Arc<tokio::sync::Mutex<()>>>,
    /// Disks that pods use, which no driver serves.
    disks: BTreeSet<String>,
    /// The volumes in use that the API has in the node's status.
    reported: BTreeSet<String>,
    waiting: HashMap<Condition, Vec<Notify>>,
}

#[derive(Default)]
pub struct State(Mutex<Inner>);

impl State {
    /// Waits until no other operation on this volume is in progress.
    pub async fn lock(&self, id: &VolumeId) -> OwnedMutexGuard<()> {
        let lock = {
            let mut inner = self.0.lock();
            // Unused locks are dropped here; those that someone holds or waits for have another reference.
            inner.locks.retain(|_, lock| Arc::strong_count(lock) > 1);
            inner.locks.entry(id.clone()).or_default().clone()
        };
        lock.lock_owned().await
    }

    /// A pod is going to use the volume.
    pub fn add_user(&self, id: &VolumeId, uid: &str, fresh: VolumeState) {
        let mut inner = self.0.lock();
        let known = inner.volumes.entry(id.clone()).or_insert(VolumeState { users: BTreeMap::new(), ..fresh.clone() });
        known.attachable = fresh.attachable.or(known.attachable);
        if !fresh.spec_name.is_empty() {
            known.names.entry(uid.to_string()).or_insert_with(|| fresh.spec_name.clone());
        }
        if known.spec_name.is_empty() {
            known.spec_name = fresh.spec_name;
        }
        known.users.entry(uid.to_string()).or_default();
    }

    /// A volume that is on this node, with or without users.
    pub fn add_volume(&self, id: &VolumeId, fresh: VolumeState) {
        let mut inner = self.0.lock();
        let known = inner.volumes.entry(id.clone()).or_insert(fresh.clone());
        if known.spec_name.is_empty() {
            known.spec_name = fresh.spec_name;
        }
    }

    pub fn get(&self, id: &VolumeId) -> Option<VolumeState> {
        self.0.lock().volumes.get(id).cloned()
    }

    pub fn all(&self) -> Vec<(VolumeId, VolumeState)> {
        self.0.lock().volumes.iter().map(|(id, volume)| (id.clone(), volume.clone())).collect()
    }

    /// The volumes that a pod uses.
    pub fn volumes_of(&self, uid: &str) -> Vec<VolumeId> {
        let inner = self.0.lock();
        inner.volumes.iter().filter(|(_, volume)| volume.users.contains_key(uid)).map(|(id, _)| id.clone()).collect()
    }

    /// Changes what is known of a volume's size and expansion.
    pub fn update(&self, id: &VolumeId, change: impl FnOnce(&mut VolumeState)) {
        if let Some(volume) = self.0.lock().volumes.get_mut(id) {
            change(volume);
        }
    }

    pub fn set_staged(&self, id: &VolumeId, progress: Progress) {
        if let Some(volume) = self.0.lock().volumes.get_mut(id) {
            volume.staged = progress;
        }
    }

    pub fn published(&self, id: &VolumeId, uid: &str) -> Progress {
        self.0.lock().volumes.get(id).and_then(|volume| volume.users.get(uid).copied()).unwrap_or_default()
    }

    pub fn set_published(&self, id: &VolumeId, uid: &str, progress: Progress) {
        if let Some(user) = self.0.lock().volumes.get_mut(id).and_then(|volume| volume.users.get_mut(uid)) {
            *user = progress;
        }
    }

    /// Whether the volume is, or may be, published for another pod.
    pub fn is_used_elsewhere(&self, id: &VolumeId, uid: &str) -> bool {
        let inner = self.0.lock();
        let Some(volume) = inner.volumes.get(id) else { return false };
        volume.users.iter().any(|(user, progress)| user != uid && *progress != Progress::Not)
    }

    /// A pod no longer uses the volume. Returns whether no pod does.
    pub fn remove_user(&self, id: &VolumeId, uid: &str) -> bool {
        let mut inner = self.0.lock();
        let Some(volume) = inner.volumes.get_mut(id) else { return true };
        volume.users.remove(uid);
        volume.names.remove(uid);
        volume.users.is_empty()
    }

    /// Forgets a volume that no pod uses and that is not staged.
    pub fn forget(&self, id: &VolumeId) {
        let mut inner = self.0.lock();
        if inner.volumes.get(id).is_some_and(|volume| volume.users.is_empty() && volume.staged == Progress::Not) {
            inner.volumes.remove(id);
        }
    }

    /// The attachable volumes that pods use or that are still staged, for the node's status: the control plane detaches
    /// none of these. A volume of which it is unknown is listed if the node had it attached.
    pub fn in_use(&self, attached: &BTreeSet<String>) -> Vec<String> {
        let inner = self.0.lock();
        let listed = |(id, volume): (&VolumeId, &VolumeState)| {
            let name = id.unique_name();
            volume.attachable.unwrap_or_else(|| attached.contains(&name)).then_some(name)
        };
        inner.volumes.iter().filter_map(listed).chain(inner.disks.iter().cloned()).collect()
    }

    /// Sets the disks that pods use, by their names in the node's status. Returns whether that is a change.
    pub fn set_disks(&self, disks: BTreeSet<String>) -> bool {
        let mut inner = self.0.lock();
        let changed = inner.disks != disks;
        inner.disks = disks;
        changed
    }

    /// The node's status in the API names these volumes as in use.
    pub fn set_reported(&self, names: &[String]) {
        self.0.lock().reported = names.iter().cloned().collect();
        names.iter().for_each(|name| self.wake(&Condition::Reported(name.clone())));
    }

    /// Forgets that others were reported.
    pub fn retain_reported(&self, names: &[String]) {
        self.0.lock().reported.retain(|name| names.contains(name));
    }

    pub fn is_reported(&self, unique_name: &str) -> bool {
        self.0.lock().reported.contains(unique_name)
    }

    /// Calls `notify` once when the condition may hold.
    pub fn wait_for(&self, condition: Condition, notify: Notify) {
        let mut inner = self.0.lock();
        let waiting = inner.waiting.entry(condition).or_default();
        if !waiting.iter().any(|known| Arc::ptr_eq(known, &notify)) {
            waiting.push(notify);
        }
    }

    pub fn wake(&self, condition: &Condition) {
        let waiting = self.0.lock().waiting.remove(condition);
        waiting.into_iter().flatten().for_each(|notify| notify());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(handle: &str) -> VolumeId {
        VolumeId { driver: "d".into(), handle: handle.into() }
    }

    #[test]
    fn a_volume_is_in_use_until_it_is_unstaged() {
        let state = State::default();
        let volume = VolumeState { attachable: Some(true), persistent: true, ..Default::default() };
        state.add_user(&id("h"), "a", volume.clone());
        state.add_user(&id("h"), "b", volume);
        state.add_user(&id("other"), "b", VolumeState { attachable: Some(false), ..Default::default() });
        let none = BTreeSet::new();
        assert_eq!(state.in_use(&none), ["kubernetes.io/csi/d^h"]);
        state.set_staged(&id("h"), Progress::Done);
        state.set_published(&id("h"), "a", Progress::Uncertain);
        assert!(state.is_used_elsewhere(&id("h"), "b"), "it may be published");
        assert!(!state.is_used_elsewhere(&id("h"), "a"));
        assert!(!state.remove_user(&id("h"), "a"));
        assert!(state.remove_user(&id("h"), "b"));
        state.forget(&id("h"));
        assert_eq!(state.in_use(&none), ["kubernetes.io/csi/d^h"], "still staged");
        state.set_staged(&id("h"), Progress::Not);
        state.forget(&id("h"));
        assert_eq!(state.in_use(&none), Vec::<String>::new());
        assert_eq!(state.volumes_of("b"), [id("other")]);
        let disks = BTreeSet::from(["kubernetes.io/iscsi/p:t:0".to_string()]);
        assert!(state.set_disks(disks.clone()) && !state.set_disks(disks));
        assert_eq!(state.in_use(&none), ["kubernetes.io/iscsi/p:t:0"]);
    }

    #[test]
    fn after_a_restart_what_was_attached_is_in_use() {
        let state = State::default();
        state.add_user(&id("h"), "a", VolumeState { persistent: true, ..Default::default() });
        assert_eq!(state.in_use(&BTreeSet::from([id("h").unique_name()])), [id("h").unique_name()]);
        assert_eq!(state.in_use(&BTreeSet::new()), Vec::<String>::new());
        state.add_user(&id("h"), "a", VolumeState { attachable: Some(true), ..Default::default() });
        assert_eq!(state.in_use(&BTreeSet::new()), [id("h").unique_name()]);
    }

    #[tokio::test]
    async fn operations_on_one_volume_wait_for_each_other() {
        let state = Arc::new(State::default());
        let first = state.lock(&id("h")).await;
        let other = state.clone();
        let second = tokio::spawn(async move { drop(other.lock(&id("h")).await) });
        let _different = state.lock(&id("x")).await;
        tokio::task::yield_now().await;
        assert!(!second.is_finished());
        drop(first);
        second.await.expect("it got the lock");
    }

    #[test]
    fn waiters_are_notified_once() {
        let state = State::default();
        let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let counted = count.clone();
        let notify: Notify = Arc::new(move || {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        });
        state.wait_for(Condition::Driver("d".into()), notify.clone());
        state.wait_for(Condition::Driver("d".into()), notify);
        state.wake(&Condition::Driver("other".into()));
        state.wake(&Condition::Driver("d".into()));
        state.wake(&Condition::Driver("d".into()));
        assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
    }
}
