//! Credentials that plugins returned, until they expire.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use tokio::time::Instant;

use super::exec::Login;

/// The maximum number of entries: service accounts are created by users.
const MAX_ENTRIES: usize = 4096;

/// The service account that credentials were issued for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AccountKey {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub annotations: BTreeMap<String, String>,
    /// A digest of the token, for plugins whose credentials depend on it.
    pub token: Option<String>,
}

/// The scope of cached credentials.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    Image(String),
    Registry(String),
    Global,
}

impl Scope {
    /// The scope that a response names.
    pub fn of(kind: &str, image: &str) -> Option<Self> {
        match kind {
            "Image" => Some(Scope::Image(image.to_owned())),
            "Registry" => Some(Scope::Registry(registry(image))),
            "Global" => Some(Scope::Global),
            _ => None,
        }
    }
}

fn registry(image: &str) -> String {
    image.split('/').next().unwrap_or_default().to_owned()
}

pub type Logins = BTreeMap<String, Login>;

#[derive(Default)]
pub struct Cache {
    entries: HashMap<(Scope, Option<AccountKey>), (Logins, Instant)>,
}

impl Cache {
    /// The most specific credentials that have not expired.
    pub fn get(&self, image: &str, account: Option<&AccountKey>, now: Instant) -> Option<Logins> {
        [Scope::Image(image.to_owned()), Scope::Registry(registry(image)), Scope::Global].into_iter().find_map(
            |scope| {
                let (logins, expires) = self.entries.get(&(scope, account.cloned()))?;
                (now <= *expires).then(|| logins.clone())
            },
        )
    }

    pub fn put(&mut self, scope: Scope, account: Option<AccountKey>, logins: Logins, lifetime: Duration, now: Instant) {
        self.entries.retain(|_, (_, expires)| now <= *expires);
        if self.entries.len() >= MAX_ENTRIES {
            let first = self.entries.iter().min_by_key(|(_, (_, expires))| *expires).map(|(key, _)| key.clone());
            first.map(|key| self.entries.remove(&key));
        }
        if let Some(expires) = now.checked_add(lifetime) {
            self.entries.insert((scope, account), (logins, expires));
        }
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logins(user: &str) -> Logins {
        [("r.io".to_owned(), Login { username: user.into(), password: "p".into() })].into()
    }

    #[test]
    fn entries_are_found_by_scope_and_account_until_they_expire() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let account = |name: &str| AccountKey { name: name.into(), ..AccountKey::default() };
        let mut cache = Cache::default();
        for (kind, account, user, lifetime) in [
            ("Image", None, "image", 10),
            ("Registry", None, "registry", 20),
            ("Global", None, "global", 30),
            ("Global", Some(account("a")), "account", 30),
        ] {
            let scope = Scope::of(kind, "r.io/a").expect("a scope");
            cache.put(scope, account, logins(user), Duration::from_secs(lifetime), start);
        }
        assert_eq!(Scope::of("Other", "r.io/a"), None);
        for (image, of, seconds, expected) in [
            ("r.io/a", None, 0, Some("image")),
            ("r.io/a", None, 15, Some("registry")),
            ("r.io/b", None, 0, Some("registry")),
            ("r.io/a", None, 25, Some("global")),
            ("s.io/a", None, 0, Some("global")),
            ("r.io/a", None, 31, None),
            ("r.io/a", Some(account("a")), 0, Some("account")),
            ("r.io/a", Some(account("b")), 0, None),
        ] {
            let found = cache.get(image, of.as_ref(), at(seconds)).map(|found| found["r.io"].username.clone());
            assert_eq!(found.as_deref(), expected, "{image} {of:?} {seconds}");
        }
    }

    #[test]
    fn the_number_of_entries_is_limited() {
        let start = Instant::now();
        let mut cache = Cache::default();
        for number in 0..MAX_ENTRIES as u64 + 10 {
            let scope = Scope::Image(format!("r.io/{number}"));
            cache.put(scope, None, logins("u"), Duration::from_secs(1000 + number), start);
        }
        assert_eq!(cache.len(), MAX_ENTRIES);
        assert!(cache.get("r.io/0", None, start).is_none() && cache.get("r.io/10", None, start).is_some());
        cache.put(Scope::Global, None, logins("u"), Duration::ZERO, start + Duration::from_secs(9999));
        assert_eq!(cache.len(), 1);
    }
}
