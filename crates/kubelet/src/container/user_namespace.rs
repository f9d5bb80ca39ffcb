//! Users of a pod that are nobody on the node: each such pod has a range of the node's user ids for itself.

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use knarr_cri::messages::{IdMapping, NamespaceMode, UserNamespace};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::pod;
use crate::settings::Settings;

/// Every id a pod may know.
const LENGTH: u32 = 65_536;
/// The node's own users are below this.
const FIRST: u32 = 65_536;

/// Where a pod's ids begin on the node. Noted in the pod's folder, as its containers keep them over a restart of the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Range {
    pub first: u32,
    pub length: u32,
}

/// Two pods must not choose the same range.
static CHOOSING: Mutex<()> = Mutex::new(());

pub fn is_wanted(pod: &Pod) -> bool {
    pod::spec(pod).host_users == Some(false)
}

/// The range of a pod that wants one and has it already.
pub fn of(settings: &Settings, pod: &Pod) -> Option<Range> {
    is_wanted(pod).then(|| read(note(settings, pod::uid(pod)))).flatten()
}

/// The range of a pod, chosen if it has none yet.
pub fn ensure(settings: &Settings, pod: &Pod) -> io::Result<Range> {
    let _turn = CHOOSING.lock();
    let path = note(settings, pod::uid(pod));
    if let Some(known) = read(path.clone()) {
        return Ok(known);
    }
    let folders = std::fs::read_dir(settings.root.join("pods"))?.flatten();
    let taken: BTreeSet<u32> =
        folders.filter_map(|folder| read(folder.path().join("userns"))).map(|range| range.first).collect();
    let first = choose(&taken, settings.max_pods)
        .ok_or_else(|| io::Error::other("no range of user ids is left for another pod with users of its own"))?;
    let range = Range { first, length: LENGTH };
    if let Some(folder) = path.parent() {
        crate::private::create_all(folder)?;
    }
    std::fs::write(path, serde_json::to_vec(&range)?)?;
    Ok(range)
}

fn choose(taken: &BTreeSet<u32>, most: u32) -> Option<u32> {
    let all = (0..most).filter_map(|number| FIRST.checked_add(number.checked_mul(LENGTH)?));
    all.into_iter().find(|first| !taken.contains(first) && first.checked_add(LENGTH).is_some())
}

fn note(settings: &Settings, uid: &str) -> PathBuf {
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
        let folder = tempfile::tempdir().expect("a folder");
        let settings = Settings { max_pods: 2, ..Settings::new("n", folder.path(), String::new()) };
        std::fs::create_dir_all(folder.path().join("pods")).expect("a folder");
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
    }
}
