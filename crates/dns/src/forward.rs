//! Asking upstream resolvers: over UDP, over TCP when the answer does not fit, and the next one when one is silent.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::message::HEADER;

const PATIENCE: Duration = Duration::from_secs(2);

/// The first answer that one of the servers gives to a request, under the request's own id.
pub async fn ask(servers: &[SocketAddr], request: &[u8]) -> Option<Vec<u8>> {
    for server in servers {
        match timeout(PATIENCE, ask_one(*server, request)).await {
            Ok(Ok(answer)) => return Some(answer),
            Ok(Err(error)) => tracing::debug!(%server, %error, "an upstream resolver failed"),
            Err(_) => tracing::debug!(%server, "an upstream resolver is silent"),
        }
    }
    None
}

async fn ask_one(server: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    // A socket for each question: its random port guards against forged answers, as does the random id.
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let id: [u8; 2] = rand::random();
    let mut question = request.to_vec();
    question[..2].copy_from_slice(&id);
    socket.send(&question).await?;
    let mut answer = vec![0; 65_535];
    loop {
        let length = socket.recv(&mut answer).await?;
        if length >= HEADER && answer[..2] == id && answer[2] & 0x80 != 0 {
            answer.truncate(length);
            break;
        }
    }
    if answer[2] & 2 != 0 {
        answer = ask_by_stream(server, &question).await?;
    }
    answer[..2].copy_from_slice(&request[..2]);
    Ok(answer)
}

async fn ask_by_stream(server: SocketAddr, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_be_bytes()[..], question].concat()).await?;
    let length = stream.read_u16().await?;
    let mut answer = vec![0; usize::from(length)];
    stream.read_exact(&mut answer).await?;
    if answer.len() < HEADER || answer[..2] != question[..2] {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    Ok(answer)
}
