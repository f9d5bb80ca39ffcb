//! How many objects each controller syncs at once: `--concurrent-…-syncs` of kube-controller-manager, with its defaults.

use std::collections::BTreeMap;

/// A setting: the flag, and its default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyncSetting {
    pub flag: &'static str,
    pub default: usize,
}

/// All settings, by their flags.
pub const SYNC_SETTINGS: [SyncSetting; 19] = [
    SyncSetting { flag: "concurrent-cron-job-syncs", default: 5 },
    SyncSetting { flag: "concurrent-daemonset-syncs", default: 2 },
    SyncSetting { flag: "concurrent-deployment-syncs", default: 5 },
    SyncSetting { flag: "concurrent-device-taint-eviction-syncs", default: 8 },
    SyncSetting { flag: "concurrent-endpoint-syncs", default: 5 },
    SyncSetting { flag: "concurrent-ephemeralvolume-syncs", default: 5 },
    SyncSetting { flag: "concurrent-gc-syncs", default: 20 },
    SyncSetting { flag: "concurrent-horizontal-pod-autoscaler-syncs", default: 5 },
    SyncSetting { flag: "concurrent-job-syncs", default: 5 },
    SyncSetting { flag: "concurrent-namespace-syncs", default: 10 },
    SyncSetting { flag: "concurrent-rc-syncs", default: 5 },
    SyncSetting { flag: "concurrent-replicaset-syncs", default: 5 },
    SyncSetting { flag: "concurrent-resource-quota-syncs", default: 5 },
    SyncSetting { flag: "concurrent-resourceclaim-syncs", default: 50 },
    SyncSetting { flag: "concurrent-service-endpoint-syncs", default: 5 },
    SyncSetting { flag: "concurrent-serviceaccount-token-syncs", default: 5 },
    SyncSetting { flag: "concurrent-statefulset-syncs", default: 5 },
    SyncSetting { flag: "concurrent-ttl-after-finished-syncs", default: 5 },
    SyncSetting { flag: "mirroring-concurrent-service-endpoint-syncs", default: 5 },
];

/// The settings that were changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConcurrentSyncs(BTreeMap<&'static str, usize>);

impl ConcurrentSyncs {
    /// Changes a setting of the table; others are not known to any controller.
    pub fn set(&mut self, flag: &'static str, syncs: usize) {
        self.0.insert(flag, syncs);
    }

    /// The workers of the controller with this flag.
    pub fn of(&self, flag: &str) -> usize {
        let default = || SYNC_SETTINGS.iter().find(|setting| setting.flag == flag).map_or(1, |setting| setting.default);
        // A controller without workers would do nothing at all.
        self.0.get(flag).copied().unwrap_or_else(default).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_have_defaults_and_can_be_changed() {
        let mut syncs = ConcurrentSyncs::default();
        assert_eq!(syncs.of("concurrent-gc-syncs"), 20);
        syncs.set("concurrent-gc-syncs", 3);
        syncs.set("concurrent-job-syncs", 0);
        assert_eq!((syncs.of("concurrent-gc-syncs"), syncs.of("concurrent-job-syncs")), (3, 1));
    }

    /// A misspelt flag would have one worker.
    #[test]
    fn controllers_name_settings_that_exist() {
        let mut pending = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
        let mut named = Vec::new();
        while let Some(path) = pending.pop() {
            if path.is_dir() {
                pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let after = text.split("concurrent_syncs.of(\"").skip(1);
            named.extend(after.map(|rest| rest.split('"').next().unwrap().to_owned()));
        }
        named.sort();
        named.dedup();
        let mut known: Vec<_> = SYNC_SETTINGS.iter().map(|setting| setting.flag.to_owned()).collect();
        known.sort();
        assert_eq!(named, known);
    }
}
