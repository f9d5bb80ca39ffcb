//! Health checks of the servers: the one in use every second, the others every ten seconds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use knarr_client::kube::{Client, Config};
use tokio::time::{sleep, timeout};

use super::Shared;

const INTERVAL: Duration = Duration::from_secs(1);
/// Servers that are not in use are checked in every tenth round.
const ROUNDS: u32 = 10;
const TIMEOUT: Duration = Duration::from_secs(2);

/// Runs until dropped.
pub async fn check(shared: Arc<Shared>, authorities: Vec<Vec<u8>>) {
    let mut clients: HashMap<String, Client> = HashMap::new();
    let mut round = 0;
    loop {
        let (preferred, others) = shared.servers.lock().to_check();
        clients.retain(|server, _| preferred.as_ref() == Some(server) || others.contains(server));
        let others = if round % ROUNDS == 0 { others } else { Vec::new() };
        round += 1;
        let mut checks = Vec::new();
        for server in preferred.into_iter().chain(others) {
            let client = match clients.get(&server) {
                Some(client) => client.clone(),
                None => match client(&server, &authorities) {
                    Ok(client) => clients.entry(server.clone()).or_insert(client).clone(),
                    Err(error) => {
                        tracing::warn!(server, error = format!("{error:#}"), "cannot check a server");
                        continue;
                    }
                },
            };
            checks.push(async move {
                let is_ready = timeout(TIMEOUT, is_ready(&client)).await.unwrap_or(false);
                (server, is_ready)
            });
        }
        for (server, is_ready) in futures::future::join_all(checks).await {
            if !is_ready {
                // The next check uses a new connection, since this one may hang.
                clients.remove(&server);
            }
            shared.report(&server, is_ready);
        }
        sleep(INTERVAL).await;
    }
}

fn client(server: &str, authorities: &[Vec<u8>]) -> anyhow::Result<Client> {
    let mut config = Config::new(format!("https://{server}").parse()?);
    config.root_cert = Some(authorities.to_vec());
    Ok(Client::try_from(config)?)
}

/// A server without a quorum of its store is alive, but not ready.
async fn is_ready(client: &Client) -> bool {
    match http::Request::get("/readyz").body(Vec::new()) {
        Ok(request) => client.request_text(request).await.is_ok(),
        Err(_) => false,
    }
}
