//! Rewrites links of proxied HTML pages and redirects, so that they lead through the proxy.
//!
//! A page does not know the path under which the client sees it, so links to its own host get the path of the proxy.

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

/// Larger pages are not rewritten: a page is held in memory while its links are rewritten.
const MAX_PAGE_SIZE: usize = 8 * 1024 * 1024;

/// The attributes of elements that contain links.
const LINK_ATTRIBUTES: [(&str, &[&str]); 25] = [
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

/// Where a client sees a page, and where the page is.
pub struct ProxiedPage<'a> {
    /// The path of the proxy, without a trailing slash.
    pub proxy_path: &'a str,
    /// Host and port of the page.
    pub page_host: &'a str,
    /// Host and port by which the client reaches this server.
    pub own_host: &'a str,
}

impl ProxiedPage<'_> {
    /// Rewrites the links of a page or redirect to lead through the proxy.
    pub async fn rewrite(&self, mut response: Response<Body>) -> Response<Body> {
        remove_cors_headers(response.headers_mut());
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

    /// `None` if the page cannot be decoded; it is then sent unchanged.
    fn encoded_page(&self, page: &[u8], encoding: Option<&str>) -> Option<Vec<u8>> {
        let read = |mut source: Box<dyn Read + '_>| {
            let mut bytes = Vec::new();
            source.by_ref().take(MAX_PAGE_SIZE as u64 + 1).read_to_end(&mut bytes).ok()?;
            (bytes.len() <= MAX_PAGE_SIZE).then_some(bytes)
        };
        match encoding {
            None => Some(self.rewrite_page(page)),
            Some("gzip") => {
                let changed = self.rewrite_page(&read(Box::new(GzDecoder::new(page)))?);
                read(Box::new(GzEncoder::new(changed.as_slice(), Compression::fast())))
            }
            Some("deflate") => {
                let changed = self.rewrite_page(&read(Box::new(DeflateDecoder::new(page)))?);
                read(Box::new(DeflateEncoder::new(changed.as_slice(), Compression::fast())))
            }
            Some(_) => None,
        }
    }

    /// Copies everything but start tags with links of this host byte by byte.
    fn rewrite_page(&self, page: &[u8]) -> Vec<u8> {
        let mut emitter = DefaultEmitter::<usize>::new_with_span();
        emitter.naively_switch_states(true);
        let mut changed = Vec::with_capacity(page.len() + 256);
        let mut copied = 0;
        for token in Tokenizer::new_with_emitter(page, emitter) {
            let Ok(Token::StartTag(mut tag)) = token else { continue };
            let Span { start, end } = tag.span;
            if self.rewrite_links(&mut tag) && copied <= start && start <= end && end <= page.len() {
                changed.extend_from_slice(&page[copied..start]);
                write_tag(&tag, &mut changed);
                copied = end;
            }
        }
        changed.extend_from_slice(&page[copied..]);
        changed
    }

    fn rewrite_links(&self, tag: &mut StartTag<usize>) -> bool {
        let Some((_, names)) = LINK_ATTRIBUTES.iter().find(|(element, _)| element.as_bytes() == tag.name.as_slice())
        else {
            return false;
        };
        let mut any = false;
        for name in *names {
            let Some(value) = tag.attributes.get_mut(name.as_bytes()) else { continue };
            let Ok(link) = std::str::from_utf8(&value.value) else { continue };
            let rewritten = self.link(link);
            if rewritten != link {
                value.value = rewritten.into_bytes().into();
                any = true;
            }
        }
        any
    }

    /// A link through the proxy. Links to other hosts and relative ones stay the same.
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
        let proxy_path = if path.starts_with(self.proxy_path) { "" } else { self.proxy_path };
        format!("{before}{proxy_path}{path}")
    }
}

fn is_page(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    content_type.split(';').next().is_some_and(|kind| kind.trim() == "text/html")
}

/// The body in one piece, or unchanged if it is too large.
async fn whole(body: Body) -> Result<Vec<u8>, Body> {
    let mut pieces = BodyStream::new(body)
        .filter_map(|piece| std::future::ready(piece.ok().and_then(|piece| piece.into_data().ok())))
        .boxed();
    let mut page = Vec::new();
    while let Some(piece) = pieces.next().await {
        page.extend_from_slice(&piece);
        if page.len() > MAX_PAGE_SIZE {
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

/// CORS headers of a page are meant for its own host, not for this server.
fn remove_cors_headers(headers: &mut HeaderMap) {
    let dropped: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with("access-control-")).cloned().collect();
    for name in dropped {
        headers.remove(name);
    }
}

/// The HTML rewriter, for fuzzing.
#[doc(hidden)]
pub mod fuzzing {
    use super::ProxiedPage;

    /// Rewrites a page, also as a compressed one. A second rewrite must change nothing.
    pub fn page(bytes: &[u8]) {
        let proxied = ProxiedPage { proxy_path: "/proxy", page_host: "10.0.0.9:80", own_host: "localhost:8001" };
        for encoding in ["gzip", "deflate"] {
            drop(proxied.encoded_page(bytes, Some(encoding)));
        }
        let changed = proxied.rewrite_page(bytes);
        assert!(proxied.rewrite_page(&changed) == changed, "a second rewrite changed the page");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: ProxiedPage<'static> = ProxiedPage {
        proxy_path: "/api/v1/namespaces/a/pods/p/proxy",
        page_host: "10.0.0.9:80",
        own_host: "localhost:8001",
    };

    #[test]
    fn links_are_rewritten_to_the_proxy() {
        for (link, rewritten) in [
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
            assert_eq!(PAGE.link(link), rewritten, "{link}");
        }
    }

    #[test]
    fn only_tags_with_links_of_the_page_change() {
        for (page, rewritten) in [
            ("<a href=\"/rewriteme\">test</a>", "<a href=\"/api/v1/namespaces/a/pods/p/proxy/rewriteme\">test</a>"),
            (
                "<!DOCTYPE html><P id=1>A &amp; b</P><IMG  title='\"' src = /i.png />",
                "<!DOCTYPE html><P id=1>A &amp; b</P><img title=\"&#34;\" src=\"/api/v1/namespaces/a/pods/p/proxy/i.png\"/>",
            ),
            ("<script>var a = '<a href=\"/x\">'</script>", "<script>var a = '<a href=\"/x\">'</script>"),
            ("<!-- <a href=/x> --><a href='rel'>", "<!-- <a href=/x> --><a href='rel'>"),
            ("no end <a href=\"/x", "no end <a href=\"/x"),
        ] {
            assert_eq!(String::from_utf8_lossy(&PAGE.rewrite_page(page.as_bytes())), rewritten);
        }
    }

    #[tokio::test]
    async fn compressed_pages_redirects_and_cors_headers_are_rewritten() {
        let mut compressed = Vec::new();
        GzEncoder::new(&b"<a href=/x>"[..], Compression::fast()).read_to_end(&mut compressed).unwrap();
        let response = Response::builder()
            .header("content-type", "text/html; charset=utf-8")
            .header("content-encoding", "gzip")
            .header("access-control-allow-origin", "*")
            .body(Body::full(compressed))
            .unwrap();
        let rewritten = PAGE.rewrite(response).await;
        assert!(!rewritten.headers().contains_key("access-control-allow-origin"));
        let body = rewritten.into_body().gather().unwrap();
        let mut page = String::new();
        GzDecoder::new(body.as_slice()).read_to_string(&mut page).unwrap();
        assert_eq!(page, "<a href=\"/api/v1/namespaces/a/pods/p/proxy/x\">");

        let moved = Response::builder().status(302).header("location", "/y").body(Body::Empty).unwrap();
        let rewritten = PAGE.rewrite(moved).await;
        assert_eq!(rewritten.headers()["location"], "/api/v1/namespaces/a/pods/p/proxy/y");
    }
}
