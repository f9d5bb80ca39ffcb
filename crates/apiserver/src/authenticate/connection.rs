//! Authenticates the requests of a connection by its client certificates, again for each request: certificates expire, and
//! authorities are removed.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use knarr_identity::{Authorities, valid_until};
use rustls_pki_types::{CertificateDer, UnixTime};

use super::certificate::user_of_certificate;
use super::front_proxy::CLIENT as FRONT_PROXY_CLIENT;
use crate::request::Sender;

/// The certificate authorities of both kinds of clients. A certificate signed by one kind is never accepted as the other.
pub struct ClientAuthorities {
    /// Authorities of users.
    pub users: Authorities,
    /// Authorities of front proxies, which authenticate users themselves.
    pub proxies: Authorities,
    /// Authorities that the administrator added.
    pub added: AddedAuthorities,
}

/// Authorities besides the cluster's own.
#[derive(Default)]
pub struct AddedAuthorities {
    pub users: Option<Authorities>,
    /// Authorities of front proxies, and the names that their certificates may have; none for any.
    pub proxies: Option<(Authorities, Vec<String>)>,
}

impl ClientAuthorities {
    fn sender(&self, chain: &[CertificateDer<'_>], now: UnixTime) -> Sender {
        let Some(leaf) = chain.first() else { return Sender::Remote(None) };
        if self.proxies.verify(chain, now).is_ok() {
            let is_allowed = knarr_identity::of_certificate(leaf).is_ok_and(|own| own.name == FRONT_PROXY_CLIENT);
            return if is_allowed { Sender::FrontProxy } else { Sender::Refused };
        }
        if let Some((authorities, names)) = &self.added.proxies
            && authorities.verify(chain, now).is_ok()
        {
            let name = knarr_identity::of_certificate(leaf).map(|own| own.name).unwrap_or_default();
            if names.is_empty() || names.contains(&name) {
                return Sender::FrontProxy;
            }
        }
        let added = self.added.users.as_ref().is_some_and(|added| added.verify(chain, now).is_ok());
        if let (false, Err(error)) = (added, self.users.verify(chain, now)) {
            tracing::debug!(%error, "client certificate rejected");
            return Sender::Refused;
        }
        match user_of_certificate(leaf) {
            Ok(user) => Sender::Remote(Some(Arc::new(user))),
            Err(error) => {
                tracing::debug!(%error, "client certificate names no user");
                Sender::Refused
            }
        }
    }
}

/// The authorities at present: they change when the administrator's files do.
pub type CurrentAuthorities = Arc<ArcSwap<ClientAuthorities>>;

/// A connection with the certificates its client presented.
pub struct ClientConnection {
    clients: CurrentAuthorities,
    chain: Vec<CertificateDer<'static>>,
    verified: ArcSwap<Verified>,
    /// Until this time a sender stays valid with the authorities that it was verified with.
    valid_until_time: Option<UnixTime>,
}

/// Whom a chain stands for by some authorities.
struct Verified {
    clients: Arc<ClientAuthorities>,
    sender: Sender,
}

impl ClientConnection {
    pub fn new(clients: CurrentAuthorities, chain: &[CertificateDer<'static>], now: UnixTime) -> Self {
        let current = clients.load_full();
        let sender = current.sender(chain, now);
        let valid_until_time = valid_until(chain);
        if let (Sender::Remote(Some(_)), Some(until)) = (&sender, valid_until_time) {
            crate::metrics::certificate_presented(until.as_secs() as i64 - now.as_secs() as i64);
        }
        let verified = ArcSwap::from_pointee(Verified { clients: current, sender });
        ClientConnection { clients, chain: chain.to_vec(), verified, valid_until_time }
    }

    /// The certificates that its client presented.
    pub fn chain(&self) -> &[CertificateDer<'static>] {
        &self.chain
    }

    /// Whether its client authenticated users itself when it was verified last.
    pub fn is_front_proxy(&self) -> bool {
        matches!(self.verified.load().sender, Sender::FrontProxy)
    }

    /// Whether its client presented a certificate that stood for a user when it was verified last.
    pub fn has_certificate(&self) -> bool {
        matches!(self.verified.load().sender, Sender::Remote(Some(_)))
    }

    /// How much longer its certificate is accepted, as long as authorities do not change; `None` if it is not any more.
    pub fn valid_for(&self, now: UnixTime) -> Option<Duration> {
        if !matches!(self.sender(now), Sender::Remote(Some(_))) {
            return None;
        }
        // Verified without the certificate of the chain that has expired, it is checked again when the caller likes.
        let until = self.valid_until_time.filter(|until| now <= *until);
        Some(until.map_or(Duration::MAX, |until| Duration::from_secs(until.as_secs() + 1 - now.as_secs())))
    }

    /// The sender of a request that arrives now.
    pub fn sender(&self, now: UnixTime) -> Sender {
        let (verified, current) = (self.verified.load(), self.clients.load());
        let is_current = Arc::ptr_eq(&verified.clients, &current);
        if self.chain.is_empty() || is_current && self.valid_until_time.is_some_and(|end| now <= end) {
            return verified.sender.clone();
        }
        let sender = current.sender(&self.chain, now);
        if !is_current {
            self.verified.store(Arc::new(Verified { clients: current.clone(), sender: sender.clone() }));
        }
        sender
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::{Identity, Leaf, Pki, Purpose, TlsSettings};
    use jiff::{SignedDuration, Timestamp};
    use rustls_pki_types::pem::PemObject;

    fn chain(leaf: &Leaf) -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_slice_iter(leaf.certificate.as_bytes()).map(Result::unwrap).collect()
    }

    fn moment(at: Timestamp) -> UnixTime {
        UnixTime::since_unix_epoch(std::time::Duration::from_secs(at.as_second().unsigned_abs()))
    }

    #[test]
    fn a_certificate_is_accepted_only_for_its_authoritys_kind_of_client() {
        let directory = tempfile::tempdir().unwrap();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let pki = Pki::open(directory.path(), Identity::default(), now).unwrap();
        let client = |user: &str, group: &str| Purpose::Client { user: user.into(), group: group.into() };
        let clients = pki.serving.clients();
        let sender =
            |chain: &[CertificateDer<'static>]| match ClientConnection::new(Arc::clone(&clients), chain, moment(now))
                .sender(moment(now))
            {
                Sender::Remote(user) => user.map_or("anonymous".to_owned(), |user| user.name.clone()),
                Sender::FrontProxy => "a front proxy".to_owned(),
                Sender::Refused => "refused".to_owned(),
                Sender::Trusted(_) => "trusted".to_owned(),
            };
        assert_eq!(sender(&[]), "anonymous");
        assert_eq!(sender(&chain(&pki.admin(now).unwrap())), "kubernetes-admin");
        assert_eq!(sender(&chain(&pki.front_proxy_client(now).unwrap())), "a front proxy");
        let forged = pki.authority.sign(&client(FRONT_PROXY_CLIENT, ""), now).unwrap();
        assert_eq!(sender(&chain(&forged)), FRONT_PROXY_CLIENT, "a user of that name and no more");
        for user in ["kubernetes-admin", "ann", "front-proxy-client2"] {
            let leaf = pki.front_proxy_authority.sign(&client(user, "system:masters"), now).unwrap();
            assert_eq!(sender(&chain(&leaf)), "refused", "{user}, signed by the proxies' authority");
        }
        let serving = Purpose::Serving { name: "ann".into(), names: vec!["ann".into()], addresses: vec![] };
        assert_eq!(sender(&chain(&pki.authority.sign(&serving, now).unwrap())), "refused", "a server's");
        let elsewhere = tempfile::tempdir().unwrap();
        let other = Pki::open(elsewhere.path(), Identity::default(), now).unwrap();
        assert_eq!(sender(&chain(&other.admin(now).unwrap())), "refused", "of another cluster");
        assert_eq!(sender(&[CertificateDer::from(b"nonsense".to_vec())]), "refused");
    }

    #[test]
    fn a_certificate_of_a_removed_authority_is_refused_on_an_open_connection() {
        let directory = tempfile::tempdir().unwrap();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let open = |name: &str, settings| {
            Pki::open_with(&directory.path().join(name), Identity::default(), settings, now).unwrap()
        };
        let (other, file) = (open("other", TlsSettings::default()), directory.path().join("users"));
        let set = |authorities: &[&str]| std::fs::write(&file, authorities.concat()).unwrap();
        set(&[&other.authority.certificate]);
        let pki = open("own", TlsSettings { client_authorities: Some(file.clone()), ..TlsSettings::default() });
        let connect = |leaf: Leaf| ClientConnection::new(pki.serving.clients(), &chain(&leaf), moment(now));
        let (own, added) = (connect(pki.admin(now).unwrap()), connect(other.admin(now).unwrap()));
        let anonymous = ClientConnection::new(pki.serving.clients(), &[], moment(now));
        let is_user = |connection: &ClientConnection| matches!(connection.sender(moment(now)), Sender::Remote(Some(_)));
        for (authorities, is_accepted) in [
            (vec![other.authority.certificate.as_str()], true),
            (vec![pki.authority.certificate.as_str()], false),
            (vec![pki.authority.certificate.as_str(), other.authority.certificate.as_str()], true),
        ] {
            set(&authorities);
            pki.serving.reload().unwrap();
            // The second time from what is known.
            for _ in 0..2 {
                assert_eq!(is_user(&added), is_accepted);
                assert_eq!(added.has_certificate(), is_accepted);
                assert_eq!(added.valid_for(moment(now)).is_some(), is_accepted);
                assert!(is_user(&own));
                assert!(matches!(anonymous.sender(moment(now)), Sender::Remote(None)));
            }
        }
    }

    #[test]
    fn an_expired_certificate_is_refused_on_an_open_connection() {
        let directory = tempfile::tempdir().unwrap();
        let now: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let pki = Pki::open(directory.path(), Identity::default(), now).unwrap();
        let chain = chain(&pki.admin(now).unwrap());
        let connected = ClientConnection::new(pki.serving.clients(), &chain, moment(now));
        let after = |days: i64| connected.sender(moment(now + SignedDuration::from_hours(24 * days)));
        assert!(matches!(after(364), Sender::Remote(Some(_))));
        assert!(matches!(after(366), Sender::Refused));
        // A session that is resumed presents it without another handshake's verification.
        let late = moment(now + SignedDuration::from_hours(24 * 366));
        let resumed = ClientConnection::new(pki.serving.clients(), &chain, late);
        assert!(!resumed.has_certificate() && matches!(resumed.sender(late), Sender::Refused));
    }
}
