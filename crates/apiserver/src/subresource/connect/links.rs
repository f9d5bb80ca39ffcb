//! Pages that are read through a proxy: their links must lead through it too.
//!
//! A page knows nothing of the path under which the client sees it, so what it links to on its own host is put under
//! that path, in the page and in redirects.

use std::io::Read;

use bytes::Bytes;
use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder, GzDecoder, GzEncoder};
use futures::{StreamExt, stream};
use html5gum::{DefaultEmitter, Span, StartTag, Token, Tokenizer};

use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use http::{HeaderMap, HeaderValue, Response};
use http_body_util::BodyStream;

use crate::response::Body;

/// Larger pages are passed on as they are: a page is held whole while its links are changed.
const LARGEST_PAGE: usize = 8 * 1024 * 1024;

/// Which attributes of which elements hold links.
const LINKS: [(&str, &[&str]); 25] = [
    ("a", &["href"]),
    ("applet", &["codebase"]),
    ("area", &["href"]),
    ("audio", &["src"]),
    ("base", &["href"]),
    ("blockquote", &["cite"]),
    ("body", &["background"]),
    ("button", &["formaction"]),
    ("command", &["icon"]),
    ("del", &["cite"]),
    ("embed", &["src"]),
    ("form", &["action"]),
    ("frame", &["longdesc", "src"]),
    ("head", &["profile"]),
    ("html", &["manifest"]),
    ("iframe", &["longdesc", "src"]),
    ("img", &["longdesc", "src", "usemap"]),
    ("input", &["src", "usemap", "formaction"]),
    ("ins", &["cite"]),
    ("link", &["href"]),
    ("object", &["classid", "codebase", "data", "usemap"]),
    ("q", &["cite"]),
    ("script", &["src"]),
    ("source", &["src"]),
    ("video", &["poster", "src"]),
];

/// Where a page is seen, and where it believes to be.
pub struct Seen<'a> {
    /// The path of the proxy, without a slash at its end.
    pub under: &'a str,
    /// Host and port that are asked for the page.
    pub page_host: &'a str,
    /// Host and port under which the client knows this server.
    pub own_host: &'a str,
}

impl Seen<'_> {
    /// The same page or redirect, with links that lead through the proxy.
    pub async fn through(&self, mut response: Response<Body>) -> Response<Body> {
        without_other_origins(response.headers_mut());
        if let Some(location) = response.headers().get(LOCATION) {
            if let Some(moved) = location.to_str().ok().and_then(|link| HeaderValue::try_from(self.link(link)).ok()) {
                response.headers_mut().insert(LOCATION, moved);
            }
            return response;
        }
        if !is_page(response.headers()) {
            return response;
        }
        let encoding =
            response.headers().get(CONTENT_ENCODING).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (mut parts, body) = response.into_parts();
        match whole(body).await {
            Ok(page) => match self.encoded_page(&page, encoding.as_deref()) {
                Some(changed) => {
                    parts.headers.remove(CONTENT_LENGTH);
                    Response::from_parts(parts, Body::full(changed))
                }
                None => Response::from_parts(parts, Body::full(page)),
            },
            Err(untouched) => Response::from_parts(parts, untouched),
        }
    }

    /// None where the page cannot be read, which is no reason to keep it from the client.
    fn encoded_page(&self, page: &[u8], encoding: Option<&str>) -> Option<Vec<u8>> {
        let read = |mut source: Box<dyn Read + '_>| {
            let mut bytes = Vec::new();
            source.by_ref().take(LARGEST_PAGE as u64 + 1).read_to_end(&mut bytes).ok()?;
            (bytes.len() <= LARGEST_PAGE).then_some(bytes)
        };
        match encoding {
            None => Some(self.page(page)),
            Some("gzip") => {
                let changed = self.page(&read(Box::new(GzDecoder::new(page)))?);
                read(Box::new(GzEncoder::new(changed.as_slice(), Compression::fast())))
            }
            Some("deflate") => {
                let changed = self.page(&read(Box::new(DeflateDecoder::new(page)))?);
                read(Box::new(DeflateEncoder::new(changed.as_slice(), Compression::fast())))
            }
            Some(_) => None,
        }
    }

    /// Everything but start tags with links of this host stays as it is, byte by byte.
    fn page(&self, page: &[u8]) -> Vec<u8> {
        let mut emitter = DefaultEmitter::<usize>::new_with_span();
        emitter.naively_switch_states(true);
        let mut changed = Vec::with_capacity(page.len() + 256);
        let mut copied = 0;
        for token in Tokenizer::new_with_emitter(page, emitter) {
            let Ok(Token::StartTag(mut tag)) = token else { continue };
            let Span { start, end } = tag.span;
            if self.change_links(&mut tag) && copied <= start && start <= end && end <= page.len() {
                changed.extend_from_slice(&page[copied..start]);
                write_tag(&tag, &mut changed);
                copied = end;
            }
        }
        changed.extend_from_slice(&page[copied..]);
        changed
    }

    fn change_links(&self, tag: &mut StartTag<usize>) -> bool {
        let Some((_, names)) = LINKS.iter().find(|(element, _)| element.as_bytes() == tag.name.as_slice()) else {
            return false;
        };
        let mut any = false;
        for name in *names {
            let Some(value) = tag.attributes.get_mut(name.as_bytes()) else { continue };
            let Ok(link) = std::str::from_utf8(&value.value) else { continue };
            let through = self.link(link);
            if through != link {
                value.value = through.into_bytes().into();
                any = true;
            }
        }
        any
    }

    /// A link as it must be for the client: links to other hosts and relative ones are right already.
    fn link(&self, link: &str) -> String {
        let (scheme, after) = match link.find("//") {
            Some(0) => ("", Some(&link[2..])),
            Some(at) if link[..at].ends_with(':') && !link[..at].contains(['/', '?', '#']) => {
                (&link[..at], Some(&link[at + 2..]))
            }
            _ => ("", None),
        };
        let (host, path) = match after {
            Some(after) => after.split_at(after.find(['/', '?', '#']).unwrap_or(after.len())),
            None => ("", link),
        };
        let is_other = !host.is_empty() && host != self.page_host && host != self.own_host;
        if is_other || !path.starts_with('/') {
            return link.to_owned();
        }
        let keeps_host = !host.is_empty() && host == self.own_host;
        let before = if keeps_host { format!("{scheme}//{host}") } else { String::new() };
        let under = if path.starts_with(self.under) { "" } else { self.under };
        format!("{before}{under}{path}")
    }
}

fn is_page(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    content_type.split(';').next().is_some_and(|kind| kind.trim() == "text/html")
}

/// The body in one piece, or as it was if it is too large for that.
async fn whole(body: Body) -> Result<Vec<u8>, Body> {
    let mut pieces = BodyStream::new(body)
        .filter_map(|piece| std::future::ready(piece.ok().and_then(|piece| piece.into_data().ok())))
        .boxed();
    let mut page = Vec::new();
    while let Some(piece) = pieces.next().await {
        page.extend_from_slice(&piece);
        if page.len() > LARGEST_PAGE {
            return Err(Body::stream(stream::iter([Bytes::from(page)]).chain(pieces)));
        }
    }
    Ok(page)
}

fn write_tag(tag: &StartTag<usize>, into: &mut Vec<u8>) {
    let mut attributes: Vec<_> = tag.attributes.iter().collect();
    attributes.sort_by_key(|(_, value)| value.span.start);
    into.push(b'<');
    into.extend_from_slice(&tag.name);
    for (name, value) in attributes {
        into.push(b' ');
        into.extend_from_slice(name);
        into.extend_from_slice(b"=\"");
        for byte in value.value.iter() {
            match byte {
                b'&' => into.extend_from_slice(b"&amp;"),
                b'\'' => into.extend_from_slice(b"&#39;"),
                b'<' => into.extend_from_slice(b"&lt;"),
                b'>' => into.extend_from_slice(b"&gt;"),
                b'"' => into.extend_from_slice(b"&#34;"),
                b'\r' => into.extend_from_slice(b"&#13;"),
                other => into.push(*other),
            }
        }
        into.push(b'"');
    }
    into.extend_from_slice(if tag.self_closing { b"/>" } else { b">" });
}

/// What a page says of other origins is meant for its own host, not for this server.
fn without_other_origins(headers: &mut HeaderMap) {
    let dropped: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with("access-control-")).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
}

/// The reader of pages, for fuzzing.
#[doc(hidden)]
pub mod fuzzing {
    use super::Seen;

    /// Reads a page, also as a packed one. Links that lead through the proxy are left alone when it is read again.
    pub fn page(bytes: &[u8]) {
        let seen = Seen { under: "/proxy", page_host: "10.0.0.9:80", own_host: "localhost:8001" };
        for encoding in ["gzip", "deflate"] {
            drop(seen.encoded_page(bytes, Some(encoding)));
        }
        let changed = seen.page(bytes);
        assert!(seen.page(&changed) == changed, "a page changes when it is read again");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: Seen<'static> =
        Seen { under: "/api/v1/namespaces/a/pods/p/proxy", page_host: "10.0.0.9:80", own_host: "localhost:8001" };

    #[test]
    fn links_lead_through_the_proxy() {
        for (link, through) in [
            ("/x", "/api/v1/namespaces/a/pods/p/proxy/x"),
            ("/x/?q=/y#z", "/api/v1/namespaces/a/pods/p/proxy/x/?q=/y#z"),
            ("http://10.0.0.9:80/x", "/api/v1/namespaces/a/pods/p/proxy/x"),
            ("//10.0.0.9:80/x", "/api/v1/namespaces/a/pods/p/proxy/x"),
            ("http://localhost:8001/x", "http://localhost:8001/api/v1/namespaces/a/pods/p/proxy/x"),
            ("/api/v1/namespaces/a/pods/p/proxy/x", "/api/v1/namespaces/a/pods/p/proxy/x"),
            ("x", "x"),
            ("../x", "../x"),
            ("", ""),
            ("#part", "#part"),
            ("?to=http://10.0.0.9:80/x", "?to=http://10.0.0.9:80/x"),
            ("mailto:a@example.com", "mailto:a@example.com"),
            ("https://example.com/x", "https://example.com/x"),
        ] {
            assert_eq!(SEEN.link(link), through, "{link}");
        }
    }

    #[test]
    fn only_tags_with_links_of_the_page_change() {
        for (page, through) in [
            ("<a href=\"/rewriteme\">test</a>", "<a href=\"/api/v1/namespaces/a/pods/p/proxy/rewriteme\">test</a>"),
            (
                "<!DOCTYPE html><P id=1>A &amp; b</P><IMG  title='\"' src = /i.png />",
                "<!DOCTYPE html><P id=1>A &amp; b</P><img title=\"&#34;\" src=\"/api/v1/namespaces/a/pods/p/proxy/i.png\"/>",
            ),
            ("<script>var a = '<a href=\"/x\">'</script>", "<script>var a = '<a href=\"/x\">'</script>"),
            ("<!-- <a href=/x> --><a href='rel'>", "<!-- <a href=/x> --><a href='rel'>"),
            ("no end <a href=\"/x", "no end <a href=\"/x"),
        ] {
            assert_eq!(String::from_utf8_lossy(&SEEN.page(page.as_bytes())), through);
        }
    }

    #[tokio::test]
    async fn packed_pages_redirects_and_headers_of_other_origins() {
        let mut packed = Vec::new();
        GzEncoder::new(&b"<a href=/x>"[..], Compression::fast()).read_to_end(&mut packed).unwrap();
        let response = Response::builder()
            .header("content-type", "text/html; charset=utf-8")
            .header("content-encoding", "gzip")
            .header("access-control-allow-origin", "*")
            .body(Body::full(packed))
            .unwrap();
        let through = SEEN.through(response).await;
        assert!(!through.headers().contains_key("access-control-allow-origin"));
        let body = through.into_body().gather().unwrap();
        let mut page = String::new();
        GzDecoder::new(body.as_slice()).read_to_string(&mut page).unwrap();
        assert_eq!(page, "<a href=\"/api/v1/namespaces/a/pods/p/proxy/x\">");

        let moved = Response::builder().status(302).header("location", "/y").body(Body::Empty).unwrap();
        let through = SEEN.through(moved).await;
        assert_eq!(through.headers()["location"], "/api/v1/namespaces/a/pods/p/proxy/y");
    }
}
