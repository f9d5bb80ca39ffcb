//! Gzip compression of large responses.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};
use http::{HeaderMap, Response};

use super::Body;

/// Below this size compression costs more than it saves.
const MIN_COMPRESSED: usize = 128 * 1024;

/// Compresses a large response if the client accepts gzip.
pub fn compress(response: Response<Body>, request: &HeaderMap) -> Response<Body> {
    let accepted =
        request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()).any(|value| {
            value.split(',').any(|part| part.split(';').next().is_some_and(|coding| coding.trim() == "gzip"))
        });
    let large = response.body().length().is_some_and(|length| length > MIN_COMPRESSED);
    if !accepted || !large || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let chunks: Box<dyn Iterator<Item = Bytes>> = match body {
        Body::Chunks(chunks) => Box::new(chunks.into_iter()),
        Body::Lazy { chunks, .. } => chunks,
        other => return Response::from_parts(parts, other),
    };
    let mut encoder = GzEncoder::new(Vec::with_capacity(MIN_COMPRESSED), Compression::fast());
    for chunk in chunks {
        // Writing to memory cannot fail.
        let _ = encoder.write_all(&chunk);
    }
    let compressed = encoder.finish().unwrap_or_default();
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    Response::from_parts(parts, Body::full(compressed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_responses_to_clients_that_accept_gzip_are_compressed() {
        let mut accepting = HeaderMap::new();
        accepting.insert(ACCEPT_ENCODING, "deflate, gzip;q=1".parse().unwrap());
        let large = || Response::new(Body::full(vec![b'a'; MIN_COMPRESSED + 1]));
        assert!(compress(large(), &accepting).body().length().unwrap() < 2000);
        assert_eq!(compress(large(), &HeaderMap::new()).body().length(), Some(MIN_COMPRESSED + 1));
        assert_eq!(compress(Response::new(Body::full("x")), &accepting).body().length(), Some(1));
    }
}
