//! `knarr server`: control plane and node in one process. The components talk to the API server inside this process, each as
//! the user it would be outside.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use knarr_apiserver::listen::InProcess;
use knarr_apiserver::persist::foreign;
use knarr_apiserver::request::User;
use knarr_apiserver::startup;
use knarr_client::Fence;
use knarr_client::kube::Client;
use knarr_client::{Informers, node_identity};
use knarr_network::cidr::Cidr;
use knarr_network::load_balancer;
use knarr_store::{EtcdAdministration, Store};
use knarr_supervisor::{Registry, Supervisor};
use tokio::sync::watch;
use tower::ServiceExt;

use super::disable::{self, BuiltIn};
use super::network::{self, NetworkArguments, NodeNetwork};
use super::node::{self, Network, NodeArguments, NodeFiles, Runtime};
use super::storage::NodeStorage;
use super::{apiserver, common, datastore, preflight};
use crate::address::{ensure_address, own_address, restart_when_moved};
use crate::check::{CheckPlan, Listen};
use crate::cluster::{self, Cluster};
use crate::join::ClusterInfo;
use crate::ready::{self, Display, Probe};
use crate::servers::{self, Elections, Managed, ServersArguments};
use crate::{data_directory_lock, helm, join, manifests, restart, service};

/// The default controllers and, as in kubeadm clusters, those for bootstrap tokens.
const CONTROLLERS: [&str; 3] = ["*", "bootstrap-signer-controller", "token-cleaner-controller"];
/// The user agent of all controllers.
const CONTROLLER_MANAGER: &str = "kube-controller-manager";

#[derive(Args, Clone, Debug)]
#[group(id = "server-arguments")]
#[command(args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(flatten)]
    pub apiserver: apiserver::Arguments,
    #[command(flatten)]
    pub node: NodeArguments,
    #[command(flatten)]
    pub network: NetworkArguments,
    #[command(flatten)]
    pub servers: ServersArguments,
    #[command(subcommand)]
    command: Option<ServerCommand>,
    /// Run only the control plane, without a node on this host.
    #[arg(long)]
    pub disable_agent: bool,
    /// A KubeSchedulerConfiguration file; the client and leader election are the server's.
    #[arg(long, value_name = "FILE")]
    pub scheduler_config: Option<PathBuf>,
    /// Install charts from HelmChart objects, with the Helm program of this host.
    #[arg(long)]
    pub helm_controller: bool,
}

#[derive(Subcommand, Clone, Debug)]
enum ServerCommand {
    /// Remove a server from the cluster.
    Remove(servers::RemoveArguments),
}

pub async fn run(mut arguments: Arguments) -> anyhow::Result<()> {
    if let Some(ServerCommand::Remove(removal)) = arguments.command.take() {
        return servers::remove(removal).await;
    }
    let started = Instant::now();
    disable::apply(&mut arguments.node, Some(&mut arguments.network.ingress));
    arguments.apiserver.resource_metrics = !arguments.node.disable.has(BuiltIn::Metrics);
    if arguments.node.cluster_dns.is_empty() {
        arguments.node.cluster_dns = cluster::dns_addresses(&arguments.apiserver.service_cluster_ip_range);
    }
    arguments.node.set_service_defaults(service::is_own_process());
    let data = arguments.apiserver.data_dir.clone();
    data_directory_lock::acquire(&data)?.until_exit();
    crate::upgrade::record(&data);
    if arguments.servers.cluster_reset {
        return servers::reset(&arguments).await;
    }
    let member = tokio::select! {
        member = servers::configure(&mut arguments) => member?,
        stopped = common::stopped() => return stopped,
    };
    preflight(&arguments)?;
    if arguments.node.node_ip.is_none() {
        ensure_address().await;
    }
    let ingress = if arguments.disable_agent { None } else { arguments.network.ingress.bind()? };
    // The container runtime takes longest to start: it starts in parallel with the API server.
    let registry = Registry::default();
    let runtime = (!arguments.disable_agent).then(|| Runtime::start(&arguments.node, &data, &registry));
    let shared = tokio::select! {
        shared = SharedStore::open(&arguments, member) => shared?,
        stopped = common::stopped() => return stopped,
    };
    let scheduler = super::scheduler::read_configuration(arguments.scheduler_config.as_deref())?;
    let running = apiserver::start(&arguments.apiserver, shared.store(), &registry).await?;
    let components = Components {
        server: running.started.server.clone(),
        arguments: arguments.clone(),
        scheduler,
        fence: Fence::always_open(),
    };
    components.cluster().save(&data)?;
    startup::ensure_policy(&components.server, join::component_policy()).await?;
    let (stop, stopped) = watch::channel(false);
    let supervisor = Supervisor::new(&registry);
    let elections = components.elections(&shared)?;
    {
        let (components, pki) = (components.clone(), running.pki.clone());
        elections.start(servers::CONTROLLERS_LEASE, &supervisor, move |fence, supervisor| {
            let components = components.within(fence);
            components.start_controllers(&pki, supervisor);
            components.start_helm(supervisor);
        });
    }
    {
        let components = components.clone();
        elections.start(servers::SCHEDULER_LEASE, &supervisor, move |fence, supervisor| {
            components.within(fence).start_scheduler(supervisor);
        });
    }
    let node = runtime.map(|runtime| components.node(runtime, stopped.clone())).transpose()?;
    // The network's permissions exist only after this.
    let info = ClusterInfo {
        server: format!("https://{}", running.advertised),
        authority: running.pki.authority.certificate.clone(),
    };
    let setup = components.component(join::CLUSTER_SETUP, "knarr");
    join::ensure_objects(&setup, &components.cluster(), &info)
        .await
        .context("cannot create the cluster's initial objects")?;
    if !arguments.node.storage.disable_local_storage {
        join::ensure_local_storage(&setup).await.context("cannot create the local StorageClass")?;
    }
    if node.is_some() {
        let network = NodeNetwork { node: &arguments.node, network: &arguments.network, data: &data, ingress };
        network.start(
            components.node_network()?,
            components.client(components.node_user()?, "knarr-network"),
            &supervisor,
        )?;
        let plugins = arguments.node.resources.plugin_root(&data);
        let (name, storage) = (arguments.node.name()?, &arguments.node.storage);
        let eviction = &arguments.node.eviction.eviction()?;
        let storage = NodeStorage { arguments: storage, node: &name, data: &data, plugin_root: plugins, eviction };
        storage.start(components.node_storage()?, &supervisor);
    }
    {
        let components = components.clone();
        elections.start(servers::NETWORK_LEASE, &supervisor, move |fence, supervisor| {
            let components = components.within(fence);
            let central = components.component(join::NETWORK_CONTROLLER, "knarr-network");
            let Arguments { node, network, .. } = &components.arguments;
            network::start_central(&central, node, network, components.load_balancers(), supervisor);
        });
    }
    components.admit_servers(&shared, &running, &supervisor).await?;
    {
        let (client, data) = (components.component(join::MANIFESTS, "knarr-manifests"), data.clone());
        supervisor.restart("manifests", move || {
            manifests::run(client.clone(), data.join("manifests"), data.join("manifests.json"))
        });
    }
    if arguments.apiserver.advertise_address.is_none() && arguments.node.node_ip.is_none() {
        let own = running.advertised.ip();
        supervisor.restart("address", move || restart_when_moved(own));
    }
    components.report_when_ready(started, &supervisor)?;
    if let Some(node) = node {
        supervisor.essential("kubelet", node);
    }
    let ended = tokio::select! {
        ended = common::stopped_or_failed(&registry) => ended,
        removed = shared.removed() => Err(removed),
    };
    // systemd would wait for the end of a service that restarts itself.
    if !restart::is_requested() {
        service::notify("STOPPING=1");
    }
    supervisor.expect_stop();
    stop.send_replace(true);
    supervisor.shutdown().await;
    running.stop().await;
    shared.close().await;
    ended
}

/// The store of a server, if other servers can use it, too.
enum SharedStore {
    /// It is in the data directory.
    No,
    /// An etcd that the flags name.
    Given(Arc<dyn Store>),
    /// The etcd of which this server runs a member.
    Managed(Arc<dyn Store>, Managed),
}

impl SharedStore {
    async fn open(arguments: &Arguments, member: Option<servers::Member>) -> anyhow::Result<Self> {
        let data = &arguments.apiserver.data_dir;
        if let Some(member) = member {
            let managed = Managed::start(member, data).await?;
            let store = managed.open_store(foreign::decoder()).await?;
            return Ok(SharedStore::Managed(Arc::new(store), managed));
        }
        if arguments.apiserver.datastore.is_empty() {
            return Ok(SharedStore::No);
        }
        let store = datastore::open(&arguments.apiserver).await?;
        servers::check_record(&*store, data).await?;
        Ok(SharedStore::Given(store))
    }

    fn store(&self) -> Option<Arc<dyn Store>> {
        match self {
            SharedStore::No => None,
            SharedStore::Given(store) | SharedStore::Managed(store, _) => Some(store.clone()),
        }
    }

    /// Returns when this server was removed from its cluster.
    async fn removed(&self) -> anyhow::Error {
        match self {
            SharedStore::Managed(_, managed) => managed.removed().await,
            _ => std::future::pending().await,
        }
    }

    async fn close(self) {
        if let SharedStore::Managed(store, managed) = self {
            drop(store);
            managed.stop().await;
        }
    }
}

/// Checks the requirements of all components.
fn preflight(arguments: &Arguments) -> anyhow::Result<()> {
    let api = Listen { what: "the API server", address: arguments.apiserver.listen, flag: "--listen" };
    let mut listens = vec![api];
    if arguments.disable_agent {
        let data = arguments.apiserver.data_dir.clone();
        return preflight::verify(&CheckPlan {
            data,
            runs_pods: false,
            own_runtime: false,
            listens,
            networks: Vec::new(),
        });
    }
    listens.extend(arguments.network.ingress.listens());
    let services = &arguments.apiserver.service_cluster_ip_range;
    let mut networks: Vec<Cidr> = services.iter().filter_map(|range| range.parse().ok()).collect();
    // Another network plugin may have its interface there.
    if arguments.node.network == Network::Knarr {
        networks.extend(&arguments.network.cluster_cidr);
    }
    preflight::check(&arguments.node, &arguments.apiserver.data_dir, listens, networks)
}

#[derive(Clone)]
struct Components {
    server: Arc<knarr_apiserver::state::ApiServer>,
    arguments: Arguments,
    scheduler: knarr_scheduler::Configuration,
    /// Closed when these components may no longer act.
    fence: Fence,
}

impl Components {
    /// The same behind a fence.
    fn within(&self, fence: Fence) -> Self {
        Self { fence, ..self.clone() }
    }

    fn elections(&self, shared: &SharedStore) -> anyhow::Result<Elections> {
        match shared {
            SharedStore::No => Ok(Elections::alone()),
            _ => {
                let client = self.component(join::SERVERS, "knarr");
                Elections::among_servers(client, &self.arguments.node.name()?, &self.arguments.apiserver.data_dir)
            }
        }
    }

    /// Shows that this is a server, and lets others join.
    async fn admit_servers(
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
        let (arguments, cluster) = (self.arguments.clone(), self.cluster());
        servers::admit_servers(servers::Host { client, arguments, cluster, members: members.clone() });
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
            store: self.server.store.clone(),
            client: self.component(join::SERVERS, "knarr"),
            encryption: servers::encryption_file(&self.arguments),
            data,
            name,
            members,
        };
        servers::rollout::open(rollouts.clone());
        supervisor.restart("rollouts", move || servers::rollout::run(rollouts.clone()));
        Ok(())
    }

    /// Charts are installed with the administrator's rights: a chart may contain anything.
    fn start_helm(&self, supervisor: &Supervisor) {
        if !self.arguments.helm_controller {
            return;
        }
        let data = self.arguments.apiserver.data_dir.clone();
        let (client, kubeconfig) = (self.component(join::MANIFESTS, "knarr-helm"), common::kubeconfig(&data));
        supervisor.restart("helm", move || helm::run(client.clone(), kubeconfig.clone(), data.join("helm")));
    }

    /// An in-process client as a user, with the field manager name of its writes.
    fn client(&self, user: User, agent: &'static str) -> Client {
        let service = InProcess::new(self.server.clone(), user).map_request(
            move |mut request: http::Request<knarr_client::kube::client::Body>| {
                request.headers_mut().insert(http::header::USER_AGENT, http::HeaderValue::from_static(agent));
                request
            },
        );
        servers::fenced(knarr_client::measured(Client::new(service, "default")), &self.fence)
    }

    /// A client as a user with only the permissions of its roles. No component is in system:masters.
    fn component(&self, user: &str, agent: &'static str) -> Client {
        self.client(User::named(user, &["system:authenticated"]), agent)
    }

    /// Clients of the controllers' service accounts.
    fn accounts(&self) -> knarr_controllers::AccountClients {
        let components = self.clone();
        Arc::new(move |account| {
            let name = format!("system:serviceaccount:kube-system:{account}");
            let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
            components.client(User::named(&name, &groups), CONTROLLER_MANAGER)
        })
    }

    /// The API user of this node.
    fn node_user(&self) -> anyhow::Result<User> {
        let name = self.arguments.node.name()?;
        let mut user = User::named(&format!("system:node:{name}"), &["system:nodes", "system:authenticated"]);
        user.extra.insert(node_identity::IN_API_SERVER.to_owned(), vec!["true".to_owned()]);
        Ok(user)
    }

    /// A client as the network components of this node.
    fn node_network(&self) -> anyhow::Result<Client> {
        let name = node_identity::NETWORK.user(&self.arguments.node.name()?);
        Ok(self.client(User::named(&name, &[node_identity::NETWORK.group, "system:authenticated"]), "knarr-network"))
    }

    /// A client as the CSI controller of this node.
    fn node_storage(&self) -> anyhow::Result<Client> {
        let name = node_identity::STORAGE.user(&self.arguments.node.name()?);
        Ok(self.client(User::named(&name, &[node_identity::STORAGE.group, "system:authenticated"]), "knarr-storage"))
    }

    fn start_controllers(&self, pki: &knarr_apiserver::pki::Pki, supervisor: &Supervisor) {
        let settings = knarr_controllers::Settings {
            controllers: CONTROLLERS.map(str::to_owned).into(),
            root_ca: Some(pki.authority.certificate.clone()),
            signing: Some(knarr_controllers::SigningAuthority {
                certificate: pki.authority.certificate.clone(),
                key: pki.authority.key(),
            }),
            approve_kubelet_serving: true,
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

    fn start_scheduler(&self, supervisor: &Supervisor) {
        let client = self.component("system:kube-scheduler", "kube-scheduler");
        let configuration = self.scheduler.clone();
        supervisor.restart("scheduler", move || {
            let settings = knarr_scheduler::Settings { configuration: configuration.clone(), now: Timestamp::now };
            let informers = Informers::new(client.clone()).without_heartbeats();
            knarr_scheduler::run(client.clone(), informers, settings)
        });
    }

    /// Probes every component, and reports when all are ready.
    fn report_when_ready(&self, started: Instant, supervisor: &Supervisor) -> anyhow::Result<()> {
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

    /// The settings that all nodes share.
    fn cluster(&self) -> Cluster {
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
    fn load_balancers(&self) -> load_balancer::pool::Settings {
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

    fn node(
        &self,
        runtime: Runtime,
        mut stopped: watch::Receiver<bool>,
    ) -> anyhow::Result<impl Future<Output = anyhow::Result<()>> + Send + use<>> {
        let arguments = self.arguments.node.clone();
        let data: PathBuf = self.arguments.apiserver.data_dir.clone();
        // The serving certificate is requested from the API, as on every other node, and renewed.
        let files = NodeFiles { client_ca: Some(data.join("pki/ca.crt")), serving: None };
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
