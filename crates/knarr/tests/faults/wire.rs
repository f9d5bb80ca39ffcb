//! A network cable whose faults the test chooses: loss and delay in each direction.
//!
//! Kernels without `netem` cannot delay packets, so a thread per direction copies frames between two tap devices: one is the
//! host's interface, the other a port of the switch.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::libc;
use rand::Rng;

const FRAME_BYTES: usize = 65_536;
/// A cable is not a buffer without end: a queue that is full loses frames, as a router does.
const MAX_QUEUE: usize = 2000;
/// How often a thread looks whether the test has ended.
const POLL_MILLISECONDS: u16 = 50;

/// What happens to frames of one direction.
#[derive(Debug, Default)]
struct Impairment {
    lost_percent: AtomicU32,
    delay_milliseconds: AtomicU32,
}

/// A cable between a host and the switch.
pub struct Wire {
    from_host: Arc<Impairment>,
    to_host: Arc<Impairment>,
    stopping: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Wire {
    /// Creates `t{number}` in the switch's namespace and `eth0` in the host's.
    pub fn connect(number: u8, switch: PathBuf, host: PathBuf) -> Self {
        let (switch, host) = (tap(&switch, &format!("t{number}")), tap(&host, "eth0"));
        let mut wire =
            Wire { from_host: Arc::default(), to_host: Arc::default(), stopping: Arc::default(), threads: Vec::new() };
        let copies = |file: &File| file.try_clone().expect("a file");
        for (from, to, impairment) in [(copies(&host), copies(&switch), &wire.from_host), (switch, host, &wire.to_host)]
        {
            let (impairment, stopping) = (Arc::clone(impairment), Arc::clone(&wire.stopping));
            wire.threads.push(std::thread::spawn(move || copy(from, to, &impairment, &stopping)));
        }
        wire
    }

    /// Sets how many percent of the frames from and to the host are lost, and how long the others take.
    pub fn impair(&self, lost_from_host: u32, lost_to_host: u32, delay: Duration) {
        let milliseconds = u32::try_from(delay.as_millis()).expect("a short delay");
        for (direction, lost) in [(&self.from_host, lost_from_host), (&self.to_host, lost_to_host)] {
            direction.lost_percent.store(lost, Ordering::Relaxed);
            direction.delay_milliseconds.store(milliseconds, Ordering::Relaxed);
        }
    }

    pub fn heal(&self) {
        self.impair(0, 0, Duration::ZERO);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            if ended.is_err() && !std::thread::panicking() {
                panic!("a wire failed");
            }
        }
    }
}

/// A tap device in a network namespace.
fn tap(namespace: &Path, name: &str) -> File {
    let namespace = File::open(namespace).expect("a namespace");
    let name = name.to_owned();
    let opened = std::thread::spawn(move || {
        nix::sched::setns(&namespace, nix::sched::CloneFlags::CLONE_NEWNET).expect("it is entered");
        let file = File::options().read(true).write(true).open("/dev/net/tun").expect("tap devices");
        // SAFETY: all bytes of this plain structure may be zero.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        let flags = libc::IFF_TAP | libc::IFF_NO_PI;
        request.ifr_ifru.ifru_flags = flags as libc::c_short;
        // SAFETY: the descriptor is open, and the kernel reads and writes one `ifreq`.
        let made = unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF, &mut request) };
        assert_eq!(made, 0, "{name}: {}", std::io::Error::last_os_error());
        file
    });
    opened.join().expect("a tap device")
}

/// Waits some milliseconds for a frame.
fn is_readable(file: &File, milliseconds: u16) -> bool {
    let mut event = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the descriptor is open, and the kernel reads and writes one `pollfd`.
    unsafe { libc::poll(&mut event, 1, i32::from(milliseconds)) > 0 }
}

/// Copies frames until the test ends.
fn copy(mut from: File, mut to: File, impairment: &Impairment, stopping: &AtomicBool) {
    let mut queue: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut frame = vec![0; FRAME_BYTES];
    while !stopping.load(Ordering::Relaxed) {
        while queue.front().is_some_and(|(due, _)| *due <= Instant::now()) {
            let (_, frame) = queue.pop_front().expect("a frame");
            // An interface that is down refuses frames, which are lost then.
            let _ = to.write(&frame);
        }
        let wait = queue.front().map_or(POLL_MILLISECONDS, |(due, _)| {
            let left = due.saturating_duration_since(Instant::now()).as_millis() + 1;
            u16::try_from(left).unwrap_or(POLL_MILLISECONDS).min(POLL_MILLISECONDS)
        });
        if !is_readable(&from, wait) {
            continue;
        }
        // The interface is not up yet, or no more.
        let Ok(length) = from.read(&mut frame) else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let is_lost = rand::rng().random_range(0..100) < impairment.lost_percent.load(Ordering::Relaxed);
        let delay = impairment.delay_milliseconds.load(Ordering::Relaxed);
        if is_lost || queue.len() >= MAX_QUEUE {
            continue;
        }
        if delay == 0 && queue.is_empty() {
            let _ = to.write(&frame[..length]);
        } else {
            queue.push_back((Instant::now() + Duration::from_millis(delay.into()), frame[..length].to_vec()));
        }
    }
}
