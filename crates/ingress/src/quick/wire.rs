//! A connection to a pod that carries one request after another.

use std::io;

use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::{read_piece, read_some};

pub struct Wire {
    stream: TcpStream,
    read: Vec<u8>,
    /// How much of that has been taken.
    taken: usize,
}

impl Wire {
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, read: Vec::new(), taken: 0 }
    }

    /// Whether the pod still listens, as far as is known without asking it.
    pub fn is_open(&self) -> bool {
        matches!(self.stream.try_read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
    }

    /// Nothing has come that nobody asked for.
    pub fn is_clean(&self) -> bool {
        self.read().is_empty()
    }

    pub async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request).await
    }

    /// What has come and has not been taken.
    pub fn read(&self) -> &[u8] {
        self.read.get(self.taken..).unwrap_or_default()
    }

    pub fn take(&mut self, count: usize) {
        self.taken += count;
        if self.taken >= self.read.len() {
            self.read.clear();
            self.taken = 0;
        }
    }

    pub async fn read_more(&mut self) -> io::Result<usize> {
        read_some(&mut self.stream, &mut self.read).await
    }

    /// The same with room for much.
    pub async fn read_piece(&mut self, room: usize) -> io::Result<usize> {
        read_piece(&mut self.stream, &mut self.read, room).await
    }

    /// Gives memory back that only a long answer needed.
    pub fn rest(&mut self) {
        if self.read.is_empty() && self.read.capacity() > 4096 {
            self.read = Vec::new();
        }
    }
}
