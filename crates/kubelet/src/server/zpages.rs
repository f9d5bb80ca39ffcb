//! `/statusz` and `/flagz`: the kubelet's uptime, version and settings.
//!
//! The default is text. Programs request JSON with the Accept header.

use std::collections::BTreeMap;

use http::{HeaderValue, Response, StatusCode, header};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};

use super::{Body, full, text};
use crate::settings::Settings;

const COMPONENT: &str = "kubelet";
const GROUP: &str = "config.k8s.io";
const WARNING: &str = "Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility \
    guarantees and is for debugging purposes only.";
const PATHS: [&str; 15] = [
    "/attach",
    "/checkpoint",
    "/configz",
    "/containerLogs",
    "/exec",
    "/flagz",
    "/healthz",
    "/logs",
    "/metrics",
    "/pods",
    "/portForward",
    "/run",
    "/runningpods",
    "/stats",
    "/statusz",
];

/// The response format.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    Text,
    Json(&'static str),
}

/// Chooses the format from the Accept header; none if no accepted format is available. Parameters of JSON must name the
/// kind.
fn negotiate(accept: &str, kind: &str) -> Option<Form> {
    if accept.trim().is_empty() {
        return Some(Form::Text);
    }
    accept.split(',').find_map(|clause| {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next()?;
        let parameters: BTreeMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
        let is_kind = parameters.get("as") == Some(&kind) && parameters.get("g") == Some(&GROUP);
        match media {
            "text/plain" | "text/*" | "*/*" if !parameters.contains_key("as") => Some(Form::Text),
            "application/json" | "application/*" | "*/*" if is_kind => match parameters.get("v").copied() {
                Some("v1beta1") => Some(Form::Json("v1beta1")),
                Some("v1alpha1") => Some(Form::Json("v1alpha1")),
                _ => None,
            },
            _ => None,
        }
    })
}

/// Start time and uptime of the process.
#[derive(Clone, Copy)]
pub struct Uptime {
    pub started: Timestamp,
    pub seconds: i64,
}

pub fn statusz(accept: &str, uptime: Uptime) -> Response<Body> {
    let Uptime { started, seconds } = uptime;
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let lines = format!(
        "\nStarted: {}\nUp: {hours} hr {minutes:02} min {:02} sec\nGo version: \nBinary version: 1.36.4\n\
         Emulation version: 1.36\nPaths: {}\n",
        started.strftime("%a %b %e %H:%M:%S UTC %Y"),
        seconds % 60,
        PATHS.join(" "),
    );
    let fields = json!({
        "startTime": started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        "uptimeSeconds": seconds,
        "goVersion": "",
        "binaryVersion": "1.36.4",
        "emulationVersion": "1.36",
        "paths": PATHS,
    });
    respond(accept, "Statusz", &lines, fields)
}

pub fn flagz(accept: &str, settings: &Settings) -> Response<Body> {
    let flags = flags(settings);
    let lines: String = flags.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
    respond(accept, "Flagz", &lines, json!({ "flags": flags }))
}

fn respond(accept: &str, kind: &str, lines: &str, fields: Value) -> Response<Body> {
    match negotiate(accept, kind) {
        Some(Form::Text) => text(StatusCode::OK, format!("\n{COMPONENT} {}\n{WARNING}\n{lines}", kind.to_lowercase())),
        Some(Form::Json(version)) => structured(kind, version, fields),
        None => {
            let message = "only the following media types are accepted: application/json, text/plain";
            let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": message, "reason": "NotAcceptable", "code": 406 });
            with_json(StatusCode::NOT_ACCEPTABLE, &status)
        }
    }
}

fn structured(kind: &str, version: &str, fields: Value) -> Response<Body> {
    let mut object =
        json!({ "kind": kind, "apiVersion": format!("{GROUP}/{version}"), "metadata": { "name": COMPONENT } });
    if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), fields) {
        object.extend(fields);
    }
    let mut response = with_json(StatusCode::OK, &object);
    let endpoint = kind.to_lowercase();
    let warning =
        format!("299 - \"This version of the {endpoint} endpoint is deprecated. Please use a newer version.\"");
    if version == "v1alpha1"
        && let Ok(warning) = HeaderValue::from_str(&warning)
    {
        response.headers_mut().insert(header::WARNING, warning);
    }
    response
}

fn with_json(status: StatusCode, value: &Value) -> Response<Body> {
    let mut response = Response::new(full(value.to_string()));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// The effective settings by flag name. None is secret: keys are named by their files.
fn flags(settings: &Settings) -> BTreeMap<&'static str, String> {
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map_or_else(String::new, |p| p.display().to_string());
    let labels: Vec<String> = settings.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let dns: Vec<String> = settings.cluster_dns.iter().map(ToString::to_string).collect();
    let serving = settings.serving_certificate.as_ref();
    BTreeMap::from([
        ("address", settings.serving.ip().to_string()),
        ("port", settings.serving.port().to_string()),
        ("hostname-override", settings.node_name.clone()),
        ("node-ip", settings.node_ip.to_string()),
        ("root-dir", settings.root.display().to_string()),
        ("container-runtime-endpoint", settings.runtime_endpoint.clone()),
        ("cluster-dns", format!("[{}]", dns.join(","))),
        ("cluster-domain", settings.cluster_domain.clone()),
        ("resolv-conf", path(&settings.resolv_conf)),
        ("pod-manifest-path", path(&settings.manifests)),
        ("register-node", settings.register.to_string()),
        ("node-labels", labels.join(",")),
        ("max-pods", settings.max_pods.to_string()),
        ("healthz-bind-address", settings.health.map_or_else(String::new, |address| address.ip().to_string())),
        ("healthz-port", settings.health.map_or(0, |address| address.port()).to_string()),
        ("client-ca-file", path(&settings.client_ca)),
        ("tls-cert-file", serving.map_or_else(String::new, |files| files.certificate.display().to_string())),
        ("tls-private-key-file", serving.map_or_else(String::new, |files| files.key.display().to_string())),
        ("cgroup-root", settings.cgroup_root.clone()),
        ("cgroup-driver", "cgroupfs".to_string()),
        ("image-gc-high-threshold", settings.image_gc_high_percent.to_string()),
        ("image-gc-low-threshold", settings.image_gc_low_percent.to_string()),
        ("seccomp-default", settings.seccomp_default.to_string()),
        ("allowed-unsafe-sysctls", format!("[{}]", settings.allowed_unsafe_sysctls.join(","))),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    async fn status_and_body(response: Response<Body>) -> (u16, String) {
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    #[test]
    fn programs_must_name_the_kind() {
        let cases = [
            ("", Some(Form::Text)),
            ("*/*", Some(Form::Text)),
            ("text/plain", Some(Form::Text)),
            ("application/json", None),
            ("application/json;as=Statusz;v=v1beta1;g=config.k8s.io", Some(Form::Json("v1beta1"))),
            ("application/json; as=Statusz; v=v1alpha1; g=config.k8s.io", Some(Form::Json("v1alpha1"))),
            ("application/json;as=Statusz;v=v2;g=config.k8s.io", None),
            ("application/json;as=Flagz;v=v1beta1;g=config.k8s.io, text/plain", Some(Form::Text)),
        ];
        for (accept, expected) in cases {
            assert_eq!(negotiate(accept, "Statusz"), expected, "{accept}");
        }
    }

    #[tokio::test]
    async fn status_and_flags_are_shown() {
        let uptime = Uptime { started: "2026-01-02T03:04:05Z".parse().expect("a moment"), seconds: 3661 };
        let (status, body) = status_and_body(statusz("", uptime)).await;
        assert_eq!(status, 200);
        assert!(body.starts_with("\nkubelet statusz\nWarning: This endpoint is not meant"), "{body}");
        assert!(body.contains("\nUp: 1 hr 01 min 01 sec\n") && body.contains("\nPaths: /attach "), "{body}");
        let (status, body) =
            status_and_body(statusz("application/json;as=Statusz;v=v1beta1;g=config.k8s.io", uptime)).await;
        let value: Value = serde_json::from_str(&body).expect("JSON");
        assert_eq!((status, &value["apiVersion"]), (200, &json!("config.k8s.io/v1beta1")));
        assert_eq!((&value["startTime"], &value["uptimeSeconds"]), (&json!("2026-01-02T03:04:05Z"), &json!(3661)));
        let settings = Settings::new("one", "/data", "unix:///run/x.sock".to_string());
        let (_, body) = status_and_body(flagz("", &settings)).await;
        assert!(body.contains("\nhostname-override=one\n") && body.contains("\nmax-pods=110\n"), "{body}");
        let (status, body) = status_and_body(flagz("application/json", &settings)).await;
        assert!(status == 406 && body.contains("NotAcceptable"), "{body}");
    }
}
