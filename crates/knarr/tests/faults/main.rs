//! Three servers under faults (`fault`): processes are killed and suspended, links are cut, lossy and slow, clocks step,
//! certificates expire and disks fill, at random, while writers, readers and watches record what they see (`workload`).
//! Afterwards the records are checked (`history`), and so are who acted for elected components (`leaders`), the addresses that
//! were handed out (`allocations`) and the pods of the nodes (`pods`). `traffic` uses a Service and an Ingress while a server dies.
//!
//! The short version runs with all tests; `make faults SECONDS=3600` runs it longer. The seed of a run is printed, and
//! `KNARR_FAULT_SEED` repeats its faults.

mod allocations;
mod clock;
mod disk;
mod fault;
#[path = "../system/harness/mod.rs"]
mod harness;
mod history;
mod keys;
mod leaders;
mod moving;
mod pods;
mod recipes;
mod servers;
mod traffic;
mod upgrade;
mod watching;
mod wire;
mod workload;

use std::time::{Duration, Instant};

use rand::SeedableRng;

use allocations::Allocations;
use fault::{Round, Tally};
use pods::Pods;
use servers::ThreeServers;
use traffic::Traffic;
use workload::Workload;

/// The default length of a run.
const SECONDS: u64 = 45;
/// A cluster that lost the leader of everything accepts writes again within this time.
const MAX_OUTAGE: Duration = Duration::from_secs(5);
/// How many of the longest times without a write are printed.
const OUTAGES: usize = 5;
/// How often a longer run kills the leader before other faults.
const LEADER_KILLS: usize = 5;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn is_possible() -> bool {
    let has_etcd = std::process::Command::new("etcd").arg("--version").output().is_ok();
    if !has_etcd {
        harness::skip("several servers need etcd");
    }
    has_etcd && harness::is_possible()
}

#[test]
fn no_fault_of_one_server_loses_or_reorders_anything() {
    if !is_possible() {
        return;
    }
    let seed = number("KNARR_FAULT_SEED").unwrap_or_else(rand::random);
    let length = Duration::from_secs(number("KNARR_FAULT_SECONDS").unwrap_or(SECONDS));
    eprintln!("KNARR_FAULT_SEED={seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    let mut servers = ThreeServers::start();
    servers.check_roles_and_tokens();
    // Nodes take long to start: only longer runs have them.
    let pods = (length > Duration::from_secs(SECONDS)).then(|| {
        servers.add_agent();
        servers.add_agent();
        Pods::start(&servers)
    });
    let mut allocations = Allocations::default();
    let workload = Workload::start(&servers);
    workload.await_writes(20);

    kill_leaders(&mut servers, &workload, pods.is_some());

    let started = Instant::now();
    let mut tally = Tally::default();
    while started.elapsed() < length {
        let round = Round::random(&mut random, servers.nodes.len(), servers.agents.len());
        eprintln!("{:?}: {round:?}", started.elapsed());
        allocations.create(&servers, round.server);
        // Two of three servers at once would be too many: the cluster is whole before the next faults.
        servers.suffer(&round, &mut tally);
        workload.await_writes(5);
    }
    eprintln!("{tally} in {:?}", started.elapsed());
    allocations.check(&servers);
    if let Some(pods) = &pods {
        pods.check(&servers);
    }
    let (records, holdings) = workload.finish();
    eprintln!(
        "{} writes ({} acknowledged), {} reads, {} lists, {} events per watch",
        records.writes.len(),
        records.acknowledged(),
        records.reads.len(),
        records.lists.len(),
        records.watches[0].len(),
    );
    for (from, length) in records.outages(OUTAGES) {
        eprintln!("no writes for {length:?}, {:?} after the first fault", from.saturating_duration_since(started));
    }
    let violations = history::violations(&records);
    // The other checks go on, so that an hour shows all that it found.
    eprintln!("violations: {violations:#?}");
    servers.check_acts(&holdings);
    servers.check_one_leader_each();
    servers.check_removal();
    assert!(violations.is_empty(), "{violations:#?}");
}

/// Kills the server that leads etcd, with everything on it, several times.
fn kill_leaders(servers: &mut ThreeServers, workload: &Workload, has_agents: bool) {
    if has_agents {
        traffic::prepare(servers);
    }
    for _ in 0..if has_agents { LEADER_KILLS } else { 1 } {
        let traffic = has_agents.then(|| Traffic::start(servers));
        let leader = servers.etcd_leader();
        let killed = Instant::now();
        servers.nodes[leader].kill();
        let writes = workload.outage();
        // Later interruptions count, too.
        workload.await_writes(200);
        let reads = workload.read_outage(killed, leader);
        eprintln!("without {}: no writes for {writes:?}, no reads for {reads:?}", servers.nodes[leader].name);
        assert!(writes < MAX_OUTAGE, "{writes:?}");
        servers.nodes[leader].start();
        servers.await_members();
        if let Some(traffic) = traffic {
            let report = traffic.finish();
            eprintln!("{} requests to Services and Ingresses, the slowest took {:?}", report.requests, report.slowest);
            assert!(report.failures.is_empty(), "{:?}", report.failures);
        }
    }
}

#[test]
fn an_agent_goes_on_without_the_server_it_joined() {
    if !is_possible() {
        return;
    }
    let mut servers = ThreeServers::start();
    servers.add_agent();
    let known = servers.agents[0].data.join("servers.json");
    harness::wait_for("the agent to learn all servers", || {
        let text = std::fs::read_to_string(&known).unwrap_or_default();
        (11..=13).all(|number| text.contains(&format!("10.77.0.{number}:6443")))
    });
    servers.nodes[0].kill();
    servers.await_heartbeat();
    servers.await_heartbeat();
    // The address it was given is not needed for a restart either.
    servers.agents[0].kill();
    servers.agents[0].start();
    servers.await_heartbeat();
    servers.nodes[0].start();
    servers.await_members();
}
