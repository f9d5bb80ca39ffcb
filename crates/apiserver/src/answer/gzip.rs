//! Smaller answers for clients that can unpack them.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};
use http::{HeaderMap, Response};

use super::Body;

/// Below this size packing costs more than it saves.
const WORTHWHILE: usize = 128 * 1024;

/// Packs a large answer when the client says that it can unpack it.
pub fn compress(response: Response<Body>, request: &HeaderMap) -> Response<Body> {
    let accepted =
        request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()).any(|value| {
            value.split(',').any(|part| part.split(';').next().is_some_and(|coding| coding.trim() == "gzip"))
        });
    let worthwhile = response.body().length().is_some_and(|length| length > WORTHWHILE);
    if !accepted || !worthwhile || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let Body::Chunks(chunks) = response.body() else { return response };
    let mut encoder = GzEncoder::new(Vec::with_capacity(WORTHWHILE), Compression::fast());
    let packed = chunks.iter().try_for_each(|chunk| encoder.write_all(chunk)).and_then(|()| encoder.finish());
    let Ok(packed) = packed else { return response };
    let (mut parts, _) = response.into_parts();
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    Response::from_parts(parts, Body::full(packed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_answers_to_clients_that_ask_are_packed() {
        let mut asking = HeaderMap::new();
        asking.insert(ACCEPT_ENCODING, "deflate, gzip;q=1".parse().unwrap());
        let large = || Response::new(Body::full(vec![b'a'; WORTHWHILE + 1]));
        assert!(compress(large(), &asking).body().length().unwrap() < 2000);
        assert_eq!(compress(large(), &HeaderMap::new()).body().length(), Some(WORTHWHILE + 1));
        assert_eq!(compress(Response::new(Body::full("x")), &asking).body().length(), Some(1));
    }
}
