//! The faults that servers and nodes suffer.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;
use rand::rngs::StdRng;

use crate::servers::{ThreeServers, agent_number};

/// What happens to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    Kill,
    /// All processes of the host end and its network is away.
    Reboot,
    SuspendServer,
    /// For longer than a Lease lasts.
    SuspendLong,
    SuspendEtcd,
    KillEtcd,
    CutLink,
    /// Others hear nothing of the server, but it hears them.
    CutSending,
    /// The server hears nothing, but others hear it.
    CutReceiving,
    /// This many percent of the packets are lost in each direction.
    Loss(u32),
    /// Packets take this many milliseconds longer.
    Delay(u32),
    /// The server's wall clock steps by this many seconds, and back.
    ClockStep(i64),
    /// The wall clock steps beyond the end of all certificates, and back.
    Expiry,
    SlowDisk,
    FullDisk,
}

/// What happens to a node while a server has a fault of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentFault {
    /// The process of the agent is killed; its pods run on.
    Kill,
    Suspend,
    CutLink,
}

/// After which another server takes over what a server was elected for.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// More seconds than certificates are valid.
const CERTIFICATE_LIFETIME: i64 = 400 * 24 * 3600;

const KINDS: [fn(&mut StdRng) -> Fault; 15] = [
    |_| Fault::Kill,
    |_| Fault::Reboot,
    |_| Fault::SuspendServer,
    // Longer than all others together: rarely.
    |random| if random.random_ratio(1, 3) { Fault::SuspendLong } else { Fault::SuspendServer },
    |_| Fault::SuspendEtcd,
    |_| Fault::KillEtcd,
    |_| Fault::CutLink,
    |_| Fault::CutSending,
    |_| Fault::CutReceiving,
    |random| Fault::Loss(random.random_range(5..40)),
    |random| Fault::Delay(random.random_range(20..300)),
    |random| Fault::ClockStep(random.random_range(-7200..7200)),
    |_| Fault::Expiry,
    |_| Fault::SlowDisk,
    |_| Fault::FullDisk,
];
const AGENT_KINDS: [AgentFault; 3] = [AgentFault::Kill, AgentFault::Suspend, AgentFault::CutLink];

/// A server suffers at most this many faults one after the other, without time to recover.
const MAX_BURST: usize = 4;

impl Fault {
    fn random(random: &mut StdRng) -> Self {
        let number = random.random_range(0..KINDS.len());
        KINDS[number](random)
    }

    /// Its name, without how much.
    pub fn kind(self) -> String {
        let shown = format!("{self:?}");
        shown.split('(').next().unwrap_or_default().to_owned()
    }
}

impl AgentFault {
    fn random(random: &mut StdRng) -> Self {
        AGENT_KINDS[random.random_range(0..AGENT_KINDS.len())]
    }
}

/// What happens before the cluster has time to recover. Only one server has faults: two of three would be too many.
#[derive(Debug)]
pub struct Round {
    pub server: usize,
    /// One after the other, each for some time.
    pub faults: Vec<(Fault, Duration)>,
    /// While the server has its faults, on each node; `None` for nodes without.
    pub agents: Vec<Option<AgentFault>>,
}

impl Round {
    /// Two of three nodes have a fault.
    pub fn random(random: &mut StdRng, servers: usize, agents: usize) -> Self {
        let server = random.random_range(0..servers);
        let count = random.random_range(1..=MAX_BURST);
        let faults = (0..count).map(|_| (Fault::random(random), hold(random))).collect();
        let agent = |random: &mut StdRng| random.random_ratio(2, 3).then(|| AgentFault::random(random));
        Self { server, faults, agents: (0..agents).map(|_| agent(random)).collect() }
    }
}

/// How long a fault lasts: most end before anybody's timeout, some outlast several.
fn hold(random: &mut StdRng) -> Duration {
    let is_long = random.random_ratio(1, 8);
    Duration::from_millis(random.random_range(if is_long { 2000..6000 } else { 100..1500 }))
}

/// How often each kind of fault happened.
#[derive(Debug, Default)]
pub struct Tally(BTreeMap<String, usize>);

impl Tally {
    fn add(&mut self, kind: String) {
        *self.0.entry(kind).or_default() += 1;
    }

    pub fn total(&self) -> usize {
        self.0.values().sum()
    }
}

impl std::fmt::Display for Tally {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kinds: Vec<String> = self.0.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
        write!(formatter, "{} faults: {}", self.total(), kinds.join(", "))
    }
}

impl ThreeServers {
    /// Lets the faults of a round happen, and waits until the cluster has recovered.
    pub fn suffer(&mut self, round: &Round, tally: &mut Tally) {
        for (agent, fault) in round.agents.iter().enumerate() {
            if let Some(fault) = *fault {
                self.begin(agent, fault);
                tally.add(format!("Agent{fault:?}"));
            }
        }
        for (fault, hold) in &round.faults {
            if self.inflict(round.server, *fault, *hold) {
                tally.add(fault.kind());
            }
        }
        for (agent, fault) in round.agents.iter().enumerate() {
            if let Some(fault) = *fault {
                self.end(agent, fault);
            }
        }
        let had_full_disk = round.faults.iter().any(|(fault, _)| *fault == Fault::FullDisk);
        self.await_members_with(|servers| {
            if had_full_disk {
                servers.restart_if_ended(round.server);
            }
        });
    }

    /// Lets a fault happen to a server for some time. Returns whether it did: a server that is starting has no etcd yet.
    fn inflict(&mut self, server: usize, fault: Fault, hold: Duration) -> bool {
        match fault {
            Fault::Kill => {
                self.nodes[server].kill();
                std::thread::sleep(hold / 2);
                self.nodes[server].start();
            }
            Fault::Reboot => {
                self.wires[server].impair(100, 100, Duration::ZERO);
                self.nodes[server].kill();
                self.end_processes(server);
                std::thread::sleep(hold / 2);
                self.wires[server].heal();
                self.nodes[server].start();
            }
            Fault::SuspendServer => return suspend(pid(self.nodes[server].pid()), hold),
            Fault::SuspendLong => return suspend(pid(self.nodes[server].pid()), hold + LEASE_DURATION),
            Fault::SuspendEtcd => return self.etcd_of(server).is_some_and(|etcd| suspend(etcd, hold)),
            Fault::KillEtcd => return self.etcd_of(server).is_some_and(|etcd| signal(etcd, Signal::SIGKILL)),
            Fault::CutLink => self.impair(server, (100, 100), Duration::ZERO, hold),
            Fault::CutSending => self.impair(server, (100, 0), Duration::ZERO, hold),
            Fault::CutReceiving => self.impair(server, (0, 100), Duration::ZERO, hold),
            Fault::Loss(percent) => self.impair(server, (percent, percent), Duration::ZERO, hold),
            Fault::Delay(milliseconds) => {
                self.impair(server, (0, 0), Duration::from_millis(milliseconds.into()), hold);
            }
            Fault::ClockStep(seconds) => return self.step_clock(server, seconds, hold),
            Fault::Expiry => return self.step_clock(server, CERTIFICATE_LIFETIME, hold),
            Fault::SlowDisk => {
                assert!(self.disks[server].limit_writes(5), "this host cannot slow down a disk");
                std::thread::sleep(hold);
                self.disks[server].limit_writes(0);
            }
            Fault::FullDisk => {
                self.disks[server].fill();
                std::thread::sleep(hold);
                self.disks[server].free();
                self.restart_if_ended(server);
            }
        }
        true
    }

    /// A server ends on a disk that is full for good; systemd would start it again.
    fn restart_if_ended(&mut self, server: usize) {
        if !self.nodes[server].is_running() {
            self.nodes[server].kill();
            self.nodes[server].start();
        }
    }

    fn begin(&mut self, agent: usize, fault: AgentFault) {
        match fault {
            AgentFault::Kill => self.agents[agent].kill(),
            AgentFault::Suspend => kill(pid(self.agents[agent].pid()), Signal::SIGSTOP).expect("it runs"),
            AgentFault::CutLink => self.switch.set_link(agent_number(agent), false),
        }
    }

    fn end(&mut self, agent: usize, fault: AgentFault) {
        match fault {
            AgentFault::Kill => self.agents[agent].start(),
            AgentFault::Suspend => kill(pid(self.agents[agent].pid()), Signal::SIGCONT).expect("it still exists"),
            AgentFault::CutLink => self.switch.set_link(agent_number(agent), true),
        }
    }

    fn step_clock(&self, server: usize, seconds: i64, hold: Duration) -> bool {
        let is_stepped = self.clocks[server].step(self.nodes[server].pid(), seconds);
        std::thread::sleep(hold);
        self.clocks[server].step(self.nodes[server].pid(), 0);
        is_stepped
    }

    fn impair(&self, server: usize, (from, to): (u32, u32), delay: Duration, hold: Duration) {
        self.wires[server].impair(from, to, delay);
        std::thread::sleep(hold);
        self.wires[server].heal();
    }

    /// Kills what a server left behind.
    fn end_processes(&self, server: usize) {
        let output = std::process::Command::new("ip")
            .args(["netns", "pids", &self.nodes[server].host.name])
            .output()
            .expect("ip runs");
        for process in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(process.parse().expect("a process id")), Signal::SIGKILL);
        }
    }
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).expect("a process id"))
}

/// Suspends a process for some time. Returns whether it existed.
fn suspend(process: Pid, hold: Duration) -> bool {
    let is_suspended = signal(process, Signal::SIGSTOP);
    std::thread::sleep(hold);
    // The server may have ended, and etcd with it.
    signal(process, Signal::SIGCONT);
    is_suspended
}

/// Returns whether the process existed.
fn signal(process: Pid, signal: Signal) -> bool {
    match kill(process, signal) {
        Ok(()) => true,
        Err(Errno::ESRCH) => false,
        Err(error) => panic!("cannot send {signal} to {process}: {error}"),
    }
}
