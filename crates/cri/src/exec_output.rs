//! Runs a command in a container and keeps the beginning of its output.
//!
//! The command is a pod author's and may write 16 megabytes to each of its outputs, as often as it is probed. So the response is read
//! as it arrives, and what is beyond the limit is never held.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, Request, header};
use http_body_util::{BodyExt, Full};
use prost::Message;
use tonic::codegen::Bytes;
use tonic::transport::Channel;
use tonic::{Code, Status};
use tower::ServiceExt;

use crate::messages::{ExecSyncRequest, ExecSyncResponse};

const PATH: &str = "/runtime.v1.RuntimeService/ExecSync";
/// The flag of compression and the length, before a message.
const PREFIX: usize = 5;

/// Sends the call; of each output, at most `keep` bytes are returned.
pub(crate) async fn run(
    channel: Channel,
    request: &ExecSyncRequest,
    keep: usize,
    limit: Duration,
) -> Result<ExecSyncResponse, Status> {
    let message = request.encode_to_vec();
    let length = u32::try_from(message.len()).map_err(|_| Status::invalid_argument("the command is too long"))?;
    let framed = [&[0][..], &length.to_be_bytes(), &message].concat();
    // At most eight digits are allowed.
    let timeout = format!("{}S", limit.as_secs().clamp(1, 99_999_999));
    let request = Request::post(PATH)
        .version(http::Version::HTTP_2)
        .header(header::TE, HeaderValue::from_static("trailers"))
        .header(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"))
        .header("grpc-timeout", timeout)
        .body(tonic::body::Body::new(Full::from(framed)))
        .map_err(|error| Status::internal(error.to_string()))?;
    let call = async {
        let response = channel.oneshot(request).await.map_err(|error| Status::from_error(error.into()))?;
        if let Some(status) = failure(response.headers()) {
            return Err(status);
        }
        read(response.into_body(), keep).await
    };
    let late = || Status::deadline_exceeded("the runtime did not respond in time");
    tokio::time::timeout(limit, call).await.unwrap_or_else(|_| Err(late()))
}

/// Reads the response as it arrives.
async fn read(body: tonic::body::Body, keep: usize) -> Result<ExecSyncResponse, Status> {
    let mut input = Input { body, current: Bytes::new(), trailers: HeaderMap::new(), left: PREFIX as u64 };
    let mut response = ExecSyncResponse::default();
    let prefix = input.take(PREFIX as u64, PREFIX).await;
    let Ok([0, length @ ..]) = prefix.as_deref().map(|prefix| <[u8; PREFIX]>::try_from(prefix).unwrap_or([1; PREFIX]))
    else {
        // An error has no message.
        return Err(input.finish().await.err().unwrap_or_else(|| broken("there is no message")));
    };
    input.left = u32::from_be_bytes(length).into();
    while input.left > 0 {
        let tag = input.varint().await?;
        match (tag >> 3, tag & 7) {
            (3, 0) => response.exit_code = input.varint().await? as i32,
            (_, 0) => drop(input.varint().await?),
            (field, 2) => {
                let length = input.varint().await?;
                let kept = input.take(length, if matches!(field, 1 | 2) { keep } else { 0 }).await?;
                match field {
                    1 => response.stdout = kept,
                    2 => response.stderr = kept,
                    _ => {}
                }
            }
            (_, 1) => drop(input.take(8, 0).await?),
            (_, 5) => drop(input.take(4, 0).await?),
            _ => return Err(broken("a field is of no known kind")),
        }
    }
    input.finish().await.map(|()| response)
}

fn broken(what: &str) -> Status {
    Status::internal(format!("the runtime's response cannot be read: {what}"))
}

fn failure(headers: &HeaderMap) -> Option<Status> {
    Status::from_header_map(headers).filter(|status| status.code() != Code::Ok)
}

struct Input {
    body: tonic::body::Body,
    /// What has arrived and is not read yet.
    current: Bytes,
    trailers: HeaderMap,
    /// Bytes of the message that are not read yet.
    left: u64,
}

impl Input {
    /// Waits for more; false at the end.
    async fn more(&mut self) -> Result<bool, Status> {
        while self.current.is_empty() {
            let Some(frame) = self.body.frame().await else { return Ok(false) };
            match frame?.into_data() {
                Ok(data) => self.current = data,
                Err(other) => self.trailers = other.into_trailers().unwrap_or_default(),
            }
        }
        Ok(true)
    }

    /// Reads so many bytes of the message, and returns the first of them.
    async fn take(&mut self, mut count: u64, keep: usize) -> Result<Vec<u8>, Status> {
        self.left = self.left.checked_sub(count).ok_or_else(|| broken("a field is longer than the message"))?;
        let mut kept = Vec::new();
        while count > 0 {
            if !self.more().await? {
                return Err(broken("it ends early"));
            }
            let part = usize::try_from(count).unwrap_or(usize::MAX).min(self.current.len());
            let part = self.current.split_to(part);
            kept.extend_from_slice(&part[..part.len().min(keep - kept.len())]);
            count -= part.len() as u64;
        }
        Ok(kept)
    }

    async fn varint(&mut self) -> Result<u64, Status> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.take(1, 1).await?.first().copied().unwrap_or_default();
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(broken("a number is too long"))
    }

    /// Whether the call succeeded, which is said at its end.
    async fn finish(&mut self) -> Result<(), Status> {
        while self.more().await? {
            self.current.clear();
        }
        failure(&self.trailers).map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body::Frame;
    use http_body_util::StreamBody;

    /// A response in parts, with its status at the end.
    fn body(parts: impl Iterator<Item = Bytes> + Send + 'static, status: &'static str) -> tonic::body::Body {
        let trailers = HeaderMap::from_iter([
            (header::HeaderName::from_static("grpc-status"), HeaderValue::from_static(status)),
            (header::HeaderName::from_static("grpc-message"), HeaderValue::from_static("why")),
        ]);
        let frames = parts.map(Frame::data).chain([Frame::trailers(trailers)]);
        tonic::body::Body::new(StreamBody::new(futures::stream::iter(frames.map(Ok::<_, std::convert::Infallible>))))
    }

    fn framed(response: &ExecSyncResponse) -> Vec<u8> {
        let message = response.encode_to_vec();
        [&[0][..], &u32::try_from(message.len()).expect("short").to_be_bytes(), &message].concat()
    }

    #[tokio::test]
    async fn the_beginning_of_each_output_is_kept_however_it_arrives() {
        let whole = ExecSyncResponse { stdout: b"output".to_vec(), stderr: b"errors".to_vec(), exit_code: -3 };
        let bytes = framed(&whole);
        for (keep, stdout, stderr) in
            [(100, "output", "errors"), (6, "output", "errors"), (3, "out", "err"), (0, "", "")]
        {
            for size in 1..=bytes.len() {
                let parts: Vec<Bytes> = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
                let found = read(body(parts.into_iter(), "0"), keep).await.expect("a response");
                let expected = ExecSyncResponse { stdout: stdout.into(), stderr: stderr.into(), exit_code: -3 };
                assert_eq!(found, expected, "{keep} {size}");
            }
        }
        let empty = read(body([Bytes::from_static(&[0; PREFIX])].into_iter(), "0"), 10).await;
        assert_eq!(empty.expect("a response"), ExecSyncResponse::default());
    }

    #[tokio::test]
    async fn failures_and_nonsense_are_errors() {
        let whole = Bytes::from(framed(&ExecSyncResponse { exit_code: 1, ..Default::default() }));
        let status = |bytes: Bytes, status| async move {
            read(body([bytes].into_iter(), status), 10).await.map_err(|error| error.code())
        };
        assert_eq!(status(Bytes::new(), "4").await, Err(Code::DeadlineExceeded));
        assert_eq!(status(whole.clone(), "5").await, Err(Code::NotFound));
        assert!(status(whole.clone(), "0").await.is_ok());
        for nonsense in [
            Bytes::new(),
            whole.slice(..whole.len() - 1),
            Bytes::from_static(&[1, 0, 0, 0, 0]),
            Bytes::from_static(&[0, 0, 0, 0, 2, 0x0a, 100]),
            Bytes::from_static(&[0, 0, 0, 0, 1, 0x0f]),
            Bytes::from_static(&[
                0, 0xff, 0xff, 0xff, 0xff, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            ]),
        ] {
            assert_eq!(status(nonsense.clone(), "0").await, Err(Code::Internal), "{nonsense:?}");
        }
    }

    /// The most memory this process ever had, in KiB.
    fn most_memory() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").expect("readable");
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("a line");
        line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).expect("a number")
    }

    #[tokio::test]
    async fn output_beyond_the_limit_is_not_held() {
        const PARTS: usize = 1 << 12;
        let part = Bytes::from(vec![b'x'; 1 << 16]);
        let length = PARTS * part.len();
        let mut head = vec![0];
        // The tag and the length of the field take six bytes.
        head.extend_from_slice(&u32::try_from(length + 6).expect("fits").to_be_bytes());
        head.push(0x0a);
        prost::encoding::encode_varint(length as u64, &mut head);
        assert_eq!(head.len(), PREFIX + 6);
        let before = most_memory();
        let parts = [Bytes::from(head)].into_iter().chain(std::iter::repeat_n(part, PARTS));
        let found = read(body(parts, "0"), 10 << 10).await.expect("a response");
        assert_eq!(found.stdout.len(), 10 << 10);
        // The kernel's figure is an estimate, which may have become smaller.
        let more = most_memory().saturating_sub(before);
        assert!(more < 32 << 10, "{more} KiB");
    }
}
