//! Excludes other commands that choose a network on this host.
//!
//! Networks are unique per network namespace, and so are the ports of its sockets: clusters in other directories, and commands
//! in other mount namespaces, are excluded, too. Only root can bind the port, so that no other user of the host can keep root
//! from creating clusters, as with a name that anybody may use.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

/// A port below 1024 that is assigned to nothing, at an address of loopback that nobody else uses. Nothing is ever received there.
const ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(127, 190, 0, 1), 4);

/// Choosing a network takes a fraction of a second.
const CHOICE_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Held until dropped.
pub struct NetworkChoice {
    _socket: UdpSocket,
}

impl NetworkChoice {
    pub async fn lock() -> anyhow::Result<NetworkChoice> {
        Self::lock_at(ADDRESS).await
    }

    async fn lock_at(address: SocketAddrV4) -> anyhow::Result<NetworkChoice> {
        let started = Instant::now();
        loop {
            match UdpSocket::bind(address) {
                Ok(socket) => return Ok(NetworkChoice { _socket: socket }),
                Err(error) if error.kind() == ErrorKind::AddrInUse => refuse_others(address)?,
                Err(error) => return Err(error).with_context(|| format!("cannot bind {address}")),
            }
            if started.elapsed() > CHOICE_TIMEOUT {
                bail!("another command chooses a network and does not end");
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }
}

/// Fails at once if another user holds the port, who chooses no network: where `net.ipv4.ip_unprivileged_port_start` is low,
/// everybody can bind it.
fn refuse_others(address: SocketAddrV4) -> anyhow::Result<()> {
    let sockets = std::fs::read_to_string("/proc/net/udp").context("cannot read /proc/net/udp")?;
    match owner(&sockets, address) {
        Some((user, inode)) if user != 0 && user != nix::unistd::geteuid().as_raw() => {
            let process = process_of(inode).map_or(String::new(), |process| format!(", process {process}"));
            bail!("user {user}{process} holds {address}, by which commands that choose a network exclude each other");
        }
        // It may have been closed meanwhile.
        _ => Ok(()),
    }
}

/// The user and the inode of the socket that is bound to an address, by the kernel's table.
fn owner(sockets: &str, address: SocketAddrV4) -> Option<(u32, u64)> {
    // The kernel prints the bytes of the address as a number of this host.
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port());
    sockets.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        (fields.get(1) == Some(&local.as_str())).then_some(())?;
        Some((fields.get(7)?.parse().ok()?, fields.get(9)?.parse().ok()?))
    })
}

/// A process that has a socket open, as far as this user may see it.
fn process_of(inode: u64) -> Option<u32> {
    let socket = PathBuf::from(format!("socket:[{inode}]"));
    let has_open = |process: &u32| {
        let opened = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
        opened.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|open| open == socket)
    };
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(has_open)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_can_bind_the_port() {
        assert!(ADDRESS.port() < 1024 && ADDRESS.ip().is_loopback());
    }

    #[tokio::test]
    async fn no_other_user_of_the_host_holds_up_the_choice_of_a_network() {
        let held = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let std::net::SocketAddr::V4(address) = held.local_addr().unwrap() else { unreachable!() };
        let waiting = tokio::time::timeout(POLL_INTERVAL * 3, NetworkChoice::lock_at(address)).await;
        assert!(waiting.is_err(), "a command of the same user is waited for");
        if nix::unistd::geteuid().is_root() {
            std::os::unix::fs::fchown(&held, Some(65534), None).unwrap();
            let Err(refused) = NetworkChoice::lock_at(address).await else { panic!("locked") };
            let expected = format!("user 65534, process {} holds {address}", std::process::id());
            assert!(refused.to_string().starts_with(&expected), "{refused}");
        }
        drop(held);
        assert!(NetworkChoice::lock_at(address).await.is_ok());
    }

    #[test]
    fn the_owner_of_a_socket_is_in_the_table_of_the_kernel() {
        let local = format!("{:08X}:0004", u32::from_ne_bytes([127, 190, 0, 1]));
        let table = format!(
            "   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
             2: 0100007F:0004 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 11 2 0 0\n\
             3: {local} 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 12 2 0 0\n"
        );
        assert_eq!(owner(&table, ADDRESS), Some((1000, 12)));
        assert_eq!(owner("", ADDRESS), None);
        assert_eq!(owner("garbage\n1: 0100BE7F:0004", ADDRESS), None);
    }
}
