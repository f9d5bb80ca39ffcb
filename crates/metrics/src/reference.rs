//! The metrics that Kubernetes' components expose, as a table, and what a page lacks of it.
//!
//! `kubernetes.txt` has the stable and beta metrics, and those that common dashboards and alerts read. `left_out.txt` names
//! what a component here does not expose, each with its reason. Tests compare the pages with both.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Described, number};

const TABLE: &str = include_str!("kubernetes.txt");
const LEFT_OUT: &str = include_str!("left_out.txt");

/// A metric of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    pub name: &'static str,
    /// The word after `# TYPE`.
    pub kind: &'static str,
    pub components: Vec<&'static str>,
    pub endpoint: &'static str,
    pub labels: BTreeSet<&'static str>,
    /// Upper bounds of the buckets, as they are written, without infinity.
    pub bounds: Vec<&'static str>,
}

fn rows(text: &'static str) -> impl Iterator<Item = Vec<&'static str>> {
    text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(|line| line.split('\t').collect())
}

fn list(field: &'static str) -> impl Iterator<Item = &'static str> {
    field.split(',').filter(|word| !word.is_empty() && *word != "-")
}

/// All metrics of the table.
pub fn metrics() -> Vec<Metric> {
    let row = |fields: Vec<&'static str>| {
        let [name, kind, _level, components, endpoint, labels, bounds] = fields.as_slice() else {
            panic!("a row of kubernetes.txt has seven fields: {fields:?}");
        };
        Metric {
            name,
            kind,
            components: list(components).collect(),
            endpoint,
            labels: list(labels).collect(),
            bounds: list(bounds).collect(),
        }
    };
    rows(TABLE).map(row).collect()
}

/// What a component does not expose, with the reason.
pub fn left_out(component: &str) -> BTreeMap<&'static str, &'static str> {
    let of_component = |fields: Vec<&'static str>| match fields.as_slice() {
        [components, name, reason] => list(components).any(|own| own == component).then_some((*name, *reason)),
        _ => panic!("a row of left_out.txt has three fields: {fields:?}"),
    };
    rows(LEFT_OUT).filter_map(of_component).collect()
}

/// What a page of a component has of the table, by name.
#[derive(Default)]
struct Exposed {
    kind: String,
    labels: BTreeSet<BTreeSet<String>>,
    bounds: BTreeSet<Vec<String>>,
}

/// How a component's page at an endpoint differs from the table, a sentence for each difference. `described` is what the
/// page would have if there were values.
pub fn differences(component: &str, endpoint: &str, page: &str, described: &[Described]) -> Vec<String> {
    let (exposed, left_out) = (read(page, described), left_out(component));
    let wanted = metrics();
    let own = |metric: &&Metric| metric.components.contains(&component) && metric.endpoint == endpoint;
    wanted.iter().filter(own).flat_map(|metric| difference(metric, &exposed, &left_out)).collect()
}

fn difference(metric: &Metric, exposed: &BTreeMap<String, Exposed>, left_out: &BTreeMap<&str, &str>) -> Vec<String> {
    let name = metric.name;
    let Some(found) = exposed.get(name) else {
        let is_missing = !left_out.contains_key(name);
        return is_missing.then(|| format!("{name} is missing")).into_iter().collect();
    };
    let mut all = Vec::new();
    if left_out.contains_key(name) {
        all.push(format!("{name} is exposed, though left_out.txt has it"));
    }
    if found.kind != metric.kind {
        all.push(format!("{name} is a {}, not a {}", metric.kind, found.kind));
    }
    for labels in &found.labels {
        if !labels.iter().map(String::as_str).eq(metric.labels.iter().copied()) {
            all.push(format!("{name} has the labels {:?}, not {labels:?}", metric.labels));
        }
    }
    for bounds in &found.bounds {
        if !are_same(bounds, &metric.bounds) {
            all.push(format!("{name} has the buckets {:?}, not {bounds:?}", metric.bounds));
        }
    }
    all
}

/// Whether bounds are the same numbers; the table has some rounded.
fn are_same(one: &[String], other: &[&str]) -> bool {
    let number = |text: &str| text.parse::<f64>().unwrap_or(f64::NAN);
    let is_close = |(one, other): (&String, &&str)| {
        let (one, other) = (number(one), number(other));
        (one - other).abs() <= 1e-9 * other.abs()
    };
    one.len() == other.len() && one.iter().zip(other).all(is_close)
}

fn read(page: &str, described: &[Described]) -> BTreeMap<String, Exposed> {
    let mut all: BTreeMap<String, Exposed> = BTreeMap::new();
    for own in described {
        let exposed = all.entry(own.name.to_owned()).or_default();
        exposed.kind = own.kind.name().to_owned();
        exposed.labels.insert(own.labels.iter().map(|label| (*label).to_owned()).collect());
        if own.kind == crate::Kind::Histogram {
            exposed.bounds.insert(own.bounds.iter().map(|bound| number(*bound)).collect());
        }
    }
    let mut buckets: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap_or((rest, ""));
            all.entry(name.to_owned()).or_default().kind = kind.to_owned();
        } else if !line.starts_with('#') && !line.is_empty() {
            let (name, labels) = sample(line);
            let family = family(&all, name);
            if let Some(exposed) = all.get_mut(&family) {
                let is_histogram = exposed.kind == "histogram";
                let own = |label: &&(String, String)| !(is_histogram && label.0 == "le");
                exposed.labels.insert(labels.iter().filter(own).map(|(label, _)| label.clone()).collect());
            }
            if let Some((_, bound)) = labels.iter().find(|(label, bound)| label == "le" && bound != "+Inf") {
                let others = labels.iter().filter(|(label, _)| label != "le");
                let series: Vec<String> = others.map(|(label, value)| format!("{label}={value}")).collect();
                buckets.entry((family, series.join(","))).or_default().push(bound.clone());
            }
        }
    }
    for ((family, _), bounds) in buckets {
        if let Some(exposed) = all.get_mut(&family) {
            exposed.bounds.insert(bounds);
        }
    }
    all
}

/// The family of a sample: histograms have several samples.
fn family(all: &BTreeMap<String, Exposed>, name: &str) -> String {
    let suffixes = ["_bucket", "_sum", "_count"];
    let of_histogram = suffixes.into_iter().filter_map(|suffix| name.strip_suffix(suffix));
    let found = of_histogram.into_iter().find(|base| all.get(*base).is_some_and(|family| family.kind == "histogram"));
    found.unwrap_or(name).to_owned()
}

/// The name and the labels of a line.
fn sample(line: &str) -> (&str, Vec<(String, String)>) {
    let end = line.find(['{', ' ']).unwrap_or(line.len());
    let (name, mut rest) = line.split_at(end);
    let mut labels = Vec::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while let Some((label, after)) = rest.split_once("=\"") {
            let mut value = String::new();
            let mut characters = after.char_indices();
            let mut next = after.len();
            while let Some((at, character)) = characters.next() {
                match character {
                    '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
                    '"' => {
                        next = at + 1;
                        break;
                    }
                    other => value.push(other),
                }
            }
            labels.push((label.trim_start_matches(',').to_owned(), value));
            rest = &after[next..];
            if rest.starts_with('}') {
                break;
            }
        }
    }
    (name, labels)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, Family};

    #[test]
    fn the_tables_are_read() {
        let metrics = metrics();
        assert!(metrics.len() > 150, "{}", metrics.len());
        let requests = metrics.iter().find(|metric| metric.name == "apiserver_request_total").expect("a known metric");
        assert_eq!((requests.kind, requests.components.as_slice()), ("counter", ["kube-apiserver"].as_slice()));
        assert!(requests.labels.contains("dry_run"));
        for fields in rows(LEFT_OUT) {
            let known = |component: &&str| {
                metrics.iter().any(|metric| metric.name == fields[1] && metric.components.contains(component))
            };
            assert!(list(fields[0]).all(|component| known(&component)), "{fields:?} is not in kubernetes.txt");
            assert!(fields[2].len() > 10, "{fields:?} has no reason");
        }
    }

    #[test]
    fn differences_are_found() {
        let metric = Metric {
            name: "m_seconds",
            kind: "histogram",
            components: vec!["c"],
            endpoint: "/metrics",
            labels: ["a"].into(),
            bounds: vec!["1", "2"],
        };
        let none = BTreeMap::new();
        let found = |page: &str| difference(&metric, &read(page, &[]), &none);
        let right = "# TYPE m_seconds histogram\nm_seconds_bucket{a=\"x,\\\"\",le=\"1\"} 0\nm_seconds_bucket{a=\"x,\\\"\",\
                     le=\"2\"} 0\nm_seconds_bucket{a=\"x,\\\"\",le=\"+Inf\"} 0\nm_seconds_sum{a=\"x,\\\"\"} 0\n";
        assert_eq!(found(right), Vec::<String>::new());
        assert_eq!(found(""), ["m_seconds is missing"]);
        assert_eq!(found("# TYPE m_seconds gauge\n"), ["m_seconds is a histogram, not a gauge"]);
        assert!(found(&right.replace("a=", "b="))[0].contains("has the labels {\"a\"}, not {\"b\"}"));
        assert!(found(&right.replace("le=\"2\"", "le=\"3\""))[0].contains("buckets"));
        let excused = BTreeMap::from([("m_seconds", "because")]);
        assert_eq!(difference(&metric, &read("", &[]), &excused), Vec::<String>::new());
        assert_eq!(difference(&metric, &read(right, &[]), &excused).len(), 1);
    }

    #[test]
    fn a_family_without_values_is_compared_by_its_description() {
        static COUNTER: Counter = Counter::new("c_total", "C.", &["a"]);
        let read = read("", &COUNTER.described());
        assert_eq!((read["c_total"].kind.as_str(), read["c_total"].labels.len()), ("counter", 1));
    }
}
