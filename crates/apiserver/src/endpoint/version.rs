//! The version endpoint.

use http::Response;
use knarr_version::{MAJOR, MINOR, reported};
use serde_json::json;

use crate::response::{self, Body};
use crate::route::accept::Format;

/// Handles `/version`. Clients compare major and minor to decide which features to use.
pub fn serve() -> Response<Body> {
    let document = json!({
        "major": MAJOR, "minor": MINOR, "emulationMajor": MAJOR, "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR, "minCompatibilityMinor": "35",
        "gitVersion": reported(), "gitCommit": option_env!("KNARR_COMMIT").unwrap_or(""), "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "go1.26", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    });
    response::value(&document, 200, &Format { pretty: true, ..Format::JSON })
}

/// The CPU architecture in Go's naming.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
