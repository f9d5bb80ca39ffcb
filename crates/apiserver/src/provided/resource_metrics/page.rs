//! Parses the page of a kubelet at `/metrics/resource`, in the text format of Prometheus.

use std::collections::BTreeMap;

use jiff::Timestamp;

/// One reading: the usage so far, and when it was read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    pub at: Timestamp,
    pub cpu_seconds: Option<f64>,
    pub memory: Option<u64>,
    /// When the container started.
    pub started: Option<Timestamp>,
}

/// The full name of a container.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContainerName {
    pub namespace: String,
    pub pod: String,
    pub container: String,
}

/// The readings of a node and its containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    pub node: Reading,
    pub containers: BTreeMap<ContainerName, Reading>,
}

/// Parses a page. Samples without a timestamp count as read `now`; unknown samples are ignored.
pub fn parse(text: &str, now: Timestamp) -> Page {
    let mut page = Page::default();
    for sample in text.lines().filter_map(Sample::parse) {
        let at = sample.at.unwrap_or(now);
        match sample.name {
            "node_cpu_usage_seconds_total" => {
                page.node.at = at;
                page.node.cpu_seconds = Some(sample.value);
            }
            "node_memory_working_set_bytes" => page.node.memory = Some(sample.value as u64),
            "container_cpu_usage_seconds_total" => {
                let reading = page.containers.entry(sample.container()).or_default();
                reading.at = at;
                reading.cpu_seconds = Some(sample.value);
            }
            "container_memory_working_set_bytes" => {
                page.containers.entry(sample.container()).or_default().memory = Some(sample.value as u64);
            }
            "container_start_time_seconds" => {
                let started = Timestamp::from_millisecond((sample.value * 1000.0) as i64).ok();
                page.containers.entry(sample.container()).or_default().started = started;
            }
            _ => {}
        }
    }
    page
}

struct Sample<'a> {
    name: &'a str,
    labels: Vec<(&'a str, String)>,
    value: f64,
    at: Option<Timestamp>,
}

impl<'a> Sample<'a> {
    /// `name{label="value",…} value milliseconds`, where labels and time may be missing.
    fn parse(line: &'a str) -> Option<Sample<'a>> {
        if line.starts_with('#') {
            return None;
        }
        let end = line.find(['{', ' '])?;
        let (name, rest) = line.split_at(end);
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => labels(rest)?,
            None => (Vec::new(), rest),
        };
        let mut fields = rest.split_whitespace();
        let value = fields.next()?.parse().ok()?;
        let at = fields.next().and_then(|word| word.parse().ok()).and_then(|at| Timestamp::from_millisecond(at).ok());
        Some(Sample { name, labels, value, at })
    }

    fn container(&self) -> ContainerName {
        let label = |name: &str| {
            self.labels.iter().find(|(own, _)| *own == name).map(|(_, value)| value.clone()).unwrap_or_default()
        };
        ContainerName { namespace: label("namespace"), pod: label("pod"), container: label("container") }
    }
}

/// The labels up to the closing brace, and the rest of the line.
fn labels(mut rest: &str) -> Option<(Vec<(&str, String)>, &str)> {
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start_matches([',', ' ']);
        if let Some(after) = rest.strip_prefix('}') {
            return Some((found, after));
        }
        let (name, after) = rest.split_once("=\"")?;
        let mut value = String::new();
        let mut characters = after.char_indices();
        let end = loop {
            match characters.next()? {
                (at, '"') => break at,
                (_, '\\') => match characters.next()?.1 {
                    'n' => value.push('\n'),
                    other => value.push(other),
                },
                (_, other) => value.push(other),
            }
        };
        found.push((name, value));
        rest = &after[end + 1..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_parsed() {
        let text = "# HELP node_cpu_usage_seconds_total x\n\
            node_cpu_usage_seconds_total 12.5 1000\n\
            node_memory_working_set_bytes 2048 1000\n\
            container_cpu_usage_seconds_total{container=\"c\",namespace=\"n\",pod=\"p\"} 0.5 2000\n\
            container_memory_working_set_bytes{container=\"c\",namespace=\"n\",pod=\"p\"} 1e6\n\
            container_start_time_seconds{container=\"c\",namespace=\"n\",pod=\"p\"} 1.25\n\
            other{a=\"\\\"}\\n\"} 1\n\
            broken{a=\n";
        let page = parse(text, Timestamp::UNIX_EPOCH);
        let at = |milliseconds| Timestamp::from_millisecond(milliseconds).unwrap();
        assert_eq!(page.node, Reading { at: at(1000), cpu_seconds: Some(12.5), memory: Some(2048), started: None });
        let name = ContainerName { namespace: "n".into(), pod: "p".into(), container: "c".into() };
        let reading =
            Reading { at: at(2000), cpu_seconds: Some(0.5), memory: Some(1_000_000), started: Some(at(1250)) };
        assert_eq!(page.containers.into_iter().collect::<Vec<_>>(), vec![(name, reading)]);
    }
}
