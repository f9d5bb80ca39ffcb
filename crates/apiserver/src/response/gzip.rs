//! Gzip compression of large responses, chunk by chunk.

use std::io::Write;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};
use http::{HeaderMap, Response};
use knarr_api::status::Status;

use super::Body;
use super::produced::{Chunks, Produced};

/// Below this size compression costs more than it saves.
const MIN_COMPRESSED: usize = 128 * 1024;
/// How much is compressed at once: a few milliseconds' work.
const INPUT_SIZE: usize = 256 * 1024;

/// Compresses a large response if the client accepts gzip.
pub fn compress(response: Response<Body>, request: &HeaderMap) -> Response<Body> {
    let accepted =
        request.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()).any(|value| {
            value.split(',').any(|part| part.split(';').next().is_some_and(|coding| coding.trim() == "gzip"))
        });
    let large = response.body().length().is_none_or(|length| length > MIN_COMPRESSED);
    if !accepted || !large || response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let chunks = match body.into_chunks() {
        Ok(chunks) => chunks,
        Err(stream) => return Response::from_parts(parts, stream),
    };
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    Response::from_parts(parts, Body::Produced(Produced::new(Compressed { chunks, encoder: Some(encoder) })))
}

struct Compressed {
    chunks: Box<dyn Chunks>,
    /// `None` after the end.
    encoder: Option<GzEncoder<Vec<u8>>>,
}

impl Iterator for Compressed {
    type Item = Result<Bytes, Status>;

    fn next(&mut self) -> Option<Result<Bytes, Status>> {
        let mut encoder = self.encoder.take()?;
        let mut taken = 0;
        loop {
            let written = match self.chunks.next() {
                Some(Ok(chunk)) => {
                    taken += chunk.len();
                    encoder.write_all(&chunk)
                }
                Some(Err(status)) => return Some(Err(status)),
                None => return Some(encoder.finish().map(Bytes::from).map_err(Status::internal)),
            };
            if let Err(error) = written {
                return Some(Err(Status::internal(error)));
            }
            if taken >= INPUT_SIZE && !encoder.get_ref().is_empty() {
                let compressed = std::mem::take(encoder.get_mut());
                self.encoder = Some(encoder);
                return Some(Ok(compressed.into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::read::GzDecoder;
    use http_body_util::BodyExt;
    use std::io::Read;

    #[tokio::test]
    async fn only_large_responses_to_clients_that_accept_gzip_are_compressed() {
        let mut accepting = HeaderMap::new();
        accepting.insert(ACCEPT_ENCODING, "deflate, gzip;q=1".parse().unwrap());
        let large = || Response::new(Body::full(vec![b'a'; MIN_COMPRESSED + 1]));
        let compressed = compress(large(), &accepting);
        assert_eq!(compressed.headers()[CONTENT_ENCODING], "gzip");
        assert!(compressed.into_body().collect().await.unwrap().to_bytes().len() < 2000);
        assert_eq!(compress(large(), &HeaderMap::new()).body().length(), Some(MIN_COMPRESSED + 1));
        assert_eq!(compress(Response::new(Body::full("x")), &accepting).body().length(), Some(1));
        let stream = Response::new(Body::stream(futures::stream::pending()));
        assert!(!compress(stream, &accepting).headers().contains_key(CONTENT_ENCODING));
    }

    #[tokio::test]
    async fn a_body_is_compressed_in_chunks() {
        let mut accepting = HeaderMap::new();
        accepting.insert(ACCEPT_ENCODING, "gzip".parse().unwrap());
        // Numbers that barely compress.
        let mut state = 1u32;
        let plain: Vec<u8> = std::iter::repeat_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        })
        .take(2 * 1024 * 1024)
        .collect();
        let parts: Vec<Bytes> = plain.chunks(100_000).map(Bytes::copy_from_slice).collect();
        let length = plain.len();
        let mut body = compress(Response::new(Body::lazy(parts.into_iter(), length)), &accepting).into_body();
        let (mut sent, mut chunks) = (Vec::new(), 0);
        while let Some(frame) = body.frame().await {
            let chunk = frame.unwrap().into_data().unwrap();
            assert!(chunk.len() <= 2 * INPUT_SIZE, "{} bytes", chunk.len());
            sent.extend_from_slice(&chunk);
            chunks += 1;
        }
        let mut read = Vec::new();
        GzDecoder::new(&sent[..]).read_to_end(&mut read).unwrap();
        assert!(read == plain && chunks > 4, "{chunks} chunks");
    }
}
