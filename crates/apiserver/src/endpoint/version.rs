//! The version endpoint.

use http::Response;
use knarr_version::{MAJOR, MINOR, platform, reported};
use serde_json::{Value, json};

use crate::response::{self, Body};
use crate::route::accept::Format;

/// Handles `/version`.
pub fn serve() -> Response<Body> {
    response::value(&document(), 200, &Format { pretty: true, ..Format::JSON })
}

/// What every component says of itself. Clients compare major and minor to decide which features to use.
pub fn document() -> Value {
    json!({
        "major": MAJOR, "minor": MINOR, "emulationMajor": MAJOR, "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR, "minCompatibilityMinor": "35",
        "gitVersion": reported(), "gitCommit": option_env!("KNARR_COMMIT").unwrap_or(""), "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "go1.26", "compiler": "rustc",
        "platform": platform(),
    })
}
