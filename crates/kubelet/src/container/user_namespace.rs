//! User namespaces of pods: each such pod has its own range of the node's user ids.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use knarr_cri::messages::{IdMapping, NamespaceMode, UserNamespace};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::pod;
use crate::settings::Settings;

/// The number of ids in a pod.
const RANGE_LENGTH: u32 = 65_536;
/// The host's own users have smaller ids.
const FIRST_ID: u32 = 65_536;

/// A pod's range of ids on the node. Stored in the pod's directory, as its containers keep it over a restart of the
/// kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub first: u32,
    pub length: u32,
}

/// Serializes the choice, so that two pods never get the same range.
static CHOOSING: Mutex<()> = Mutex::new(());

pub fn is_requested(pod: &Pod) -> bool {
    pod::spec(pod).host_users == Some(false)
}

/// The range of a pod that already has one.
pub fn of(settings: &Settings, pod: &Pod) -> Option<Range> {
    is_requested(pod).then(|| read(record_path(settings, pod::uid(pod)))).flatten()
}

/// The range of a pod; chooses one if it has none yet.
pub fn ensure(settings: &Settings, pod: &Pod) -> io::Result<Range> {
    let _guard = CHOOSING.lock();
    let path = record_path(settings, pod::uid(pod));
    if let Some(known) = read(path.clone()) {
        return Ok(known);
    }
    let mut used = BTreeSet::new();
    for parent in settings.pod_parents() {
        let directories = match std::fs::read_dir(parent) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            found => found?.flatten(),
        };
        used.extend(directories.filter_map(|directory| Some(read(directory.path().join("userns"))?.first)));
    }
    let first = choose(&used, settings.max_pods)
        .ok_or_else(|| io::Error::other("no range of user ids is left for another pod with a user namespace"))?;
    let range = Range { first, length: RANGE_LENGTH };
    if let Some(directory) = path.parent() {
        crate::private::create_all(directory)?;
    }
    std::fs::write(path, serde_json::to_vec(&range)?)?;
    Ok(range)
}

fn choose(used: &BTreeSet<u32>, max_pods: u32) -> Option<u32> {
    let all = (0..max_pods).filter_map(|number| FIRST_ID.checked_add(number.checked_mul(RANGE_LENGTH)?));
    all.into_iter().find(|first| !used.contains(first) && first.checked_add(RANGE_LENGTH).is_some())
}

fn record_path(settings: &Settings, uid: &str) -> PathBuf {
    settings.pod_directory(uid).join("userns")
}

fn read(path: PathBuf) -> Option<Range> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

impl Range {
    pub fn mapping(self) -> IdMapping {
        IdMapping { host_id: self.first, container_id: 0, length: self.length }
    }

    pub fn options(self) -> UserNamespace {
        let mapping = vec![self.mapping()];
        UserNamespace { mode: NamespaceMode::Pod as i32, uids: mapping.clone(), gids: mapping }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_pod_has_a_range_of_its_own_and_keeps_it() {
        let directory = tempfile::tempdir().expect("a directory");
        let settings = Settings { max_pods: 2, ..Settings::new("n", directory.path(), String::new()) };
        std::fs::create_dir_all(directory.path().join("pods")).expect("a directory");
        let pod = |uid: &str| -> Pod {
            serde_json::from_value(json!({ "metadata": { "uid": uid },
                "spec": { "containers": [], "hostUsers": false } }))
            .expect("a pod")
        };
        let first = ensure(&settings, &pod("a")).expect("a range");
        assert_eq!(first, Range { first: 65_536, length: 65_536 });
        assert_eq!(ensure(&settings, &pod("b")).expect("a range").first, 131_072);
        assert_eq!(ensure(&settings, &pod("a")).expect("a range"), first);
        assert!(ensure(&settings, &pod("c")).is_err(), "as many as pods");
        assert_eq!(of(&settings, &pod("a")), Some(first));
        // Pods of an older version have theirs elsewhere.
        let moved = Settings { plugin_root: directory.path().join("new"), max_pods: 3, ..settings };
        assert_eq!(ensure(&moved, &pod("c")).expect("a range").first, 196_608);
        assert_eq!(ensure(&moved, &pod("a")).expect("a range"), first);
    }
}
