//! What a cluster without root needs of the host, and what it does without. Checked before anything is created.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::{AccessFlags, User, access, geteuid};

use super::subordinate::{self, NEEDED, Range};
use super::{cgroup, enter};
use crate::check::{self, Finding, INSTALL};
use crate::local_cluster::Progress;

/// The program that connects a cluster with other networks.
pub const OUTGOING: &str = "slirp4netns";

const DEVICE: &str = "/dev/net/tun";

/// Programs, and the Debian packages that have them.
const PROGRAMS: [(&str, &str); 7] = [
    ("newuidmap", "uidmap"),
    ("newgidmap", "uidmap"),
    ("nsenter", "util-linux"),
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("containerd", "containerd"),
    ("runc", "runc"),
];

const HIDDEN: &str = "it is below /run or /proc, where a cluster without root has directories of its own";

/// The first kernel that mounts overlays in user namespaces.
const OVERLAY_KERNEL: (u32, u32) = (5, 11);

/// What was found on the host.
#[derive(Clone, Debug)]
pub struct Facts {
    pub user: String,
    pub users: Vec<Range>,
    pub groups: Vec<Range>,
    /// Programs of the list that are not installed.
    pub absent: Vec<&'static str>,
    pub has_outgoing: bool,
    /// Whether the user can open the device of such interfaces.
    pub has_device: bool,
    pub kernel: String,
    /// Why a namespace with a network of its own cannot be created.
    pub refusal: Option<String>,
    /// `kernel.apparmor_restrict_unprivileged_userns`, `user.max_user_namespaces` and `kernel.unprivileged_userns_clone`,
    /// of which a kernel need not have all.
    pub apparmor: Option<u64>,
    pub maximum: Option<u64>,
    pub clone: Option<u64>,
    /// Whether a cgroup of version 2 is delegated to this process.
    pub has_cgroup: bool,
    pub is_offline: bool,
    /// Files that the cluster needs and that are hidden from it.
    pub hidden: Vec<PathBuf>,
}

/// The ids that the user maps.
pub struct Ids {
    pub users: Vec<Range>,
    pub groups: Vec<Range>,
}

impl Ids {
    pub fn read() -> anyhow::Result<(Ids, String)> {
        let id = geteuid();
        let user = User::from_uid(id)?.map_or_else(|| id.to_string(), |user| user.name);
        let ranges = |path: &str| {
            let file = std::fs::read_to_string(path).unwrap_or_default();
            subordinate::ranges(&file, &user, id.as_raw())
        };
        Ok((Ids { users: ranges("/etc/subuid"), groups: ranges("/etc/subgid") }, user))
    }
}

/// Fails if something is missing, and reports what works less well. Returns whether the cluster reaches other networks.
pub fn check(is_offline: bool, files: &[&Path], progress: Progress<'_>) -> anyhow::Result<bool> {
    let facts = collect(is_offline, files)?;
    let findings = evaluate(&facts);
    if let Some(missing) = check::missing_summary(&findings) {
        bail!("a cluster without root cannot be created here: {missing}");
    }
    for finding in findings.iter().filter(|finding| finding.verdict == check::Verdict::Poor) {
        progress(&format!("without root, {} ({})", finding.found, finding.remedy));
    }
    Ok(!is_offline && facts.has_outgoing && facts.has_device)
}

fn collect(is_offline: bool, files: &[&Path]) -> anyhow::Result<Facts> {
    let (ids, user) = Ids::read()?;
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse().ok();
    let program = std::env::current_exe().context("cannot find this program")?;
    let path = enter::search_path();
    let is_there = |name: &str| check::find_in(name, &path).is_some();
    Ok(Facts {
        user,
        users: ids.users,
        groups: ids.groups,
        absent: PROGRAMS.iter().map(|(name, _)| *name).filter(|name| !is_there(name)).collect(),
        has_outgoing: is_there(OUTGOING),
        has_device: access(DEVICE, AccessFlags::R_OK | AccessFlags::W_OK).is_ok(),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim().to_owned(),
        refusal: try_namespace().err().map(|error| error.to_string()),
        apparmor: number("/proc/sys/kernel/apparmor_restrict_unprivileged_userns"),
        maximum: number("/proc/sys/user/max_user_namespaces"),
        clone: number("/proc/sys/kernel/unprivileged_userns_clone"),
        has_cgroup: cgroup::delegated().is_some(),
        is_offline,
        hidden: files
            .iter()
            .copied()
            .chain([program.as_path()])
            .filter(|path| is_hidden(path))
            .map(Into::into)
            .collect(),
    })
}

/// Fails for a file that a cluster does not see.
pub fn check_visible(path: &Path) -> anyhow::Result<()> {
    ensure!(!is_hidden(path), "{}: {HIDDEN}: move it", path.display());
    Ok(())
}

/// Whether a cluster does not see a file.
fn is_hidden(path: &Path) -> bool {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    ["/run", "/var/run", "/proc"].iter().any(|directory| path.starts_with(directory))
}

/// Creates the namespaces for a process that ends at once.
fn try_namespace() -> std::io::Result<()> {
    let mut command = Command::new("true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: unshare is a system call that touches only the child.
    unsafe {
        command.pre_exec(|| unshare(CloneFlags::CLONE_NEWUSER | CloneFlags::CLONE_NEWNET).map_err(Into::into));
    }
    command.status().map(drop)
}

fn evaluate(facts: &Facts) -> Vec<Finding> {
    let mut findings = Vec::new();
    for name in &facts.absent {
        let package = PROGRAMS.iter().find(|(program, _)| program == name).map_or(*name, |(_, package)| *package);
        findings.push(Finding::missing(*name, "not found", format!("{INSTALL}{package}")));
    }
    for (file, ranges) in [("/etc/subuid", &facts.users), ("/etc/subgid", &facts.groups)] {
        findings.extend(ids(file, &facts.user, ranges));
    }
    findings.extend(namespaces(facts));
    if release(&facts.kernel).is_some_and(|release| release < OVERLAY_KERNEL) {
        let found = format!("{} mounts no overlays for users", facts.kernel);
        findings.push(Finding::missing("the kernel", found, "use Linux 5.11 or later"));
    }
    for path in &facts.hidden {
        findings.push(Finding::missing(path.display().to_string(), HIDDEN, "move it"));
    }
    if !facts.has_cgroup {
        findings.push(Finding::poor(
            "cgroups",
            "pods have no limits of CPU and memory and no statistics: no cgroup of version 2 is delegated to this process",
            "`systemd-run --user --scope -p Delegate=yes knarr cluster …` delegates one, where systemd uses version 2",
        ));
    }
    if !facts.is_offline && !facts.has_outgoing {
        let found = format!("the cluster is offline: {OUTGOING} is not installed");
        findings.push(Finding::poor(OUTGOING, found, format!("{INSTALL}{OUTGOING}")));
    } else if !facts.is_offline && !facts.has_device {
        let found = format!("the cluster is offline: {} cannot open {DEVICE}", facts.user);
        findings.push(Finding::poor(DEVICE, found, format!("as root: modprobe tun; chmod 666 {DEVICE}")));
    }
    findings
}

fn ids(file: &str, user: &str, ranges: &[Range]) -> Option<Finding> {
    let found = match subordinate::count(ranges) {
        NEEDED.. => return None,
        0 => format!("there is no line for {user}"),
        count => format!("{user} has {count} ids, and images need {NEEDED}"),
    };
    let flag = if file.ends_with("gid") { "--add-subgids" } else { "--add-subuids" };
    let remedy = format!(
        "add a line such as {user}:100000:{NEEDED} whose ids nobody else has (as root: usermod {flag} 100000-{} {user})",
        100_000 + NEEDED - 1
    );
    Some(Finding::missing(file, found, remedy))
}

fn namespaces(facts: &Facts) -> Option<Finding> {
    let refusal = facts.refusal.as_ref()?;
    let remedy = match facts {
        Facts { maximum: Some(0), .. } => "as root: sysctl user.max_user_namespaces=10000",
        Facts { clone: Some(0), .. } => "as root: sysctl kernel.unprivileged_userns_clone=1",
        Facts { apparmor: Some(1..), .. } => {
            "give this program an AppArmor profile that allows userns, or as root: \
             sysctl kernel.apparmor_restrict_unprivileged_userns=0"
        }
        _ => "in a container or sandbox, allow user namespaces there",
    };
    Some(Finding::missing("user namespaces", format!("users cannot create them ({refusal})"), remedy))
}

/// Major and minor number of a kernel such as `6.1.0-18-amd64`.
fn release(kernel: &str) -> Option<(u32, u32)> {
    let mut numbers = kernel.split(|letter: char| !letter.is_ascii_digit()).map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> Facts {
        let enough = vec![Range { start: 100_000, count: NEEDED }];
        Facts {
            user: "ann".into(),
            users: enough.clone(),
            groups: enough,
            absent: Vec::new(),
            has_outgoing: true,
            has_device: true,
            kernel: "6.1.0-18-amd64".into(),
            refusal: None,
            apparmor: None,
            maximum: Some(100),
            clone: None,
            has_cgroup: true,
            is_offline: false,
            hidden: Vec::new(),
        }
    }

    fn summary(facts: &Facts) -> String {
        check::missing_summary(&evaluate(facts)).unwrap_or_default()
    }

    #[test]
    fn everything_is_there() {
        assert_eq!(evaluate(&facts()), []);
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        let none = Facts { users: Vec::new(), absent: vec!["newuidmap", "newgidmap"], ..facts() };
        assert_eq!(
            summary(&none),
            "newuidmap, newgidmap are missing: apt-get install uidmap; /etc/subuid: there is no line for ann: add a line such \
             as ann:100000:65536 whose ids nobody else has (as root: usermod --add-subuids 100000-165535 ann)"
        );
        let few = Facts { groups: vec![Range { start: 1, count: 10 }], ..facts() };
        assert!(summary(&few).starts_with("/etc/subgid: ann has 10 ids, and images need 65536: "), "{}", summary(&few));
        let hidden = Facts { hidden: vec!["/run/user/1/app.tar".into()], ..facts() };
        assert!(summary(&hidden).contains("/run/user/1/app.tar: it is below /run"));
        let old = Facts { kernel: "5.10.0-28-amd64".into(), ..facts() };
        assert!(summary(&old).contains("5.10.0-28-amd64 mounts no overlays"), "{}", summary(&old));
        assert_eq!(summary(&Facts { kernel: "unknown".into(), ..facts() }), "");
    }

    #[test]
    fn the_remedy_of_namespaces_is_that_of_their_cause() {
        let refused = Facts { refusal: Some("EPERM".into()), ..facts() };
        for (facts, expected) in [
            (Facts { maximum: Some(0), ..refused.clone() }, "user.max_user_namespaces"),
            (Facts { clone: Some(0), ..refused.clone() }, "kernel.unprivileged_userns_clone=1"),
            (Facts { apparmor: Some(1), ..refused.clone() }, "AppArmor"),
            (refused, "container or sandbox"),
        ] {
            assert!(summary(&facts).contains(expected), "{expected}: {}", summary(&facts));
        }
        // A profile may allow this program what others may not.
        assert_eq!(summary(&Facts { apparmor: Some(1), ..facts() }), "");
    }

    #[test]
    fn what_it_costs_is_reported_and_refuses_nothing() {
        let poor = Facts { has_cgroup: false, has_outgoing: false, ..facts() };
        assert_eq!(summary(&poor), "");
        let found: Vec<String> = evaluate(&poor).into_iter().map(|finding| finding.found).collect();
        assert!(found[0].contains("no limits") && found[1].contains("offline"), "{found:?}");
        assert_eq!(evaluate(&Facts { is_offline: true, has_outgoing: false, has_device: false, ..facts() }), []);
        let closed = evaluate(&Facts { has_device: false, ..facts() });
        assert!(closed[0].found.contains("ann cannot open /dev/net/tun"), "{closed:?}");
    }
}
