//! One request, one answer: from the zone at once, or from upstream after a while.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::cache::{Asked, Cache};
use crate::directory::Directory;
use crate::in_flight::InFlight;
use crate::message::{
    self, Code, Data, Query, Record, Sections, Unanswerable, kind, read_name, read_number, read_record,
};
use crate::name::Name;
use crate::zone::{Outcome, Zone};
use crate::{DnsError, StubDomain, forward};

/// Aliases that lead to aliases are followed this far.
const LONGEST_CHAIN: usize = 8;

pub struct Resolver {
    directory: Arc<Directory>,
    zone: Zone,
    forwarders: Vec<SocketAddr>,
    stub_domains: Vec<(Name, Vec<SocketAddr>)>,
    cache: Cache,
    in_flight: InFlight,
    turn: AtomicUsize,
}

/// What became of a request.
pub enum Handled {
    /// The answer is written.
    Answered,
    /// There is nothing to say.
    Nothing,
    /// Others must be asked, with `Resolver::ask_others`.
    Later(Box<Pending>),
}

/// A request that the zone cannot answer alone.
pub struct Pending {
    query: Query,
    /// Where its name leads, if it is one of the cluster's.
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
        // The nearest domain decides.
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

    /// Writes the answer if it is known here.
    pub fn answer(&self, request: &[u8], limit: Option<usize>, out: &mut Vec<u8>) -> Handled {
        let query = match Query::read(request) {
            Ok(query) => query,
            Err(Unanswerable::Silence) => return Handled::Nothing,
            Err(Unanswerable::Error(code)) => {
                message::write_error(out, request, code);
                return Handled::Answered;
            }
        };
        let limit = limit.unwrap_or_else(|| query.largest_answer());
        let nothing = Sections::default();
        if query.extension.is_some_and(|extension| extension.version > 0) {
            message::write(out, request, &query, Code::NoError, false, &nothing, limit);
            return Handled::Answered;
        }
        // Nobody needs a copy of a zone, neither of ours nor by way of us.
        if !query.is_internet() || matches!(query.kind, kind::IXFR | kind::AXFR) {
            message::write(out, request, &query, Code::Refused, false, &nothing, limit);
            return Handled::Answered;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let denied =
            || Sections { authority: vec![self.zone.start_of_authority(&self.directory)], ..Sections::default() };
        let (code, sections) = match self.zone.answer(&self.directory, &query.name, query.kind, turn) {
            Outcome::Found(sections) => (Code::NoError, sections),
            Outcome::NoData => (Code::NoError, denied()),
            Outcome::NoSuchName => (Code::NoSuchName, denied()),
            Outcome::Alias(target) if matches!(query.kind, kind::CNAME) => (Code::NoError, alias(&[target])),
            Outcome::Alias(target) => return Handled::Later(Box::new(Pending { query, alias: Some(target) })),
            Outcome::Elsewhere => {
                if let Some(answer) = self.cache.find(&asked(&query), Instant::now()) {
                    repeat(out, &answer, request, &query, limit);
                    return Handled::Answered;
                }
                return Handled::Later(Box::new(Pending { query, alias: None }));
            }
        };
        message::write(out, request, &query, code, true, &sections, limit);
        Handled::Answered
    }

    /// Answers a request that the zone could not answer alone. The zone is not asked again: it may know more by now, and what
    /// others are asked must not depend on that.
    pub async fn ask_others(
        &self,
        request: &[u8],
        Pending { query, alias }: &Pending,
        limit: Option<usize>,
    ) -> Vec<u8> {
        let limit = limit.unwrap_or_else(|| query.largest_answer());
        let mut out = Vec::new();
        if let Some(target) = alias {
            let (code, sections) = self.follow(target.clone(), query).await;
            message::write(&mut out, request, query, code, true, &sections, limit);
            return out;
        }
        match self.upstream(&query.name, request, &asked(query)).await {
            Some(answer) => repeat(&mut out, &answer, request, query, limit),
            None => message::write(&mut out, request, query, Code::ServerFailure, false, &Sections::default(), limit),
        }
        out
    }

    /// An alias with what it leads to, so that clients that cannot follow it themselves find an address.
    async fn follow(&self, target: Name, query: &Query) -> (Code, Sections) {
        let mut chain = vec![target];
        while let Some(last) = chain.last().filter(|_| chain.len() < LONGEST_CHAIN) {
            match self.zone.answer(&self.directory, last, query.kind, 0) {
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
                    let question = question(last, query.kind);
                    let asked = Asked { name: last.clone(), ..asked(query) };
                    let answer = match self.cache.find(&asked, Instant::now()) {
                        Some(answer) => Some(answer),
                        None => self.upstream(last, &question, &asked).await,
                    };
                    let mut sections = alias(&chain);
                    return match answer.as_deref() {
                        Some(answer) => {
                            sections.answers.extend(records(answer).unwrap_or_default());
                            let is_denied = answer.get(3).is_some_and(|flags| flags & 0x0f == 3);
                            (if is_denied { Code::NoSuchName } else { Code::NoError }, sections)
                        }
                        None => (Code::ServerFailure, sections),
                    };
                }
            }
        }
        (Code::ServerFailure, Sections::default())
    }

    async fn upstream(&self, name: &Name, request: &[u8], asked: &Asked) -> Option<Vec<u8>> {
        let stub = self.stub_domains.iter().find(|(domain, _)| name.is_under(domain));
        let servers = stub.map_or(&self.forwarders, |(_, servers)| servers);
        let ask = async {
            let answer = forward::ask(servers, request).await?;
            self.cache.keep(asked.clone(), &answer, Instant::now());
            Some(answer)
        };
        self.in_flight.share(asked, ask).await
    }
}

fn asked(query: &Query) -> Asked {
    Asked {
        name: query.name.clone(),
        kind: query.kind,
        class: query.class,
        wants_signatures: query.extension.is_some_and(|extension| extension.wants_signatures),
        checking_disabled: query.checking_disabled,
    }
}

/// An upstream answer under the id and with the spelling of this request; only its head when it is too long.
fn repeat(out: &mut Vec<u8>, answer: &[u8], request: &[u8], query: &Query, limit: usize) {
    out.clear();
    if answer.len() > limit {
        message::write(out, request, query, Code::NoError, false, &Sections::default(), limit);
        out[2] |= 2;
        return;
    }
    out.extend_from_slice(answer);
    out[..2].copy_from_slice(&query.id.to_be_bytes());
    let question = message::HEADER..query.question_end;
    if let (Some(own), Some(asked)) = (out.get_mut(question.clone()), request.get(question)) {
        own.copy_from_slice(asked);
    }
}

/// The chain of aliases from the name that was asked for.
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

fn question(name: &Name, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend_from_slice(name.wire());
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&[0, 1]);
    bytes
}

/// Records of an answer, free of pointers into it.
fn records(answer: &[u8]) -> Option<Vec<Record>> {
    let mut at = message::HEADER;
    for _ in 0..read_number(answer, 4)? {
        at = read_name(answer, at)?.1 + 4;
    }
    let mut found = Vec::new();
    for _ in 0..read_number(answer, 6)? {
        let (owner, _) = read_name(answer, at)?;
        let place = read_record(answer, at)?;
        let life = answer.get(place.time_to_live_at..place.time_to_live_at + 4)?;
        let time_to_live = u32::from_be_bytes(life.try_into().ok()?);
        let data = match place.kind {
            kind::CNAME => Data::Cname(read_name(answer, place.data.start)?.0),
            other => Data::Raw { kind: other, bytes: answer.get(place.data.clone())?.to_vec() },
        };
        // Other kinds may hold pointers; what a client of an alias wants are addresses.
        if matches!(place.kind, kind::CNAME | kind::A | kind::AAAA | kind::TXT) {
            found.push(Record { owner: Some(owner), time_to_live, data });
        }
        at = place.data.end;
    }
    Some(found)
}
