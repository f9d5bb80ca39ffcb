//! ServiceCIDR: the ranges from which cluster IPs are allocated.

use jiff::Timestamp;
use knarr_api::cidr::parse_network_sloppy;
use knarr_api::field::{Errors, Path};
use knarr_api::value::Read;
use serde_json::Value;

use crate::common::addresses;
use crate::common::checks::IMMUTABLE;
use crate::common::columns::{self, AGE, NAME, field};
use crate::common::go_json::struct_json;
use crate::kind::{Column, Context, KindRules};

/// The rules of ServiceCidr.
pub struct ServiceCidr;

impl KindRules for ServiceCidr {
    fn status_update_keeps_metadata(&self) -> bool {
        true
    }

    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        match old {
            Some(_) if context.subresource == "status" => {}
            Some(old) => validate_change(&mut errors, object, old),
            None => validate_ranges(&mut errors, object),
        }
        errors
    }

    fn has_status(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const { &[NAME, field("CIDRs", "string", "io.k8s.api.networking.v1.ServiceCIDRSpec", "cidrs"), AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![columns::name(object), ranges(object).join(",").into(), columns::age(object, now)]
    }
}

fn ranges(object: &Value) -> Vec<&str> {
    object.items(&["spec", "cidrs"]).iter().filter_map(Value::as_str).collect()
}

fn validate_ranges(errors: &mut Errors, object: &Value) {
    let path = Path::root("spec.cidrs");
    let ranges = ranges(object);
    if ranges.is_empty() {
        errors.required(&path, "at least one CIDR required");
        return;
    }
    let rendered = object["spec"]["cidrs"].clone();
    if ranges.len() > 2 {
        errors.invalid_verbatim(&path, struct_json(&[("CIDRs", rendered)]), "may only hold up to 2 values");
        return;
    }
    for (index, range) in ranges.iter().enumerate() {
        addresses::canonical_range(errors, &path.index(index), range);
    }
    let families: Vec<Option<bool>> =
        ranges.iter().map(|range| parse_network_sloppy(range).map(|(_, range)| range.is_ipv4())).collect();
    if let [Some(one), Some(other)] = families.as_slice()
        && one == other
    {
        let detail = "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64";
        errors.invalid(&path, rendered, detail);
    }
}

/// Ranges are immutable, but a second one of the other IP family may be added.
fn validate_change(errors: &mut Errors, object: &Value, old: &Value) {
    let path = Path::root("spec.cidrs");
    let (new, old) = (ranges(object), ranges(old));
    match (old.len(), new.len()) {
        (before, after) if before == after => {
            for (index, (new, _)) in new.iter().zip(&old).enumerate().filter(|(_, (new, old))| new != old) {
                errors.invalid(&path.index(index), *new, IMMUTABLE);
            }
        }
        (1, 2) => {
            if new[0] != old[0] {
                errors.invalid(&path.index(0), new[0], IMMUTABLE);
            }
            validate_ranges(errors, object);
        }
        _ => errors.invalid(&path, object["spec"]["cidrs"].clone(), IMMUTABLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;
    use serde_json::json;

    #[test]
    fn ranges_are_checked_and_stay() {
        let of = |ranges: &[&str]| json!({"spec": {"cidrs": ranges}});
        let one = of(&["10.0.0.0/24"]);
        for (object, old, wrong) in [
            (one.clone(), None, vec![]),
            (of(&[]), None, vec!["spec.cidrs: Required value: at least one CIDR required"]),
            (
                of(&["10.0.0.0/24", "10.1.0.0/24"]),
                None,
                vec![
                    "spec.cidrs: Invalid value: [\"10.0.0.0/24\",\"10.1.0.0/24\"]: may specify no more than one IP for each \
                     IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
                ],
            ),
            (of(&["10.0.0.0/24", "fd00::/64"]), Some(&one), vec![]),
            (
                of(&["10.1.0.0/24"]),
                Some(&one),
                vec!["spec.cidrs[0]: Invalid value: \"10.1.0.0/24\": field is immutable"],
            ),
        ] {
            assert_eq!(messages(&ServiceCidr, &object, old), wrong);
        }
    }
}
