//! Ingress: routes HTTP requests from outside the cluster to services.

use std::collections::BTreeSet;

use jiff::Timestamp;
use knarr_api::cidr::parse_sloppy;
use knarr_api::field::{Errors, Path};
use knarr_api::names;
use knarr_api::value::Read;
use serde_json::{Value, json};

use crate::common::columns::{self, AGE, NAME, text};
use crate::common::{addresses, checks, formats};
use crate::kind::{Column, Context, KindRules, MetadataPasses};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const FORBIDDEN_SEQUENCES: [&str; 5] = ["//", "/./", "/../", "%2f", "%2F"];
const FORBIDDEN_ENDS: [&str; 2] = ["/..", "/."];

/// The rules of Ingress.
pub struct Ingress;

impl KindRules for Ingress {
    fn validate(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Errors {
        let mut errors = Errors::new();
        match old {
            Some(old) if context.subresource == "status" => validate_status(&mut errors, object, old),
            _ => {
                validate_spec(&mut errors, &object["spec"], &Lax::of(old));
                if old.is_none() {
                    validate_class_annotation(&mut errors, object);
                }
            }
        }
        errors
    }

    fn warnings(&self, object: &Value, old: Option<&Value>, context: &Context<'_>) -> Vec<String> {
        let mut warnings = Vec::new();
        if context.subresource == "status" {
            let path = Path::root("status.loadBalancer.ingress");
            for (index, point) in object.items(&["status", "loadBalancer", "ingress"]).iter().enumerate() {
                let address = point.text(&["ip"]);
                if !address.is_empty() {
                    warnings.extend(addresses::address_warnings(&path.index(index), address));
                }
            }
        } else if old.is_none()
            && object.has(&["metadata", "annotations", CLASS_ANNOTATION])
            && !object.has(&["spec", "ingressClassName"])
        {
            let detail = "is deprecated, please use 'spec.ingressClassName' instead";
            warnings.push(format!("annotation {CLASS_ANNOTATION:?} {detail}"));
        }
        warnings
    }

    fn metadata_passes(&self) -> MetadataPasses {
        MetadataPasses { as_update: 1, as_create: 1 }
    }

    fn has_status(&self) -> bool {
        true
    }

    fn empty_status(&self) -> Value {
        json!({"loadBalancer": {}})
    }

    fn has_generation(&self) -> bool {
        true
    }

    fn columns(&self) -> &'static [Column] {
        const CLASS: &str = "The name of the IngressClass resource that should be used for additional configuration";
        const HOSTS: &str = "Hosts that incoming requests are matched against before the ingress rule";
        const ADDRESS: &str = "Address is a list containing ingress points for the load-balancer";
        const {
            &[
                NAME,
                text("Class", "string", CLASS),
                text("Hosts", "string", HOSTS),
                text("Address", "string", ADDRESS),
                text("Ports", "string", "Ports of TLS configurations that open"),
                AGE,
            ]
        }
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let points = object.items(&["status", "loadBalancer", "ingress"]);
        let addresses: BTreeSet<&str> = points
            .iter()
            .map(|point| Some(point.text(&["ip"])).filter(|ip| !ip.is_empty()).unwrap_or(point.text(&["hostname"])))
            .filter(|address| !address.is_empty())
            .collect();
        let ports = if object.items(&["spec", "tls"]).is_empty() { "80" } else { "80, 443" };
        vec![
            columns::name(object),
            object.at(&["spec", "ingressClassName"]).as_str().unwrap_or("<none>").into(),
            hosts(object.items(&["spec", "rules"])).into(),
            addresses.into_iter().collect::<Vec<_>>().join(",").into(),
            ports.into(),
            columns::age(object, now),
        ]
    }
}

/// The violations that an update tolerates because the stored object already has them.
#[derive(Default)]
struct Lax {
    secret_names: bool,
    wildcard_rules: bool,
}

impl Lax {
    fn of(old: Option<&Value>) -> Self {
        let Some(old) = old else { return Lax::default() };
        let secrets = old.items(&["spec", "tls"]).iter().map(|tls| tls.text(&["secretName"]));
        let faulty = |rule: &Value| {
            let mut errors = Errors::new();
            validate_rule_paths(&mut errors, &Path::default(), rule);
            rule.text(&["host"]).contains('*') && !errors.is_empty()
        };
        Lax {
            secret_names: secrets.filter(|name| !name.is_empty()).any(|name| !names::dns_subdomain(name).is_empty()),
            wildcard_rules: old.items(&["spec", "rules"]).iter().any(faulty),
        }
    }
}

fn validate_spec(errors: &mut Errors, spec: &Value, lax: &Lax) {
    let path = Path::root("spec");
    let rules = spec.items(&["rules"]);
    if rules.is_empty() && !spec.has(&["defaultBackend"]) {
        errors.invalid(&path, spec["rules"].clone(), "either `defaultBackend` or `rules` must be specified");
    }
    if spec.has(&["defaultBackend"]) {
        validate_backend(errors, &path.child("defaultBackend"), &spec["defaultBackend"]);
    }
    for (index, rule) in rules.iter().enumerate() {
        validate_rule(errors, &path.item("rules", index), rule, lax);
    }
    for (index, tls) in spec.items(&["tls"]).iter().enumerate() {
        validate_tls(errors, &path.item("tls", index), tls, lax);
    }
    if let Some(class) = spec["ingressClassName"].as_str() {
        names::check(errors, &path.child("ingressClassName"), class, names::dns_subdomain);
    }
}

fn validate_class_annotation(errors: &mut Errors, object: &Value) {
    let annotation = object.at(&["metadata", "annotations", CLASS_ANNOTATION]).as_str();
    if let (Some(annotation), Some(class)) = (annotation, object.at(&["spec", "ingressClassName"]).as_str())
        && annotation != class
    {
        let annotations = Path::root("annotations");
        let detail = "must match `ingressClassName` when both are specified";
        errors.invalid(&annotations.child(CLASS_ANNOTATION), annotation, detail);
    }
}

fn validate_rule(errors: &mut Errors, path: &Path<'_>, rule: &Value, lax: &Lax) {
    let host = rule.text(&["host"]);
    let at = path.child("host");
    if !host.is_empty() {
        if parse_sloppy(host).is_some() {
            errors.invalid(&at, host, "must be a DNS name, not an IP address");
        }
        validate_host(errors, &at, host);
    }
    if !host.contains('*') || !lax.wildcard_rules {
        validate_rule_paths(errors, path, rule);
    }
}

fn validate_host(errors: &mut Errors, path: &Path<'_>, host: &str) {
    names::check(errors, path, host, if host.contains('*') { wildcard_subdomain } else { names::dns_subdomain });
}

fn validate_rule_paths(errors: &mut Errors, path: &Path<'_>, rule: &Value) {
    if !rule.has(&["http"]) {
        return;
    }
    let paths = rule.items(&["http", "paths"]);
    let at = path.child("http.paths");
    if paths.is_empty() {
        errors.required(&at, "");
    }
    for (index, item) in paths.iter().enumerate() {
        validate_path(errors, &at.index(index), item);
    }
}

fn validate_path(errors: &mut Errors, path: &Path<'_>, item: &Value) {
    let at = path.child("path");
    let text = item.text(&["path"]);
    match item["pathType"].as_str() {
        None => {
            errors.required(&path.child("pathType"), "pathType must be specified");
            return;
        }
        Some("Exact" | "Prefix") => {
            if !text.starts_with('/') {
                errors.invalid(&at, text, "must be an absolute path");
            }
            for sequence in FORBIDDEN_SEQUENCES.iter().filter(|sequence| text.contains(**sequence)) {
                errors.invalid(&at, text, format!("must not contain '{sequence}'"));
            }
            for end in FORBIDDEN_ENDS.iter().filter(|end| text.ends_with(**end)) {
                errors.invalid(&at, text, format!("cannot end with '{end}'"));
            }
        }
        Some("ImplementationSpecific") => {
            if !text.is_empty() && !text.starts_with('/') {
                errors.invalid(&at, text, "must be an absolute path");
            }
        }
        Some(other) => {
            let known = ["Exact", "ImplementationSpecific", "Prefix"];
            errors.not_supported(&path.child("pathType"), other, &known);
        }
    }
    validate_backend(errors, &path.child("backend"), &item["backend"]);
}

fn validate_backend(errors: &mut Errors, path: &Path<'_>, backend: &Value) {
    match (backend.has(&["resource"]), backend.has(&["service"])) {
        (true, true) => errors.invalid(path, "", "cannot set both resource and service backends"),
        (true, false) => validate_resource(errors, &path.child("resource"), &backend["resource"]),
        (false, true) => validate_service(errors, path, &backend["service"]),
        (false, false) => errors.invalid(path, "", "resource or service backend is required"),
    }
}

fn validate_resource(errors: &mut Errors, path: &Path<'_>, reference: &Value) {
    if let Some(group) = reference["apiGroup"].as_str() {
        names::check(errors, &path.child("apiGroup"), group, names::dns_subdomain);
    }
    for field in ["kind", "name"] {
        checks::required_name(errors, &path.child(field), reference.text(&[field]), names::path_segment);
    }
}

fn validate_service(errors: &mut Errors, path: &Path<'_>, service: &Value) {
    let name = service.text(&["name"]);
    checks::required_name(errors, &path.child("service.name"), name, names::dns_label);
    let port_name = service.text(&["port", "name"]);
    match (port_name.is_empty(), service.integer(&["port", "number"]).unwrap_or(0)) {
        (true, 0) => errors.required(path, "port name or number is required"),
        (true, number) => formats::port_number(errors, &path.child("service.port.number"), number),
        (false, 0) => names::check(errors, &path.child("service.port.name"), port_name, formats::port_name),
        (false, _) => errors.invalid(path, "", "cannot set both port name & port number"),
    }
}

fn validate_tls(errors: &mut Errors, path: &Path<'_>, tls: &Value, lax: &Lax) {
    for (index, host) in tls.items(&["hosts"]).iter().enumerate() {
        validate_host(errors, &path.item("hosts", index), host.as_str().unwrap_or_default());
    }
    let secret = tls.text(&["secretName"]);
    if !lax.secret_names && !secret.is_empty() {
        names::check(errors, &path.child("secretName"), secret, names::dns_subdomain);
    }
}

fn validate_status(errors: &mut Errors, object: &Value, old: &Value) {
    let points = ["status", "loadBalancer", "ingress"];
    let known: Vec<&str> =
        old.items(&points).iter().map(|point| point.text(&["ip"])).filter(|ip| !ip.is_empty()).collect();
    let path = Path::root("status.loadBalancer");
    for (index, point) in object.items(&points).iter().enumerate() {
        let path = path.item("ingress", index);
        let (address, host) = (point.text(&["ip"]), point.text(&["hostname"]));
        if !address.is_empty() {
            addresses::legacy_address(errors, &path.child("ip"), address, &known);
        }
        if !host.is_empty() {
            let path = path.child("hostname");
            names::check(errors, &path, host, names::dns_subdomain);
            if parse_sloppy(host).is_some() {
                errors.invalid(&path, host, "must be a DNS name, not an IP address");
            }
        }
    }
}

/// Validates a wildcard host such as `*.example.com`.
fn wildcard_subdomain(name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    if name.len() > 253 {
        wrong.push(names::too_long(253));
    }
    if !name.strip_prefix("*.").is_some_and(names::is_subdomain) {
        let label = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
        wrong.push(format!(
            "a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of \
             lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. \
             '*.example.com', regex used for validation is '\\*\\.{label}(\\.{label})*')"
        ));
    }
    wrong
}

/// Renders the first three hosts. Rules without a host count only among those left out.
fn hosts(rules: &[Value]) -> String {
    const MAX_HOSTS: usize = 3;
    let mut list: Vec<&str> = Vec::new();
    let mut more = false;
    for host in rules.iter().map(|rule| rule.text(&["host"])) {
        more |= list.len() == MAX_HOSTS;
        if !more && !host.is_empty() {
            list.push(host);
        }
    }
    match (list.is_empty(), more) {
        (true, _) => "*".to_owned(),
        (false, false) => list.join(","),
        (false, true) => format!("{} + {} more...", list.join(","), rules.len() - MAX_HOSTS),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::messages;

    fn ingress(path: Value) -> Value {
        json!({"spec": {"rules": [{"host": "example.com", "http": {"paths": [path]}}]}})
    }

    #[test]
    fn wrong_rules_are_reported() {
        let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
        for (object, wrong) in [
            (ingress(json!({"path": "/", "pathType": "Prefix", "backend": backend})), vec![]),
            (
                json!({"spec": {}}),
                vec!["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"],
            ),
            (
                ingress(json!({"path": "/", "backend": backend})),
                vec!["spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified"],
            ),
            (
                ingress(json!({"path": "a//b/..", "pathType": "Exact", "backend": {}})),
                vec![
                    "spec.rules[0].http.paths[0].path: Invalid value: \"a//b/..\": must be an absolute path",
                    "spec.rules[0].http.paths[0].path: Invalid value: \"a//b/..\": must not contain '//'",
                    "spec.rules[0].http.paths[0].path: Invalid value: \"a//b/..\": cannot end with '/..'",
                    "spec.rules[0].http.paths[0].backend: Invalid value: \"\": resource or service backend is required",
                ],
            ),
            (
                json!({"spec": {"defaultBackend": {"service": {"name": "s", "port": {}}}, "rules": [{"host": "1.2.3.4"}]}}),
                vec![
                    "spec.defaultBackend: Required value: port name or number is required",
                    "spec.rules[0].host: Invalid value: \"1.2.3.4\": must be a DNS name, not an IP address",
                ],
            ),
        ] {
            assert_eq!(messages(&Ingress, &object, None), wrong);
        }
    }

    #[test]
    fn hosts_are_counted_as_tables_do() {
        let rule = |host: &str| json!({"host": host});
        for (rules, rendered) in [
            (vec![], "*"),
            (vec![rule("a"), rule("")], "a"),
            (vec![rule("a"), rule("b"), rule("c"), rule("d")], "a,b,c + 1 more..."),
        ] {
            assert_eq!(hosts(&rules), rendered);
        }
    }
}
