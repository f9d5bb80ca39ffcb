//! The DNS configuration of a pod.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::Pod;
use knarr_cri::messages::DnsConfig;

use crate::pod;

/// The limits of the C library's resolver, which ignores the rest.
const MAX_SERVERS: usize = 3;
const MAX_SEARCHES: usize = 32;

pub struct Cluster<'a> {
    pub servers: &'a [IpAddr],
    pub domain: &'a str,
    /// The node's own resolver configuration.
    pub node: &'a DnsConfig,
}

pub fn dns_config(pod: &Pod, cluster: &Cluster<'_>) -> DnsConfig {
    let spec = pod::spec(pod);
    let policy = match spec.dns_policy.as_deref().unwrap_or("ClusterFirst") {
        "ClusterFirst" if pod::host_network(pod) => "Default",
        "ClusterFirstWithHostNet" => "ClusterFirst",
        other => other,
    };
    let mut config = match policy {
        "None" => DnsConfig::default(),
        "ClusterFirst" if !cluster.servers.is_empty() => {
            let domain = cluster.domain;
            let mut searches = Vec::new();
            if !domain.is_empty() {
                searches =
                    vec![format!("{}.svc.{domain}", pod::namespace(pod)), format!("svc.{domain}"), domain.to_string()];
            }
            searches.extend(cluster.node.searches.iter().cloned());
            DnsConfig {
                servers: cluster.servers.iter().map(ToString::to_string).collect(),
                searches,
                options: vec!["ndots:5".to_string()],
            }
        }
        _ => cluster.node.clone(),
    };
    if let Some(own) = &spec.dns_config {
        config.servers.extend(own.nameservers.iter().flatten().cloned());
        config.searches.extend(own.searches.iter().flatten().cloned());
        config.options.extend(own.options.iter().flatten().filter_map(|option| {
            let name = option.name.as_ref()?;
            Some(match &option.value {
                Some(value) if !value.is_empty() => format!("{name}:{value}"),
                _ => name.clone(),
            })
        }));
        config.options = last_of_each(config.options);
    }
    without_repeats(&mut config.servers);
    without_repeats(&mut config.searches);
    config.servers.truncate(MAX_SERVERS);
    config.searches.truncate(MAX_SEARCHES);
    config
}

/// Each option once, as it was said last.
fn last_of_each(options: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    let name = |option: &str| option.split(':').next().unwrap_or_default().to_string();
    let mut kept: Vec<String> = options.into_iter().rev().filter(|option| seen.insert(name(option))).collect();
    kept.reverse();
    kept
}

fn without_repeats(values: &mut Vec<String>) {
    let mut seen = std::collections::HashSet::new();
    values.retain(|value| seen.insert(value.clone()));
}

/// Parses the `nameserver`, `search` and `options` lines of resolv.conf.
pub fn parse_resolv_conf(text: &str) -> DnsConfig {
    let mut config = DnsConfig::default();
    for line in text.lines() {
        let line = line.split(['#', ';']).next().unwrap_or_default();
        let mut words = line.split_whitespace().map(ToString::to_string);
        match words.next().as_deref() {
            Some("nameserver") => config.servers.extend(words.next()),
            Some("search") => config.searches = words.map(|word| word.trim_end_matches('.').to_string()).collect(),
            Some("options") => config.options.extend(words),
            _ => {}
        }
    }
    config.searches.retain(|search| !search.is_empty());
    config
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_of_any_number_are_merged_in_proportion() {
        let options = || (0..200_000).map(|number| format!("o{}:{number}", number % 150_000));
        let started = std::time::Instant::now();
        let kept = last_of_each(options().collect());
        assert!(started.elapsed() < std::time::Duration::from_secs(20), "{:?}", started.elapsed());
        assert_eq!((kept.len(), kept[0].as_str()), (150_000, "o50000:50000"));
        assert_eq!(last_of_each(["a:1", "b", "a:2"].map(String::from).into()), ["b", "a:2"]);
    }

    #[test]
    fn policies_choose_the_servers() {
        let node = parse_resolv_conf("nameserver 9.9.9.9\nsearch example.org. .\noptions timeout:2 # slow\n");
        let servers = ["10.96.0.10".parse().expect("an address")];
        let cases = [
            (json!({}), "10.96.0.10 | n.svc.cluster.local svc.cluster.local cluster.local example.org | ndots:5"),
            (json!({ "hostNetwork": true }), "9.9.9.9 | example.org | timeout:2"),
            (json!({ "dnsPolicy": "Default" }), "9.9.9.9 | example.org | timeout:2"),
            (
                json!({ "dnsPolicy": "None", "dnsConfig": { "nameservers": ["1.1.1.1"], "searches": ["a"],
                    "options": [{ "name": "ndots", "value": "2" }, { "name": "edns0" }] } }),
                "1.1.1.1 | a | ndots:2 edns0",
            ),
        ];
        for (mut spec, expected) in cases {
            spec["containers"] = json!([]);
            let pod = serde_json::from_value(json!({ "metadata": { "namespace": "n" }, "spec": spec })).expect("a pod");
            let config = dns_config(&pod, &Cluster { servers: &servers, domain: "cluster.local", node: &node });
            let shown =
                format!("{} | {} | {}", config.servers.join(" "), config.searches.join(" "), config.options.join(" "));
            assert_eq!(shown, expected);
        }
    }
}
