//! Pages for people who debug the proxy: its mode, configuration, flags and uptime.

use std::time::Instant;

use k8s_openapi::jiff::Timestamp;
use knarr_zpages::{Page, Uptime};
use serde_json::{Value, json};

use super::Settings;
use super::http::{HttpRequest, HttpResponse};

const COMPONENT: &str = "kube-proxy";
const MODE: &str = "nftables";
const PATHS: [&str; 7] = ["/configz", "/flagz", "/healthz", "/livez", "/metrics", "/proxyMode", "/statusz"];

pub struct DebugPages {
    settings: Settings,
    started: Instant,
    started_at: Timestamp,
}

impl DebugPages {
    pub fn new(settings: &Settings) -> Self {
        Self { settings: settings.clone(), started: Instant::now(), started_at: Timestamp::now() }
    }

    /// The response, if the path is one of these pages.
    pub fn response(&self, request: &HttpRequest<'_>) -> Option<HttpResponse> {
        let uptime = Uptime { started: self.started_at, elapsed: self.started.elapsed() };
        match request.path {
            "/proxyMode" => Some(ok("text/plain; charset=utf-8", MODE.to_owned())),
            "/configz" => Some(ok("application/json", self.configuration().to_string())),
            "/flagz" => Some(http(knarr_zpages::flagz(COMPONENT, request.accept, &self.settings.status.flags))),
            "/statusz" => Some(http(knarr_zpages::statusz(COMPONENT, request.accept, uptime, &PATHS))),
            _ => None,
        }
    }

    /// The effective configuration, with the fields of KubeProxyConfiguration.
    fn configuration(&self) -> Value {
        let Settings { node_name, cluster_cidrs, node_port_addresses, status, .. } = &self.settings;
        let address = |address: Option<std::net::SocketAddr>| address.map_or_else(String::new, |it| it.to_string());
        json!({ "kubeproxy.config.k8s.io": {
            "hostnameOverride": node_name,
            "clusterCIDR": cluster_cidrs.join(","),
            "nodePortAddresses": node_port_addresses,
            "healthzBindAddress": address(status.health),
            "metricsBindAddress": address(status.metrics),
            "mode": MODE,
        }})
    }
}

fn ok(content_type: &'static str, body: String) -> HttpResponse {
    HttpResponse { status: "200 OK", content_type, headers: String::new(), body }
}

fn http(page: Page) -> HttpResponse {
    let status = if page.code == 200 { "200 OK" } else { "406 Not Acceptable" };
    let headers = page.warning.map_or_else(String::new, |text| format!("Warning: {text}\r\n"));
    HttpResponse { status, content_type: page.media_type, headers, body: page.body }
}

#[cfg(test)]
mod tests {
    use super::super::StatusSettings;
    use super::*;

    #[test]
    fn people_see_what_the_proxy_does() {
        let flags = [("cluster-cidr".to_owned(), "10.42.0.0/16".to_owned())].into();
        let pages = DebugPages::new(&Settings {
            node_name: "one".to_owned(),
            cluster_cidrs: vec!["10.42.0.0/16".to_owned()],
            node_port_addresses: Vec::new(),
            balancer_pool: None,
            status: StatusSettings { flags, ..StatusSettings::default() },
        });
        let body = |path, accept| pages.response(&HttpRequest { path, accept }).map(|response| response.body);
        assert_eq!(body("/proxyMode", "").as_deref(), Some("nftables"));
        let configuration: Value = serde_json::from_str(&body("/configz", "").expect("a page")).expect("JSON");
        let own = &configuration["kubeproxy.config.k8s.io"];
        assert_eq!((&own["clusterCIDR"], &own["hostnameOverride"]), (&json!("10.42.0.0/16"), &json!("one")));
        assert_eq!(own["healthzBindAddress"], "0.0.0.0:10256");
        assert!(body("/flagz", "").is_some_and(|page| page.ends_with("\ncluster-cidr=10.42.0.0/16\n")));
        let structured = "application/json;as=Statusz;v=v1alpha1;g=config.k8s.io";
        let old = pages.response(&HttpRequest { path: "/statusz", accept: structured }).expect("a page");
        assert!(old.headers.starts_with("Warning: 299 - ") && old.body.contains("\"kube-proxy\""), "{}", old.body);
        let refused = pages.response(&HttpRequest { path: "/statusz", accept: "application/json" }).expect("a page");
        assert_eq!(refused.status, "406 Not Acceptable");
        assert_eq!(body("/other", ""), None);
    }
}
