//! Addresses, ports and pod networks that servers hand out between faults: none is given twice.

use std::collections::BTreeMap;

use crate::harness::wait_for;
use crate::servers::ThreeServers;
use crate::workload::LABEL;

/// A cluster has 256 pod networks: after so many Nodes, all are checked and deleted, and their networks given out again.
const MAX_NODES: usize = 100;

/// The objects that were created so far.
#[derive(Default)]
pub struct Allocations {
    count: usize,
    nodes: usize,
}

impl Allocations {
    /// Creates a Service with a port on nodes at two servers at once, and a Node that gets a pod network.
    pub fn create(&mut self, servers: &ThreeServers, first: usize) {
        if self.nodes == MAX_NODES {
            self.check(servers);
            self.nodes = 0;
            let words = ["delete", "nodes", "-l", LABEL, "--wait=false"];
            wait_for("the Nodes to be deleted", || servers.try_kubectl(first, &words).is_ok());
        }
        self.count += 1;
        self.nodes += 1;
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
        let path = servers.nodes[first].data.with_extension("node.yaml");
        let metadata = format!("{{name: allocated-{}, labels: {{{}}}}}", self.count, LABEL.replace('=', ": "));
        std::fs::write(&path, format!("apiVersion: v1\nkind: Node\nmetadata: {metadata}\n")).expect("a file");
        std::thread::scope(|scope| {
            scope.spawn(|| service(first));
            scope.spawn(|| service(first + 1));
            scope.spawn(|| create(first, &["create", "-f", &path.to_string_lossy()]));
        });
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
