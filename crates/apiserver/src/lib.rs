//! The request path, folder by folder in the order a request takes: listen → authenticate → authorize → route → admit →
//! persist → answer.
//!
//! In: HTTP requests over TLS, or from the same process. Out: answers, watch streams and writes to the store. No handler
//! is written per kind: the catalogue and the schema say what a kind is, `knarr-rules` what is special about it.

pub mod admit;
pub mod aggregate;
pub mod answer;
pub mod audit;
pub mod authenticate;
pub mod authorize;
pub mod background;
pub mod bootstrap;
pub mod custom;
mod deadline;
pub mod encrypt;
pub mod endpoint;
pub mod fairness;
#[cfg(test)]
mod journeys;
pub mod kinds;
pub mod listen;
pub mod objects;
pub mod outbound;
mod own_status;
pub mod persist;
pub mod pki;
pub mod provided;
#[cfg(test)]
mod published_flaws;
pub mod request;
pub mod route;
pub mod serve;
pub mod server;
pub mod service;
#[cfg(test)]
mod sharing;
pub mod start;
pub mod subresource;
pub mod trail;
pub mod watch;
