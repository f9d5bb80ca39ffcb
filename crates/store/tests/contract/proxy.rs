//! A proxy that loses a response: it forwards the request, then breaks the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// How long the request has to be carried out after its first sign of life.
const GRACE: Duration = Duration::from_millis(300);

pub struct Proxy {
    pub endpoint: String,
    plan: Arc<Plan>,
    accepting: JoinHandle<()>,
}

#[derive(Default)]
struct Plan {
    lose: AtomicBool,
    lost: AtomicUsize,
}

impl Proxy {
    /// Stands in front of an `https://` endpoint.
    pub async fn start(target: &str) -> Self {
        let target = target.trim_start_matches("https://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = format!("https://{}", listener.local_addr().expect("its address"));
        let plan = Arc::new(Plan::default());
        let accepting = tokio::spawn(accept(listener, target, plan.clone()));
        Self { endpoint, plan, accepting }
    }

    /// Loses the response to the next request.
    pub fn lose_next_answer(&mut self) {
        self.plan.lose.store(true, Ordering::SeqCst);
    }

    pub fn lost(&self) -> usize {
        self.plan.lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: String, plan: Arc<Plan>) {
    let mut connections = tokio::task::JoinSet::new();
    while let Ok((client, _)) = listener.accept().await {
        if let Ok(server) = TcpStream::connect(&target).await {
            connections.spawn(carry(client, server, plan.clone()));
        }
    }
}

/// Carries bytes both ways until one side closes or a response must be lost.
async fn carry(client: TcpStream, server: TcpStream, plan: Arc<Plan>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let requests = tokio::io::copy(&mut from_client, &mut to_server);
    let responses = async {
        let mut buffer = vec![0; 64 << 10];
        loop {
            let read = from_server.read(&mut buffer).await?;
            if plan.lose.swap(false, Ordering::SeqCst) {
                plan.lost.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(GRACE).await;
                return Ok(());
            }
            if read == 0 {
                return Ok(());
            }
            to_client.write_all(&buffer[..read]).await?;
        }
    };
    // Either end of the connection ends both; the error is irrelevant here.
    let _: std::io::Result<()> = tokio::select! {
        copied = requests => copied.map(drop),
        carried = responses => carried,
    };
}
