//! The measured API server, as a child process.

use std::net::TcpListener;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tokio::process::{Child, Command};

use crate::client::{Client, Endpoint};

pub const TOKEN: &str = "bench";
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// A running `knarr apiserver`.
pub struct Server {
    process: Child,
    /// How to connect to it.
    pub endpoint: Endpoint,
    /// The time from the start of the process until it was ready.
    pub startup: Duration,
}

impl Server {
    /// Starts an API server with its data in `directory`, and waits until it is ready; `tokens` are the users beside the
    /// administrator.
    pub async fn start(knarr: &Path, directory: &Path, tokens: &str) -> anyhow::Result<Server> {
        Server::start_as(knarr, directory, &["apiserver"], tokens).await
    }

    /// Starts `knarr` with a command that serves the API; `tokens` as for [`Server::start`].
    pub async fn start_as(knarr: &Path, directory: &Path, command: &[&str], tokens: &str) -> anyhow::Result<Server> {
        // The port was free a moment ago; if another process uses it now, the start fails.
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let token_file = directory.join("tokens.csv");
        std::fs::write(&token_file, format!("{TOKEN},bench,1,system:masters\n{tokens}"))?;
        let data = directory.join("data");
        let started = Instant::now();
        let process = Command::new(knarr)
            .args(command)
            .args(["--listen", &address.to_string()])
            .arg("--data-dir")
            .arg(&data)
            .arg("--token-file")
            .arg(&token_file)
            .env("KNARR_LOG", "warn")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} cannot be run", knarr.display()))?;
        let authority = data.join("pki/ca.crt");
        let endpoint = Endpoint { address, token: TOKEN, authority };
        let mut server = Server { process, endpoint, startup: Duration::ZERO };
        while !server.is_ready().await {
            if let Some(status) = server.process.try_wait()? {
                bail!("it exited with {status}");
            }
            if started.elapsed() > START_TIMEOUT {
                bail!("it was not ready after {START_TIMEOUT:?}");
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        server.startup = started.elapsed();
        Ok(server)
    }

    async fn is_ready(&self) -> bool {
        let Ok(client) = Client::connect(&self.endpoint).await else { return false };
        client.get("/readyz").await.is_ok()
    }

    /// Its resident memory in bytes.
    pub fn memory(&self) -> anyhow::Result<u64> {
        memory_of(self.id()?)
    }

    /// The ID of its process.
    pub fn id(&self) -> anyhow::Result<u32> {
        self.process.id().context("the server has exited")
    }

    /// Stops the server.
    pub async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(id) = self.process.id() {
            // SAFETY: the process is our child and has not been waited for, so the ID is still valid.
            unsafe { libc::kill(id as libc::pid_t, libc::SIGTERM) };
        }
        self.process.wait().await?;
        Ok(())
    }
}

/// The resident memory of a process in bytes.
pub fn memory_of(process: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS in the process status")?;
    let kilobytes: u64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kilobytes * 1024)
}
