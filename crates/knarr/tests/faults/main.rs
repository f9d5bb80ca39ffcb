//! Three servers under faults (`fault`): processes are killed and suspended, links are cut, lossy and slow, clocks step and disks
//! fill, at random, while writers and watches record what they see. Afterwards the records are checked (`history`), and so
//! are the addresses that were handed out (`allocations`) and the pods of the nodes (`pods`).
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
mod moving;
mod pods;
mod recipes;
mod servers;
mod wire;
mod workload;

use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};

use allocations::Allocations;
use fault::Fault;
use pods::Pods;
use servers::ThreeServers;
use workload::Workload;

/// The default length of a run.
const SECONDS: u64 = 45;
/// A cluster that lost the leader of everything accepts writes again within this time.
const MAX_OUTAGE: Duration = Duration::from_secs(5);

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

    // The server that leads etcd is lost, with everything on it.
    let leader = servers.etcd_leader();
    eprintln!("killing the leader, {}", servers.nodes[leader].name);
    servers.nodes[leader].kill();
    let outage = workload.outage();
    eprintln!("writes were accepted again after {outage:?}");
    assert!(outage < MAX_OUTAGE, "{outage:?}");
    servers.nodes[leader].start();
    servers.await_members();

    let started = Instant::now();
    let mut count = 0;
    while started.elapsed() < length {
        let number = random.random_range(0..3);
        let fault = Fault::random(&mut random, pods.is_some());
        let hold = Duration::from_millis(random.random_range(500..6000));
        eprintln!("{:?}: {fault:?} of {} for {hold:?}", started.elapsed(), servers.nodes[number].name);
        allocations.create(&servers, number);
        servers.inflict(number, fault, hold);
        count += 1;
        // Two of three servers at once would be too many: the cluster is whole before the next fault.
        servers.await_members();
        workload.await_writes(5);
    }
    allocations.check(&servers);
    if let Some(pods) = &pods {
        pods.check(&servers);
    }
    let records = workload.finish();
    eprintln!(
        "{count} faults, {} writes ({} acknowledged), {} reads, {} events per watch, longest time without a write {:?}",
        records.writes.len(),
        records.acknowledged(),
        records.reads.len(),
        records.watches[0].len(),
        records.longest_outage(),
    );
    history::check(&records);
    servers.check_one_leader_each();
    servers.check_removal();
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
    let agent = servers.agent(0);
    agent.kill();
    agent.start();
    servers.await_heartbeat();
    servers.nodes[0].start();
    servers.await_members();
}
