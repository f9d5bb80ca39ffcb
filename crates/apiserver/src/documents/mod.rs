//! The discovery and OpenAPI documents of the catalogue, cached until it changes. `endpoint` serves them.

pub mod discovery;
pub mod openapi;

/// Documents built from the catalogue, cached until it changes.
#[derive(Default)]
pub struct Documents {
    pub discovery: discovery::Cache,
    pub openapi: openapi::Cache,
    /// This server's address in legacy discovery.
    pub address: String,
}

impl Documents {
    pub fn new(address: String) -> Documents {
        Documents { address, ..Documents::default() }
    }
}
