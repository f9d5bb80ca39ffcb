//! DNS queries, and an upstream resolver for tests.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

pub const A: u16 = 1;

pub fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend_from_slice(label.as_bytes());
    }
    bytes.push(0);
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1]);
    bytes
}

/// Responds to every A query with 192.0.2.1, except for names with `silent`, and records the queries.
pub fn upstream() -> (SocketAddr, Arc<Mutex<Vec<Vec<u8>>>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (address, asked) = (socket.local_addr().unwrap(), Arc::new(Mutex::new(Vec::new())));
    let kept = Arc::clone(&asked);
    std::thread::spawn(move || {
        let mut request = [0; 512];
        while let Ok((length, client)) = socket.recv_from(&mut request) {
            kept.lock().unwrap().push(request[..length].to_vec());
            if request[..length].windows(6).any(|part| part == b"silent") {
                continue;
            }
            let mut answer = request[..length].to_vec();
            answer[2] |= 0x80;
            answer[7] = 1;
            answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, 1]);
            let _ = socket.send_to(&answer, client);
        }
    });
    (address, asked)
}

/// An unused address: the port is derived from the process id and below the ephemeral range.
pub fn free_address() -> SocketAddr {
    static PORT: AtomicU16 = AtomicU16::new(20_000);
    let [_, first, second, third] = std::process::id().to_be_bytes();
    (Ipv4Addr::new(127, 64 | first, second, third), PORT.fetch_add(1, Ordering::Relaxed)).into()
}
