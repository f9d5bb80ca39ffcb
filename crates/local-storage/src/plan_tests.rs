use knarr_csi::messages::MountVolume;

use super::*;

const GIB: i64 = 1 << 30;

fn mount(fs_type: &str) -> VolumeCapability {
    VolumeCapability::mount(MountVolume { fs_type: fs_type.into(), ..Default::default() }, Mode::SingleNodeWriter)
}

fn able() -> Abilities {
    Abilities { loop_devices: true, filesystems: vec!["ext4".into()] }
}

fn parameters(entries: &[(&str, &str)]) -> StringMap {
    entries.iter().map(|&(key, value)| (key.to_string(), value.to_string())).collect()
}

#[test]
fn the_kind_follows_from_capabilities_and_class() {
    let ext4 = Kind::Filesystem { fs_type: "ext4".into() };
    let block = VolumeCapability::block(Mode::SingleNodeWriter);
    let none = parameters(&[(SIZE_LIMIT, "none")]);
    let claim = parameters(&[("csi.storage.k8s.io/pvc/name", "data")]);
    for (capabilities, parameters, abilities, expected) in [
        (vec![mount("")], StringMap::new(), able(), Ok(ext4.clone())),
        (vec![mount("ext4"), mount("")], claim, able(), Ok(ext4)),
        (vec![block.clone()], StringMap::new(), able(), Ok(Kind::Block)),
        (vec![mount("")], none.clone(), Abilities::default(), Ok(Kind::Directory)),
        (vec![mount("")], StringMap::new(), Abilities::default(), Err("cannot enforce the size")),
        (vec![block.clone()], none, able(), Err("not for block devices")),
        (vec![mount("xfs")], StringMap::new(), able(), Err("mkfs.xfs is not installed")),
        (vec![mount("zfs")], StringMap::new(), able(), Err("not supported")),
        (vec![mount(""), block], StringMap::new(), able(), Err("either mounted or a block device")),
        (vec![], StringMap::new(), able(), Err("missing")),
        (vec![mount("")], parameters(&[("sizelimit", "none")]), able(), Err("unknown")),
        (vec![VolumeCapability::block(Mode::MultiNodeMultiWriter)], StringMap::new(), able(), Err("one node only")),
    ] {
        let found = kind(&capabilities, &parameters, &abilities);
        match (found, expected) {
            (Ok(found), Ok(expected)) => assert_eq!(found, expected),
            (Err(error), Err(text)) => assert!(error.to_string().contains(text), "{error}"),
            (found, expected) => panic!("{capabilities:?}: {found:?}, not {expected:?}"),
        }
    }
}

#[test]
fn sizes_stay_within_their_range() {
    let range = |required_bytes, limit_bytes| CapacityRange { required_bytes, limit_bytes };
    for (range, minimum, expected) in [
        (None, 0, Some(GIB)),
        (Some(range(0, 0)), 0, Some(GIB)),
        (Some(range(10 * GIB, 0)), 0, Some(10 * GIB)),
        (Some(range(10 * GIB, 10 * GIB)), 0, Some(10 * GIB)),
        // Rounded up, but not over the limit.
        (Some(range(GIB + 1, 0)), 0, Some(GIB + (1 << 20))),
        (Some(range(GIB + 1, GIB + 4096)), 0, Some(GIB + 4096)),
        (Some(range(GIB + 1, GIB + 1)), 0, None),
        (Some(range(1, 0)), 0, Some(16 << 20)),
        (Some(range(1, 1 << 20)), 0, None),
        (Some(range(0, 100 << 20)), 0, Some(100 << 20)),
        // The content of a snapshot has to fit.
        (Some(range(0, 0)), 5 << 30, Some(5 * GIB)),
        (Some(range(0, GIB)), 5 << 30, None),
        (Some(range(-1, 0)), 0, None),
        (Some(range(i64::MAX, 0)), 0, None),
    ] {
        let found = size(range.as_ref(), minimum).ok();
        assert_eq!(found, expected.map(|bytes| u64::try_from(bytes).expect("positive")), "{range:?} {minimum}");
        if let Some(bytes) = found {
            assert!(fits(bytes, range.as_ref()), "{range:?}");
        }
    }
}

#[test]
fn a_volume_is_only_where_its_node_is() {
    let at = |node: &str| Topology { segments: parameters(&[(TOPOLOGY_KEY, node)]) };
    let requirement = |nodes: &[&str]| TopologyRequirement {
        requisite: nodes.iter().map(|node| at(node)).collect(),
        preferred: Vec::new(),
    };
    assert!(accessible(None, "a"));
    assert!(accessible(Some(&requirement(&["b", "a"])), "a"));
    assert!(!accessible(Some(&requirement(&["b"])), "a"));
    assert!(accessible(Some(&requirement(&[])), "a"));
}

#[test]
fn pages_have_every_entry_once() {
    let ids: Vec<String> = (0..7).map(|number| format!("{number:032x}")).collect();
    for max in [0, 1, 3, 7, 100] {
        let (mut seen, mut token) = (Vec::new(), String::new());
        loop {
            let (entries, next) = page(ids.iter(), |id| id, &token, max).expect("a page");
            seen.extend(entries.into_iter().cloned());
            if next.is_empty() {
                break;
            }
            token = next;
        }
        assert_eq!(seen, ids, "{max}");
    }
    assert!(matches!(page(ids.iter(), |id| id, "../x", 1), Err(Error::Token(_))));
    assert!(page(ids.iter(), |id| id, "", -1).is_err());
}
