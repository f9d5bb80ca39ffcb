//! Checks the addresses to which requests of users are forwarded.
//!
//! A user who may write a Pod, a Node or an EndpointSlice chooses its address. Loopback and link-local addresses would
//! lead to services on the host of the control plane, which trust local clients.

use std::net::{IpAddr, SocketAddr};

/// Why a host cannot be connected to.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    #[error("address not allowed")]
    NotAllowed,
    #[error("no addresses for hostname")]
    None,
    #[error("lookup {host}: {source}")]
    Lookup { host: String, source: std::io::Error },
}

/// Whether an address is a unicast address beyond this host and its links.
pub fn is_global_unicast(address: IpAddr) -> bool {
    // An IPv4 address in IPv6 notation reaches the same host.
    match address.to_canonical() {
        IpAddr::V4(v4) => {
            !(v4.is_unspecified() || v4.is_loopback() || v4.is_multicast() || v4.is_link_local() || v4.is_broadcast())
        }
        IpAddr::V6(v6) => !(v6.is_unspecified() || v6.is_loopback() || v6.is_multicast() || v6.is_unicast_link_local()),
    }
}

/// Refuses a name with any address that is not allowed.
pub fn check(addresses: &[SocketAddr]) -> Result<(), AddressError> {
    if addresses.is_empty() {
        return Err(AddressError::None);
    }
    if addresses.iter().all(|address| is_global_unicast(address.ip())) { Ok(()) } else { Err(AddressError::NotAllowed) }
}

/// Resolves a host once. Callers check and connect to the same addresses: another lookup may return others.
pub async fn lookup(host: &str, port: u16) -> Result<Vec<SocketAddr>, AddressError> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = tokio::net::lookup_host((host, port)).await;
    found.map(Iterator::collect).map_err(|source| AddressError::Lookup { host: host.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_global_unicast_addresses_are_allowed() {
        for (address, allowed) in [
            ("10.0.0.1", true),
            ("192.168.1.1", true),
            ("203.0.113.9", true),
            ("fd00::1", true),
            ("2001:db8::1", true),
            ("127.0.0.1", false),
            ("127.9.9.9", false),
            ("169.254.169.254", false),
            ("0.0.0.0", false),
            ("224.0.0.1", false),
            ("255.255.255.255", false),
            ("::", false),
            ("::1", false),
            ("fe80::1", false),
            ("ff02::1", false),
            ("::ffff:127.0.0.1", false),
            ("::ffff:169.254.169.254", false),
            ("::ffff:10.0.0.1", true),
        ] {
            assert_eq!(is_global_unicast(address.parse().unwrap()), allowed, "{address}");
        }
    }

    #[test]
    fn one_forbidden_address_refuses_the_name() {
        let at = |list: &[&str]| -> Vec<SocketAddr> { list.iter().map(|text| text.parse().unwrap()).collect() };
        assert!(check(&at(&["10.0.0.1:80", "10.0.0.2:80"])).is_ok());
        let mixed = check(&at(&["10.0.0.1:80", "127.0.0.1:80"])).unwrap_err();
        assert_eq!(mixed.to_string(), "address not allowed");
        assert_eq!(check(&[]).unwrap_err().to_string(), "no addresses for hostname");
    }
}
