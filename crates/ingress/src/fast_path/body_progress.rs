//! Progress within a response's body.

use super::chunks::{self, Chunks};
use super::response::Body;

pub enum BodyProgress {
    Length(u64),
    Chunked(Chunks),
    UntilClose,
}

impl BodyProgress {
    pub fn new(body: &Body) -> Self {
        match body {
            Body::Length(length) => BodyProgress::Length(*length),
            Body::Chunked => BodyProgress::Chunked(Chunks::default()),
            Body::UntilClose => BodyProgress::UntilClose,
        }
    }

    /// How many of these bytes belong to the body, and whether it ends there.
    pub fn pass(&mut self, read: &[u8]) -> Result<(usize, bool), chunks::Broken> {
        match self {
            BodyProgress::Length(left) => {
                let count = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
                *left -= count as u64;
                Ok((count, *left == 0))
            }
            BodyProgress::Chunked(chunks) => chunks.pass(read),
            BodyProgress::UntilClose => Ok((read.len(), false)),
        }
    }
}
