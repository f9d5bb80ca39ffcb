//! Metrics of the DNS server, by the names of CoreDNS, in whose place it is.

use std::net::SocketAddr;
use std::time::Instant;

use knarr_metrics::{Counter, Family, Gauge, Histogram};

use crate::message::HEADER;

/// One server serves all names.
const SERVER: &str = "dns://:53";
const ZONE: &str = ".";
const VIEW: &str = "";

const TIME_BOUNDS: &[f64] = &[
    0.00025, 0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.024, 2.048, 4.096, 8.192,
];
const SIZE_BOUNDS: &[f64] =
    &[0.0, 100.0, 200.0, 300.0, 400.0, 511.0, 1023.0, 2047.0, 4095.0, 8291.0, 16_000.0, 32_000.0, 48_000.0, 64_000.0];

static REQUESTS: Counter = Counter::new(
    "coredns_dns_requests_total",
    "DNS requests, by protocol, address family and type.",
    &["family", "proto", "server", "type", "view", "zone"],
);
static SIGNED: Counter =
    Counter::new("coredns_dns_do_requests_total", "DNS requests that ask for signatures.", &["server", "view", "zone"]);
static DURATION: Histogram = Histogram::new(
    "coredns_dns_request_duration_seconds",
    "Time to respond to DNS requests.",
    &["server", "view", "zone"],
    TIME_BOUNDS,
);
static REQUEST_SIZE: Histogram = Histogram::new(
    "coredns_dns_request_size_bytes",
    "Sizes of DNS requests, by protocol.",
    &["proto", "server", "view", "zone"],
    SIZE_BOUNDS,
);
static RESPONSE_SIZE: Histogram = Histogram::new(
    "coredns_dns_response_size_bytes",
    "Sizes of DNS responses, by protocol.",
    &["proto", "server", "view", "zone"],
    SIZE_BOUNDS,
);
static RESPONSES: Counter = Counter::new(
    "coredns_dns_responses_total",
    "DNS responses, by code and by what resolved them.",
    &["plugin", "rcode", "server", "view", "zone"],
);
static CACHE_ENTRIES: Gauge = Gauge::new(
    "coredns_cache_entries",
    "Cached responses of other servers, by whether the name exists.",
    &["server", "type", "view", "zones"],
);
static CACHE_HITS: Counter = Counter::new(
    "coredns_cache_hits_total",
    "Responses that were found in the cache, by whether the name exists.",
    &["server", "type", "view", "zones"],
);
static CACHE_MISSES: Counter = Counter::new(
    "coredns_cache_misses_total",
    "Requests for names of other servers that were not in the cache.",
    &["server", "view", "zones"],
);

pub const FAMILIES: &[&dyn Family] = &[
    &REQUESTS,
    &SIGNED,
    &DURATION,
    &REQUEST_SIZE,
    &RESPONSE_SIZE,
    &RESPONSES,
    &CACHE_ENTRIES,
    &CACHE_HITS,
    &CACHE_MISSES,
];

/// A request that is being resolved.
#[derive(Clone, Copy)]
pub struct Request {
    protocol: &'static str,
    started: Instant,
}

impl Request {
    pub fn start(request: &[u8], protocol: &'static str, client: SocketAddr) -> Request {
        let family = if client.ip().to_canonical().is_ipv4() { "1" } else { "2" };
        let question = question(request);
        let kind = question.map_or("other", |question| kind_name(question.kind));
        REQUESTS.add(&[family, protocol, SERVER, kind, VIEW, ZONE], 1);
        REQUEST_SIZE.observe(&[protocol, SERVER, VIEW, ZONE], request.len() as f64);
        if question.is_some_and(|question| question.wants_signatures) {
            SIGNED.add(&[SERVER, VIEW, ZONE], 1);
        }
        Request { protocol, started: Instant::now() }
    }

    /// Records the response. `is_forwarded` if other servers resolved it.
    pub fn finish(self, response: &[u8], is_forwarded: bool) {
        let code = response.get(3).map_or("other", |flags| code_name(flags & 0x0f));
        let plugin = if is_forwarded { "forward" } else { "kubernetes" };
        RESPONSES.add(&[plugin, code, SERVER, VIEW, ZONE], 1);
        RESPONSE_SIZE.observe(&[self.protocol, SERVER, VIEW, ZONE], response.len() as f64);
        DURATION.observe(&[SERVER, VIEW, ZONE], self.started.elapsed().as_secs_f64());
    }
}

/// Records a look into the cache of other servers' responses.
pub fn looked_up(response: Option<&[u8]>) {
    match response {
        Some(response) => CACHE_HITS.add(&[SERVER, cache_kind(response), VIEW, ZONE], 1),
        None => CACHE_MISSES.add(&[SERVER, VIEW, ZONE], 1),
    }
}

/// Records that a response was added to the cache, in the place of another.
pub fn cached(response: &[u8], replaced: Option<&[u8]>) {
    CACHE_ENTRIES.add(&[SERVER, cache_kind(response), VIEW, ZONE], 1.0);
    replaced.map(evicted);
}

/// Records that a response leaves the cache. Returns that it is not kept.
pub fn evicted(response: &[u8]) -> bool {
    CACHE_ENTRIES.add(&[SERVER, cache_kind(response), VIEW, ZONE], -1.0);
    false
}

fn cache_kind(response: &[u8]) -> &'static str {
    if is_denial(response) { "denial" } else { "success" }
}

fn is_denial(response: &[u8]) -> bool {
    let has_answers = response.get(6..8).is_some_and(|count| count != [0, 0]);
    !has_answers || response.get(3).is_some_and(|flags| flags & 0x0f != 0)
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Question {
    kind: u16,
    wants_signatures: bool,
}

/// What a request asks for, read without an allocation; `None` if it is malformed.
fn question(request: &[u8]) -> Option<Question> {
    let mut at = HEADER;
    loop {
        match *request.get(at)? {
            0 => break,
            length if length < 64 => at += 1 + usize::from(length),
            _ => return None,
        }
    }
    let kind = u16::from_be_bytes(request.get(at + 1..at + 3)?.try_into().ok()?);
    // The extension, if any, follows the question at once: a root name, its type, a size, and flags.
    let extension = request.get(at + 5..).and_then(|rest| rest.get(..9));
    let wants_signatures = extension.is_some_and(|own| own[..3] == [0, 0, 41] && own[7] & 0x80 != 0);
    Some(Question { kind, wants_signatures })
}

/// The types that have a series of their own.
fn kind_name(kind: u16) -> &'static str {
    match kind {
        1 => "A",
        2 => "NS",
        5 => "CNAME",
        6 => "SOA",
        12 => "PTR",
        15 => "MX",
        16 => "TXT",
        28 => "AAAA",
        33 => "SRV",
        43 => "DS",
        46 => "RRSIG",
        47 => "NSEC",
        48 => "DNSKEY",
        64 => "SVCB",
        65 => "HTTPS",
        255 => "ANY",
        _ => "other",
    }
}

fn code_name(code: u8) -> &'static str {
    match code {
        0 => "NOERROR",
        1 => "FORMERR",
        2 => "SERVFAIL",
        3 => "NXDOMAIN",
        4 => "NOTIMP",
        5 => "REFUSED",
        _ => "other",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let header = [7, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 1];
        let name = b"\x03abc\x07cluster\x05local\x00";
        let asks = |kind: u16, extension: &[u8]| [&header[..], name, &kind.to_be_bytes(), &[0, 1], extension].concat();
        let plain = question(&asks(28, &[]));
        assert_eq!(plain, Some(Question { kind: 28, wants_signatures: false }));
        let extension = [0, 0, 41, 4, 208, 0, 0, 0x80, 0, 0, 0];
        assert_eq!(question(&asks(1, &extension)), Some(Question { kind: 1, wants_signatures: true }));
        for malformed in [&header[..5], &header, &asks(1, &[])[..20]] {
            assert_eq!(question(malformed), None);
        }
    }

    #[test]
    fn the_table_of_coredns_is_complete() {
        let described: Vec<_> = FAMILIES.iter().flat_map(|family| family.described()).collect();
        let differences = knarr_metrics::reference::differences("coredns", "/metrics", "", &described);
        assert_eq!(differences, Vec::<String>::new());
    }
}
