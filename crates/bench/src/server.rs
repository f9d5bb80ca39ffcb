//! The server that is measured, as a process of its own.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};

use crate::client::Client;

const TOKEN: &str = "bench";
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Server {
    process: Child,
    pub address: SocketAddr,
    pub token: &'static str,
    /// PEM of the authority that signed the server's certificate.
    pub authority: PathBuf,
    /// How long it took from the start of the process until it was ready.
    pub started: Duration,
}

impl Server {
    pub async fn start(knarr: &Path, folder: &Path) -> anyhow::Result<Server> {
        // Free a moment ago; whoever takes it meanwhile makes the start fail, not the figures wrong.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let tokens = folder.join("tokens.csv");
        std::fs::write(&tokens, format!("{TOKEN},bench,1,system:masters\n"))?;
        let data = folder.join("data");
        let begun = Instant::now();
        let process = Command::new(knarr)
            .args(["apiserver", "--listen", &address.to_string()])
            .arg("--data-dir")
            .arg(&data)
            .arg("--token-file")
            .arg(&tokens)
            .env("KNARR_LOG", "warn")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} cannot be run", knarr.display()))?;
        let authority = data.join("pki/ca.crt");
        let mut server = Server { process, address, token: TOKEN, authority, started: Duration::ZERO };
        while !server.is_ready().await {
            if let Some(status) = server.process.try_wait()? {
                bail!("it ended with {status}");
            }
            if begun.elapsed() > PATIENCE {
                bail!("it was not ready after {PATIENCE:?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        server.started = begun.elapsed();
        Ok(server)
    }

    async fn is_ready(&self) -> bool {
        let Ok(client) = Client::connect(self).await else { return false };
        client.get("/readyz").await.is_ok()
    }

    /// The memory it has in use, in bytes.
    pub fn memory(&self) -> anyhow::Result<u64> {
        let id = self.process.id().context("the server has ended")?;
        let status = std::fs::read_to_string(format!("/proc/{id}/status"))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no memory is told")?;
        let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
        Ok(kilobytes * 1024)
    }

    pub async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(id) = self.process.id() {
            // SAFETY: the process is our child and has not been waited for, so the id is still its own.
            unsafe { libc::kill(id as libc::pid_t, libc::SIGTERM) };
        }
        self.process.wait().await?;
        Ok(())
    }
}
