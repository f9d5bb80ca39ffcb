//! Joins this host to a cluster as a further server: trusts only the authority that the token pins, and receives what all
//! servers share.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use bytes::Bytes;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use knarr_client::kube;

use super::admission::{JoinRequest, PATH};
use super::bundle::Bundle;
use super::seal::Sealed;
use crate::join::{JoinToken, connect_pinned, until_reached};

/// How long a server may take to respond: it may have to add a member to etcd.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Keys, certificates and an encryption configuration are far shorter.
const MAX_RESPONSE_BYTES: usize = 4 << 20;

/// Asks a server of the cluster for admission, until it responds.
pub async fn join(
    server: &http::Uri,
    token: &JoinToken,
    name: &str,
    address: IpAddr,
    needs_member: bool,
) -> anyhow::Result<Bundle> {
    if server.scheme_str() != Some("https") || server.host().is_none() {
        bail!("--server is {server}, expected the form https://HOST:6443");
    }
    let token_id = token.bootstrap.id.clone();
    let request = JoinRequest { name: name.to_owned(), address, token_id, needs_member };
    let body = Bytes::from(serde_json::to_vec(&request)?);
    let response = until_reached(|| ask(server, token, body.clone(), TIMEOUT)).await?;
    let sealed: Sealed = serde_json::from_slice(&response).context("the server's response is invalid")?;
    serde_json::from_slice(&sealed.open(&token.bootstrap.secret)?).context("the server's response is invalid")
}

/// Sends a request over the connection on which the server showed the pinned authority: the token opens everything, so it goes
/// nowhere else.
async fn ask(server: &http::Uri, token: &JoinToken, body: Bytes, limit: Duration) -> anyhow::Result<Bytes> {
    let connection = connect_pinned(server, token.pin, limit).await?;
    match tokio::time::timeout(limit, exchange(server, TokioIo::new(connection.stream), token, body)).await {
        Ok(exchanged) => exchanged,
        Err(_) => Err(io::Error::from(io::ErrorKind::TimedOut)).context("the server does not respond"),
    }
}

async fn exchange(
    server: &http::Uri,
    stream: impl hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    token: &JoinToken,
    body: Bytes,
) -> anyhow::Result<Bytes> {
    let request = http::Request::post(PATH)
        .header(HOST, server.authority().map_or("", |authority| authority.as_str()))
        .header(AUTHORIZATION, format!("Bearer {}", token.bootstrap.bearer()))
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(body))
        .context("cannot build a request")?;
    // A connection that fails is tried again.
    let (mut sender, driver) = http1::handshake(stream).await.map_err(io::Error::other)?;
    // The request reports how the connection ends.
    knarr_supervisor::spawn(async move { drop(driver.await) });
    let response = sender.send_request(request).await.map_err(io::Error::other).context("cannot join")?;
    let status = response.status();
    let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
    let body = body.map_err(|error| match error.downcast_ref::<LengthLimitError>() {
        Some(_) => io::Error::new(io::ErrorKind::InvalidData, "the server's response is too long"),
        None => io::Error::other(error),
    });
    let body = body.context("cannot join")?.to_bytes();
    if status.is_success() {
        return Ok(body);
    }
    let refused = serde_json::from_slice::<serde_json::Value>(&body).unwrap_or_default();
    let message = refused["message"].as_str().unwrap_or("the server gives no reason");
    let refused = kube::core::Status::failure(message, "").with_code(status.as_u16());
    Err(explain(kube::Error::Api(Box::new(refused)), &token.bootstrap.id))
}

fn explain(error: kube::Error, token: &str) -> anyhow::Error {
    let advice = "create one with `knarr token create --role server --print-join-command` on a server";
    let context = match &error {
        kube::Error::Api(status) => match status.code {
            401 => format!("the server rejected the token {token}: it has expired or was deleted; {advice}"),
            403 => format!("the token {token} admits nodes, not servers; {advice}"),
            404 => "the server cannot admit further servers: is it a `knarr server` of this version?".to_owned(),
            400 | 409 => return anyhow::anyhow!("{}", status.message),
            _ => "cannot join".to_owned(),
        },
        _ => "cannot join".to_owned(),
    };
    anyhow::Error::new(error).context(context)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use knarr_apiserver::pki::{Identity, Pki};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::join::test_node::node_server;
    use crate::join::{BootstrapToken, Pin};

    fn pki(directory: &tempfile::TempDir) -> (Pki, JoinToken) {
        let pki = Pki::open(directory.path(), Identity::default(), jiff::Timestamp::now()).unwrap();
        let authority = CertificateDer::from_pem_slice(pki.authority.certificate.as_bytes()).unwrap();
        let token = JoinToken { bootstrap: BootstrapToken::generate(), pin: Pin::of(&authority).unwrap() };
        (pki, token)
    }

    /// Who got onto the network after the first connection waits for the second.
    #[tokio::test]
    async fn a_node_in_the_place_of_the_server_gets_no_token() {
        let directory = tempfile::tempdir().unwrap();
        let (pki, token) = pki(&directory);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server: http::Uri = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
        let (own, node) = (TlsAcceptor::from(pki.serving.config()), TlsAcceptor::from(node_server(&pki)));
        let received = Arc::new(AtomicUsize::new(0));
        let counted = received.clone();
        tokio::spawn(async move {
            // The server itself restarts as soon as it has shown its certificate.
            let (stream, _) = listener.accept().await.unwrap();
            drop(own.accept(stream).await);
            while let Ok((stream, _)) = listener.accept().await {
                if let Ok(mut stream) = node.accept(stream).await {
                    let read = stream.read(&mut [0; 1024]).await.unwrap_or_default();
                    counted.fetch_add(read, Ordering::SeqCst);
                }
            }
        });
        let joining = join(&server, &token, "two", "10.0.0.2".parse().unwrap(), true);
        let joined = tokio::time::timeout(Duration::from_secs(60), joining).await;
        assert_eq!(received.load(Ordering::SeqCst), 0, "bytes of the request");
        assert!(joined.expect("it is refused, not retried").is_err());
    }

    /// A server that sends this after the request.
    async fn responding(pki: &Pki, responses: impl Fn() -> Option<&'static [u8]> + Send + 'static) -> http::Uri {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(pki.serving.config());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let mut stream = acceptor.accept(stream).await.unwrap();
                let _ = stream.read(&mut [0; 1024]).await;
                while let Some(bytes) = responses() {
                    if stream.write_all(bytes).await.is_err() {
                        break;
                    }
                }
                // Nothing more, and no end.
                let _ = stream.read_to_end(&mut Vec::new()).await;
            }
        });
        format!("https://{address}").parse().unwrap()
    }

    #[tokio::test]
    async fn responses_without_end_and_none_at_all_do_not_hold_a_server_that_joins() {
        let directory = tempfile::tempdir().unwrap();
        let (pki, token) = pki(&directory);
        let started = AtomicUsize::new(0);
        let endless = responding(&pki, move || match started.fetch_add(1, Ordering::SeqCst) {
            0 => Some(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000000\r\n\r\n"),
            _ => Some(&[b' '; 65536]),
        })
        .await;
        let end = Duration::from_secs(60);
        let joining = join(&endless, &token, "two", "10.0.0.2".parse().unwrap(), true);
        let error = tokio::time::timeout(end, joining).await.expect("an end").unwrap_err();
        assert!(format!("{error:#}").contains("too long"), "{error:#}");
        let silent = responding(&pki, || None).await;
        let asking = ask(&silent, &token, Bytes::new(), Duration::from_millis(200));
        let error = tokio::time::timeout(end, asking).await.expect("an end").unwrap_err();
        assert_eq!(error.root_cause().downcast_ref::<io::Error>().unwrap().kind(), io::ErrorKind::TimedOut);
    }
}
