//! Accepts the tunnels of nodes: connections that nodes open, over which this server reaches their kubelets and pods.
//!
//! A tunnel is closed when the certificate that opened it expires or its authority is removed, when the Node object is deleted,
//! and when the node is no longer authorized to open tunnels. The node opens the next tunnel as soon as its certificate is
//! renewed. After its Node object was deleted, a new tunnel is used once the node has registered again.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue, UPGRADE};
use http::{Response, StatusCode};
use hyper_util::rt::TokioIo;
use knarr_api::status::Status;
use knarr_store::{Notice, Revision, Scope, Store};
use rustls_pki_types::UnixTime;
use tokio::time::{sleep, timeout};

use crate::authenticate::ClientConnection;
use crate::authorize::{Authorizer, Decision};
use crate::authorized_request::AuthorizedRequest;
use crate::request::{Target, User};
use crate::response::Body;
use crate::state::ApiServer;

const NODE_USER: &str = "system:node:";
const NODE_GROUP: &str = "system:nodes";
/// How often the certificate of an open tunnel is verified.
const VERIFICATION_INTERVAL: Duration = Duration::from_secs(60);
/// How often the authorization of an open tunnel is checked.
const AUTHORIZATION_INTERVAL: Duration = Duration::from_secs(60);
/// How long a tunnel is kept open without a Node object: nodes open tunnels while they register.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(60);

/// Makes the connection of a request the tunnel of the node that sent it.
pub fn accept(server: &Arc<ApiServer>, request: &mut AuthorizedRequest<'_>) -> Result<Response<Body>, Status> {
    let node = node_of(request.user).ok_or_else(|| Status::bad_request("only a node can open a tunnel"))?.to_owned();
    let client = request.parts.extensions.get::<Arc<ClientConnection>>().filter(|client| client.has_certificate());
    let client = client.cloned().ok_or_else(|| Status::bad_request("a tunnel is opened with a client certificate"))?;
    let is_tunnel = request.parts.headers.get(UPGRADE).is_some_and(|value| value == knarr_tunnel::PROTOCOL);
    let upgrade = request.parts.extensions.remove::<hyper::upgrade::OnUpgrade>().filter(|_| is_tunnel);
    let upgrade = upgrade.ok_or_else(|| Status::bad_request("the connection must be upgraded to knarr-tunnel"))?;
    let kinds = server.backend.kinds.load();
    let nodes = kinds.stored("", "nodes").ok_or_else(|| Status::internal("there are no nodes".to_owned()))?;
    let (key, store) = (nodes.key("", &node), server.backend.store.clone());
    let revoked = revoked(server.backend.authorizer.clone(), request.user.clone(), request.routed.target.clone());
    let tunnels = server.kubelets.tunnels.clone();
    let mut stopping = server.backend.stopping.clone();
    let run = async move {
        let connection = match upgrade.await {
            Ok(connection) => TokioIo::new(connection),
            Err(error) => return tracing::debug!(%error, "cannot upgrade the connection of a tunnel"),
        };
        let Ok(Some(created)) = timeout(REGISTRATION_TIMEOUT, registered(&*store, &key)).await else {
            return tracing::debug!(node, "a node opened a tunnel and does not register");
        };
        let end = async move { ended(client, &*store, &key, created, revoked).await };
        tunnels.run(&node, connection, end).await;
    };
    knarr_supervisor::spawn(async move {
        tokio::select! {
            () = run => {}
            // The nodes open tunnels to the other servers, too.
            _ = stopping.wait_for(|stopping| *stopping) => {}
        }
    });
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    response.headers_mut().insert(UPGRADE, HeaderValue::from_static(knarr_tunnel::PROTOCOL));
    Ok(response)
}

/// Waits until a node may no longer have the tunnel that it opened.
async fn ended(
    client: Arc<ClientConnection>,
    store: &dyn Store,
    key: &str,
    created: Revision,
    revoked: impl Future<Output = ()>,
) {
    tokio::select! {
        () = expired(client, UnixTime::now) => {}
        () = deleted(store, key, created) => {}
        () = revoked => {}
    }
}

/// Waits until the certificate of a connection is no longer accepted.
async fn expired(client: Arc<ClientConnection>, now: impl Fn() -> UnixTime) {
    while let Some(left) = client.valid_for(now()) {
        // The clock may be stepped, or an authority removed, before the certificate expires.
        sleep(left.min(VERIFICATION_INTERVAL)).await;
    }
}

/// Waits until a Node exists, and returns the revision that created it, which tells it apart from a later Node of the same name.
async fn registered(store: &dyn Store, key: &str) -> Option<Revision> {
    observe(store, key, |created| created).await
}

/// Waits until the Node created at a revision no longer exists, or cannot be watched.
async fn deleted(store: &dyn Store, key: &str, created: Revision) {
    observe(store, key, |current| (current != Some(created)).then_some(())).await;
}

/// Waits until `find` returns a value for the revision at which a key was created; `None` if the key cannot be watched.
async fn observe<T>(store: &dyn Store, key: &str, find: impl Fn(Option<Revision>) -> Option<T>) -> Option<T> {
    loop {
        // Watches before the first read, so that no change is missed.
        let mut watch = store.watch_scope(Scope::Key(key), store.revision()).ok()?;
        loop {
            let found = find(store.peek(key).map(|entry| entry.created));
            if found.is_some() {
                return found;
            }
            if let Notice::Compacted = watch.next().await? {
                break;
            }
        }
    }
}

/// Waits until a node is no longer authorized to open tunnels.
async fn revoked(authorizer: Arc<dyn Authorizer>, user: User, target: Target) {
    loop {
        sleep(AUTHORIZATION_INTERVAL).await;
        let decision = authorizer.authorize(&user, &target).await;
        if !matches!(decision, Decision::Allow(_)) {
            return tracing::info!(user = user.name, reason = decision.reason(), "a node may no longer have a tunnel");
        }
    }
}

/// The node whose user this is.
fn node_of(user: &User) -> Option<&str> {
    let is_node = user.groups.iter().any(|group| group == NODE_GROUP);
    user.name.strip_prefix(NODE_USER).filter(|name| is_node && !name.is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use jiff::Timestamp;
    use knarr_store::{Embedded, Options};
    use rustls_pki_types::CertificateDer;
    use rustls_pki_types::pem::PemObject;

    use super::*;
    use crate::pki::{Identity, Pki, Purpose, TlsSettings};

    #[test]
    fn a_tunnel_belongs_to_the_node_that_opened_it() {
        for (name, group, node) in [
            ("system:node:a", "system:nodes", Some("a")),
            ("system:node:a", "system:masters", None),
            ("system:node:", "system:nodes", None),
            ("kubernetes-admin", "system:masters", None),
            ("knarr:node-network:a", "system:nodes", None),
        ] {
            assert_eq!(node_of(&User::named(name, &[group])), node, "{name} {group}");
        }
    }

    /// Whether a future waits.
    async fn waits(future: impl Future) -> bool {
        timeout(Duration::from_millis(1), future).await.is_err()
    }

    /// The output of a future that must not wait for ever.
    async fn output<T>(future: impl Future<Output = T>) -> T {
        timeout(Duration::from_secs(60), future).await.expect("the state is not noticed")
    }

    #[tokio::test]
    async fn a_node_of_the_same_name_is_another_one() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        let key = "/registry/minions/a";
        let awaited = tokio::spawn({
            let store = store.clone();
            async move { registered(&*store, key).await }
        });
        store.create("/registry/minions/ab", "{}".into(), None).await.unwrap();
        assert!(waits(registered(&*store, key)).await);
        let node = store.create(key, "{}".into(), None).await.unwrap().revision;
        assert_eq!(output(awaited).await.unwrap(), Some(node));
        let changed = store.update(key, "{ }".into(), node, None).await.unwrap().revision;
        assert!(waits(deleted(&*store, key, node)).await, "a node that changes is the same");
        let awaited = tokio::spawn({
            let store = store.clone();
            async move { deleted(&*store, key, node).await }
        });
        store.delete(key, changed).await.unwrap();
        let again = store.create(key, "{}".into(), None).await.unwrap().revision;
        output(awaited).await.unwrap();
        output(deleted(&*store, key, node)).await;
        assert_eq!(output(registered(&*store, key)).await, Some(again));
        assert!(waits(deleted(&*store, key, again)).await);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tunnel_ends_when_its_authority_is_removed() {
        let (directory, issued) = (tempfile::tempdir().unwrap(), Timestamp::now());
        let open = |name: &str, settings| {
            Pki::open_with(&directory.path().join(name), Identity::default(), settings, issued).unwrap()
        };
        let (other, file) = (open("other", TlsSettings::default()), directory.path().join("users"));
        std::fs::write(&file, &other.authority.certificate).unwrap();
        let pki = open("own", TlsSettings { client_authorities: Some(file.clone()), ..TlsSettings::default() });
        let node = Purpose::Client { user: "system:node:a".into(), group: "system:nodes".into() };
        let leaf = other.authority.sign(&node, issued).unwrap();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).map(Result::unwrap).collect();
        let client = Arc::new(ClientConnection::new(pki.serving.clients(), &chain, UnixTime::now()));
        let mut ended = std::pin::pin!(expired(client, UnixTime::now));
        assert!(timeout(VERIFICATION_INTERVAL * 10, &mut ended).await.is_err());
        std::fs::write(&file, &pki.authority.certificate).unwrap();
        pki.serving.reload().unwrap();
        assert!(timeout(VERIFICATION_INTERVAL * 2, ended).await.is_ok());
    }

    struct Switch(AtomicBool);

    impl Authorizer for Switch {
        fn decide(&self, _: &User, _: &Target) -> Decision {
            if self.0.load(Ordering::SeqCst) {
                Decision::Allow(String::new())
            } else {
                Decision::NoOpinion(String::new())
            }
        }
    }

    #[tokio::test]
    async fn a_tunnel_ends_when_its_node_may_not_have_one() {
        let directory = tempfile::tempdir().unwrap();
        let store: Arc<dyn Store> = Arc::new(Embedded::open(directory.path(), Options::default()).unwrap());
        let key = "/registry/minions/a";
        let created = store.create(key, "{}".into(), None).await.unwrap().revision;
        let issued = Timestamp::now();
        let pki = Pki::open(&directory.path().join("pki"), Identity::default(), issued).unwrap();
        let node = Purpose::Client { user: "system:node:a".into(), group: "system:nodes".into() };
        let leaf = pki.authority.sign(&node, issued).unwrap();
        let chain: Vec<_> = CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).map(Result::unwrap).collect();
        let client = Arc::new(ClientConnection::new(pki.serving.clients(), &chain, UnixTime::now()));
        tokio::time::pause();
        let switch = Arc::new(Switch(AtomicBool::new(true)));
        let revoked = revoked(switch.clone(), User::named("system:node:a", &[]), Target::default());
        let mut ended = std::pin::pin!(ended(client, &*store, key, created, revoked));
        assert!(timeout(AUTHORIZATION_INTERVAL * 10, &mut ended).await.is_err());
        switch.0.store(false, Ordering::SeqCst);
        assert!(timeout(AUTHORIZATION_INTERVAL * 2, ended).await.is_ok());
    }
}
