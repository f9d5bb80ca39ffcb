//! The components of Kubernetes that Knarr stands in for.

/// A component, by the name of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    ApiServer,
    ControllerManager,
    Scheduler,
    Kubelet,
    Proxy,
}

impl Component {
    pub const ALL: [Component; 5] = [
        Component::ApiServer,
        Component::ControllerManager,
        Component::Scheduler,
        Component::Kubelet,
        Component::Proxy,
    ];

    /// The name of the program.
    pub fn name(self) -> &'static str {
        match self {
            Component::ApiServer => "kube-apiserver",
            Component::ControllerManager => "kube-controller-manager",
            Component::Scheduler => "kube-scheduler",
            Component::Kubelet => "kubelet",
            Component::Proxy => "kube-proxy",
        }
    }

    /// The component whose program has this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|component| component.name() == name)
    }
}
