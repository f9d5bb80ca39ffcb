//! Proxies on loopback and at a Unix socket that open connections to a server.

use std::sync::Arc;

use bytes::Bytes;
use http::Method;
use parking_lot::Mutex;
use rustls::crypto::aws_lc_rs;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, UnixListener};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::outbound::test_server::TestServer;
use crate::outbound::{Call, HttpClient, Redirects};

/// Serves one CONNECT, and records where it led.
async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin, seen: Arc<Mutex<Vec<String>>>) {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") {
        if stream.read_line(&mut request).await.unwrap_or(0) == 0 {
            return;
        }
    }
    let target = request.split(' ').nth(1).unwrap().to_owned();
    seen.lock().push(target.clone());
    // Only the proxy knows the name.
    let port = target.rsplit(':').next().unwrap().parse().unwrap();
    let Ok(mut there) = TcpStream::connect(("127.0.0.1", port)).await else {
        let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
        return;
    };
    stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut there).await;
}

fn written(directory: &std::path::Path, selections: &str) -> Result<Egress, EgressError> {
    let path = directory.join("egress.yaml");
    let head = "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\n";
    std::fs::write(&path, format!("{head}egressSelections: [{selections}]\n")).unwrap();
    Egress::read(&path)
}

#[tokio::test]
async fn connections_go_through_a_proxy_at_a_socket() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("proxy.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let serving = {
        let seen = seen.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, seen.clone()));
            }
        })
    };
    let selection = format!(
        "{{name: cluster, connection: {{proxyProtocol: HTTPConnect, transport: {{uds: {{udsName: {}}}}}}}}}",
        socket.display()
    );
    let egress = written(directory.path(), &selection).unwrap();
    assert!(egress.route(Network::Etcd).is_direct() && egress.route(Network::ControlPlane).is_direct());
    let server = TestServer::start(|_, _| serde_json::json!({})).await;
    let route = egress.route(Network::Cluster);
    let mut stream = route.dial("node.invalid", server.port).await.unwrap();
    stream.write_all(b"\x16").await.unwrap();
    assert_eq!(*seen.lock(), [format!("node.invalid:{}", server.port)]);
    let refused = route.dial("::1", 1).await.err().unwrap();
    let expected = format!("proxy error from {} while dialing [::1]:1, code 502: 502 Bad Gateway", socket.display());
    assert_eq!(refused, expected);
    serving.abort();
    // Nobody listens any more.
    assert!(serving.await.is_err());
    let failed = route.dial("node.invalid", server.port).await.err().unwrap();
    assert!(failed.starts_with(&format!("dial unix {}: connect: ", socket.display())), "{failed}");
}

#[tokio::test]
async fn proxies_with_tls_see_a_client_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let now = jiff::Timestamp::now();
    let pki = crate::pki::Pki::open(&directory.path().join("pki"), Default::default(), now).unwrap();
    let own = pki.admin(now).unwrap();
    let proxy = rcgen::generate_simple_self_signed(["proxy.example".to_owned()]).unwrap();
    for (name, text) in [("ca", proxy.cert.pem()), ("crt", own.certificate), ("key", own.key)] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pki.authority.certificate.as_bytes()).unwrap()).unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
    let key = PrivateKeyDer::from_pem_slice(proxy.signing_key.serialize_pem().as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(vec![proxy.cert.der().clone()], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = seen.clone();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(stream) = acceptor.accept(stream).await {
                tokio::spawn(serve(stream, all.clone()));
            }
        }
    });
    let file = |name: &str| directory.path().join(name).display().to_string();
    let selection = |name: &str| {
        format!(
            "{{name: controlplane, connection: {{proxyProtocol: HTTPConnect, transport: {{tcp: {{url: \
             'https://127.0.0.1:{port}', tlsConfig: {{caBundle: {}, clientCert: {}, clientKey: {}, tlsServerName: \
             {name}}}}}}}}}}}",
            file("ca"),
            file("crt"),
            file("key")
        )
    };
    let server = TestServer::start(|path, _| serde_json::json!({ "path": path })).await;
    let other = written(directory.path(), &selection("other.example")).unwrap();
    let refused = other.route(Network::ControlPlane).dial("webhook.invalid", server.port).await.err().unwrap();
    assert!(refused.contains("certificate"), "{refused}");
    let egress = written(directory.path(), &selection("proxy.example")).unwrap();
    let mut stream = egress.route(Network::ControlPlane).dial("webhook.invalid", server.port).await.unwrap();
    stream.write_all(b"\x16").await.unwrap();
    assert_eq!(*seen.lock(), [format!("webhook.invalid:{}", server.port)]);
}

#[tokio::test]
async fn without_a_selection_connections_are_direct() {
    let server = TestServer::start(|_, _| serde_json::json!({})).await;
    let tls = client_config(&Trust::Authorities(server.certificate.clone()), None).unwrap();
    let client = HttpClient::new(tls, None, Redirects::Refuse).into_network(Network::ControlPlane);
    let call = Call {
        method: Method::GET,
        url: format!("https://localhost:{}/", server.port).parse().unwrap(),
        headers: Vec::new(),
        body: Bytes::new(),
        timeout: Duration::from_secs(10),
        max_response: 1000,
    };
    assert_eq!(client.send(call).await.unwrap().status, 200);
    let directory = tempfile::tempdir().unwrap();
    let missing = Egress::read(&directory.path().join("none")).unwrap_err().to_string();
    let expected = "failed to read egress selector config: unable to read egress selector configuration from ";
    assert!(missing.starts_with(expected), "{missing}");
}
