//! The faults that servers and nodes suffer.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::Rng;
use rand::rngs::StdRng;

use crate::servers::ThreeServers;

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

impl Fault {
    pub fn random(random: &mut StdRng) -> Self {
        let number = random.random_range(0..KINDS.len());
        KINDS[number](random)
    }
}

impl AgentFault {
    /// Two of three faults of servers are accompanied by one of a node.
    pub fn random(random: &mut StdRng) -> Option<Self> {
        random.random_ratio(2, 3).then(|| AGENT_KINDS[random.random_range(0..AGENT_KINDS.len())])
    }
}

impl ThreeServers {
    /// Lets a fault happen to a server for some time. Only the last server has a disk of its own.
    pub fn inflict(&mut self, server: usize, fault: Fault, hold: Duration) {
        let last = self.nodes.len() - 1;
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
            Fault::SuspendServer => suspend(pid(self.nodes[server].pid()), hold),
            Fault::SuspendLong => suspend(pid(self.nodes[server].pid()), hold + LEASE_DURATION),
            Fault::SuspendEtcd => {
                if let Some(etcd) = self.etcd_of(server) {
                    suspend(etcd, hold);
                }
            }
            Fault::KillEtcd => {
                if let Some(etcd) = self.etcd_of(server) {
                    kill(etcd, Signal::SIGKILL).expect("it runs");
                }
            }
            Fault::CutLink => self.impair(server, (100, 100), Duration::ZERO, hold),
            Fault::CutSending => self.impair(server, (100, 0), Duration::ZERO, hold),
            Fault::CutReceiving => self.impair(server, (0, 100), Duration::ZERO, hold),
            Fault::Loss(percent) => self.impair(server, (percent, percent), Duration::ZERO, hold),
            Fault::Delay(milliseconds) => {
                self.impair(server, (0, 0), Duration::from_millis(milliseconds.into()), hold);
            }
            Fault::ClockStep(seconds) => self.step_clock(server, seconds, hold),
            Fault::Expiry => self.step_clock(server, CERTIFICATE_LIFETIME, hold),
            Fault::SlowDisk => {
                assert!(self.disk.limit_writes(5), "this host cannot slow down a disk");
                std::thread::sleep(hold);
                self.disk.limit_writes(0);
            }
            Fault::FullDisk => {
                self.disk.fill();
                std::thread::sleep(hold);
                self.disk.free();
                // A server ends on a disk that is full for good; systemd would start it again.
                if !self.nodes[last].is_running() {
                    self.nodes[last].kill();
                    self.nodes[last].start();
                }
            }
        }
    }

    pub fn begin(&mut self, agent: usize, fault: AgentFault) {
        match fault {
            AgentFault::Kill => self.agent(agent).kill(),
            AgentFault::Suspend => kill(pid(self.agent(agent).pid()), Signal::SIGSTOP).expect("it runs"),
            AgentFault::CutLink => self.switch.set_link(self.agent_number(agent), false),
        }
    }

    pub fn end(&mut self, agent: usize, fault: AgentFault) {
        match fault {
            AgentFault::Kill => self.agent(agent).start(),
            AgentFault::Suspend => kill(pid(self.agent(agent).pid()), Signal::SIGCONT).expect("it still exists"),
            AgentFault::CutLink => self.switch.set_link(self.agent_number(agent), true),
        }
    }

    fn step_clock(&self, server: usize, seconds: i64, hold: Duration) {
        self.clocks[server].step(self.nodes[server].pid(), seconds);
        std::thread::sleep(hold);
        self.clocks[server].step(self.nodes[server].pid(), 0);
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

fn suspend(process: Pid, hold: Duration) {
    kill(process, Signal::SIGSTOP).expect("it runs");
    std::thread::sleep(hold);
    kill(process, Signal::SIGCONT).expect("it still exists");
}
