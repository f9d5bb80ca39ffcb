//! `/statusz` and `/flagz`: the kubelet's uptime, version and settings.

use std::collections::BTreeMap;

use http::{HeaderValue, Response, StatusCode, header};
use knarr_zpages::{Page, Uptime};

use super::{Body, full};
use crate::settings::Settings;

const COMPONENT: &str = "kubelet";
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

pub fn statusz(accept: &str, uptime: Uptime) -> Response<Body> {
    response(knarr_zpages::statusz(COMPONENT, accept, uptime, &PATHS))
}

pub fn flagz(accept: &str, settings: &Settings) -> Response<Body> {
    response(knarr_zpages::flagz(COMPONENT, accept, &flags(settings)))
}

fn response(page: Page) -> Response<Body> {
    let mut response = Response::new(full(page.body));
    *response.status_mut() = StatusCode::from_u16(page.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(page.media_type));
    if let Some(warning) = page.warning.and_then(|text| HeaderValue::from_str(&text).ok()) {
        headers.insert(header::WARNING, warning);
    }
    response
}

/// The effective settings by flag name. None is secret: keys are named by their files.
fn flags(settings: &Settings) -> BTreeMap<String, String> {
    let path = |path: &Option<std::path::PathBuf>| path.as_ref().map_or_else(String::new, |p| p.display().to_string());
    let labels: Vec<String> = settings.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let dns: Vec<String> = settings.cluster_dns.iter().map(ToString::to_string).collect();
    let serving = settings.serving_certificate.as_ref();
    let flags = [
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
        ("cgroup-driver", settings.cgroup_driver.name().to_owned()),
        ("image-gc-high-threshold", settings.image_gc_high_percent.to_string()),
        ("image-gc-low-threshold", settings.image_gc_low_percent.to_string()),
        ("seccomp-default", settings.seccomp_default.to_string()),
        ("allowed-unsafe-sysctls", format!("[{}]", settings.allowed_unsafe_sysctls.join(","))),
    ];
    flags.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;

    #[tokio::test]
    async fn flags_have_the_settings() {
        let mut settings = Settings::new("one", "/data", "unix:///run/x.sock".to_string());
        settings.cgroup_driver = crate::cgroup::driver::Driver::Systemd;
        let response = flagz("", &settings);
        assert_eq!((response.status().as_u16(), response.headers().get(header::WARNING)), (200, None));
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        let body = String::from_utf8_lossy(&body);
        for line in ["hostname-override=one", "max-pods=110", "cgroup-driver=systemd"] {
            assert!(body.contains(&format!("\n{line}\n")), "{line}: {body}");
        }
        let old = statusz("application/json;as=Statusz;v=v1alpha1;g=config.k8s.io", uptime());
        assert!(old.headers().contains_key(header::WARNING), "a deprecated version");
    }

    fn uptime() -> Uptime {
        Uptime { started: k8s_openapi::jiff::Timestamp::UNIX_EPOCH, elapsed: std::time::Duration::ZERO }
    }
}
