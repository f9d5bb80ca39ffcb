//! Queries to upstream resolvers: over UDP, over TCP if the response is truncated, and to the next server on timeout.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::message::{HEADER, read_name, read_number};
use crate::name::Name;

const TIMEOUT: Duration = Duration::from_secs(2);

/// The first response from one of the servers, with the id of the request.
pub async fn query(servers: &[SocketAddr], request: &[u8]) -> Option<Vec<u8>> {
    for server in servers {
        match timeout(TIMEOUT, query_server(*server, request)).await {
            Ok(Ok(response)) => return Some(response),
            Ok(Err(error)) => tracing::debug!(%server, %error, "an upstream resolver failed"),
            Err(_) => tracing::debug!(%server, "an upstream resolver timed out"),
        }
    }
    None
}

async fn query_server(server: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let any: SocketAddr = if server.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    // One socket per query: its random port protects against forged responses, as does the random id.
    let socket = UdpSocket::bind(any).await?;
    socket.connect(server).await?;
    let id: [u8; 2] = rand::random();
    let mut question = request.to_vec();
    question[..2].copy_from_slice(&id);
    socket.send(&question).await?;
    let mut response = vec![0; 65_535];
    loop {
        let length = socket.recv(&mut response).await?;
        // Anyone may send to this port: packets that do not match the query are ignored.
        if is_response(&question, &response[..length]) {
            response.truncate(length);
            break;
        }
    }
    if response[2] & 2 != 0 {
        response = query_over_tcp(server, &question).await?;
    }
    response[..2].copy_from_slice(&request[..2]);
    Ok(response)
}

async fn query_over_tcp(server: SocketAddr, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(question.len()).map_err(|_| std::io::ErrorKind::InvalidInput)?;
    stream.write_all(&[&length.to_be_bytes()[..], question].concat()).await?;
    let length = stream.read_u16().await?;
    let mut response = vec![0; usize::from(length)];
    stream.read_exact(&mut response).await?;
    if !is_response(question, &response) {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    Ok(response)
}

/// Whether a message is the response to a query: same id, name, type and class.
fn is_response(question: &[u8], message: &[u8]) -> bool {
    let is_reply = message.len() >= HEADER && message[..2] == question[..2] && message[2] & 0x80 != 0;
    if !is_reply {
        return false;
    }
    // A server that could not parse the query may leave it out of its error response.
    let is_bare_error = message.len() == HEADER && message[3] & 0x0f != 0;
    is_bare_error
        || question_of(message).is_some_and(|question_in_message| question_of(question) == Some(question_in_message))
}

/// The single question of a message.
fn question_of(message: &[u8]) -> Option<(Name, u16, u16)> {
    if read_number(message, 4)? != 1 {
        return None;
    }
    let (name, end) = read_name(message, HEADER)?;
    Some((name, read_number(message, end)?, read_number(message, end + 2)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A query for a name, or with other flags the response to it.
    fn message(id: u8, label: &[u8], kind: u8, flags: u8) -> Vec<u8> {
        let mut bytes = vec![0, id, flags, 0, 0, 1, 0, 0, 0, 0, 0, 0, u8::try_from(label.len()).unwrap()];
        bytes.extend_from_slice(label);
        bytes.extend_from_slice(&[0, 0, kind, 0, 1]);
        bytes
    }

    #[test]
    fn only_the_response_to_the_query_is_accepted() {
        let question = message(7, b"example", 1, 1);
        for (what, response, expected) in [
            ("the response", message(7, b"example", 1, 0x81), true),
            ("in other letters", message(7, b"EXAMPLE", 1, 0x81), true),
            ("another id", message(8, b"example", 1, 0x81), false),
            ("another name", message(7, b"exampla", 1, 0x81), false),
            ("another kind", message(7, b"example", 28, 0x81), false),
            ("a question", message(7, b"example", 1, 0x01), false),
            ("no question", vec![0, 7, 0x81, 0, 0, 0, 0, 0, 0, 0, 0, 0], false),
            ("nothing but an error", vec![0, 7, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0], true),
            ("broken", vec![0, 7, 0x81, 0, 0, 1, 0, 0, 0, 0, 0, 0, 63], false),
            ("nothing", vec![], false),
        ] {
            assert_eq!(is_response(&question, &response), expected, "{what}");
        }
    }

    #[tokio::test]
    async fn forged_responses_do_not_stop_the_wait() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let request = message(7, b"example", 1, 1);
        let querying = tokio::spawn(async move { query(&[address], &request).await });
        let mut bytes = [0; 512];
        let (length, client) = server.recv_from(&mut bytes).await.unwrap();
        let asked = bytes[..length].to_vec();
        let reply = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut response = asked.clone();
            response[2] |= 0x80;
            change(&mut response);
            response
        };
        for forged in [
            reply(&|response| response[1] ^= 1),
            reply(&|response| response[13] = b'x'),
            reply(&|response| response.truncate(14)),
            vec![],
            reply(&|response| response[3] = 5),
        ] {
            server.send_to(&forged, client).await.unwrap();
        }
        let response = querying.await.unwrap().unwrap();
        assert_eq!((response[3], &response[..2]), (5, &[0u8, 7][..]), "the true one, under the client's id");
    }

    #[test]
    fn ids_are_random() {
        let ids: std::collections::HashSet<[u8; 2]> = (0..10_000).map(|_| rand::random()).collect();
        assert!(ids.len() > 9_000, "{} of 10000 differ", ids.len());
    }
}
