//! The client side of SPDY/3.1, reduced to what a runtime's streaming server needs.
//!
//! Header blocks are sent as stored zlib blocks, which every peer can read and which need no compressor. Header blocks
//! of the peer are not needed and skipped.

use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const PING: u16 = 6;
const GO_AWAY: u16 = 7;
const FLAG_END: u8 = 1;
const MAX_FRAME_SIZE: usize = 16 << 20;

#[derive(Debug, PartialEq, Eq)]
pub enum Frame {
    Data { stream: u32, payload: Vec<u8>, last: bool },
    Reset { stream: u32 },
    Ping(u32),
    GoAway,
    Other,
}

pub struct Reader<R> {
    stream: R,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub fn new(stream: R) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// None when the peer is gone. Cancel safe: no data is lost if the future is dropped.
    pub async fn next(&mut self) -> io::Result<Option<Frame>> {
        loop {
            if let Some(frame) = self.frame()? {
                return Ok(Some(frame));
            }
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn frame(&mut self) -> io::Result<Option<Frame>> {
        let bytes = &self.buffer[..];
        if bytes.len() < 8 {
            return Ok(None);
        }
        let word = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let flags = bytes[4];
        let length = u32::from_be_bytes([0, bytes[5], bytes[6], bytes[7]]) as usize;
        if length > MAX_FRAME_SIZE {
            return Err(io::Error::other("a frame is too large"));
        }
        if bytes.len() < 8 + length {
            return Ok(None);
        }
        let payload = bytes[8..8 + length].to_vec();
        self.buffer.advance(8 + length);
        let number = |at: usize| payload.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        if word & 0x8000_0000 == 0 {
            return Ok(Some(Frame::Data { stream: word, payload, last: flags & FLAG_END != 0 }));
        }
        Ok(Some(match (word & 0xffff) as u16 {
            RST_STREAM => Frame::Reset { stream: number(0) },
            PING => Frame::Ping(number(0)),
            GO_AWAY => Frame::GoAway,
            _ => Frame::Other,
        }))
    }
}

pub struct Writer<W> {
    stream: W,
    zlib_header_sent: bool,
}

impl<W: AsyncWrite + Unpin> Writer<W> {
    pub fn new(stream: W) -> Self {
        Self { stream, zlib_header_sent: false }
    }

    /// Opens a stream. Streams of a client have odd numbers.
    pub async fn open(&mut self, stream: u32, headers: &[(&str, &str)]) -> io::Result<()> {
        let mut payload = Vec::new();
        payload.extend_from_slice(&stream.to_be_bytes());
        payload.extend_from_slice(&[0; 6]);
        payload.extend(self.header_block(headers)?);
        self.control(SYN_STREAM, 0, &payload).await
    }

    pub async fn data(&mut self, stream: u32, payload: &[u8], last: bool) -> io::Result<()> {
        let mut frame = Vec::with_capacity(payload.len() + 8);
        frame.extend_from_slice(&stream.to_be_bytes());
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        frame.extend_from_slice(&((u32::from(if last { FLAG_END } else { 0 }) << 24) | length).to_be_bytes());
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).await?;
        self.stream.flush().await
    }

    pub async fn ping(&mut self, id: u32) -> io::Result<()> {
        self.control(PING, 0, &id.to_be_bytes()).await
    }

    async fn control(&mut self, kind: u16, flags: u8, payload: &[u8]) -> io::Result<()> {
        let mut frame = vec![0x80, 3];
        frame.extend_from_slice(&kind.to_be_bytes());
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        frame.extend_from_slice(&((u32::from(flags) << 24) | length).to_be_bytes());
        frame.extend_from_slice(payload);
        self.stream.write_all(&frame).await?;
        self.stream.flush().await
    }

    /// All header blocks of a connection form one zlib stream, whose two opening bytes come with the first.
    fn header_block(&mut self, headers: &[(&str, &str)]) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        let mut text = |value: &str| {
            plain.extend_from_slice(&(value.len() as u32).to_be_bytes());
            plain.extend_from_slice(value.as_bytes());
        };
        for (name, value) in headers {
            text(name);
            text(value);
        }
        let mut content = (headers.len() as u32).to_be_bytes().to_vec();
        content.append(&mut plain);
        let length = u16::try_from(content.len()).map_err(io::Error::other)?;
        let mut block = if self.zlib_header_sent { Vec::new() } else { vec![0x78, 0x01] };
        self.zlib_header_sent = true;
        block.push(0);
        block.extend_from_slice(&length.to_le_bytes());
        block.extend_from_slice(&(!length).to_le_bytes());
        block.append(&mut content);
        // An empty stored block makes the peer's decompressor flush.
        block.extend_from_slice(&[0, 0, 0, 0xff, 0xff]);
        Ok(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_go_there_and_back() {
        let mut bytes = Vec::new();
        let mut writer = Writer::new(&mut bytes);
        writer.open(1, &[("streamtype", "error")]).await.expect("written");
        writer.data(1, b"abc", true).await.expect("written");
        writer.ping(9).await.expect("written");
        let mut reader = Reader::new(bytes.as_slice());
        assert_eq!(reader.next().await.expect("read"), Some(Frame::Other));
        let data = Frame::Data { stream: 1, payload: b"abc".to_vec(), last: true };
        assert_eq!(reader.next().await.expect("read"), Some(data));
        assert_eq!(reader.next().await.expect("read"), Some(Frame::Ping(9)));
        assert_eq!(reader.next().await.expect("read"), None);
    }

    #[tokio::test]
    async fn header_blocks_are_one_zlib_stream() {
        let mut writer = Writer::new(Vec::new());
        let mut stream = writer.header_block(&[("a", "1")]).expect("a block");
        stream.extend(writer.header_block(&[("b", "2")]).expect("a block"));
        // An empty last block and the checksum would end the stream; a peer reads only what is there.
        let mut plain = vec![0; 64];
        let mut inflater = flate2::Decompress::new(true);
        inflater.decompress(&stream, &mut plain, flate2::FlushDecompress::Sync).expect("readable");
        plain.truncate(usize::try_from(inflater.total_out()).expect("small"));
        let one = |name: &str, value: &str| {
            let mut block = vec![0, 0, 0, 1, 0, 0, 0, 1];
            block.extend_from_slice(name.as_bytes());
            block.extend_from_slice(&[0, 0, 0, 1]);
            block.extend_from_slice(value.as_bytes());
            block
        };
        assert_eq!(plain, [one("a", "1"), one("b", "2")].concat());
    }
}
