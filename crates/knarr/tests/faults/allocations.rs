//! Addresses, ports and pod networks that servers hand out between faults: none is given twice.

use std::collections::BTreeMap;

use crate::servers::ThreeServers;

/// The objects that were created so far.
#[derive(Default)]
pub struct Allocations {
    count: usize,
}

impl Allocations {
    /// Creates a Service with a port on nodes at two servers at once, and a Node that gets a pod network.
    pub fn create(&mut self, servers: &ThreeServers, first: usize) {
        self.count += 1;
        let create = |server: usize, words: &[&str]| {
            let made = servers.try_kubectl(server % 3, words);
            // A server that has just come back may still refuse; what it did create is checked.
            if let Err(error) = made {
                eprintln!("{words:?}: {error}");
            }
        };
        let service = |server: usize| {
            let name = format!("allocated-{}-{server}", self.count);
            create(server, &["create", "service", "nodeport", &name, "--tcp=80"]);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| service(first));
            scope.spawn(|| service(first + 1));
        });
        let path = servers.nodes[first].data.with_extension("node.yaml");
        let text = format!("apiVersion: v1\nkind: Node\nmetadata:\n  name: allocated-{}\n", self.count);
        std::fs::write(&path, text).expect("a file");
        create(first, &["create", "-f", &path.to_string_lossy()]);
    }

    pub fn check(&self, servers: &ThreeServers) {
        for (kind, field) in [
            ("services", "{.spec.clusterIP}"),
            ("services", "{range .spec.ports[*]}{.nodePort}{\" \"}{end}"),
            ("nodes", "{.spec.podCIDR}"),
        ] {
            let path = format!("jsonpath={{range .items[*]}}{{.metadata.name}}{{\"\\t\"}}{field}{{\"\\n\"}}{{end}}");
            let listed = servers.kubectl(0, &["get", kind, "-A", "-o", &path]);
            let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
            for (name, values) in listed.lines().filter_map(|line| line.split_once('\t')) {
                for value in values.split_whitespace().filter(|value| *value != "None") {
                    let other = owners.insert(value, name);
                    assert!(other.is_none(), "{name} and {other:?} both have {value}");
                }
            }
            assert!(!owners.is_empty(), "{kind} have no {field}: {listed}");
            eprintln!("{} {kind} with {field}, each its own", owners.len());
        }
    }
}
