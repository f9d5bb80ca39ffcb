//! Resolves one request: from the zone or cache immediately, or from upstream resolvers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::cache::{Cache, CacheKey};
use crate::directory::Directory;
use crate::in_flight::InFlight;
use crate::message::{
    self, Code, Data, Query, QueryError, Record, Sections, kind, read_name, read_number, read_record,
};
use crate::name::Name;
use crate::zone::{Outcome, Zone};
use crate::{DnsError, StubDomain, forward, metrics};

/// Maximum length of a chain of aliases.
const MAX_ALIAS_CHAIN: usize = 8;

pub struct Resolver {
    directory: Arc<Directory>,
    zone: Zone,
    forwarders: Vec<SocketAddr>,
    stub_domains: Vec<(Name, Vec<SocketAddr>)>,
    cache: Cache,
    in_flight: InFlight,
    turn: AtomicUsize,
}

/// The result of handling a request without upstream resolvers.
pub enum Handled {
    /// The response is written.
    Answered,
    /// No response must be sent.
    Nothing,
    /// Upstream resolvers must be queried, with `Resolver::resolve_upstream`.
    Later(Box<Pending>),
}

/// A request that needs upstream resolvers.
pub struct Pending {
    query: Query,
    /// The alias target, if the name is in the cluster domain.
    alias: Option<Name>,
}

impl Resolver {
    pub fn new(
        directory: Arc<Directory>,
        domain: &str,
        listen: Vec<SocketAddr>,
        forwarders: Vec<SocketAddr>,
        stub_domains: &[StubDomain],
    ) -> Result<Self, DnsError> {
        let wrong = |text: &str| DnsError::Domain(text.to_owned());
        let own = listen.iter().map(SocketAddr::ip).collect();
        let mut stubs: Vec<(Name, Vec<SocketAddr>)> = Vec::new();
        for stub in stub_domains {
            let name = Name::from_text(&stub.domain).ok_or_else(|| wrong(&stub.domain))?;
            match stubs.iter_mut().find(|(known, _)| *known == name) {
                Some((_, servers)) => servers.push(stub.server.0),
                None => stubs.push((name, vec![stub.server.0])),
            }
        }
        // The longest matching domain wins.
        stubs.sort_by_key(|(name, _)| std::cmp::Reverse(name.wire().len()));
        Ok(Self {
            directory,
            zone: Zone::new(domain, own).ok_or_else(|| wrong(domain))?,
            forwarders,
            stub_domains: stubs,
            cache: Cache::default(),
            in_flight: InFlight::default(),
            turn: AtomicUsize::new(0),
        })
    }

    /// Writes the response if it is known locally.
    pub fn handle(&self, request: &[u8], limit: Option<usize>, out: &mut Vec<u8>) -> Handled {
        let query = match Query::read(request) {
            Ok(query) => query,
            Err(QueryError::Silence) => return Handled::Nothing,
            Err(QueryError::Error(code)) => {
                message::write_error(out, request, code);
                return Handled::Answered;
            }
        };
        let limit = limit.unwrap_or_else(|| query.max_response_size());
        let nothing = Sections::default();
        if query.extension.is_some_and(|extension| extension.version > 0) {
            message::write(out, request, &query, Code::NoError, false, &nothing, limit);
            return Handled::Answered;
        }
        // Zone transfers are refused, of our zone as well as through us.
        if !query.is_internet() || matches!(query.kind, kind::IXFR | kind::AXFR) {
            message::write(out, request, &query, Code::Refused, false, &nothing, limit);
            return Handled::Answered;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let denied =
            || Sections { authority: vec![self.zone.start_of_authority(&self.directory)], ..Sections::default() };
        let (code, sections) = match self.zone.resolve(&self.directory, &query.name, query.kind, turn) {
            Outcome::Found(sections) => (Code::NoError, sections),
            Outcome::NoData => (Code::NoError, denied()),
            Outcome::NoSuchName => (Code::NoSuchName, denied()),
            Outcome::Alias(target) if matches!(query.kind, kind::CNAME) => (Code::NoError, alias(&[target])),
            Outcome::Alias(target) => return Handled::Later(Box::new(Pending { query, alias: Some(target) })),
            Outcome::Elsewhere => {
                let cached = self.cache.find(&cache_key(&query), Instant::now());
                metrics::looked_up(cached.as_deref());
                if let Some(response) = cached {
                    write_upstream_response(out, &response, request, &query, limit);
                    return Handled::Answered;
                }
                return Handled::Later(Box::new(Pending { query, alias: None }));
            }
        };
        message::write(out, request, &query, code, true, &sections, limit);
        Handled::Answered
    }

    /// Resolves a request that needs upstream resolvers. Does not consult the zone again: it may have changed since, and
    /// what is sent upstream must not depend on that.
    pub async fn resolve_upstream(
        &self,
        request: &[u8],
        Pending { query, alias }: &Pending,
        limit: Option<usize>,
    ) -> Vec<u8> {
        let limit = limit.unwrap_or_else(|| query.max_response_size());
        let mut out = Vec::new();
        if let Some(target) = alias {
            let (code, sections) = self.resolve_alias(target.clone(), query).await;
            message::write(&mut out, request, query, code, true, &sections, limit);
            return out;
        }
        let question = message::forwarded_question(&query.name, query);
        match self.upstream(&query.name, &question, &cache_key(query)).await {
            Some(response) => write_upstream_response(&mut out, &response, request, query, limit),
            None => message::write(&mut out, request, query, Code::ServerFailure, false, &Sections::default(), limit),
        }
        out
    }

    /// Resolves an alias together with its target, for clients that do not resolve CNAMEs themselves.
    async fn resolve_alias(&self, target: Name, query: &Query) -> (Code, Sections) {
        let mut chain = vec![target];
        while let Some(last) = chain.last().filter(|_| chain.len() < MAX_ALIAS_CHAIN) {
            match self.zone.resolve(&self.directory, last, query.kind, 0) {
                Outcome::Alias(next) => chain.push(next),
                Outcome::Found(found) => {
                    let owner = last.clone();
                    let mut sections = alias(&chain);
                    let found = found.answers.into_iter().map(|record| Record { owner: Some(owner.clone()), ..record });
                    sections.answers.extend(found);
                    return (Code::NoError, sections);
                }
                Outcome::NoData => return (Code::NoError, alias(&chain)),
                Outcome::NoSuchName => return (Code::NoSuchName, alias(&chain)),
                Outcome::Elsewhere => {
                    let question = message::forwarded_question(last, query);
                    let key = CacheKey { name: last.clone(), ..cache_key(query) };
                    let response = match self.cache.find(&key, Instant::now()) {
                        Some(response) => Some(response),
                        None => self.upstream(last, &question, &key).await,
                    };
                    let mut sections = alias(&chain);
                    return match response.as_deref() {
                        Some(response) => {
                            sections.answers.extend(records(response).unwrap_or_default());
                            let is_denied = response.get(3).is_some_and(|flags| flags & 0x0f == 3);
                            (if is_denied { Code::NoSuchName } else { Code::NoError }, sections)
                        }
                        None => (Code::ServerFailure, sections),
                    };
                }
            }
        }
        (Code::ServerFailure, Sections::default())
    }

    async fn upstream(&self, name: &Name, request: &[u8], key: &CacheKey) -> Option<Vec<u8>> {
        let stub = self.stub_domains.iter().find(|(domain, _)| name.is_under(domain));
        let servers = stub.map_or(&self.forwarders, |(_, servers)| servers);
        let ask = async {
            let response = forward::query(servers, request).await?;
            self.cache.keep(key.clone(), &response, Instant::now());
            Some(response)
        };
        self.in_flight.share(key, ask).await
    }
}

fn cache_key(query: &Query) -> CacheKey {
    CacheKey {
        name: query.name.clone(),
        kind: query.kind,
        class: query.class,
        wants_signatures: query.extension.is_some_and(|extension| extension.wants_signatures),
        checking_disabled: query.checking_disabled,
    }
}

/// Writes an upstream response with the id and spelling of this request; truncated if it is too long.
fn write_upstream_response(out: &mut Vec<u8>, response: &[u8], request: &[u8], query: &Query, limit: usize) {
    out.clear();
    if response.len() > limit {
        message::write(out, request, query, Code::NoError, false, &Sections::default(), limit);
        out[2] |= 2;
        return;
    }
    out.extend_from_slice(response);
    out[..2].copy_from_slice(&query.id.to_be_bytes());
    out[2] = out[2] & !1 | u8::from(query.recursion_desired);
    let question = message::HEADER..query.question_end;
    if let (Some(own), Some(original)) = (out.get_mut(question.clone()), request.get(question)) {
        own.copy_from_slice(original);
    }
}

/// The CNAME records from the queried name along the chain.
fn alias(chain: &[Name]) -> Sections {
    let mut answers = Vec::new();
    let mut owner = None;
    for target in chain {
        answers.push(Record {
            owner: owner.replace(target.clone()),
            time_to_live: 5,
            data: Data::Cname(target.clone()),
        });
    }
    Sections { answers, ..Sections::default() }
}

/// The records of a response, without compression pointers.
fn records(response: &[u8]) -> Option<Vec<Record>> {
    let mut at = message::HEADER;
    for _ in 0..read_number(response, 4)? {
        at = read_name(response, at)?.1 + 4;
    }
    let mut found = Vec::new();
    for _ in 0..read_number(response, 6)? {
        let (owner, _) = read_name(response, at)?;
        let place = read_record(response, at)?;
        let life = response.get(place.time_to_live_at..place.time_to_live_at + 4)?;
        let time_to_live = u32::from_be_bytes(life.try_into().ok()?);
        let data = match place.kind {
            kind::CNAME => Data::Cname(read_name(response, place.data.start)?.0),
            other => Data::Raw { kind: other, bytes: response.get(place.data.clone())?.to_vec() },
        };
        // Other types may contain pointers; clients of an alias need addresses only.
        if matches!(place.kind, kind::CNAME | kind::A | kind::AAAA | kind::TXT) {
            found.push(Record { owner: Some(owner), time_to_live, data });
        }
        at = place.data.end;
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A query for a name in the cluster's domain or elsewhere, with the second byte of its flags.
    fn question(labels: &[&str], kind: u16, flags: u8) -> Vec<u8> {
        let mut message = vec![0x12, 0x34, 1, flags, 0, 1, 0, 0, 0, 0, 0, 0];
        for label in labels {
            message.push(u8::try_from(label.len()).unwrap());
            message.extend_from_slice(label.as_bytes());
        }
        message.push(0);
        message.extend_from_slice(&kind.to_be_bytes());
        message.extend_from_slice(&[0, 1]);
        message
    }

    fn resolver() -> Resolver {
        let listen = vec![SocketAddr::from(([10, 96, 0, 10], 53))];
        Resolver::new(Arc::default(), "cluster.local", listen, Vec::new(), &[]).unwrap()
    }

    /// CVE-2026-33489: neither the cluster's zone nor what is below it, nor another, is transferred.
    #[test]
    fn zone_transfers_are_refused() {
        const REFUSED: u8 = 5;
        for labels in [&["cluster", "local"][..], &["svc", "cluster", "local"], &["example", "com"], &[]] {
            for kind in [kind::AXFR, kind::IXFR] {
                for limit in [None, Some(65_535)] {
                    let mut response = Vec::new();
                    let handled = resolver().handle(&question(labels, kind, 0), limit, &mut response);
                    assert!(matches!(handled, Handled::Answered), "{labels:?}");
                    assert_eq!((response[3] & 15, &response[6..8]), (REFUSED, &[0, 0][..]), "{labels:?}");
                }
            }
        }
    }

    /// CVE-2024-0874: a response that was not verified is sent only to clients that requested it so.
    #[test]
    fn questions_without_checks_are_questions_of_their_own() {
        let key = |flags: u8| cache_key(&Query::read(&question(&["example", "com"], kind::A, flags)).ok().unwrap());
        const CHECKING_DISABLED: u8 = 0x10;
        assert_ne!(key(0), key(CHECKING_DISABLED));
        assert_eq!(key(0), key(0));
    }
}
