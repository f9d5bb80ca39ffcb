//! Why a plugin rejects a node.

/// Why a node was rejected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rejection {
    pub plugin: &'static str,
    pub reasons: Vec<String>,
    /// Removing pods from the node would not help.
    pub unresolvable: bool,
    /// The plugin could not decide: the decision fails, and is repeated after a backoff.
    pub is_error: bool,
}

impl Rejection {
    pub fn resolvable(plugin: &'static str, reason: impl Into<String>) -> Self {
        Rejection { plugin, reasons: vec![reason.into()], unresolvable: false, is_error: false }
    }

    pub fn unresolvable(plugin: &'static str, reason: impl Into<String>) -> Self {
        Rejection { plugin, reasons: vec![reason.into()], unresolvable: true, is_error: false }
    }

    pub fn error(plugin: &'static str, error: impl Into<String>) -> Self {
        Rejection { plugin, reasons: vec![error.into()], unresolvable: true, is_error: true }
    }
}
