//! The CNI plugin: the container runtime starts this binary to attach a pod to the network and to detach it.
//!
//! `request` parses the call, `leases` assigns addresses, `attach` creates and deletes interfaces, `host_ports` and the
//! bandwidth limits implement the runtime's capabilities, `reply` renders the result in the caller's version of the
//! specification. `node` and `guard` prepare the node for the first pod; `announcement` reports a new pod to the agent.
//! `configuration` writes the file by which the runtime finds us.

pub(crate) mod announcement;
mod attach;
pub mod configuration;
pub(crate) mod guard;
mod host_ports;
mod leases;
mod loopback;
mod node;
mod reply;
mod request;

use std::process::ExitCode;

pub(crate) use attach::hardware_address;
pub use leases::{Lease, LeaseError};
pub(crate) use node::prepare;
pub use request::PodName;

use crate::namespace;
use leases::Leases;
use reply::Failure;
use request::{Command, Request};

/// Entry point for fuzzing the request parser.
#[doc(hidden)]
pub mod fuzzing {
    pub use super::request::fuzz as request;
}

/// Handles one CNI call: request in the environment and on standard input, reply on standard output.
pub fn cni_main() -> ExitCode {
    let request = match Request::from_process() {
        Ok(request) => request,
        Err(failure) => return finish(Err(failure), reply::NEWEST),
    };
    let version = request.version();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let reply = match runtime {
        Ok(runtime) => runtime.block_on(reply(&request)),
        Err(error) => Err(Failure::io("cannot start a tokio runtime", error)),
    };
    finish(reply, &version)
}

/// Releases the addresses and interfaces of attachments whose network namespace is gone, such as after the runtime was
/// killed between two calls. Returns their number.
pub async fn reconcile(data_directory: &std::path::Path, network: &str) -> Result<usize, LeaseError> {
    let leases = Leases::open(data_directory, network)?;
    let dead: Vec<Lease> = leases.all()?.into_iter().filter(|lease| !namespace::is_alive(&lease.namespace)).collect();
    for lease in &dead {
        attach::detach(&leases, lease).await?;
    }
    Ok(dead.len())
}

/// Isolates the pods that an earlier version attached to the bridge. Returns their number.
pub async fn adopt(data_directory: &std::path::Path, network: &str, bridge: &str) -> Result<usize, LeaseError> {
    attach::adopt(&Leases::open(data_directory, network)?, bridge).await
}

/// The attachments on this node.
pub fn leases_of(data_directory: &std::path::Path, network: &str) -> Result<Vec<Lease>, LeaseError> {
    Leases::open(data_directory, network)?.all()
}

async fn reply(request: &Request) -> Result<Option<serde_json::Value>, Failure> {
    if request.command == Command::Version {
        return Ok(Some(reply::versions(&request.version())));
    }
    request.check_version()?;
    if request.config.kind == "loopback" {
        return loopback::reply(request);
    }
    match request.command {
        Command::Add => attach::add(request).await.map(Some),
        Command::Delete => attach::delete(request).await.map(|()| None),
        Command::Check => attach::check(request).await.map(|()| None),
        Command::Status => attach::status(request).await.map(|()| None),
        Command::CollectGarbage => attach::collect_garbage(request).await.map(|()| None),
        Command::Version => Ok(None),
    }
}

fn finish(reply: Result<Option<serde_json::Value>, Failure>, version: &str) -> ExitCode {
    match reply {
        Ok(Some(result)) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Ok(None) => ExitCode::SUCCESS,
        Err(failure) => {
            println!("{}", failure.to_json(version));
            ExitCode::FAILURE
        }
    }
}
