//! Parses a simple request and rewrites it for a pod.

use std::ops::Range;

use super::field::{Field, length, words};
use crate::forwarded::Origin;

const MAX_FIELDS: usize = 64;

/// The parts of a request needed to route it and to find its end. Ranges are positions in the parsed bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SimpleRequest {
    pub host: Range<usize>,
    pub path: Range<usize>,
    /// Head and body together.
    pub length: usize,
    pub is_head: bool,
    /// Whether the request is safe to repeat.
    pub is_safe: bool,
    pub keeps_alive: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    Whole(SimpleRequest),
    /// More bytes of the head are needed.
    Partial,
    /// More bytes of the body are needed, until the request is this long.
    PartialBody(usize),
    NotSimple,
    /// Other servers may read it as several requests, or as a different one.
    Ambiguous,
}

/// Parses the request at the start of `bytes`. A whole one is also written to `out` as sent to the pod.
pub fn read(bytes: &[u8], origin: &Origin, out: &mut Vec<u8>) -> Read {
    if bytes.is_empty() {
        return Read::Partial;
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Request::new(&mut fields);
    let head_length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) if is_ambiguous(&bytes[..length], head.headers) => {
            return Read::Ambiguous;
        }
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Read::Partial,
        Err(_) => return Read::NotSimple,
    };
    let (Some(method), Some(target), Some(1)) = (head.method, head.path, head.version) else { return Read::NotSimple };
    if !target.starts_with('/') || target.contains('#') || method == "CONNECT" {
        return Read::NotSimple;
    }
    let Some(parsed) = interpret(head.headers) else { return Read::NotSimple };
    let Some(host) = parsed.host else { return Read::NotSimple };
    let Some(whole) = head_length.checked_add(parsed.length) else { return Read::NotSimple };
    if whole > super::MAX_REQUEST {
        return Read::NotSimple;
    }
    let Some(body) = bytes.get(head_length..whole) else { return Read::PartialBody(whole) };
    write(out, method, target, head.headers, origin, host);
    out.extend_from_slice(body);
    let place = |part: &[u8]| {
        let start = part.as_ptr().addr() - bytes.as_ptr().addr();
        start..start + part.len()
    };
    let path = target.split('?').next().unwrap_or_default();
    Read::Whole(SimpleRequest {
        host: place(host),
        path: place(path.as_bytes()),
        length: whole,
        is_head: method == "HEAD",
        is_safe: matches!(method, "GET" | "HEAD" | "OPTIONS" | "TRACE"),
        keeps_alive: parsed.keeps_alive,
    })
}

/// Whether a head is ambiguous about the request's end or host (RFC 9112, sections 2.2, 3.2 and 6.3): lines that end without
/// CR, a length beside an encoding, an encoding other than chunked, several lengths or hosts.
fn is_ambiguous(head: &[u8], fields: &[httparse::Header]) -> bool {
    let ends_bare = head.iter().enumerate().any(|(at, byte)| *byte == b'\n' && (at == 0 || head[at - 1] != b'\r'));
    let of = |kind: Field| fields.iter().filter(move |field| Field::of(field.name) == kind);
    let (lengths, encodings) = (of(Field::ContentLength).count(), of(Field::TransferEncoding).count());
    let is_odd = |field: &httparse::Header| !field.value.eq_ignore_ascii_case(b"chunked");
    ends_bare
        || lengths > 1
        || encodings > 1
        || (lengths > 0 && encodings > 0)
        || of(Field::TransferEncoding).any(is_odd)
        || of(Field::Host).count() > 1
}

struct Fields<'a> {
    host: Option<&'a [u8]>,
    length: usize,
    keeps_alive: bool,
}

/// Interprets the header fields; `None` if the request is not simple.
fn interpret<'a>(fields: &[httparse::Header<'a>]) -> Option<Fields<'a>> {
    let mut parsed = Fields { host: None, length: 0, keeps_alive: true };
    let mut has_length = false;
    for field in fields {
        match Field::of(field.name) {
            Field::Host if parsed.host.is_none() && !field.value.is_empty() => parsed.host = Some(field.value),
            Field::ContentLength if !has_length => {
                has_length = true;
                parsed.length = usize::try_from(length(field.value)?).ok()?;
            }
            Field::Connection => {
                for word in words(field.value) {
                    match word {
                        _ if word.eq_ignore_ascii_case("keep-alive") => {}
                        _ if word.eq_ignore_ascii_case("close") => parsed.keeps_alive = false,
                        _ => return None,
                    }
                }
            }
            Field::EndToEnd | Field::HopByHop | Field::Origin => {}
            Field::Host | Field::ContentLength | Field::Special | Field::TransferEncoding | Field::Upgrade => {
                return None;
            }
        }
    }
    Some(parsed)
}

fn write(out: &mut Vec<u8>, method: &str, target: &str, fields: &[httparse::Header], origin: &Origin, host: &[u8]) {
    out.reserve(512);
    for part in [method, " ", target, " HTTP/1.1\r\n"] {
        out.extend_from_slice(part.as_bytes());
    }
    for field in fields {
        if matches!(Field::of(field.name), Field::EndToEnd | Field::Host | Field::ContentLength) {
            write_field(out, field.name, field.value);
        }
    }
    origin.write(out);
    write_field(out, "x-forwarded-host", host);
    out.extend_from_slice(b"\r\n");
}

pub fn write_field(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str) -> (Read, String) {
        let mut out = Vec::new();
        let read = read(text.as_bytes(), &Origin::new([10, 0, 0, 1].into(), false, 80), &mut out);
        (read, String::from_utf8(out).unwrap())
    }

    #[test]
    fn a_plain_request_is_written_for_the_pod() {
        let text = "POST /a/b?c=d HTTP/1.1\r\nHost: shop.example:80\r\nConnection: keep-alive\r\nX-Real-IP: 1.2.3.4\r\n\
            X-Forwarded-For: 1.2.3.4\r\nAccept: */*\r\nContent-Length: 5\r\n\r\nhelloGET /next";
        let (read, out) = read_text(text);
        let Read::Whole(plain) = read else { panic!("{read:?}") };
        assert_eq!((&text[plain.host], &text[plain.path]), ("shop.example:80", "/a/b"));
        assert_eq!(&text[plain.length..], "GET /next");
        assert!(plain.keeps_alive && !plain.is_safe && !plain.is_head);
        assert_eq!(
            out,
            "POST /a/b?c=d HTTP/1.1\r\nHost: shop.example:80\r\nAccept: */*\r\nContent-Length: 5\r\nx-real-ip: 10.0.0.1\r\n\
             x-forwarded-for: 10.0.0.1\r\nx-forwarded-proto: http\r\nx-forwarded-port: 80\r\n\
             x-forwarded-host: shop.example:80\r\n\r\nhello"
        );
    }

    #[test]
    fn what_is_not_plain_is_left_to_others() {
        let host = "Host: a\r\n";
        for (text, expected) in [
            ("".to_owned(), Read::Partial),
            ("GET / HTTP/1.1\r\nHost:".to_owned(), Read::Partial),
            (format!("POST / HTTP/1.1\r\n{host}Content-Length: 5\r\n\r\nhell"), Read::PartialBody(52)),
            ("GET / HTTP/1.0\r\nHost: a\r\n\r\n".to_owned(), Read::NotSimple),
            ("GET / HTTP/1.1\r\n\r\n".to_owned(), Read::NotSimple),
            ("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n".to_owned(), Read::Ambiguous),
            ("GET / HTTP/1.1\nHost: a\n\n".to_owned(), Read::Ambiguous),
            ("GET / HTTP/1.1\r\nHost: a\nX: y\r\n\r\n".to_owned(), Read::Ambiguous),
            ("GET / HTTP/1.1\r\nHost: a\r\nX: y\r\n z\r\n\r\n".to_owned(), Read::NotSimple),
            (
                format!("POST / HTTP/1.1\r\n{host}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nx"),
                Read::Ambiguous,
            ),
            (format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: gzip, chunked\r\n\r\n"), Read::Ambiguous),
            (format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: xchunked\r\n\r\n"), Read::Ambiguous),
            ("GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), Read::NotSimple),
            ("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n".to_owned(), Read::NotSimple),
            ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), Read::NotSimple),
            ("what is this\r\n\r\n".to_owned(), Read::NotSimple),
            (format!("GET / HTTP/1.1\r\n{host}Upgrade: websocket\r\nConnection: upgrade\r\n\r\n"), Read::NotSimple),
            (format!("GET / HTTP/1.1\r\n{host}Connection: x-hop\r\n\r\n"), Read::NotSimple),
            (format!("POST / HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n"), Read::NotSimple),
            (format!("POST / HTTP/1.1\r\n{host}Content-Length: 1\r\nContent-Length: 1\r\n\r\nx"), Read::Ambiguous),
            (format!("POST / HTTP/1.1\r\n{host}Content-Length: 1, 1\r\n\r\nx"), Read::NotSimple),
            (format!("POST / HTTP/1.1\r\n{host}Content-Length: 999999\r\n\r\n"), Read::NotSimple),
            (format!("POST / HTTP/1.1\r\n{host}Expect: 100-continue\r\nContent-Length: 1\r\n\r\n"), Read::NotSimple),
            (format!("POST / HTTP/1.1\r\n{host}Content-Length : 1\r\n\r\nx"), Read::NotSimple),
            (format!("GET / HTTP/1.1\r\n{host}TE: trailers\r\n\r\n"), Read::NotSimple),
        ] {
            assert_eq!(read_text(&text).0, expected, "{text:?}");
        }
        let (read, _) = read_text("HEAD / HTTP/1.1\r\nHost: a\r\nConnection: Close\r\n\r\n");
        assert!(matches!(read, Read::Whole(plain) if plain.is_head && plain.is_safe && !plain.keeps_alive));
    }
}
