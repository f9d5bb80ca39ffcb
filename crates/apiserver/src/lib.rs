//! The Kubernetes API server.
//!
//! A request passes `listen` → `pipeline` (which calls `route`, `authenticate`, `fairness`, `authorize`, `audit`) →
//! `resource_handler`, `endpoint` or `aggregate`; a write goes on through `admit` and `persist`, and `response` encodes
//! the result. ARCHITECTURE.md draws the whole way.
//!
//! In: HTTP requests over TLS, or from the same process. Out: responses, watch streams and writes to the store. No
//! handler is written per kind: the catalogue and the schema describe a kind, `knarr-rules` holds its special rules.

pub mod admit;
pub mod aggregate;
pub mod api_services;
pub mod audit;
pub mod authenticate;
pub mod authorize;
pub mod authorized_request;
pub mod background;
pub mod behaviour;
mod blocking;
pub mod bootstrap;
pub mod configuration_file;
mod convert;
pub mod custom;
mod deadline;
pub mod decode;
mod definition_controller;
mod documents;
pub mod drain;
pub mod encrypt;
pub mod endpoint;
pub mod fairness;
pub mod journey_events;
pub mod kinds;
pub mod listen;
#[cfg(test)]
mod long_list_tests;
mod loopback;
mod metrics;
pub mod object_reader;
pub mod outbound;
pub mod page;
mod page_reader;
mod panics;
#[cfg(test)]
mod permission_tests;
pub mod persist;
pub mod pipeline;
pub mod pki;
pub mod provided;
#[cfg(test)]
mod published_cve_tests;
pub mod request;
mod request_body;
mod request_metrics;
#[cfg(test)]
mod request_tests;
mod resource_changes;
pub mod resource_handler;
pub mod resource_request;
pub mod response;
pub mod reverse_proxy;
pub mod route;
pub mod selection;
pub mod service;
#[cfg(test)]
mod shared_etcd_tests;
mod shared_headers;
pub mod startup;
pub mod state;
mod status_sync;
mod stored;
pub mod subresource;
mod token_use_recorder;
mod tunnel;
pub mod ui;
mod warnings;
pub mod watch;
