//! `/statusz` and `/flagz`: uptime, version and flags, as each component of Kubernetes serves them.
//!
//! The default is text for people. Programs request an object: their Accept header must name its kind and version.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

const GROUP: &str = "config.k8s.io";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
    guarantees and is for debugging purposes only.";

/// The pages that this process does not serve, by their paths.
static HIDDEN: OnceLock<Vec<&'static str>> = OnceLock::new();

/// Hides pages, as without their feature gates. The first call counts, before anything is served.
pub fn hide(paths: Vec<&'static str>) {
    let _ = HIDDEN.set(paths);
}

fn hidden() -> &'static [&'static str] {
    HIDDEN.get().map_or(&[], Vec::as_slice)
}

/// A response.
#[derive(Debug)]
pub struct Page {
    pub code: u16,
    pub media_type: &'static str,
    /// The value of the Warning header: the requested version is deprecated.
    pub warning: Option<String>,
    pub body: String,
}

/// Start time and uptime of the process.
#[derive(Clone, Copy, Debug)]
pub struct Uptime {
    pub started: Timestamp,
    pub elapsed: Duration,
}

/// Uptime and version of the component, and the paths that it serves for debugging.
pub fn statusz(component: &str, accept: &str, uptime: Uptime, paths: &[&str]) -> Page {
    statusz_without(hidden(), component, accept, uptime, paths)
}

fn statusz_without(hidden: &[&str], component: &str, accept: &str, uptime: Uptime, paths: &[&str]) -> Page {
    if hidden.contains(&"/statusz") {
        return not_found();
    }
    let paths: Vec<&str> = paths.iter().copied().filter(|path| !hidden.contains(path)).collect();
    let Uptime { started, elapsed } = uptime;
    let seconds = elapsed.as_secs();
    let version = knarr_version::KUBERNETES.trim_start_matches('v');
    let lines = format!(
        "\nStarted: {}\nUp: {} hr {:02} min {:02} sec\nGo version: \nBinary version: {version}\nEmulation version: {}\n\
         Paths: {}\n",
        started.strftime("%a %b %e %H:%M:%S UTC %Y"),
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        knarr_version::RELEASE,
        paths.join(" "),
    );
    let fields = json!({
        "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "uptimeSeconds": seconds,
        "goVersion": "",
        "binaryVersion": version,
        "emulationVersion": knarr_version::RELEASE,
        "paths": paths,
    });
    respond(component, accept, "Statusz", &lines, fields)
}

/// The values of all flags. The caller leaves out secrets.
pub fn flagz(component: &str, accept: &str, flags: &BTreeMap<String, String>) -> Page {
    if hidden().contains(&"/flagz") {
        return not_found();
    }
    let lines: String = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    respond(component, accept, "Flagz", &lines, json!({ "flags": flags }))
}

/// The response format.
#[derive(Debug, PartialEq, Eq)]
enum Format {
    Text,
    Json(&'static str),
    Yaml(&'static str),
}

/// Chooses the format from the Accept header; none if no accepted format is available.
fn negotiate(accept: &str, kind: &str) -> Option<Format> {
    if accept.trim().is_empty() {
        return Some(Format::Text);
    }
    accept.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next()?;
        let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
        if matches!(media, "text/plain" | "text/*" | "*/*") && !parameters.contains_key("as") {
            return Some(Format::Text);
        }
        if parameters.get("as") != Some(&kind) || parameters.get("g") != Some(&GROUP) {
            return None;
        }
        let version = ["v1beta1", "v1alpha1"].into_iter().find(|known| parameters.get("v") == Some(known))?;
        match media {
            "application/json" | "application/*" | "*/*" => Some(Format::Json(version)),
            "application/yaml" => Some(Format::Yaml(version)),
            _ => None,
        }
    })
}

fn respond(component: &str, accept: &str, kind: &str, lines: &str, fields: Value) -> Page {
    let endpoint = kind.to_lowercase();
    let (version, media_type) = match negotiate(accept, kind) {
        Some(Format::Text) => {
            let body = format!("\n{component} {endpoint}\n{WARNING}\n{lines}");
            return Page { code: 200, media_type: "text/plain; charset=utf-8", warning: None, body };
        }
        Some(Format::Json(version)) => (version, "application/json"),
        Some(Format::Yaml(version)) => (version, "application/yaml"),
        None => return not_acceptable(),
    };
    let mut object =
        json!({ "kind": kind, "apiVersion": format!("{GROUP}/{version}"), "metadata": { "name": component } });
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
    let body = match media_type {
        // An object of texts, numbers and lists has always a form in YAML.
        "application/yaml" => serde_yaml_ng::to_string(&object).unwrap_or_default(),
        _ => object.to_string(),
    };
    let warning = (version == "v1alpha1").then(|| {
        format!("299 - \"This version of the {endpoint} endpoint is deprecated. Please use a newer version.\"")
    });
    Page { code: 200, media_type, warning, body }
}

fn not_found() -> Page {
    let (media_type, body) = ("text/plain; charset=utf-8", "404 page not found\n".to_owned());
    Page { code: 404, media_type, warning: None, body }
}

fn not_acceptable() -> Page {
    let message = "only the following media types are accepted: application/json, application/yaml, text/plain";
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": "NotAcceptable", "code": 406 });
    Page { code: 406, media_type: "application/json", warning: None, body: status.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UPTIME: Uptime = Uptime { started: Timestamp::UNIX_EPOCH, elapsed: Duration::from_secs(3661) };

    #[test]
    fn programs_must_name_the_kind() {
        let cases = [
            ("", Some(Format::Text)),
            ("*/*", Some(Format::Text)),
            ("text/plain", Some(Format::Text)),
            ("application/json", None),
            ("application/json;as=Statusz;v=v1beta1;g=config.k8s.io", Some(Format::Json("v1beta1"))),
            ("application/json; as=Statusz; v=v1alpha1; g=config.k8s.io", Some(Format::Json("v1alpha1"))),
            ("application/yaml;as=Statusz;v=v1beta1;g=config.k8s.io", Some(Format::Yaml("v1beta1"))),
            ("application/json;as=Statusz;v=v2;g=config.k8s.io", None),
            ("application/json;as=Flagz;v=v1beta1;g=config.k8s.io, text/plain", Some(Format::Text)),
        ];
        for (accept, expected) in cases {
            assert_eq!(negotiate(accept, "Statusz"), expected, "{accept}");
        }
    }

    #[test]
    fn people_read_text() {
        let page = statusz("kubelet", "", UPTIME, &["/flagz", "/metrics"]);
        assert!(page.body.starts_with("\nkubelet statusz\nWarning: This endpoint is not meant"), "{page:?}");
        assert!(page.body.contains("\nStarted: Thu Jan  1 00:00:00 UTC 1970\nUp: 1 hr 01 min 01 sec\n"), "{page:?}");
        assert!(page.body.ends_with("\nPaths: /flagz /metrics\n"), "{page:?}");
        let flags = BTreeMap::from([("port".to_owned(), "1".to_owned())]);
        assert!(flagz("kubelet", "*/*", &flags).body.ends_with("only.\nport=1\n"));
    }

    #[test]
    fn hidden_pages_are_neither_served_nor_listed() {
        let status = |hidden: &[&str]| statusz_without(hidden, "kubelet", "", UPTIME, &["/flagz", "/metrics"]);
        assert!(status(&["/flagz"]).body.ends_with("\nPaths: /metrics\n"));
        assert_eq!(status(&["/flagz", "/statusz"]).code, 404);
    }

    #[test]
    fn programs_read_objects() {
        let page = statusz("kube-proxy", "application/json;as=Statusz;v=v1beta1;g=config.k8s.io", UPTIME, &["/flagz"]);
        let object: Value = serde_json::from_str(&page.body).expect("JSON");
        assert_eq!((object["apiVersion"].as_str(), page.warning), (Some("config.k8s.io/v1beta1"), None));
        assert_eq!((&object["startTime"], &object["uptimeSeconds"]), (&json!("1970-01-01T00:00:00Z"), &json!(3661)));
        let flags = BTreeMap::from([("port".to_owned(), "1".to_owned())]);
        let page = flagz("kube-proxy", "application/yaml;as=Flagz;v=v1alpha1;g=config.k8s.io", &flags);
        assert!(page.body.contains("kind: Flagz\n") && page.warning.is_some(), "{page:?}");
        let page = flagz("kube-proxy", "application/json", &flags);
        assert!(page.code == 406 && page.body.contains("NotAcceptable"), "{page:?}");
    }
}
