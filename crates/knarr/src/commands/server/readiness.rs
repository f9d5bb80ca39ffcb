//! Probes of all components of a server, and the report that they are ready.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use knarr_client::kube::Client;
use knarr_supervisor::Supervisor;

use super::components::Components;
use crate::commands::common;
use crate::commands::disable::BuiltIn;
use crate::join;
use crate::ready::{self, Display, Probe};

impl Components {
    /// Probes every component, and reports when all are ready.
    pub fn report_when_ready(&self, started: Instant, supervisor: &Supervisor) -> anyhow::Result<()> {
        let client = self.component(join::READINESS, "knarr");
        let mut probes = vec![Probe::path("API server", client.clone(), "/readyz".to_owned())];
        if !self.arguments.disable_agent {
            probes.extend(self.node_probes(&client)?);
        }
        let kubeconfig = common::kubeconfig(&self.arguments.apiserver.data_dir);
        let next = format!(
            "    export KUBECONFIG={}\n    kubectl get nodes\n\nAdd a node: knarr token create --print-join-command",
            kubeconfig.display()
        );
        let probes = Arc::new(probes);
        supervisor.complete("readiness-report", move || {
            let (probes, next) = (probes.clone(), next.clone());
            async move { drop(ready::wait(&probes, started, &mut Display::new(next)).await) }
        });
        Ok(())
    }

    fn node_probes(&self, client: &Client) -> anyhow::Result<Vec<Probe>> {
        let arguments = &self.arguments;
        let name = arguments.node.name()?;
        let mut probes = vec![Probe::node(client.clone(), name.clone())];
        let ranges = arguments.apiserver.service_cluster_ip_range.first();
        let own = ranges.and_then(|range| knarr_apiserver::service::first_address(range));
        let disabled = &arguments.node.disable;
        let own = own.filter(|_| !disabled.has(BuiltIn::Proxy));
        probes.extend(own.map(|address| Probe::connects("service proxy", SocketAddr::new(address, 443))));
        let dns = arguments.node.cluster_dns.first().filter(|_| !disabled.has(BuiltIn::Dns));
        probes.extend(dns.map(|address| Probe::dns(*address, &arguments.node.cluster_domain)));
        let ingress = &arguments.network.ingress;
        if !ingress.disable_ingress {
            probes.extend(ingress.ingress_http.first().map(|address| Probe::http("ingress", *address)));
        }
        if !disabled.has(BuiltIn::Metrics) {
            let metrics = format!("/apis/metrics.k8s.io/v1beta1/nodes/{name}");
            probes.push(Probe::path("metrics", client.clone(), metrics));
        }
        Ok(probes)
    }
}
