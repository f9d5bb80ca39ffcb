//! The node opens what pods and containers name through `beneath` and `tree`, never by joining it to a path.
//!
//! A path that somebody else chose, or below which somebody else can write, may lead anywhere by the time it is opened.

use super::spawns::is_test;
use super::{before_tests, none, read, root, sources};

/// Fields of a pod, and names the code has for them, that hold paths.
const CHOSEN_BY_PODS: &[&str] = &[
    "sub_path",
    "mount_path",
    "localhost_profile",
    "termination_message_path",
    "file.path",
    "item.path",
    "selector.path",
    "source.path",
    "wanted.path",
];

/// The modules that open such paths safely.
const OPENS_SAFELY: &[&str] = &["beneath.rs", "tree.rs", "private.rs"];

/// Where pods' files are handled.
const HANDLES_PODS: &[&str] = &[
    "container/",
    "images/",
    "pods/",
    "runtime/",
    "source/",
    "volumes/",
    "worker/",
    "container_logs.rs",
    "mount.rs",
    "ownership.rs",
];

/// Calls that follow whatever a path leads to.
const OPENS_BY_PATH: &[&str] = &[
    "File::create(",
    "File::open(",
    "OpenOptions::new(",
    "fs::copy(",
    "fs::create_dir(",
    "fs::create_dir_all(",
    "fs::read(",
    "fs::read_to_string(",
    "fs::remove_dir_all(",
    "fs::set_permissions(",
    "fs::write(",
];

/// Files of the node's own among them, in directories that no container can write to: how often, and why that is safe.
const OWN_FILES: &[(&str, usize, &str)] = &[
    ("container/hosts.rs", 1, "opened without following a link"),
    ("container/mounts.rs", 3, "termination files, and host paths that their authors may use as they like"),
    ("container/user_namespace.rs", 2, "the note of a pod's range of users"),
    ("images/access.rs", 2, "records of pulled images"),
    ("images/ensure.rs", 1, "the host's own credentials for registries"),
    ("images/providers/config/mod.rs", 1, "the operator's list of credential providers"),
    ("volumes/atomic.rs", 7, "below volumes that containers mount read-only"),
    ("volumes/disk/devices.rs", 3, "what the kernel says of its devices"),
    ("volumes/disk/host.rs", 1, "what tells the kernel to look for devices"),
    ("volumes/disk/record.rs", 5, "the notes of attached disks, by their hash and the pod's UID"),
    ("volumes/empty_dir.rs", 1, "a volume before any container has it"),
    ("volumes/host_path.rs", 3, "host paths that their authors may use as they like"),
    ("volumes/subpath.rs", 1, "the place to mount at, outside the volume"),
    ("worker/resize/mod.rs", 3, "the note of a pod's resources"),
];

#[test]
fn what_pods_name_is_opened_beneath_its_volume() {
    let directory = root().join("crates/kubelet/src");
    let mut wrong = Vec::new();
    for file in sources(&directory) {
        let name = file.strip_prefix(&directory).unwrap_or(&file).to_string_lossy().into_owned();
        let text = read(&file);
        wrong.extend(violations(&name, before_tests(&text)));
    }
    for (name, _, _) in OWN_FILES {
        if !directory.join(name).exists() {
            wrong.push(format!("{name} is in a rule and does not exist"));
        }
    }
    none(wrong);
}

fn violations(name: &str, text: &str) -> Vec<String> {
    if OPENS_SAFELY.contains(&name) || is_test(name) {
        return Vec::new();
    }
    let joined = joins(text).into_iter().map(|word| format!("{name}: `{word}` is joined to a path: use `beneath`"));
    let mut wrong: Vec<String> = joined.collect();
    if HANDLES_PODS.iter().any(|place| name.starts_with(place)) {
        let allowed = OWN_FILES.iter().find(|(known, ..)| *known == name).map_or(0, |(_, count, _)| *count);
        let found = openings(text);
        if found != allowed {
            wrong
                .push(format!("{name}: {found} calls open a file by its path, the rule says {allowed}: use `beneath`"));
        }
    }
    wrong
}

/// Words of pods that are arguments of `join`.
fn joins(text: &str) -> Vec<&'static str> {
    let arguments = text.split(".join(").skip(1).map(|rest| &rest[..end_of_argument(rest)]);
    let words = |argument: &str| CHOSEN_BY_PODS.iter().copied().find(|word| argument.contains(word));
    arguments.filter_map(words).collect()
}

fn end_of_argument(text: &str) -> usize {
    let mut depth = 0;
    for (position, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' if depth == 0 => return position,
            ')' => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

/// Calls whose path is neither written in the source nor that of an open descriptor.
fn openings(text: &str) -> usize {
    let of = |call: &&str| {
        let rests = text.split(*call).skip(1);
        rests.filter(|rest| !rest.starts_with("\"/") && !rest.starts_with("beneath::link_to(")).count()
    };
    OPENS_BY_PATH.iter().map(of).sum()
}

#[test]
fn what_breaks_the_rule_is_found() {
    let joined = "let path = volume.join(\n    trim(&wanted.path));";
    assert_eq!(violations("container/env_file.rs", joined).len(), 1);
    assert_eq!(violations("volumes/new.rs", "std::fs::read(&path)?; std::fs::read(\"/proc/stat\")?;").len(), 1);
    assert_eq!(violations("volumes/empty_dir.rs", "").len(), 1, "a rule that is no longer needed goes");
    assert_eq!(violations("node/machine.rs", "std::fs::read(path)"), Vec::<String>::new());
    assert_eq!(violations("beneath.rs", joined), Vec::<String>::new());
}
