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
            let count = distinct(&listed).unwrap_or_else(|violation| panic!("{kind}: {violation}"));
            assert_ne!(count, 0, "{kind} have no {field}: {listed}");
            eprintln!("{count} {kind} with {field}, each its own");
        }
    }
}

/// How many values there are in lines of a name, a tab and values, if no two lines have the same.
fn distinct(listed: &str) -> Result<usize, String> {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, values) in listed.lines().filter_map(|line| line.split_once('\t')) {
        for value in values.split_whitespace().filter(|value| *value != "None") {
            if let Some(other) = owners.insert(value, name) {
                return Err(format!("{name} and {other} both have {value}"));
            }
        }
    }
    Ok(owners.len())
}

#[test]
fn a_value_that_was_given_twice_is_found() {
    assert_eq!(distinct("a\t10.0.0.1\nb\tNone\nc\tNone\nd\t10.0.0.2 10.0.0.3\ne\t\n"), Ok(3));
    assert_eq!(distinct("a\t30001 30002\nb\t30003\nc\t30002\n"), Err("c and a both have 30002".to_owned()));
}
