//! The IP families of a Service: the requested ones, or defaults from the ranges of the cluster.

use knarr_api::field::{Errors, Path};
use knarr_api::status::Status;
use knarr_api::value::{Read, Write as _};
use knarr_rules::core::service::validate_cluster_ips;
use serde_json::{Value, json};

use super::{SERVICE, is_external, texts};

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    V4,
    V6,
}

impl Family {
    pub fn parse(name: &str) -> Option<Family> {
        match name {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Family::V4 => "IPv4",
            Family::V6 => "IPv6",
        }
    }

    /// The family of an address or a range.
    pub fn of(address: &str) -> Family {
        if address.contains(':') { Family::V6 } else { Family::V4 }
    }

    fn other(self) -> Family {
        match self {
            Family::V4 => Family::V6,
            Family::V6 => Family::V4,
        }
    }

    /// The families of the cluster's ranges; the first is the default.
    pub fn of_ranges(ranges: &[String]) -> Vec<Family> {
        let mut families = Vec::new();
        for family in ranges.iter().map(|range| Family::of(range)) {
            if !families.contains(&family) {
                families.push(family);
            }
        }
        families
    }
}

const SINGLE: &str = "SingleStack";
const REQUIRE: &str = "RequireDualStack";

/// Sets the default policy and families of a Service, or refuses families that the cluster does not have.
pub fn set_defaults(service: &mut Value, old: Option<&Value>, offered: &[Family]) -> Result<(), Status> {
    if is_external(service) || unchanged_preference(service, old) {
        return Ok(());
    }
    let headless = service.text(&["spec", "clusterIP"]) == "None";
    let unselected = headless && service.fields(&["spec", "selector"]).is_none_or(|selector| selector.is_empty());
    if !service.has(&["spec", "ipFamilyPolicy"]) {
        let policy = match old.map(|old| old.text(&["spec", "ipFamilyPolicy"])).filter(|policy| !policy.is_empty()) {
            Some(policy) => policy,
            None if unselected => REQUIRE,
            None => SINGLE,
        };
        service.set(&["spec", "ipFamilyPolicy"], policy);
    }
    let policy = service.text(&["spec", "ipFamilyPolicy"]).to_owned();
    let mut errors = Errors::new();
    validate_cluster_ips(&mut errors, service, old, &Path::root("spec"));
    if !errors.is_empty() {
        return Err(Status::invalid(SERVICE, service.text(&["metadata", "name"]), &errors));
    }
    if let Some(old) = old {
        check_reduction(service, old, &policy)?;
    }
    let ips = texts(service, "clusterIPs");
    let mut families = texts(service, "ipFamilies");
    check_single(service, &policy, &ips, &families)?;
    for (index, ip) in ips.iter().enumerate().take_while(|(_, ip)| *ip != "None") {
        let family = Family::of(ip);
        if index >= families.len() {
            if !offered.contains(&family) {
                let why = format!("{} is not configured on this cluster", family.name());
                return refuse(service, |errors, spec| {
                    errors.invalid(&spec.item("clusterIPs", index), json!(ips), why)
                });
            }
            families.push(family.name().to_owned());
        }
    }
    let default = offered.first().copied().unwrap_or(Family::V4);
    if unselected {
        if families.is_empty() {
            families.push(default.name().to_owned());
        }
        if families.len() < 2 && policy != SINGLE {
            families.extend(Family::parse(&families[0]).map(|family| family.other().name().to_owned()));
        }
        service.set(&["spec", "ipFamilies"], families);
        return Ok(());
    }
    let is_missing = |family: &String| Family::parse(family).is_some_and(|family| !offered.contains(&family));
    let lacks_second = policy == REQUIRE && offered.len() < 2;
    if lacks_second || families.iter().any(is_missing) {
        return refuse(service, |errors, spec| {
            if lacks_second {
                let why = "this cluster is not configured for dual-stack services";
                errors.invalid(&spec.child("ipFamilyPolicy"), policy.as_str(), why);
            }
            for (index, family) in families.iter().enumerate().filter(|(_, family)| is_missing(family)) {
                errors.invalid(&spec.item("ipFamilies", index), family.as_str(), "not configured on this cluster");
            }
        });
    }
    if families.is_empty() {
        families.push(default.name().to_owned());
    }
    if policy != SINGLE && families.len() == 1 && offered.len() == 2 {
        families.extend(Family::parse(&families[0]).map(|family| family.other().name().to_owned()));
    }
    service.set(&["spec", "ipFamilies"], families);
    Ok(())
}

/// A Service that prefers two families keeps its families while nothing else about them changes.
fn unchanged_preference(service: &Value, old: Option<&Value>) -> bool {
    let Some(old) = old else { return false };
    service.text(&["spec", "ipFamilyPolicy"]) == "PreferDualStack"
        && ["type", "ipFamilyPolicy", "clusterIP", "clusterIPs", "ipFamilies"]
            .iter()
            .all(|field| service.at(&["spec", field]) == old.at(&["spec", field]))
}

/// The second family is released only with the policy SingleStack.
fn check_reduction(service: &mut Value, old: &Value, policy: &str) -> Result<(), Status> {
    for (field, what) in [("clusterIPs", "secondary cluster IP"), ("ipFamilies", "secondary IP family")] {
        let (new_values, old_values) = (texts(service, field), texts(old, field));
        if policy == SINGLE {
            if new_values == old_values && new_values.len() > 1 {
                service.set(&["spec", field], json!([new_values[0]]));
            }
        } else if !new_values.is_empty() && new_values.len() < old_values.len() && old_values.starts_with(&new_values) {
            let why = format!("must be 'SingleStack' to release the {what}");
            return refuse(service, |errors, spec| errors.invalid(&spec.child("ipFamilyPolicy"), policy, why));
        }
    }
    Ok(())
}

fn check_single(service: &Value, policy: &str, ips: &[String], families: &[String]) -> Result<(), Status> {
    if policy != SINGLE {
        return Ok(());
    }
    for (count, what) in [(ips.len(), "cluster IPs"), (families.len(), "IP families")] {
        if count == 2 {
            let why = format!("must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified");
            return refuse(service, |errors, spec| errors.invalid(&spec.child("ipFamilyPolicy"), policy, why));
        }
    }
    Ok(())
}

fn refuse(service: &Value, add: impl FnOnce(&mut Errors, &Path<'_>)) -> Result<(), Status> {
    let mut errors = Errors::new();
    add(&mut errors, &Path::root("spec"));
    Err(Status::invalid(SERVICE, service.text(&["metadata", "name"]), &errors))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_depend_on_the_policy() {
        let both = [Family::V4, Family::V6];
        for (spec, offered, policy, families) in [
            (json!({"type": "ClusterIP"}), &both[..1], "SingleStack", json!(["IPv4"])),
            (
                json!({"type": "ClusterIP", "clusterIP": "None", "clusterIPs": ["None"]}),
                &both[..1],
                "RequireDualStack",
                json!(["IPv4", "IPv6"]),
            ),
            (
                json!({"clusterIP": "None", "clusterIPs": ["None"], "selector": {"a": "b"}}),
                &both[..1],
                "SingleStack",
                json!(["IPv4"]),
            ),
            (json!({"ipFamilyPolicy": "PreferDualStack"}), &both[..1], "PreferDualStack", json!(["IPv4"])),
            (json!({"ipFamilyPolicy": "PreferDualStack"}), &both[..], "PreferDualStack", json!(["IPv4", "IPv6"])),
            (json!({"clusterIP": "fd00::1", "clusterIPs": ["fd00::1"]}), &both[..], "SingleStack", json!(["IPv6"])),
        ] {
            let mut service = json!({"metadata": {"name": "s"}, "spec": spec});
            set_defaults(&mut service, None, offered).unwrap();
            assert_eq!(service["spec"]["ipFamilyPolicy"], policy, "{service}");
            assert_eq!(service["spec"]["ipFamilies"], families, "{service}");
        }
        let mut service = json!({"metadata": {"name": "s"}, "spec": {"ipFamilyPolicy": "RequireDualStack"}});
        assert!(set_defaults(&mut service, None, &both[..1]).is_err());
    }
}
