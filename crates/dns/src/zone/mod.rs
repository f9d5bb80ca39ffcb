//! Resolves names in the cluster domain from the directory. Pure except for the directory's lock.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::directory::{Directory, Endpoint, Kind, Owner, Port, Service};
use crate::message::{Data, Record, Sections, kind};
use crate::name::Name;

/// The implemented version of the DNS specification.
const SPECIFICATION: &str = "1.1.0";
/// TTL of responses; names change with every rollout.
const TIME_TO_LIVE: u32 = 5;
/// The version never changes while the server runs.
const VERSION_TIME_TO_LIVE: u32 = 28_800;

pub struct Zone {
    /// Such as `cluster.local`.
    apex: Name,
    server: Name,
    mailbox: Name,
    /// Addresses of this DNS server.
    own_addresses: Vec<IpAddr>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Outcome {
    Found(Sections),
    /// The name is an alias.
    Alias(Name),
    /// The name exists but has no such records.
    NoData,
    NoSuchName,
    /// Not in the cluster domain.
    Elsewhere,
}

impl Zone {
    pub fn new(domain: &str, own_addresses: Vec<IpAddr>) -> Option<Self> {
        let apex = Name::from_text(domain)?;
        let (server, mailbox) = (Name::under(&["ns", "dns"], &apex)?, Name::under(&["hostmaster"], &apex)?);
        Some(Self { apex, server, mailbox, own_addresses })
    }

    pub fn resolve(&self, directory: &Directory, name: &Name, kind: u16, turn: usize) -> Outcome {
        if name.is_under(&self.apex) {
            // No object has a name that is not text, and nobody else knows names of the cluster.
            let labels = name.before(&self.apex);
            return labels.map_or(Outcome::NoSuchName, |labels| self.within(directory, &labels, kind, turn));
        }
        match reversed(name) {
            Some(address) => match directory.owners(address).as_slice() {
                [] => Outcome::Elsewhere,
                owners => self.named(owners, kind),
            },
            None => Outcome::Elsewhere,
        }
    }

    /// The SOA record of a negative response, which carries its TTL.
    pub fn start_of_authority(&self, directory: &Directory) -> Record {
        let (server, mailbox) = (self.server.clone(), self.mailbox.clone());
        let data = Data::Soa { server, mailbox, serial: directory.serial(), minimum: TIME_TO_LIVE };
        Record { owner: Some(self.apex.clone()), time_to_live: TIME_TO_LIVE, data }
    }

    fn within(&self, directory: &Directory, labels: &[&str], kind: u16, turn: usize) -> Outcome {
        match labels {
            [] => match kind {
                kind::SOA => found(vec![Record { owner: None, ..self.start_of_authority(directory) }]),
                kind::NS => self.name_servers(),
                _ => Outcome::NoData,
            },
            ["dns-version"] => match kind {
                kind::TXT | kind::ANY => {
                    let version = record(Data::Txt(SPECIFICATION.to_owned()));
                    found(vec![Record { time_to_live: VERSION_TIME_TO_LIVE, ..version }])
                }
                _ => Outcome::NoData,
            },
            ["dns"] | ["svc"] | ["pod"] => Outcome::NoData,
            ["ns", "dns"] => addresses(self.own_addresses.iter().copied(), kind, turn),
            [namespace, "svc"] => existing(directory.has_namespace(namespace)),
            [namespace, "pod"] => existing(directory.has_namespace(namespace)),
            [address, namespace, "pod"] => match undashed(address).filter(|_| directory.has_namespace(namespace)) {
                Some(address) => addresses([address], kind, turn),
                None => Outcome::NoSuchName,
            },
            [rest @ .., service, namespace, "svc"] => match directory.find(namespace, service) {
                Some(found) => self.of_service(&found, [service, namespace], rest, kind, turn),
                None => Outcome::NoSuchName,
            },
            _ => Outcome::NoSuchName,
        }
    }

    fn of_service(&self, service: &Service, name: [&str; 2], rest: &[&str], kind: u16, turn: usize) -> Outcome {
        if let Kind::External(target) = &service.kind {
            return if rest.is_empty() { Outcome::Alias(target.clone()) } else { Outcome::NoSuchName };
        }
        match rest {
            [] if kind == kind::SRV => self.service_records(service, name, |_| true, turn),
            [] => match &service.kind {
                Kind::Addresses(own) => addresses(own.iter().copied(), kind, turn),
                // A headless Service without endpoints does not exist, as in other DNS servers of Kubernetes.
                _ if service.endpoints.is_empty() => Outcome::NoSuchName,
                _ => own_addresses(service, |_| true, kind, turn),
            },
            [protocol] if protocol.starts_with('_') => {
                let queried = &protocol[1..];
                existing(service.ports.iter().any(|port| port.protocol == queried && !port.name.is_empty()))
            }
            [port, protocol] if port.starts_with('_') && protocol.starts_with('_') => {
                let (port, protocol) = (&port[1..], &protocol[1..]);
                let is_match = |other: &Port| other.name == port && other.protocol == protocol;
                let mut having = Having::new(is_match);
                if !service.ports.iter().any(is_match) && !service.endpoints.iter().any(|endpoint| having.has(endpoint))
                {
                    return Outcome::NoSuchName;
                }
                match kind {
                    kind::SRV => self.service_records(service, name, is_match, turn),
                    _ => own_addresses(service, is_match, kind, turn),
                }
            }
            [label] => {
                let own: Vec<&Endpoint> =
                    service.endpoints.iter().filter(|endpoint| endpoint.label == *label).collect();
                if own.is_empty() {
                    return Outcome::NoSuchName;
                }
                if kind == kind::SRV {
                    let is_own = |endpoint: &Endpoint| endpoint.label == *label;
                    return self.endpoint_records(service, name, |_| true, is_own, turn);
                }
                addresses(own.iter().map(|endpoint| endpoint.address), kind, turn)
            }
            _ => Outcome::NoSuchName,
        }
    }

    fn name_servers(&self) -> Outcome {
        let glue = |address: &IpAddr| Record { owner: Some(self.server.clone()), ..record(address_data(*address)) };
        Outcome::Found(Sections {
            answers: vec![record(Data::Ns(self.server.clone()))],
            additional: self.own_addresses.iter().map(glue).collect(),
            ..Sections::default()
        })
    }

    /// SRV records of a Service: one per port, or for a headless Service one per port and endpoint.
    fn service_records(
        &self,
        service: &Service,
        [name, namespace]: [&str; 2],
        is_match: impl Fn(&Port) -> bool,
        turn: usize,
    ) -> Outcome {
        let Kind::Addresses(own) = &service.kind else {
            return self.endpoint_records(service, [name, namespace], is_match, |_| true, turn);
        };
        let mut records = ServiceRecords::default();
        if let Some(target) = Name::under(&[name, namespace, "svc"], &self.apex) {
            for port in service.ports.iter().filter(|port| is_match(port)).take(MAX_RECORDS) {
                records.add(port, &target, own);
            }
        }
        records.finish(turn)
    }

    fn endpoint_records(
        &self,
        service: &Service,
        [name, namespace]: [&str; 2],
        is_match: impl Fn(&Port) -> bool,
        is_own: impl Fn(&Endpoint) -> bool,
        turn: usize,
    ) -> Outcome {
        let mut records = ServiceRecords::default();
        let mut having = Having::new(is_match);
        for endpoint in service.endpoints.iter().filter(|endpoint| is_own(endpoint)) {
            if records.is_full() {
                break;
            }
            let ports = having.ports(endpoint);
            let Some(target) = Name::under(&[&endpoint.label, name, namespace, "svc"], &self.apex) else { continue };
            for port in ports.iter().take(MAX_RECORDS) {
                records.add(port, &target, &[endpoint.address]);
            }
        }
        records.finish(turn)
    }

    fn named(&self, owners: &[Owner], kind: u16) -> Outcome {
        if !matches!(kind, kind::PTR | kind::ANY) {
            return Outcome::NoData;
        }
        let name = |owner: &Owner| {
            let mut labels: Vec<&str> = owner.endpoint.iter().map(String::as_str).collect();
            labels.extend([owner.service.as_str(), owner.namespace.as_str(), "svc"]);
            Name::under(&labels, &self.apex)
        };
        found(owners.iter().filter_map(name).take(MAX_RECORDS).map(|name| record(Data::Ptr(name))).collect())
    }
}

/// Records of one section. No message holds more of them.
const MAX_RECORDS: usize = 4096;

/// The ports of endpoints that a query is about. They are looked for once in each list of ports that endpoints share: a Service may
/// have thousands of ports and thousands of endpoints, and everybody may ask.
struct Having<'a, F> {
    is_match: F,
    lists: HashMap<*const Port, Vec<&'a Port>>,
}

impl<'a, F: Fn(&Port) -> bool> Having<'a, F> {
    fn new(is_match: F) -> Self {
        Self { is_match, lists: HashMap::new() }
    }

    fn ports(&mut self, endpoint: &'a Endpoint) -> &[&'a Port] {
        let find = || endpoint.ports.iter().filter(|port| (self.is_match)(port)).collect();
        self.lists.entry(endpoint.ports.as_ptr()).or_insert_with(find)
    }

    fn has(&mut self, endpoint: &'a Endpoint) -> bool {
        !self.ports(endpoint).is_empty()
    }
}

/// SRV records and the addresses of their targets, without duplicates.
#[derive(Default)]
struct ServiceRecords {
    sections: Sections,
    known: HashSet<Record>,
}

impl ServiceRecords {
    fn add(&mut self, port: &Port, target: &Name, addresses: &[IpAddr]) {
        let data = Data::Srv { priority: 0, weight: 100, port: port.number, target: target.clone() };
        push_new(&mut self.sections.answers, &mut self.known, record(data));
        for address in addresses {
            let glue = Record { owner: Some(target.clone()), ..record(address_data(*address)) };
            push_new(&mut self.sections.additional, &mut self.known, glue);
        }
    }

    fn is_full(&self) -> bool {
        self.sections.answers.len() >= MAX_RECORDS
    }

    fn finish(self, turn: usize) -> Outcome {
        let mut sections = self.sections;
        if sections.answers.is_empty() {
            return Outcome::NoData;
        }
        rotate(&mut sections.answers, turn);
        // All targets have the same weight; the sum is constant.
        let weight = u16::try_from(100 / sections.answers.len().clamp(1, 100)).unwrap_or(1).max(1);
        for record in &mut sections.answers {
            if let Data::Srv { weight: own, .. } = &mut record.data {
                *own = weight;
            }
        }
        Outcome::Found(sections)
    }
}

fn push_new(records: &mut Vec<Record>, known: &mut HashSet<Record>, new: Record) {
    if records.len() < MAX_RECORDS && known.insert(new.clone()) {
        records.push(new);
    }
}

/// Addresses at which a Service's port is reachable.
fn own_addresses(service: &Service, is_match: impl Fn(&Port) -> bool, kind: u16, turn: usize) -> Outcome {
    match &service.kind {
        Kind::Addresses(own) => addresses(own.iter().copied(), kind, turn),
        _ => {
            // Endpoints are sorted by address, so equal ones are adjacent.
            let mut having = Having::new(is_match);
            let matching =
                service.endpoints.iter().filter(|endpoint| endpoint.ports.is_empty() || having.has(endpoint));
            let mut all: Vec<IpAddr> = matching.map(|endpoint| endpoint.address).collect();
            all.dedup();
            addresses(all, kind, turn)
        }
    }
}

fn existing(is_there: bool) -> Outcome {
    if is_there { Outcome::NoData } else { Outcome::NoSuchName }
}

fn found(answers: Vec<Record>) -> Outcome {
    Outcome::Found(Sections { answers, ..Sections::default() })
}

fn record(data: Data) -> Record {
    Record { owner: None, time_to_live: TIME_TO_LIVE, data }
}

fn address_data(address: IpAddr) -> Data {
    match address {
        IpAddr::V4(address) => Data::A(address),
        IpAddr::V6(address) => Data::Aaaa(address),
    }
}

/// Addresses of the queried type, rotated by `turn`.
fn addresses(all: impl IntoIterator<Item = IpAddr>, kind: u16, turn: usize) -> Outcome {
    let is_queried_type = |address: &IpAddr| match kind {
        kind::A => address.is_ipv4(),
        kind::AAAA => address.is_ipv6(),
        kind::ANY => true,
        _ => false,
    };
    let mut answers: Vec<Record> =
        all.into_iter().filter(is_queried_type).map(|one| record(address_data(one))).collect();
    if answers.is_empty() {
        return Outcome::NoData;
    }
    rotate(&mut answers, turn);
    found(answers)
}

fn rotate(records: &mut [Record], turn: usize) {
    if !records.is_empty() {
        records.rotate_left(turn % records.len());
    }
}

/// `10-0-0-1` and `fd00--1` as addresses.
fn undashed(label: &str) -> Option<IpAddr> {
    let version_4 = label.replace('-', ".").parse::<Ipv4Addr>().map(IpAddr::V4);
    version_4.or_else(|_| label.replace('-', ":").parse::<Ipv6Addr>().map(IpAddr::V6)).ok()
}

/// The address of a name under `in-addr.arpa` or `ip6.arpa`.
fn reversed(name: &Name) -> Option<IpAddr> {
    let labels: Vec<&str> = name.labels().map(std::str::from_utf8).collect::<Result<_, _>>().ok()?;
    match labels.as_slice() {
        [numbers @ .., "in-addr", "arpa"] => {
            let numbers: Vec<u8> = numbers.iter().rev().map(|text| text.parse()).collect::<Result<_, _>>().ok()?;
            Some(IpAddr::from(<[u8; 4]>::try_from(numbers).ok()?))
        }
        [digits @ .., "ip6", "arpa"] if digits.len() == 32 => {
            let mut number = 0u128;
            for digit in digits.iter().rev() {
                number = number << 4 | u128::from(u8::from_str_radix(digit, 16).ok().filter(|digit| *digit < 16)?);
            }
            Some(IpAddr::V6(Ipv6Addr::from_bits(number)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
