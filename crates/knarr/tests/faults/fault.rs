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
    /// The process of a node's agent is killed; its pods run on.
    KillAgent,
    SuspendAgent,
    CutAgent,
}

/// After which another server takes over what a server was elected for.
const LEASE_DURATION: Duration = Duration::from_secs(15);
/// More seconds than certificates are valid.
const CERTIFICATE_LIFETIME: i64 = 400 * 24 * 3600;

/// The faults of servers, and those of nodes.
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
const AGENT_KINDS: [Fault; 3] = [Fault::KillAgent, Fault::SuspendAgent, Fault::CutAgent];

impl Fault {
    pub fn random(random: &mut StdRng, has_agents: bool) -> Self {
        let count = KINDS.len() + if has_agents { AGENT_KINDS.len() } else { 0 };
        let number = random.random_range(0..count);
        match number.checked_sub(KINDS.len()) {
            Some(number) => AGENT_KINDS[number],
            None => KINDS[number](random),
        }
    }
}

impl ThreeServers {
    /// Lets a fault happen to a server for some time. Only the last server has a disk of its own; nodes are chosen by the
    /// same number.
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
            Fault::KillAgent => {
                let agent = self.agent(server);
                agent.kill();
                std::thread::sleep(hold);
                agent.start();
            }
            Fault::SuspendAgent => suspend(pid(self.agent(server).pid()), hold),
            Fault::CutAgent => {
                let number = self.agent_number(server);
                self.switch.set_link(number, false);
                std::thread::sleep(hold);
                self.switch.set_link(number, true);
            }
        }
    }

    fn step_clock(&self, server: usize, seconds: i64, hold: Duration) {
        self.clocks[server].step(seconds);
        std::thread::sleep(hold);
        self.clocks[server].step(0);
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
