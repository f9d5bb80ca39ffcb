//! A client that authenticates by a join token, which only servers receive: no node of the cluster, though the same authority
//! signs its certificate.

use std::sync::Arc;

use anyhow::Context as _;
use http::header::{AUTHORIZATION, HOST, HeaderValue, USER_AGENT};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use knarr_client::kube::Client;
use knarr_client::kube::client::Body;
use tower::service_fn;

use super::authority::connect_known;
use super::token::BootstrapToken;

/// A client for the few requests of a host that joins.
pub fn token_client(server: &http::Uri, authorities: &[Vec<u8>], token: &BootstrapToken) -> anyhow::Result<Client> {
    let host = server.authority().map(http::uri::Authority::as_str).unwrap_or_default();
    let mut bearer = HeaderValue::try_from(format!("Bearer {}", token.bearer())).context("the token is invalid")?;
    bearer.set_sensitive(true);
    let headers = [
        (HOST, HeaderValue::from_str(host)?),
        (AUTHORIZATION, bearer),
        (USER_AGENT, HeaderValue::from_static("kubelet")),
    ];
    let (server, authorities): (http::Uri, Arc<[_]>) = (server.clone(), authorities.into());
    let send = service_fn(move |mut request: http::Request<Body>| {
        let (server, authorities) = (server.clone(), authorities.clone());
        request.headers_mut().extend(headers.clone());
        async move { send(&server, &authorities, request).await }
    });
    Ok(knarr_client::measured_client(send, host))
}

/// Sends a request over a connection of its own, as each must lead to a server.
async fn send(
    server: &http::Uri,
    authorities: &[Vec<u8>],
    request: http::Request<Body>,
) -> anyhow::Result<http::Response<Incoming>> {
    let stream = connect_known(server, authorities).await?;
    let (mut sender, driver) = http1::handshake(TokioIo::new(stream)).await?;
    // The request reports how the connection ends.
    knarr_supervisor::spawn(async move { drop(driver.await) });
    Ok(sender.send_request(request).await?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use knarr_apiserver::pki::{Identity as Names, Pki};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::super::Identity;
    use super::super::test_node::node_server;
    use super::*;

    #[tokio::test]
    async fn a_node_in_the_place_of_the_server_gets_no_token_of_an_agent() {
        let directory = tempfile::tempdir().unwrap();
        let pki = Pki::open(directory.path(), Names::default(), jiff::Timestamp::now()).unwrap();
        let authority = CertificateDer::from_pem_slice(pki.authority.certificate.as_bytes()).unwrap().to_vec();
        for (shown, gets_token) in [(pki.serving.config(), true), (node_server(&pki), false)] {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let server: http::Uri = format!("https://{}", listener.local_addr().unwrap()).parse().unwrap();
            let accepting = tokio::spawn(async move {
                let (stream, _) = listener.accept().await.unwrap();
                let Ok(mut stream) = TlsAcceptor::from(shown).accept(stream).await else { return String::new() };
                let mut read = vec![0; 4096];
                let length = stream.read(&mut read).await.unwrap_or_default();
                String::from_utf8_lossy(&read[..length]).into_owned()
            });
            let (token, files) = (BootstrapToken::generate(), tempfile::tempdir().unwrap());
            let (authorities, authority_file) = ([authority.clone()], files.path().join("ca.crt"));
            let obtaining = Identity::obtain(&server, &authorities, &token, "a", files.path(), &authority_file);
            let obtained = tokio::time::timeout(Duration::from_secs(60), obtaining).await;
            assert!(obtained.expect("an end").is_err());
            let received = accepting.await.unwrap();
            assert_eq!(received.contains(&token.bearer()), gets_token, "{received}");
            assert_eq!(received.is_empty(), !gets_token, "{received}");
        }
    }
}
