//! Serves the driver standalone, for test suites of CSI: `local-storage-driver SOCKET DATA NODE`.

use knarr_local_storage::{Reserve, Settings, Sockets, run};

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let (Some(socket), Some(data), Some(node)) = (arguments.next(), arguments.next(), arguments.next()) else {
        eprintln!("usage: local-storage-driver SOCKET DATA NODE");
        std::process::exit(2);
    };
    let settings = Settings { root: data.into(), node, reserve: Reserve::Bytes(0) };
    if let Err(error) = run(settings, Sockets { csi: socket.into(), registration: None }).await {
        eprintln!("{error}");
        std::process::exit(1);
    }
}
