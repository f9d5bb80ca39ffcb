//! The rules that are installed in the kernel, and how they become others.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::Settings;
use super::conntrack::{self, Cleaner};
use super::frontends::Frontend;
use super::health::HealthPorts;
use super::kernel::{self, KernelError};
use super::rules::{self, Family, Rules};
use super::shared_elements::SharedElements;
use super::slots::{Run, Slots};
use super::transaction::Transaction;
use crate::capture::Protected;
use crate::cidr::Cidr;

/// The rules that are installed in the kernel.
pub struct Installed {
    pub settings: Settings,
    /// The installed frontends, by Service.
    known: HashMap<String, Vec<Frontend>>,
    health: HealthPorts,
    /// Deletes what the kernel tracks of endpoints that are gone.
    cleaner: Arc<Cleaner>,
    /// Numbers of endpoints, by family.
    slots: [Slots; 2],
    /// Pods that may reach themselves, by family.
    hairpins: [SharedElements; 2],
    /// Service networks.
    pub networks: BTreeSet<Cidr>,
    /// The addresses and ports that no Service may capture.
    protected: Arc<Protected>,
    /// Whether the tables exist and hold what `known` says.
    pub is_current: bool,
}

/// The desired rules: the frontends of the Services that changed, and the state that all Services share.
pub struct Desired {
    pub frontends: Vec<(String, Vec<Frontend>)>,
    pub networks: BTreeSet<Cidr>,
    pub protected: Arc<Protected>,
}

impl Installed {
    pub fn new(settings: Settings, health: HealthPorts, cleaner: Arc<Cleaner>) -> Self {
        Self {
            settings,
            known: HashMap::new(),
            health,
            cleaner,
            slots: Default::default(),
            hairpins: Default::default(),
            networks: BTreeSet::new(),
            protected: Arc::default(),
            is_current: false,
        }
    }

    /// Brings the kernel from the rules that it has to the desired ones.
    pub async fn apply(&mut self, desired: Desired) -> Result<(), KernelError> {
        if !self.is_current {
            self.slots = Default::default();
            self.hairpins = Default::default();
        }
        for (number, family) in [Family::V4, Family::V6].into_iter().enumerate() {
            let (text, left) = self.transaction(number, family, &desired);
            if !text.is_empty() {
                kernel::run(text).await?;
            }
            left.iter().for_each(|run| self.slots[number].release(run));
        }
        self.is_current = true;
        self.networks = desired.networks;
        self.protected = desired.protected;
        self.record(desired.frontends);
        Ok(())
    }

    /// The transaction of a family, and the runs of slots that are free once it is applied.
    fn transaction(&mut self, number: usize, family: Family, desired: &Desired) -> (String, Vec<Run>) {
        let (settings, slots, hairpins) = (&self.settings, &mut self.slots[number], &mut self.hairpins[number]);
        let mut rules = |frontends: &[Frontend]| -> Rules { rules::of(frontends, family, settings, slots) };
        let mut changes = Transaction::new(family);
        let mut text = String::new();
        let mut left = Vec::new();
        if self.is_current {
            for (name, frontends) in &desired.frontends {
                let before = self.known.get(name).map(|frontends| rules(frontends)).unwrap_or_default();
                let after = rules(frontends);
                changes.add(&before, &after);
                hairpins.change(&before.hairpins, &after.hairpins);
                left.extend(before.runs.difference(&after.runs).cloned());
            }
        } else {
            text = rules::tables(family, settings);
            let changed: BTreeMap<&str, &[Frontend]> =
                desired.frontends.iter().map(|(name, frontends)| (name.as_str(), frontends.as_slice())).collect();
            let kept = self.known.iter().filter(|(name, _)| !changed.contains_key(name.as_str()));
            let all = kept.map(|(_, frontends)| frontends.as_slice()).chain(changed.values().copied());
            for frontends in all {
                let after = rules(frontends);
                changes.add(&Rules::default(), &after);
                hairpins.change(&BTreeSet::new(), &after.hairpins);
            }
        }
        changes.add_shared("hairpin", hairpins.take_difference());
        text.push_str(&changes.text());
        if !self.is_current || desired.networks != self.networks {
            text.push_str(&rules::set_networks(&desired.networks, family));
        }
        if !self.is_current || desired.protected != self.protected {
            text.push_str(&rules::set_protected(&desired.protected, family));
        }
        (text, left)
    }

    /// Records what is installed now, and stops what belongs to endpoints that are gone.
    fn record(&mut self, frontends: Vec<(String, Vec<Frontend>)>) {
        let mut gone = BTreeSet::new();
        for (name, frontends) in frontends {
            tracing::info!(target: "journey", step = "proxied", object = format!("services/{name}"));
            let before = match frontends.is_empty() {
                true => self.known.remove(&name),
                false => self.known.insert(name.clone(), frontends),
            };
            let now = self.known.get(&name).map(Vec::as_slice).unwrap_or_default();
            gone.extend(conntrack::stale(before.as_deref().unwrap_or_default(), now));
            self.health.set(&name, now);
        }
        self.cleaner.add(gone);
    }
}
