//! An issuer of tokens on loopback, with its own certificate authority.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use parking_lot::Mutex;
use serde_json::{Value, json};

use super::JwtAuthenticators;
use crate::outbound::test_server::TestServer;

pub struct TestIssuer {
    pub server: TestServer,
    served: Served,
    key: EcdsaKeyPair,
    key_id: String,
}

type Served = Arc<Mutex<HashMap<String, (u16, Vec<(&'static str, String)>, String)>>>;

pub const AUDIENCE: &str = "kubernetes";

impl TestIssuer {
    pub async fn start() -> TestIssuer {
        let served = Served::default();
        let shown = served.clone();
        let server = TestServer::respond(None, move |request| {
            let served = shown.lock();
            let Some((code, headers, body)) = served.get(&request.path) else {
                return Response::builder().status(404).body(Full::default()).unwrap();
            };
            let mut response = Response::builder().status(*code);
            for (name, value) in headers {
                response = response.header(*name, value);
            }
            response.body(Full::new(Bytes::from(body.clone()))).unwrap()
        })
        .await;
        let issuer = TestIssuer { server, served, key: new_key(), key_id: "k1".to_owned() };
        let url = issuer.url();
        issuer.serve("/.well-known/openid-configuration", &json!({"issuer": url, "jwks_uri": format!("{url}/keys")}));
        issuer.serve("/keys", &json!({"keys": [issuer.public_key()]}));
        issuer
    }

    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.server.port)
    }

    pub fn serve(&self, path: &str, document: &Value) {
        self.serve_text(path, &document.to_string());
    }

    pub fn serve_text(&self, path: &str, text: &str) {
        self.serve_whole(path, 200, Vec::new(), text);
    }

    pub fn serve_whole(&self, path: &str, code: u16, headers: Vec<(&'static str, String)>, text: &str) {
        self.served.lock().insert(path.to_owned(), (code, headers, text.to_owned()));
    }

    pub fn public_key(&self) -> Value {
        let point = self.key.public_key().as_ref();
        let (x, y) = (URL_SAFE_NO_PAD.encode(&point[1..33]), URL_SAFE_NO_PAD.encode(&point[33..]));
        json!({"kty": "EC", "crv": "P-256", "kid": self.key_id, "use": "sig", "alg": "ES256", "x": x, "y": y})
    }

    /// Replaces the signing key; the published keys stay.
    pub fn rotate(&mut self, key_id: &str) {
        self.key = new_key();
        self.key_id = key_id.to_owned();
    }

    pub fn sign(&self, claims: &Value) -> String {
        self.sign_with(json!({"alg": "ES256", "kid": self.key_id}), claims)
    }

    pub fn sign_with(&self, header: Value, claims: &Value) -> String {
        let signed =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature.as_ref()))
    }

    /// An AuthenticationConfiguration with this issuer and more settings.
    pub fn configuration(&self, settings: &str) -> String {
        let authority: String = self.server.certificate.lines().map(|line| format!("\n      {line}")).collect();
        format!(
            "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer:\n    url: {}\n    \
             audiences: [{AUDIENCE}]\n    certificateAuthority: |{authority}\n  {settings}\n",
            self.url()
        )
    }
}

fn new_key() -> EcdsaKeyPair {
    let pkcs8 = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new()).unwrap();
    EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, pkcs8.as_ref()).unwrap()
}

/// Valid claims, with others added or replaced.
pub fn claims(issuer: &TestIssuer, more: Value) -> Value {
    let now = jiff::Timestamp::now().as_second();
    let mut all = json!({"iss": issuer.url(), "aud": AUDIENCE, "sub": "ann", "iat": now, "exp": now + 600});
    all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    all
}

/// Waits until all issuers' documents were read.
pub async fn initialized(jwt: &JwtAuthenticators) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    while !jwt.unhealthy().is_empty() {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", jwt.unhealthy());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
