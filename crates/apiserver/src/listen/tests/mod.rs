//! Clients that are slow, silent, vanished or malformed, over real connections.

mod hostile_clients;
mod http2_floods;
mod listening_server;
mod tunnels;
