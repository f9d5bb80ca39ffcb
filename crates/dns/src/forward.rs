//! Asking upstream resolvers: over UDP, over TCP when the answer does not fit, and the next one when one is silent.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use crate::message::{HEADER, read_name, read_number};
use crate::name::Name;

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
        // Others may send here, too: what does not answer this very question is not heard.
        if is_answer(&question, &answer[..length]) {
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
    if !is_answer(question, &answer) {
        return Err(std::io::ErrorKind::InvalidData.into());
    }
    Ok(answer)
}

/// Whether a message answers a question: its id, and the name, kind and class that were asked for.
fn is_answer(question: &[u8], message: &[u8]) -> bool {
    let is_reply = message.len() >= HEADER && message[..2] == question[..2] && message[2] & 0x80 != 0;
    if !is_reply {
        return false;
    }
    // A server that could not read the question may leave it out, and then has nothing to say but that.
    let is_bare_error = message.len() == HEADER && message[3] & 0x0f != 0;
    is_bare_error || asked_in(message).is_some_and(|asked| asked_in(question) == Some(asked))
}

/// The one question of a message.
fn asked_in(message: &[u8]) -> Option<(Name, u16, u16)> {
    if read_number(message, 4)? != 1 {
        return None;
    }
    let (name, end) = read_name(message, HEADER)?;
    Some((name, read_number(message, end)?, read_number(message, end + 2)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A question for a name, and the same as an answer.
    fn message(id: u8, label: &[u8], kind: u8, flags: u8) -> Vec<u8> {
        let mut bytes = vec![0, id, flags, 0, 0, 1, 0, 0, 0, 0, 0, 0, u8::try_from(label.len()).unwrap()];
        bytes.extend_from_slice(label);
        bytes.extend_from_slice(&[0, 0, kind, 0, 1]);
        bytes
    }

    #[test]
    fn only_an_answer_to_the_question_is_heard() {
        let question = message(7, b"example", 1, 1);
        for (what, answer, expected) in [
            ("the answer", message(7, b"example", 1, 0x81), true),
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
            assert_eq!(is_answer(&question, &answer), expected, "{what}");
        }
    }

    #[tokio::test]
    async fn forged_answers_do_not_end_the_wait() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap();
        let request = message(7, b"example", 1, 1);
        let asking = tokio::spawn(async move { ask(&[address], &request).await });
        let mut bytes = [0; 512];
        let (length, client) = server.recv_from(&mut bytes).await.unwrap();
        let asked = bytes[..length].to_vec();
        let reply = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut answer = asked.clone();
            answer[2] |= 0x80;
            change(&mut answer);
            answer
        };
        for forged in [
            reply(&|answer| answer[1] ^= 1),
            reply(&|answer| answer[13] = b'x'),
            reply(&|answer| answer.truncate(14)),
            vec![],
            reply(&|answer| answer[3] = 5),
        ] {
            server.send_to(&forged, client).await.unwrap();
        }
        let answer = asking.await.unwrap().unwrap();
        assert_eq!((answer[3], &answer[..2]), (5, &[0u8, 7][..]), "the true one, under the client's id");
    }

    #[test]
    fn ids_are_random() {
        let ids: std::collections::HashSet<[u8; 2]> = (0..10_000).map(|_| rand::random()).collect();
        assert!(ids.len() > 9_000, "{} of 10000 differ", ids.len());
    }
}
