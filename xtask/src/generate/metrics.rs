//! The table of metrics: the stable and beta ones of Kubernetes, and those that common dashboards and alerts read.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::Context as _;
use serde_json::Value;

use super::Facts;
use super::facts::{array, text, texts};

const HEAD: &str = "# The metrics that Kubernetes' components expose: the stable and beta ones, and those that common dashboards and\n\
    # alerts read. Written by `cargo xtask generate`.\n\
    # name\ttype\tlevel\tcomponents\tendpoint\tlabels\tbounds of buckets\n";

struct Row {
    kind: String,
    level: String,
    components: BTreeSet<String>,
    labels: String,
    bounds: String,
}

pub fn generate(facts: &Facts) -> anyhow::Result<String> {
    let published = facts.json("metrics.json")?;
    let known = array(&published, "metrics")?;
    let mut rows: BTreeMap<(String, String), Row> = BTreeMap::new();
    for metric in known.iter().filter(|metric| matches!(metric["level"].as_str(), Some("STABLE" | "BETA"))) {
        let key = (text(metric, "name")?.to_owned(), endpoint(metric));
        rows.insert(key, row(metric, &texts(metric, "components"))?);
    }
    for (name, component) in dashboards(facts)? {
        let key = (name.clone(), page_of(&component).to_owned());
        if let Some(row) = rows.get_mut(&key) {
            row.components.insert(component);
            continue;
        }
        let is_own =
            |metric: &&Value| metric["name"] == name.as_str() && texts(metric, "components").contains(&&*component);
        let row = match known.iter().find(is_own) {
            Some(metric) => row(metric, &[&component])?,
            None => by_hand(facts, &name, &component)?,
        };
        rows.insert(key, row);
    }
    let lines = rows.into_iter().map(|((name, endpoint), row)| {
        let Row { kind, level, components, labels, bounds } = row;
        let components: Vec<String> = components.into_iter().collect();
        format!("{name}\t{kind}\t{level}\t{}\t{endpoint}\t{labels}\t{bounds}\n", components.join(","))
    });
    Ok(HEAD.to_owned() + &lines.collect::<String>())
}

fn endpoint(metric: &Value) -> String {
    metric["endpoint"].as_str().unwrap_or("/metrics").to_owned()
}

/// Where dashboards expect the metrics of a component.
fn page_of(component: &str) -> &str {
    if component == "cadvisor" { "/metrics/cadvisor" } else { "/metrics" }
}

fn joined(words: impl Iterator<Item = String>) -> String {
    let words: Vec<String> = words.collect();
    if words.is_empty() { "-".to_owned() } else { words.join(",") }
}

fn row(metric: &Value, components: &[&str]) -> anyhow::Result<Row> {
    let bounds = metric["buckets"].as_array().into_iter().flatten().filter_map(Value::as_f64);
    Ok(Row {
        kind: text(metric, "type")?.to_lowercase(),
        level: text(metric, "level")?.to_owned(),
        components: components.iter().map(|component| (*component).to_owned()).collect(),
        labels: joined(texts(metric, "labels").into_iter().map(str::to_owned)),
        bounds: joined(bounds.map(knarr_metrics::number)),
    })
}

/// The metrics that dashboards read, with the component, but those that the version does not have or another project exposes.
fn dashboards(facts: &Facts) -> anyhow::Result<Vec<(String, String)>> {
    let path = facts.published.join("dashboards-metrics.txt");
    let table = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut all = Vec::new();
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        if fields.get(4).is_some_and(|mark| *mark == "excluded" || mark.starts_with("absent-from-")) {
            continue;
        }
        let [name, components, ..] = fields.as_slice() else { continue };
        all.extend(components.split(',').map(|component| ((*name).to_owned(), component.to_owned())));
    }
    Ok(all)
}

/// A metric that the list of Kubernetes lacks, as it belongs to a library or to another program.
fn by_hand(facts: &Facts, name: &str, component: &str) -> anyhow::Result<Row> {
    let rows = facts.by_hand("metrics.txt")?;
    let found =
        rows.iter().map(|line| line.split_whitespace().collect::<Vec<_>>()).find(|row| row.first() == Some(&name));
    match found.as_deref() {
        Some([_, kind, labels, bounds]) => Ok(Row {
            kind: (*kind).to_owned(),
            level: "-".to_owned(),
            components: [component.to_owned()].into(),
            labels: (*labels).to_owned(),
            bounds: (*bounds).to_owned(),
        }),
        _ => anyhow::bail!("xtask/facts/metrics.txt has no line for {name} of {component}"),
    }
}
