//! The command lines of Kubernetes' own components: their flags and feature gates, parsed as the Go programs parse them.
//!
//! `flags.txt`, `gates.txt` and `fields.txt` are generated from what Kubernetes publishes; `status.txt`, `gate_status.txt`,
//! `gated_fields.txt` and `field_status.txt` are written by hand and say what each flag, gate and field of a configuration
//! file does in Knarr. The binary translates what `parse` returns into its own settings.

mod component;
mod configuration;
mod document;
mod gated_fields;
mod gates;
mod go;
mod help;
mod parse;
mod server_fields;
mod status;
mod table;
mod value;
mod zero;

pub use component::Component;
pub use configuration::{ConfigurationError, Field, Target, configuration_kind, configure, fields, merge};
pub use document::render as document;
pub use gated_fields::{GatedFields, gated_fields};
pub use gates::{Gate, GateError, Gates, gates};
pub use help::help;
pub use knarr_go_duration::parse as parse_duration_nanoseconds;
pub use parse::{CommandLine, Given, ParseError, parse};
pub use server_fields::{Effect, ServerField, server_fields};
pub use status::{Status, gate_effect, status};
pub use table::{Flag, flag, flags};
