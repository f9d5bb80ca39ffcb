//! The plugin reports a new pod to the running agent, and waits until its policies are in force (`policy::attached`).

use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Lease, PodName};

/// The agent's socket, in the data directory.
pub const SOCKET: &str = "policy.sock";
/// How long the plugin waits for the rules. A pod that is not known by then starts without network until it is.
pub const CONFIRM_TIMEOUT: Duration = Duration::from_secs(1);

/// The message: a pod and the addresses it got.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attached {
    #[serde(flatten)]
    pub pod: PodName,
    pub addresses: Vec<IpAddr>,
}

/// Reports a new attachment to the running agent, and waits for its rules. If no agent runs, there is nothing to wait for:
/// the rules in the kernel stay in force.
pub fn announce(data_directory: &Path, lease: &Lease) {
    let Some(pod) = lease.pod.clone() else { return };
    let attached = Attached { pod, addresses: lease.addresses.clone() };
    if let Err(error) = report(&data_directory.join(SOCKET), &attached) {
        tracing::debug!(pod = attached.pod.key(), %error, "network policies of a new pod are not confirmed");
    }
}

fn report(socket: &Path, attached: &Attached) -> std::io::Result<()> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(CONFIRM_TIMEOUT))?;
    stream.set_write_timeout(Some(CONFIRM_TIMEOUT))?;
    let mut line = serde_json::to_vec(attached)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    BufReader::new(stream).read_line(&mut String::new()).map(drop)
}
