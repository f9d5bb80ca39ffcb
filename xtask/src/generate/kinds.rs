//! The built-in kinds with their verbs and subresources, from discovery. By hand: priorities and where a kind is stored.

use std::collections::HashMap;

use anyhow::Context as _;
use serde_json::Value;

use super::Facts;
use super::facts::{array, items, text, texts};

const HEADER: &str = "\
# The built-in kinds, in the order discovery shows them. Written by `cargo xtask generate`.
#
# group NAME PRIORITY
# version NAME PRIORITY
# PLURAL SINGULAR KIND namespaced|cluster VERBS TYPE [short=A,B] [categories=A,B] [store=PREFIX] [as=GROUP/VERSION]
#   SUBRESOURCE [GROUP/VERSION/]KIND VERBS
#
# \"all\" stands for all eight verbs, \"core\" for the group without a name. A kind without \"store\" is never stored.
# PREFIX lies below /registry/; \"as\" names the stored version, where it is not the one of the line.
";
const ALL_VERBS: &str = "create,delete,deletecollection,get,list,patch,update,watch";

const OPTIONAL_HEADER: &str = "\
# The built-in kinds of versions that are served only when asked for. Written by `cargo xtask generate`.
#
# As in kinds.txt, with two more words: \"gate=NAME\", the feature gate without which the kind is not served, and \"absent\" for
# a kind that Kubernetes serves and this program does not.
";

/// Facts about the catalogue that no API publishes.
struct ByHand {
    /// By `GROUP` and `GROUP/VERSION`.
    priorities: HashMap<String, String>,
    /// By `GROUP/PLURAL` and, where versions differ, `GROUP/VERSION/PLURAL`: the words that follow.
    storage: HashMap<String, String>,
}

impl ByHand {
    fn read(facts: &Facts) -> anyhow::Result<Self> {
        let split = |line: String| line.split_once(' ').map(|(key, rest)| (key.to_owned(), rest.to_owned()));
        Ok(Self {
            priorities: facts.by_hand("priorities.txt")?.into_iter().filter_map(split).collect(),
            storage: facts.by_hand("storage.txt")?.into_iter().filter_map(split).collect(),
        })
    }

    fn priority(&self, key: &str) -> anyhow::Result<&str> {
        let found = self.priorities.get(key).map(String::as_str);
        found.with_context(|| format!("xtask/facts/priorities.txt has no line for {key}"))
    }
}

pub fn generate(facts: &Facts) -> anyhow::Result<String> {
    let by_hand = ByHand::read(facts)?;
    let mut lines = Vec::new();
    for document in ["discovery-api.json", "discovery-apis.json"] {
        for group in items(&facts.json(document)?)? {
            let name = group["metadata"]["name"].as_str().unwrap_or("core");
            lines.push(format!("\ngroup {name} {}", by_hand.priority(name)?));
            for version in array(group, "versions")? {
                add_version(name, version, &by_hand, &mut lines)?;
            }
        }
    }
    Ok(HEADER.to_owned() + &lines.join("\n") + "\n")
}

/// The kinds of the versions that are not served by default.
pub fn optional(facts: &Facts) -> anyhow::Result<String> {
    let by_hand = ByHand::read(facts)?;
    let mut lines = Vec::new();
    for group in items(&facts.condensed("discovery.json")?)? {
        let name = text(&group["metadata"], "name")?;
        lines.push(format!("\ngroup {name} {}", by_hand.priority(name)?));
        for version in array(group, "versions")? {
            add_version(name, version, &by_hand, &mut lines)?;
        }
    }
    Ok(OPTIONAL_HEADER.to_owned() + &lines.join("\n") + "\n")
}

fn add_version(group: &str, version: &Value, by_hand: &ByHand, lines: &mut Vec<String>) -> anyhow::Result<()> {
    let name = text(version, "version")?;
    lines.push(format!("version {name} {}", by_hand.priority(&format!("{group}/{name}"))?));
    for resource in array(version, "resources")? {
        lines.push(kind(group, name, resource, by_hand)?);
        for subresource in resource["subresources"].as_array().into_iter().flatten() {
            let kind = subresource_kind(group, name, &subresource["responseKind"])?;
            lines.push(format!("  {} {kind} {}", text(subresource, "subresource")?, verbs(subresource)));
        }
    }
    Ok(())
}

fn kind(group: &str, version: &str, resource: &Value, by_hand: &ByHand) -> anyhow::Result<String> {
    let (plural, singular) = (text(resource, "resource")?, text(resource, "singularResource")?);
    let kind = text(&resource["responseKind"], "kind")?;
    let scope = text(resource, "scope")?.to_lowercase();
    let mut line = format!("{plural} {singular} {kind} {scope} {} {}.{kind}", verbs(resource), package(group, version));
    for (mark, field) in [("short", "shortNames"), ("categories", "categories")] {
        let names = texts(resource, field);
        if !names.is_empty() {
            line += &format!(" {mark}={}", names.join(","));
        }
    }
    let storage = by_hand.storage.get(&format!("{group}/{version}/{plural}"));
    let storage = storage.or_else(|| by_hand.storage.get(&format!("{group}/{plural}")));
    let storage = storage.with_context(|| format!("xtask/facts/storage.txt has no line for {group}/{plural}"))?;
    match storage.as_str() {
        "unstored" => Ok(line),
        stored => Ok(format!("{line} {stored}")),
    }
}

fn verbs(value: &Value) -> String {
    match texts(value, "verbs").join(",") {
        all if all == ALL_VERBS => "all".to_owned(),
        some => some,
    }
}

/// The kind that a subresource responds with, by its name alone where it belongs to the same group version.
fn subresource_kind(group: &str, version: &str, kind: &Value) -> anyhow::Result<String> {
    let name = text(kind, "kind")?;
    let (of_group, of_version) = (text(kind, "group")?, text(kind, "version")?);
    let is_own = of_version.is_empty() || (of_group, of_version) == (group, version);
    Ok(if is_own { name.to_owned() } else { format!("{of_group}/{of_version}/{name}") })
}

/// What the full name of a type starts with.
fn package(group: &str, version: &str) -> String {
    let first = group.split('.').next().unwrap_or_default();
    match group {
        "apiextensions.k8s.io" => format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}"),
        "apiregistration.k8s.io" => format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{version}"),
        "internal.apiserver.k8s.io" => format!("io.k8s.api.apiserverinternal.{version}"),
        "flowcontrol.apiserver.k8s.io" => format!("io.k8s.api.flowcontrol.{version}"),
        "rbac.authorization.k8s.io" => format!("io.k8s.api.rbac.{version}"),
        _ => format!("io.k8s.api.{first}.{version}"),
    }
}
