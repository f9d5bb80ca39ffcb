//! The commands that create and end sessions with iSCSI targets.

use std::collections::BTreeMap;

use super::host::Command;
use super::iscsi::{Chap, Unit};
use super::step::Step;

/// `iscsiadm` has such a session already.
const SESSION_EXISTS: i32 = 15;
/// There is no such session, or no record of one.
const NOTHING_FOUND: &[i32] = &[2, 21];

const DISCOVERY_KEYS: [&str; 4] = [
    "discovery.sendtargets.auth.username",
    "discovery.sendtargets.auth.password",
    "discovery.sendtargets.auth.username_in",
    "discovery.sendtargets.auth.password_in",
];
const SESSION_KEYS: [&str; 4] = [
    "node.session.auth.username",
    "node.session.auth.password",
    "node.session.auth.username_in",
    "node.session.auth.password_in",
];

fn iscsiadm(arguments: &[&str]) -> Command {
    Command::new("iscsiadm", arguments.iter().copied())
}

/// Discovers the target and logs in.
pub fn log_in_steps(unit: &Unit, chap: &Chap, portal: &str) -> Vec<Step> {
    let interface = unit.interface.as_str();
    let discovery = ["-m", "discoverydb", "-t", "sendtargets", "-p", portal, "-I", interface];
    let node = ["-m", "node", "-p", portal, "-T", unit.target.as_str(), "-I", interface];
    let on = |base: &[&str], more: &[&str]| iscsiadm(&[base, more].concat());
    let update = |base: &[&str], key: &str, value: &str| on(base, &["-o", "update", "-n", key, "-v", value]);

    let mut steps = vec![Step::optional(on(&discovery, &["-o", "new"]))];
    if chap.discovery {
        let failed = format!("iscsi: failed to update discoverydb to portal {portal} error: ");
        steps.push(Step::required(
            update(&discovery, "discovery.sendtargets.auth.authmethod", "CHAP"),
            format!("{failed}iscsi: failed to update discoverydb with CHAP, output: {{output}}"),
        ));
        steps.extend(chap.values(DISCOVERY_KEYS).map(|(key, value)| Step {
            is_secret: true,
            ..Step::required(
                update(&discovery, key, value),
                format!("{failed}iscsi: failed to update discoverydb key \"{key}\" error: {{status}}"),
            )
        }));
    }
    steps.push(Step {
        undo: Some(on(&discovery, &["-o", "delete"])),
        ..Step::required(
            on(&discovery, &["--discover"]),
            format!("iscsi: failed to sendtargets to portal {portal} output: {{output}}, err {{status}}"),
        )
    });
    // Only the unit of the volume is scanned: others could be removed by the target without notice. Old versions of
    // the tool do not know the setting.
    steps.push(Step::optional(update(&node, "node.session.scan", "manual")));
    if chap.session {
        let failed = format!("iscsi: failed to update iscsi node to portal {portal} error: ");
        steps.push(Step::required(
            update(&node, "node.session.auth.authmethod", "CHAP"),
            format!("{failed}iscsi: failed to update node with CHAP, output: {{output}}"),
        ));
        steps.extend(chap.values(SESSION_KEYS).map(|(key, value)| Step {
            is_secret: true,
            ..Step::required(
                update(&node, key, value),
                format!("{failed}iscsi: failed to update node session key \"{key}\" error: {{status}}"),
            )
        }));
    }
    steps.push(Step {
        accepted: &[SESSION_EXISTS],
        undo: Some(on(&node, &["-o", "delete"])),
        ..Step::required(on(&node, &["--login"]), "iscsi: failed to attach disk: Error: {output} ({status})")
    });
    // A host that boots does not wait for the target.
    steps.push(Step::optional(update(&node, "node.startup", "manual")));
    steps
}

/// Ends the sessions with all portals. Repeating it does no harm.
pub fn log_out_steps(unit: &Unit) -> Vec<Step> {
    // Without the tool there never was a session.
    let step = |command, failure: &str| Step {
        accepted: NOTHING_FOUND,
        may_be_missing: true,
        ..Step::required(command, failure)
    };
    let mut steps = Vec::new();
    for portal in &unit.portals {
        let node = ["-m", "node", "-p", portal.as_str(), "-T", unit.target.as_str(), "-I", unit.interface.as_str()];
        steps.push(step(
            iscsiadm(&[&node[..], &["--logout"]].concat()),
            "iscsi: failed to log out of the target: {output} ({status})",
        ));
        steps.push(step(
            iscsiadm(&[&node[..], &["-o", "delete"]].concat()),
            "iscsi: failed to delete the node record: {output} ({status})",
        ));
    }
    if unit.clone_of.is_some() {
        steps.push(step(
            iscsiadm(&["-m", "iface", "-I", unit.interface.as_str(), "-o", "delete"]),
            "iscsi: failed to delete the interface: {output} ({status})",
        ));
    }
    steps
}

/// Prints the settings of an interface.
pub fn show_interface(name: &str) -> Step {
    Step::required(
        iscsiadm(&["-m", "iface", "-I", name, "-o", "show"]),
        "iscsi: failed to show iface records: {output} ({status})",
    )
}

/// Creates an interface with the settings of another one and its own name of the initiator.
pub fn interface_steps(name: &str, initiator: &str, shown: &str) -> Result<Vec<Step>, String> {
    let mut settings = parse_interface(shown)?;
    settings.insert("iface.initiatorname", initiator);
    let mut steps = vec![Step {
        accepted: &[SESSION_EXISTS],
        ..Step::required(
            iscsiadm(&["-m", "iface", "-I", name, "-o", "new"]),
            "iscsi: failed to create new iface: {output} ({status})",
        )
    }];
    steps.extend(settings.into_iter().map(|(key, value)| Step {
        undo: Some(iscsiadm(&["-m", "iface", "-I", name, "-o", "delete"])),
        ..Step::required(
            iscsiadm(&["-m", "iface", "-I", name, "-o", "update", "-n", key, "-v", value]),
            "iscsi: failed to update iface records: {output} ({status})",
        )
    }));
    Ok(steps)
}

/// The settings that have a value, but for the interface's own name, which cannot be changed.
fn parse_interface(shown: &str) -> Result<BTreeMap<&str, &str>, String> {
    let mut settings = BTreeMap::new();
    for line in shown.lines().filter(|line| line.starts_with("iface.") && !line.contains("<empty>")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [key, "=", value] = words[..] else {
            return Err(format!("iscsi: failed to parse iface records: error: invalid iface setting: {line}"));
        };
        if key != "iface.iscsi_ifacename" {
            settings.insert(key, value);
        }
    }
    Ok(settings)
}

impl Chap {
    fn values<'a>(&'a self, keys: [&'a str; 4]) -> impl Iterator<Item = (&'a str, &'a str)> {
        keys.into_iter()
            .filter_map(|key| Some((key, self.secret.get(key)?.as_str())).filter(|(_, value)| !value.is_empty()))
    }
}
