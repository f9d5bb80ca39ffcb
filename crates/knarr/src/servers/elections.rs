//! Runs what must run once per cluster: on the server that holds the Lease, while it holds it.

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use knarr_client::kube::Client;
use knarr_client::{Fence, LeaderElection};
use knarr_supervisor::Supervisor;

use super::member::write_private;

/// How this server takes part in elections.
#[derive(Clone)]
pub struct Elections {
    /// `None` if there can be no other server: then everything runs here.
    contest: Option<Contest>,
}

#[derive(Clone)]
struct Contest {
    client: Client,
    identity: String,
}

impl Elections {
    /// No elections: the store is in this server's data directory, which no other can use.
    pub fn standalone() -> Self {
        Self { contest: None }
    }

    /// Elections under an identity that survives restarts: a server that comes back has its Lease at once. Nobody else can
    /// use the identity, because one process at a time uses a data directory.
    pub fn among_servers(client: Client, name: &str, data: &Path) -> anyhow::Result<Self> {
        let path = data.join("server-id");
        let id = match std::fs::read_to_string(&path) {
            Ok(id) => id,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let random: [u8; 16] = rand::random();
                let id = random.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
                write_private(&path, id.as_bytes())?;
                id
            }
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        Ok(Self { contest: Some(Contest { client, identity: format!("{name}_{}", id.trim()) }) })
    }

    /// Starts components while this server holds the Lease, under a supervisor that is dropped when it may be lost. The
    /// fence closes at the same time: what the components do to the cluster must go through it ([`fenced`]).
    pub fn start(
        &self,
        lease: &'static str,
        supervisor: &Supervisor,
        start: impl Fn(Fence, &Supervisor) + Send + Sync + 'static,
    ) {
        let Some(Contest { client, identity }) = self.contest.clone() else {
            return start(Fence::always_open(), supervisor);
        };
        let (election, registry) = (LeaderElection::new("kube-system", lease, identity), supervisor.registry().clone());
        let start = Arc::new(start);
        supervisor.restart(format!("{lease}-election"), move || {
            let (start, registry, client, fence) = (start.clone(), registry.clone(), client.clone(), Fence::default());
            let election = LeaderElection { fence: fence.clone(), ..election.clone() };
            async move {
                let work = || async move {
                    let components = Supervisor::new(&registry);
                    start(fence, &components);
                    std::future::pending::<()>().await;
                    drop(components);
                };
                election.run(client, std::future::pending(), work).await.map(drop)
            }
        });
    }
}

/// A client that sends nothing once the fence is closed. A request that is under way then is given up: it could be retried by
/// the store until another server holds the Lease.
pub fn fenced(client: Client, fence: &Fence) -> Client {
    if fence.is_always_open() {
        return client;
    }
    let fence = fence.clone();
    let send = tower::service_fn(move |request: http::Request<knarr_client::kube::client::Body>| {
        let (client, fence) = (client.clone(), fence.clone());
        async move {
            let lost = || {
                let lost = std::io::Error::other("this server no longer holds the Lease");
                Err(knarr_client::kube::Error::Service(lost.into()))
            };
            if !fence.is_open() {
                return lost();
            }
            tokio::select! {
                response = client.send(request) => response,
                () = fence.closed() => lost(),
            }
        }
    });
    Client::new(send, "default")
}
