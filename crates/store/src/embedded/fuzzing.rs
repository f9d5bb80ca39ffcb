//! The parsers of the on-disk format, for fuzzing.

use super::{frame, image as image_file, record};

/// Reads arbitrary bytes as a log segment; must not panic or loop.
pub fn log(bytes: &[u8]) {
    let mut frames = frame::FrameReader::new(bytes);
    let fault = loop {
        match frames.next() {
            Ok(Some(payload)) => {
                let mut records = record::Records::new(payload);
                while let Ok(Some(_)) = records.next() {}
            }
            Ok(None) => return,
            Err(fault) => break fault,
        }
    };
    drop(frames.rest_is_torn(&fault));
}

/// Reads bytes as the payload of a frame, as if its checksum were right.
pub fn records(bytes: &[u8]) {
    let mut records = record::Records::new(bytes);
    while let Ok(Some(_)) = records.next() {}
}

/// Reads bytes as an image.
pub fn image(bytes: &[u8]) {
    drop(image_file::read_image(bytes));
}
