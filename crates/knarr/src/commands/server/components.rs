//! The components of a server: what each is started with. They use the API server of this process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::Timestamp;
use knarr_client::{Fence, Informers};
use knarr_network::cidr::Cidr;
use knarr_network::load_balancer;
use knarr_store::EtcdAdministration;
use knarr_supervisor::Supervisor;
use tokio::sync::watch;

use super::Arguments;
use super::identities::CONTROLLER_MANAGER;
use super::shared_store::SharedStore;
use crate::address::own_address;
use crate::cluster::Cluster;
use crate::commands::apiserver;
use crate::commands::network;
use crate::commands::node::{self, NodeFiles, Runtime};
use crate::servers::{self, Elections};
use crate::{helm, join, manifests};

/// The default controllers and, as in kubeadm clusters, those for bootstrap tokens.
const CONTROLLERS: [&str; 3] = ["*", "bootstrap-signer-controller", "token-cleaner-controller"];

/// What the components of a server are started with.
#[derive(Clone)]
pub struct Components {
    pub server: Arc<knarr_apiserver::state::ApiServer>,
    pub arguments: Arguments,
    pub scheduler: knarr_scheduler::Configuration,
    /// Closed when these components may no longer act.
    pub fence: Fence,
}

impl Components {
    /// The same behind a fence.
    pub fn within(&self, fence: Fence) -> Self {
        Self { fence, ..self.clone() }
    }

    pub fn elections(&self, shared: &SharedStore) -> anyhow::Result<Elections> {
        match shared {
            SharedStore::No => Ok(Elections::standalone()),
            _ => {
                let client = self.component(join::SERVERS, "knarr");
                Elections::among_servers(client, &self.arguments.node.name()?, &self.arguments.apiserver.data_dir)
            }
        }
    }

    /// Starts the controllers and the scheduler while this server is elected.
    pub fn elect_control_plane(&self, elections: &Elections, running: &apiserver::Running, supervisor: &Supervisor) {
        let (components, pki, listens) = (self.clone(), running.pki.clone(), running.listens);
        elections.start(servers::CONTROLLERS_LEASE, supervisor, move |fence, supervisor| {
            let components = components.within(fence);
            components.start_controllers(&pki, supervisor);
            components.start_helm(&pki, listens, supervisor);
        });
        let components = self.clone();
        elections.start(servers::SCHEDULER_LEASE, supervisor, move |fence, supervisor| {
            components.within(fence).start_scheduler(supervisor);
        });
    }

    /// Starts what serves the network of all nodes while this server is elected.
    pub fn elect_network(&self, elections: &Elections, supervisor: &Supervisor) {
        let components = self.clone();
        elections.start(servers::NETWORK_LEASE, supervisor, move |fence, supervisor| {
            let components = components.within(fence);
            let central = components.component(join::NETWORK_CONTROLLER, "knarr-network");
            let Arguments { node, network, .. } = &components.arguments;
            network::start_central(&central, node, network, components.load_balancers(), supervisor);
        });
    }

    /// Shows that this is a server, and lets others join.
    pub async fn admit_servers(
        &self,
        shared: &SharedStore,
        running: &apiserver::Running,
        supervisor: &Supervisor,
    ) -> anyhow::Result<()> {
        let data = &self.arguments.apiserver.data_dir;
        if let Some(store) = shared.store() {
            servers::ensure_record(&*store, data, &format!("https://{}", running.advertised)).await?;
        }
        let members = match shared {
            SharedStore::Managed(_, managed) => Some(managed.administration.clone()),
            _ => None,
        };
        // It may read tokens.
        let client = self.accounts()("bootstrap-signer");
        let (this, cluster) = (self.arguments.this_server()?, self.cluster());
        servers::admit_servers(servers::Host { client, this, cluster, members: members.clone() });
        self.start_rollouts(shared, members, supervisor)?;
        let client = self.component(join::SERVERS, "kube-apiserver");
        {
            let (client, names) = (client.clone(), self.arguments.apiserver.tls_san.clone());
            supervisor.restart("api-server-identity", move || servers::renew_identity(client.clone(), names.clone()));
        }
        if !self.arguments.disable_agent {
            let name = self.arguments.node.name()?;
            supervisor.restart("server-label", move || servers::label_node(client.clone(), name.clone()));
        }
        Ok(())
    }

    /// Takes part in the replacement of keys, on this server and on its node.
    fn start_rollouts(
        &self,
        shared: &SharedStore,
        members: Option<Arc<EtcdAdministration>>,
        supervisor: &Supervisor,
    ) -> anyhow::Result<()> {
        let (data, name) = (self.arguments.apiserver.data_dir.clone(), self.arguments.node.name()?);
        if !self.arguments.disable_agent {
            let (client, name) = (self.client(self.node_user()?, "kubelet"), name.clone());
            let trust = join::Trust::of(&data, &self.arguments.node.resources.plugin_root(&data));
            supervisor.restart("trust", move || join::keep_trust(client.clone(), name.clone(), trust.clone(), None));
        }
        // Who else uses an etcd that Knarr does not run is not known.
        if matches!(shared, SharedStore::Given(_)) {
            return Ok(());
        }
        let rollouts = servers::rollout::Rollouts {
            store: self.server.backend.store.clone(),
            client: self.component(join::SERVERS, "knarr"),
            encryption: self.arguments.this_server()?.encryption_file(),
            data,
            name,
            event_lifetime: self.arguments.apiserver.behaviour.event_ttl,
            members,
        };
        servers::rollout::open(rollouts.clone());
        supervisor.restart("rollouts", move || servers::rollout::run(rollouts.clone()));
        Ok(())
    }

    /// Applies the files of the manifests directory.
    pub fn start_manifests(&self, supervisor: &Supervisor) {
        let client = self.component(join::MANIFESTS, "knarr-manifests");
        let data = self.arguments.apiserver.data_dir.clone();
        supervisor.restart("manifests", move || {
            manifests::run(client.clone(), data.join("manifests"), data.join("manifests.json"))
        });
    }

    /// Installs charts as a user of their own. It is bound to `cluster-admin`, as a chart may contain anything.
    pub fn start_helm(&self, pki: &Arc<knarr_apiserver::pki::Pki>, listens: SocketAddr, supervisor: &Supervisor) {
        if !self.arguments.helm_controller {
            return;
        }
        let directory = self.arguments.apiserver.data_dir.join("helm");
        let identity = helm::Identity::new(pki.clone(), apiserver::local_url(listens), &directory);
        let client = self.component(join::CHARTS, "knarr-helm");
        supervisor.restart("helm", move || helm::run(client.clone(), identity.clone(), directory.clone()));
    }

    pub fn start_controllers(&self, pki: &knarr_apiserver::pki::Pki, supervisor: &Supervisor) {
        let settings = knarr_controllers::Settings {
            controllers: CONTROLLERS.map(str::to_owned).into(),
            root_ca: Some(pki.authority.certificate.clone()),
            signing: Some(knarr_controllers::SigningAuthority {
                certificate: pki.authority.certificate.clone(),
                key: pki.authority.key(),
            }),
            approve_kubelet_serving: true,
            keep_nodes_apart: true,
            cluster_domain: self.arguments.node.cluster_domain.clone(),
            api_server_names: pki.identity().all().collect(),
            allocate_node_cidrs: !self.arguments.network.cluster_cidr.is_empty(),
            cluster_cidrs: self.arguments.network.cluster_cidr.iter().map(Cidr::to_string).collect(),
            service_cidrs: self.arguments.apiserver.service_cluster_ip_range.clone(),
            ..knarr_controllers::Settings::default()
        };
        let client = self.component("system:kube-controller-manager", CONTROLLER_MANAGER);
        let context = knarr_controllers::Context::new(client, settings).with_accounts(self.accounts());
        supervisor.restart("controller-manager", move || knarr_controllers::run(context.clone()));
    }

    pub fn start_scheduler(&self, supervisor: &Supervisor) {
        let client = self.component("system:kube-scheduler", "kube-scheduler");
        let configuration = self.scheduler.clone();
        supervisor.restart("scheduler", move || {
            let settings = knarr_scheduler::Settings { configuration: configuration.clone(), now: Timestamp::now };
            let informers = Informers::new(client.clone()).without_heartbeats();
            knarr_scheduler::run(client.clone(), informers, settings)
        });
    }

    /// The settings that all nodes share.
    pub fn cluster(&self) -> Cluster {
        Cluster {
            pod_networks: self.arguments.network.cluster_cidr.clone(),
            dns: self.arguments.node.cluster_dns.clone(),
            domain: self.arguments.node.cluster_domain.clone(),
            load_balancers: self.arguments.network.load_balancer_pool.clone(),
            ingress: !self.arguments.network.ingress.disable_ingress,
            dns_upstreams: self.arguments.network.dns_upstream.clone(),
            dns_stub_domains: self.arguments.network.dns_stub_domain.clone(),
            disabled: self.arguments.node.disable.shared(),
        }
    }

    /// The addresses for Services of type LoadBalancer.
    pub fn load_balancers(&self) -> load_balancer::pool::Settings {
        let Arguments { apiserver, node, network, disable_agent, .. } = &self.arguments;
        let node_addresses = vec![node.node_ip.or(apiserver.advertise_address).unwrap_or_else(own_address)];
        let mut own = vec![apiserver.listen];
        if !disable_agent {
            own.push(node.node_listen);
            own.extend(network.ingress.listens().iter().map(|listen| listen.address));
        }
        own.retain(|listen| listen.ip().is_unspecified() || node_addresses.contains(&listen.ip()));
        load_balancer::pool::Settings {
            pool: network.load_balancer_pool.clone(),
            node_addresses,
            node_ports: own.iter().map(SocketAddr::port).collect(),
        }
    }

    pub fn node(
        &self,
        runtime: Runtime,
        mut stopped: watch::Receiver<bool>,
    ) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + Send + use<>> {
        let arguments = self.arguments.node.clone();
        let data: PathBuf = self.arguments.apiserver.data_dir.clone();
        // The serving certificate is requested from the API, as on every other node, and renewed.
        let files = NodeFiles { client_ca: Some(data.join("pki/ca.crt")), ..NodeFiles::default() };
        let client = self.client(self.node_user()?, "kubelet");
        Ok(async move {
            let shutdown = async move {
                // A dropped sender means shutdown, too.
                let _ = stopped.wait_for(|stopped| *stopped).await;
            };
            node::run(client, &arguments, &data, files, runtime, shutdown).await
        })
    }
}
