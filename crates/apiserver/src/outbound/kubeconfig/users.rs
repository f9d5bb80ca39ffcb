//! Who admission webhooks are called as: the users of a kubeconfig file, by the host of the webhook.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::file::{Kubeconfig, KubeconfigError};
use super::user::User;

/// The users of a file; none without one.
#[derive(Default)]
pub struct WebhookUsers {
    named: HashMap<String, Arc<User>>,
    /// That of the current context.
    current: Option<Arc<User>>,
}

impl std::fmt::Debug for WebhookUsers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_list().entries(self.named.keys()).finish()
    }
}

impl WebhookUsers {
    pub fn read(path: &Path) -> Result<Self, KubeconfigError> {
        let file = Kubeconfig::read(path)?;
        let mut named = HashMap::new();
        for (name, user) in file.users() {
            named.insert(name.to_owned(), Arc::new(User::read(&file, name, user)?));
        }
        let current = named.get(file.user().0).cloned();
        Ok(WebhookUsers { named, current })
    }

    /// The user for a host and port: the most exact name wins, `*` and the current context are for all others.
    pub fn of(&self, host: &str, port: u16) -> Option<&Arc<User>> {
        let target = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
        let without_port = (port == 443).then_some(host);
        std::iter::once(target.as_str())
            .chain(without_port)
            .find_map(|target| self.matching(target))
            .or_else(|| self.named.get("*"))
            .or(self.current.as_ref())
    }

    /// The exact name, or one that starts with a star in place of the first labels.
    fn matching(&self, target: &str) -> Option<&Arc<User>> {
        let suffixes = target.match_indices('.').map(|(at, _)| format!("*{}", &target[at..]));
        self.named.get(target).or_else(|| suffixes.into_iter().find_map(|name| self.named.get(&name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_most_exact_name_wins() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("k");
        let users = ["a.ns.svc:8443", "a.ns.svc", "*.ns.svc", "*.svc:9443", "*", "own"];
        let list: Vec<String> =
            users.iter().map(|name| format!("{{name: '{name}', user: {{token: 'of {name}'}}}}")).collect();
        let context = "current-context: c\ncontexts: [{name: c, context: {user: own}}]\n";
        let whole = format!("{context}users: [{}]\n", list.join(", "));
        let own_only = format!("{context}users: [{}]\n", list[5]);
        for (text, host, port, expected) in [
            (&whole, "a.ns.svc", 8443, Some("of a.ns.svc:8443")),
            (&whole, "a.ns.svc", 443, Some("of a.ns.svc")),
            (&whole, "b.ns.svc", 443, Some("of *.ns.svc")),
            (&whole, "b.ns.svc", 9443, Some("of *.svc:9443")),
            (&whole, "b.ns.svc", 1443, Some("of *")),
            (&whole, "example.com", 443, Some("of *")),
            (&own_only, "example.com", 443, Some("of own")),
            (&String::new(), "example.com", 443, None),
        ] {
            std::fs::write(&path, text).unwrap();
            let users = WebhookUsers::read(&path).unwrap();
            let shown = match users.of(host, port) {
                Some(user) => user.present().await.unwrap().headers,
                None => Vec::new(),
            };
            let token = shown.first().map(|(_, value)| value.to_str().unwrap().replace("Bearer ", ""));
            assert_eq!(token.as_deref(), expected, "{host}:{port}");
        }
    }
}
