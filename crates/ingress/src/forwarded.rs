//! Changes to request and response headers on their way through the proxy.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use knarr_listen::Permit;

const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");

/// The origin of a connection's requests, as reported to pods in X-Forwarded headers.
#[derive(Clone, Debug)]
pub struct Origin {
    client: IpAddr,
    is_secure: bool,
    port: u16,
    /// All headers as lines of a request head.
    lines: String,
    /// The same as header values, built on first use.
    values: OnceLock<Values>,
    /// The connection's share of the limits; it also outlives HTTP, after an upgrade.
    permit: Option<Arc<Permit>>,
}

#[derive(Clone, Debug)]
struct Values {
    client: HeaderValue,
    protocol: HeaderValue,
    port: HeaderValue,
}

impl Origin {
    pub fn new(client: IpAddr, is_secure: bool, port: u16) -> Self {
        let client = client.to_canonical();
        let word = protocol(is_secure);
        let lines = format!(
            "{REAL_IP}: {client}\r\n{FORWARDED_FOR}: {client}\r\n{FORWARDED_PROTO}: {word}\r\n{FORWARDED_PORT}: {port}\r\n"
        );
        Self { client, is_secure, port, lines, values: OnceLock::new(), permit: None }
    }

    /// The same, holding a permit until the connection is closed, also after an upgrade.
    pub fn holding(self, permit: Permit) -> Self {
        Self { permit: Some(Arc::new(permit)), ..self }
    }

    pub fn permit(&self) -> Option<Arc<Permit>> {
        self.permit.clone()
    }

    /// Writes all headers except the host into a request head.
    pub fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.lines.as_bytes());
    }

    pub fn client(&self) -> IpAddr {
        self.client
    }

    pub fn is_secure(&self) -> bool {
        self.is_secure
    }

    fn values(&self) -> &Values {
        self.values.get_or_init(|| Values {
            // An address is always a valid header value.
            client: HeaderValue::from_str(&self.client.to_string()).unwrap_or(HeaderValue::from_static("unknown")),
            protocol: HeaderValue::from_static(protocol(self.is_secure)),
            port: HeaderValue::from(self.port),
        })
    }
}

fn protocol(is_secure: bool) -> &'static str {
    if is_secure { "https" } else { "http" }
}

/// Whether only the proxy may set this header, which names to pods the origin of a request. Some servers read `_` as `-`.
pub fn is_origin_header(name: &str) -> bool {
    const PREFIX: &[u8] = b"x-forwarded-";
    let like = |text: &[u8], other: &[u8]| {
        let plain = |byte: &u8| if *byte == b'_' { b'-' } else { byte.to_ascii_lowercase() };
        text.len() == other.len() && text.iter().map(plain).eq(other.iter().copied())
    };
    let name = name.as_bytes();
    name.get(..PREFIX.len()).is_some_and(|start| like(start, PREFIX))
        || like(name, b"forwarded")
        || like(name, b"x-real-ip")
}

/// Sets the origin headers. Those sent by the client are removed: pods trust these headers.
pub fn set(headers: &mut HeaderMap, origin: &Origin, host: Option<HeaderValue>) {
    let claims: Vec<HeaderName> = headers.keys().filter(|name| is_origin_header(name.as_str())).cloned().collect();
    for name in claims {
        headers.remove(name);
    }
    let values = origin.values();
    headers.insert(REAL_IP, values.client.clone());
    headers.insert(FORWARDED_FOR, values.client.clone());
    headers.insert(FORWARDED_PROTO, values.protocol.clone());
    headers.insert(FORWARDED_PORT, values.port.clone());
    match host {
        Some(host) => headers.insert(FORWARDED_HOST, host),
        None => headers.remove(FORWARDED_HOST),
    };
}

/// Removes hop-by-hop headers. `keep_upgrade` keeps those that a WebSocket needs.
pub fn remove_hop_by_hop(headers: &mut HeaderMap, keep_upgrade: bool) {
    let named: Vec<HeaderName> = headers
        .get_all(header::CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    let upgrade = keep_upgrade.then(|| headers.get(header::UPGRADE).cloned()).flatten();
    for name in named {
        headers.remove(name);
    }
    let trailers = headers.get(header::TE).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"trailers"));
    for name in [
        header::CONNECTION,
        KEEP_ALIVE,
        PROXY_CONNECTION,
        header::PROXY_AUTHENTICATE,
        header::PROXY_AUTHORIZATION,
        header::TE,
        header::TRANSFER_ENCODING,
        header::UPGRADE,
    ] {
        headers.remove(name);
    }
    if trailers {
        // gRPC needs to know that trailers are forwarded.
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
    if let Some(upgrade) = upgrade {
        headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(header::UPGRADE, upgrade);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn hop_by_hop_headers_are_removed() {
        let all = [
            ("connection", "close, x-hop"),
            ("x-hop", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("accept", "*/*"),
        ];
        let mut passed = headers(&all);
        remove_hop_by_hop(&mut passed, false);
        assert_eq!(passed, headers(&[("te", "trailers"), ("accept", "*/*")]));
        let mut socket = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        remove_hop_by_hop(&mut socket, true);
        assert_eq!(socket, headers(&[("connection", "upgrade"), ("upgrade", "websocket")]));
    }

    #[test]
    fn a_client_cannot_forge_its_origin() {
        let mut claimed = headers(&[
            ("x-forwarded-for", "1.2.3.4"),
            ("x-forwarded-host", "evil"),
            ("forwarded", "for=1.2.3.4"),
            ("x_forwarded_for", "1.2.3.4"),
            ("x-forwarded-prefix", "/evil"),
        ]);
        set(&mut claimed, &Origin::new([10, 0, 0, 1].into(), true, 443), None);
        assert_eq!(claimed["x-forwarded-for"], "10.0.0.1");
        assert_eq!(claimed["x-forwarded-proto"], "https");
        assert_eq!(claimed.len(), 4, "nothing is left of what it said: {claimed:?}");
    }
}
