//! Which Kubernetes this is.

use http::Response;
use serde_json::json;

use crate::answer::{self, Body};
use crate::route::accept::Format;

/// The release of Kubernetes whose behaviour is served.
pub const VERSION: &str = "v1.36.4";
pub const MAJOR: &str = "1";
pub const MINOR: &str = "36";

/// Answers `/version`. Clients compare major and minor to decide what they can ask for.
pub fn serve() -> Response<Body> {
    let document = json!({
        "major": MAJOR, "minor": MINOR, "emulationMajor": MAJOR, "emulationMinor": MINOR,
        "minCompatibilityMajor": MAJOR, "minCompatibilityMinor": "35",
        "gitVersion": VERSION, "gitCommit": option_env!("KNARR_COMMIT").unwrap_or(""), "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z", "goVersion": "go1.26", "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, platform()),
    });
    answer::value(&document, 200, &Format { pretty: true, ..Format::JSON })
}

/// The processor as container images name it.
fn platform() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
