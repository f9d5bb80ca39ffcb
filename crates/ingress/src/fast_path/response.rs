//! Parses a pod's response head and rewrites it for the client.

use http::StatusCode;

use super::field::{Field, length, words};
use super::request::write_field;

const MAX_FIELDS: usize = 100;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    pub status: u16,
    /// Length of the head.
    pub head: usize,
    pub body: Body,
    /// Whether the pod accepts further requests on the connection.
    pub keeps_alive: bool,
}

/// How the end of the body is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    Length(u64),
    Chunked,
    UntilClose,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    Whole(ResponseHead),
    /// An interim (1xx) response, with its length.
    Interim(usize),
    Partial,
    Broken,
}

/// Parses the response at the start of `bytes`. The head of a final response is also written to `out` for the client.
pub fn read(bytes: &[u8], to_head: bool, keeps_alive: bool, out: &mut Vec<u8>) -> Read {
    if bytes.is_empty() {
        return Read::Partial;
    }
    let mut fields = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let mut head = httparse::Response::new(&mut fields);
    let head_length = match head.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Read::Partial,
        Err(_) => return Read::Broken,
    };
    let (Some(status), Some(version)) = (head.code, head.version) else { return Read::Broken };
    match status {
        // We did not request another protocol.
        101 => return Read::Broken,
        100..200 => return Read::Interim(head_length),
        _ => {}
    }
    let Some(parsed) = interpret(head.headers, version) else { return Read::Broken };
    let has_no_body = to_head || matches!(status, 204 | 304);
    let body = match (parsed.is_chunked, parsed.length) {
        _ if has_no_body => Body::Length(0),
        (true, _) => Body::Chunked,
        (false, Some(length)) => Body::Length(length),
        (false, None) => Body::UntilClose,
    };
    out.clear();
    write(out, status, head.reason.unwrap_or_default(), head.headers, &parsed.dropped);
    if parsed.is_chunked && status != 204 {
        write_field(out, "transfer-encoding", b"chunked");
    } else if let Some(length) = parsed.length {
        write_field(out, "content-length", length.to_string().as_bytes());
    }
    if !keeps_alive || body == Body::UntilClose {
        write_field(out, "connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
    Read::Whole(ResponseHead { status, head: head_length, body, keeps_alive: parsed.keeps_alive })
}

struct Fields<'a> {
    length: Option<u64>,
    is_chunked: bool,
    keeps_alive: bool,
    /// Hop-by-hop headers between the pod and us.
    dropped: Vec<&'a str>,
}

/// Interprets the headers; `None` if they contradict each other.
fn interpret<'a>(fields: &[httparse::Header<'a>], version: u8) -> Option<Fields<'a>> {
    let mut parsed = Fields { length: None, is_chunked: false, keeps_alive: version == 1, dropped: Vec::new() };
    for field in fields {
        match Field::of(field.name) {
            Field::ContentLength => {
                let new = length(field.value)?;
                if parsed.length.is_some_and(|known| known != new) {
                    return None;
                }
                parsed.length = Some(new);
            }
            // Other encodings end with the connection, and no pod uses them.
            Field::TransferEncoding if !parsed.is_chunked && field.value.eq_ignore_ascii_case(b"chunked") => {
                parsed.is_chunked = true;
            }
            Field::TransferEncoding => return None,
            Field::Connection => {
                for word in words(field.value) {
                    match word {
                        _ if word.eq_ignore_ascii_case("keep-alive") => {}
                        _ if word.eq_ignore_ascii_case("close") => parsed.keeps_alive = false,
                        _ => parsed.dropped.push(word),
                    }
                }
            }
            _ => {}
        }
    }
    // A length beside chunks is meaningless, and a client that believed it would misread the next response.
    if parsed.is_chunked && parsed.length.take().is_some() {
        parsed.keeps_alive = false;
    }
    Some(parsed)
}

fn write(out: &mut Vec<u8>, status: u16, reason: &str, fields: &[httparse::Header], dropped: &[&str]) {
    out.reserve(512);
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(&[
        b'0' + (status / 100) as u8 % 10,
        b'0' + (status / 10 % 10) as u8,
        b'0' + (status % 10) as u8,
    ]);
    out.push(b' ');
    out.extend_from_slice(reason.as_bytes());
    out.extend_from_slice(b"\r\n");
    for field in fields {
        let is_passed = match Field::of(field.name) {
            Field::EndToEnd | Field::Host | Field::Special | Field::Origin => true,
            Field::HopByHop | Field::Connection | Field::ContentLength | Field::TransferEncoding | Field::Upgrade => {
                false
            }
        };
        if is_passed && !dropped.iter().any(|name| name.eq_ignore_ascii_case(field.name)) {
            write_field(out, field.name, field.value);
        }
    }
}

/// Writes a response of our own.
pub fn write_own(status: StatusCode, text: &str, to_head: bool, keeps_alive: bool, out: &mut Vec<u8>) {
    write(out, status.as_u16(), status.canonical_reason().unwrap_or_default(), &[], &[]);
    write_field(out, "content-type", b"text/plain; charset=utf-8");
    write_field(out, "content-length", text.len().to_string().as_bytes());
    if !keeps_alive {
        write_field(out, "connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
    if !to_head {
        out.extend_from_slice(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_text(text: &str, to_head: bool, keeps_alive: bool) -> (Read, String) {
        let mut out = Vec::new();
        let read = read(text.as_bytes(), to_head, keeps_alive, &mut out);
        (read, String::from_utf8(out).unwrap())
    }

    #[test]
    fn body_ends_are_determined() {
        let whole = |body: Body, keeps_alive: bool| Some((body, keeps_alive));
        for (text, to_head, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", false, whole(Body::Length(5), true)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", true, whole(Body::Length(0), true)),
            ("HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", false, whole(Body::Length(0), true)),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n", false, whole(Body::Chunked, true)),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
                false,
                whole(Body::Chunked, false),
            ),
            ("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", false, whole(Body::UntilClose, false)),
            ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\n", false, whole(Body::Length(5), false)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", false, None),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", false, None),
            ("HTTP/1.1 101 Switching Protocols\r\n\r\n", false, None),
            ("nonsense\r\n\r\n", false, None),
        ] {
            let read = match read_text(text, to_head, true).0 {
                Read::Whole(response) => Some((response.body, response.keeps_alive)),
                _ => None,
            };
            assert_eq!(read, expected, "{text:?}");
        }
        assert_eq!(read_text("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n", false, true).0, Read::Interim(37));
        assert_eq!(read_text("HTTP/1.1 200 OK\r\nContent-", false, true).0, Read::Partial);
    }

    #[test]
    fn a_head_is_written_for_the_client() {
        let text = "HTTP/1.1 200 Fine\r\nServer: pod\r\nConnection: keep-alive, x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\n\
            X-Forwarded-Host: kept\r\nContent-Length: 5\r\n\r\n";
        let head = "HTTP/1.1 200 Fine\r\nServer: pod\r\nX-Forwarded-Host: kept\r\ncontent-length: 5\r\n";
        assert_eq!(read_text(text, false, true).1, format!("{head}\r\n"));
        assert_eq!(read_text(text, false, false).1, format!("{head}connection: close\r\n\r\n"));
        let mut out = Vec::new();
        write_own(StatusCode::NOT_FOUND, "no\n", false, true, &mut out);
        let expected =
            "HTTP/1.1 404 Not Found\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 3\r\n\r\nno\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
