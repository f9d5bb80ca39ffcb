//! Fuzzing entry points of the parsers of outside input: their invariants must hold for any bytes.

use super::chunks::Chunks;
use super::field::{Field, length};
use super::request;
use super::response::{self, Body};
use crate::forwarded::Origin;

/// More fields than either parser accepts, plus those that are added.
const FIELDS: usize = 128;

/// Parses a client's request. The pod must get exactly one complete request.
pub fn request(bytes: &[u8]) {
    let mut out = Vec::new();
    let read = |bytes: &[u8], out: &mut Vec<u8>| {
        out.clear();
        request::read(bytes, &Origin::new([10, 0, 0, 1].into(), true, 443), out)
    };
    let request::Read::Whole(plain) = read(bytes, &mut out) else { return };
    assert!(bytes.get(plain.host.clone()).is_some_and(|host| !host.is_empty()), "a host");
    assert!(bytes.get(plain.path.clone()).is_some_and(|path| path.starts_with(b"/")), "a path");
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let head_length = head.parse(&out).expect("what is sent can be read").unwrap();
    assert_eq!(head_length as u64 + length_of(head.headers).unwrap_or(0), out.len() as u64, "one request is sent");
    for name in ["x-forwarded-for", "x-real-ip", "x-forwarded-host", "host"] {
        let said = head.headers.iter().filter(|field| field.name.eq_ignore_ascii_case(name)).count();
        assert_eq!(said, 1, "{name} is said once");
    }
    let mut again = Vec::new();
    assert_eq!(read(&bytes[..plain.length], &mut again), request::Read::Whole(plain.clone()));
    assert_eq!(again, out, "what follows changes nothing");
    match read(&bytes[..plain.length - 1], &mut again) {
        request::Read::Partial => {}
        request::Read::PartialBody(length) => assert_eq!(length, plain.length),
        other => panic!("a request that is cut off is {other:?}"),
    }
}

/// Parses a pod's response. What the client gets must end where the body ends.
pub fn response(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let (to_head, keeps_alive) = (choice & 1 != 0, choice & 2 != 0);
    let mut out = Vec::new();
    let response = match response::read(bytes, to_head, keeps_alive, &mut out) {
        response::Read::Whole(response) => response,
        response::Read::Interim(length) => return assert!(0 < length && length <= bytes.len()),
        response::Read::Partial | response::Read::Broken => return,
    };
    assert!(response.head <= bytes.len());
    let mut fields = [httparse::EMPTY_HEADER; FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    assert_eq!(head.parse(&out).expect("what is sent can be read").unwrap(), out.len(), "a head is sent");
    let is_chunked = head.headers.iter().any(|field| Field::of(field.name) == Field::TransferEncoding);
    let closes = head.headers.iter().any(|field| Field::of(field.name) == Field::Connection);
    match response.body {
        _ if to_head || matches!(response.status, 204 | 304) => {}
        Body::Length(expected) => assert!(!is_chunked && length_of(head.headers) == Some(expected)),
        Body::Chunked => assert!(is_chunked && length_of(head.headers).is_none()),
        Body::UntilClose => assert!(closes && !is_chunked && length_of(head.headers).is_none()),
    }
    assert!(closes || keeps_alive, "a client that wants no more is notified");
}

/// Parses a chunked body. It must end at the same byte however it is split.
pub fn chunks(bytes: &[u8]) {
    let Some((piece, body)) = bytes.split_first() else { return };
    let whole = Chunks::default().pass(body);
    let mut chunks = Chunks::default();
    let mut passed = 0;
    for bytes in body.chunks(usize::from(*piece).max(1)) {
        match chunks.pass(bytes) {
            Ok((count, true)) => return assert_eq!(whole, Ok((passed + count, true))),
            Ok((count, false)) => passed += count,
            Err(broken) => return assert_eq!(whole, Err(broken)),
        }
    }
    assert_eq!(whole, Ok((passed, false)));
}

fn length_of(fields: &[httparse::Header<'_>]) -> Option<u64> {
    let mut lengths = fields.iter().filter(|field| Field::of(field.name) == Field::ContentLength);
    let first = lengths.next().map(|field| length(field.value).expect("a length"));
    assert!(lengths.next().is_none(), "one length");
    first
}
