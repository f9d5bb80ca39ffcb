//! The users that components are in the API server of this process, each with the rights it would have outside.

use std::sync::Arc;

use knarr_apiserver::listen::InProcess;
use knarr_apiserver::request::User;
use knarr_client::kube::Client;
use knarr_client::node_identity;
use tower::ServiceExt;

use super::components::Components;
use crate::servers;

/// The user agent of all controllers.
pub const CONTROLLER_MANAGER: &str = "kube-controller-manager";

impl Components {
    /// An in-process client as a user, with the field manager name of its writes.
    pub fn client(&self, user: User, agent: &'static str) -> Client {
        let service = InProcess::new(self.server.clone(), user).map_request(
            move |mut request: http::Request<knarr_client::kube::client::Body>| {
                request.headers_mut().insert(http::header::USER_AGENT, http::HeaderValue::from_static(agent));
                request
            },
        );
        servers::fenced(knarr_client::in_process_client(service), &self.fence)
    }

    /// A client as a user with only the permissions of its roles. No component is in system:masters.
    pub fn component(&self, user: &str, agent: &'static str) -> Client {
        self.client(User::named(user, &["system:authenticated"]), agent)
    }

    /// Clients of the controllers' service accounts.
    pub fn accounts(&self) -> knarr_controllers::AccountClients {
        let components = self.clone();
        Arc::new(move |account| {
            let name = format!("system:serviceaccount:kube-system:{account}");
            let groups = ["system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"];
            components.client(User::named(&name, &groups), CONTROLLER_MANAGER)
        })
    }

    /// The API user of this node.
    pub fn node_user(&self) -> anyhow::Result<User> {
        let name = self.arguments.node.name()?;
        let mut user = User::named(&format!("system:node:{name}"), &["system:nodes", "system:authenticated"]);
        user.extra.insert(node_identity::IN_API_SERVER.to_owned(), vec!["true".to_owned()]);
        Ok(user)
    }

    /// A client as the network components of this node.
    pub fn node_network(&self) -> anyhow::Result<Client> {
        let name = node_identity::NETWORK.user(&self.arguments.node.name()?);
        Ok(self.client(User::named(&name, &[node_identity::NETWORK.group, "system:authenticated"]), "knarr-network"))
    }

    /// A client as the CSI controller of this node.
    pub fn node_storage(&self) -> anyhow::Result<Client> {
        let name = node_identity::STORAGE.user(&self.arguments.node.name()?);
        Ok(self.client(User::named(&name, &[node_identity::STORAGE.group, "system:authenticated"]), "knarr-storage"))
    }
}
