//! NetworkPolicy: the traffic that pods may send and receive.

use jiff::Timestamp;
use knarr_api::cidr::parse_network_sloppy;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::{Read, Write};
use serde_json::{Value, json};

use crate::common::addresses;
use crate::common::columns::{self, AGE, NAME, field};
use crate::common::{checks, formats, label_selector};
use crate::kind::{Column, Context, KindRules};

/// The lists of rules, and the field of the peers in each.
const DIRECTIONS: [(&str, &str); 2] = [("ingress", "from"), ("egress", "to")];

/// The rules of NetworkPolicy.
pub struct NetworkPolicy;

impl KindRules for NetworkPolicy {
    fn set_defaults(&self, object: &mut Value, _version: &str) {
        for (rules, _) in DIRECTIONS {
            for rule in object.items_mut(&["spec", rules]) {
                for port in rule.items_mut(&["ports"]) {
                    port.set_default(&["protocol"], "TCP");
                }
            }
        }
        if object.items(&["spec", "policyTypes"]).is_empty() {
            let both = !object.items(&["spec", "egress"]).is_empty();
            object.set(&["spec", "policyTypes"], if both { json!(["Ingress", "Egress"]) } else { json!(["Ingress"]) });
        }
    }

    fn validate(&self, object: &Value, old: Option<&Value>, _context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        let path = Path::root("spec");
        let spec = &object["spec"];
        let known = Known {
            lax_selectors: old.is_some_and(|old| label_selector::is_invalid(old.at(&["spec", "podSelector"]))),
            ranges: old.map(|old| ranges(&old["spec"])).unwrap_or_default(),
        };
        label_selector::validate(&mut errors, &path.child("podSelector"), &spec["podSelector"], known.lax_selectors);
        for (rules, peers) in DIRECTIONS {
            for (index, rule) in spec.items(&[rules]).iter().enumerate() {
                let path = path.item(rules, index);
                for (index, port) in rule.items(&["ports"]).iter().enumerate() {
                    validate_port(&mut errors, &path.item("ports", index), port);
                }
                for (index, peer) in rule.items(&[peers]).iter().enumerate() {
                    validate_peer(&mut errors, &path.item(peers, index), peer, &known);
                }
            }
        }
        validate_types(&mut errors, &path, spec);
        errors
    }

    fn warnings(&self, object: &Value, _old: Option<&Value>, _context: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        let path = Path::root("spec");
        for (rules, peers) in DIRECTIONS {
            for (i, rule) in object.items(&["spec", rules]).iter().enumerate() {
                let path = path.item(rules, i);
                for (j, peer) in rule.items(&[peers]).iter().enumerate().filter(|(_, peer)| peer.has(&["ipBlock"])) {
                    let path = path.item(peers, j);
                    let path = path.child("ipBlock");
                    let block = &peer["ipBlock"];
                    warnings.extend(addresses::range_warnings(&path.child("cidr"), block.text(&["cidr"])));
                    for (k, except) in block.items(&["except"]).iter().enumerate() {
                        let except = except.as_str().unwrap_or_default();
                        warnings.extend(addresses::range_warnings(&path.item("except", k), except));
                    }
                }
            }
        }
        warnings
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const SPEC: &str = "io.k8s.api.networking.v1.NetworkPolicySpec";
        const { &[NAME, field("Pod-Selector", "string", SPEC, "podSelector"), AGE] }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let everything = json!({});
        let selector = object["spec"].get("podSelector").unwrap_or(&everything);
        vec![columns::name(object), label_selector::display(selector).into(), columns::age(object, now)]
    }
}

/// The violations that an update tolerates because the stored object already has them.
struct Known<'a> {
    lax_selectors: bool,
    ranges: Vec<&'a str>,
}

/// Returns all CIDRs in a policy.
fn ranges(spec: &Value) -> Vec<&str> {
    let mut ranges = Vec::new();
    for (rules, peers) in DIRECTIONS {
        for peer in spec.items(&[rules]).iter().flat_map(|rule| rule.items(&[peers])) {
            if peer.has(&["ipBlock"]) {
                ranges.push(peer.text(&["ipBlock", "cidr"]));
                ranges.extend(peer.items(&["ipBlock", "except"]).iter().filter_map(Value::as_str));
            }
        }
    }
    ranges
}

fn validate_port(errors: &mut Errors, path: &Path<'_>, port: &Value) {
    if let Some(protocol) = port["protocol"].as_str() {
        checks::one_of(errors, &path.child("protocol"), protocol, &["TCP", "UDP", "SCTP"]);
    }
    let end = port.integer(&["endPort"]);
    let end_at = path.child("endPort");
    match &port["port"] {
        Value::Null => {
            if let Some(end) = end {
                errors.invalid(&end_at, end, "may not be specified when `port` is not specified");
            }
        }
        Value::String(name) => {
            if let Some(end) = end {
                errors.invalid(&end_at, end, "may not be specified when `port` is non-numeric");
            }
            names::check(errors, &path.child("port"), name, formats::port_name);
        }
        number => {
            let number = number.as_i64().unwrap_or(0);
            formats::port_number(errors, &path.child("port"), number);
            if let Some(end) = end {
                if end < number {
                    errors.invalid(&end_at, number, "must be greater than or equal to `port`");
                }
                formats::port_number(errors, &end_at, end);
            }
        }
    }
}

fn validate_peer(errors: &mut Errors, path: &Path<'_>, peer: &Value, known: &Known<'_>) {
    let mut peers = 0;
    for selector in ["podSelector", "namespaceSelector"] {
        if peer.has(&[selector]) {
            peers += 1;
            label_selector::validate(errors, &path.child(selector), &peer[selector], known.lax_selectors);
        }
    }
    if peer.has(&["ipBlock"]) {
        validate_block(errors, &path.child("ipBlock"), &peer["ipBlock"], known);
        if peers > 0 {
            errors.forbidden(path, "may not specify both ipBlock and another peer");
        }
    } else if peers == 0 {
        errors.required(path, "must specify a peer");
    }
}

fn validate_block(errors: &mut Errors, path: &Path<'_>, block: &Value, known: &Known<'_>) {
    let cidr = block.text(&["cidr"]);
    if cidr.is_empty() {
        errors.required(&path.child("cidr"), "");
        return;
    }
    addresses::legacy_range(errors, &path.child("cidr"), cidr, &known.ranges);
    let Some((_, whole)) = parse_network_sloppy(cidr) else { return };
    for (index, except) in block.items(&["except"]).iter().enumerate() {
        let except = except.as_str().unwrap_or_default();
        let path = path.item("except", index);
        addresses::legacy_range(errors, &path, except, &known.ranges);
        let Some((_, part)) = parse_network_sloppy(except) else { continue };
        if !whole.covers(&part) || whole == part {
            errors.invalid(&path, except, "must be a strict subset of `cidr`");
        }
    }
}

fn validate_types(errors: &mut Errors, path: &Path<'_>, spec: &Value) {
    let types = spec.items(&["policyTypes"]);
    if types.len() > DIRECTIONS.len() {
        let at = path.child("policyTypes");
        errors.invalid(&at, spec["policyTypes"].clone(), "may not specify more than two policyTypes");
        return;
    }
    for (index, kind) in types.iter().enumerate() {
        let kind = kind.as_str().unwrap_or_default();
        checks::one_of(errors, &path.item("policyTypes", index), kind, &["Ingress", "Egress"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{defaulted, messages};

    fn policy(rule: Value) -> Value {
        defaulted(&NetworkPolicy, json!({"spec": {"podSelector": {}, "ingress": [rule]}}))
    }

    #[test]
    fn defaults_are_set() {
        let object = policy(json!({"ports": [{"port": 80}]}));
        assert_eq!(object["spec"]["policyTypes"], json!(["Ingress"]));
        assert_eq!(object["spec"]["ingress"][0]["ports"][0]["protocol"], "TCP");
    }

    #[test]
    fn wrong_rules_are_reported() {
        for (rule, wrong) in [
            (json!({"from": [{"podSelector": {}, "namespaceSelector": {}}]}), vec![]),
            (json!({"from": [{}]}), vec!["spec.ingress[0].from[0]: Required value: must specify a peer"]),
            (
                json!({"from": [{"podSelector": {}, "ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/9"]}}]}),
                vec![
                    "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"11.0.0.0/9\": must be a strict subset of `cidr`",
                    "spec.ingress[0].from[0]: Forbidden: may not specify both ipBlock and another peer",
                ],
            ),
            (
                json!({"ports": [{"port": 90, "endPort": 80}, {"endPort": 1}, {"port": "x", "endPort": 2, "protocol": "ICMP"}]}),
                vec![
                    "spec.ingress[0].ports[0].endPort: Invalid value: 90: must be greater than or equal to `port`",
                    "spec.ingress[0].ports[1].endPort: Invalid value: 1: may not be specified when `port` is not specified",
                    "spec.ingress[0].ports[2].protocol: Unsupported value: \"ICMP\": supported values: \"TCP\", \"UDP\", \"SCTP\"",
                    "spec.ingress[0].ports[2].endPort: Invalid value: 2: may not be specified when `port` is non-numeric",
                ],
            ),
        ] {
            assert_eq!(messages(&NetworkPolicy, &policy(rule), None), wrong);
        }
    }
}
