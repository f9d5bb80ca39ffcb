//! An API server on an embedded store, in the process of the test. The scheduler's tests use it, too.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use knarr_apiserver::admit::EnabledPlugins;
use knarr_apiserver::authenticate::{ServiceAccountTokens, TokenFile, TokenSettings};
use knarr_apiserver::kinds::no_descriptions;
use knarr_apiserver::page::Pages;
use knarr_apiserver::request::{Sender, User};
use knarr_apiserver::startup::{self, ServerHandle};
use knarr_store::{Embedded, Options};
use knarr_supervisor::{Registry, Supervisor};
use serde_json::Value;

const ADDRESS: &str = "10.0.0.1:6443";
const SERVICE_RANGE: &str = "10.96.0.0/24";

pub struct InProcessApiServer {
    pub handle: ServerHandle,
    /// The server's background tasks, and what a test adds.
    pub components: Supervisor,
    _directory: tempfile::TempDir,
}

impl InProcessApiServer {
    pub async fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let store = Arc::new(Embedded::open(directory.path(), Options::default()).expect("a store"));
        let registry = Registry::default();
        let ranges = vec![SERVICE_RANGE.to_owned()];
        let handle = startup::start(startup::Settings {
            behaviour: Default::default(),
            components: registry.clone(),
            store,
            token_file: TokenFile::parse("").expect("an empty file"),
            service_accounts: Arc::new(token_issuer()),
            descriptions: no_descriptions(),
            client_authority: "pem".to_owned(),
            front_proxy_authority: "pem".to_owned(),
            service_ranges: ranges.clone(),
            address: ADDRESS.to_owned(),
            provided: Vec::new(),
            pages: Pages::new(),
            admission_plugins: EnabledPlugins::default(),
            access: Default::default(),
        });
        let address = ADDRESS.parse().expect("an address");
        startup::prepare(&handle.server, &ranges, address).await.expect("the objects of every cluster");
        let components = Supervisor::new(&registry);
        knarr_apiserver::background::run(&handle.server, &components);
        Self { handle, components, _directory: directory }
    }

    /// Sends a request as an administrator.
    pub async fn request(&self, method: &str, path: &str, media_type: &str, body: &Value) -> (u16, Value) {
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media_type)
            .header("user-agent", "test")
            .body(Full::new(body))
            .expect("a request");
        let response = self.handle.server.handle(request, &sender("admin", &["system:masters"])).await;
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.expect("a body").to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or(Value::Null))
    }
}

impl Drop for InProcessApiServer {
    fn drop(&mut self) {
        self.handle.stop.send_replace(true);
    }
}

/// A user whose identity the server takes as it is.
pub fn sender(user: &str, groups: &[&str]) -> Sender {
    Sender::Trusted(Arc::new(User::named(user, groups)))
}

fn token_issuer() -> ServiceAccountTokens {
    let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    ServiceAccountTokens::new(&key, &[], TokenSettings::of_issuer("https://issuer")).expect("an issuer")
}
