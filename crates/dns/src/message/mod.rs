//! The DNS wire format: parsing queries and writing responses.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::name::{MAX_NAME_LENGTH, Name};

pub mod kind {
    pub const A: u16 = 1;
    pub const NS: u16 = 2;
    pub const CNAME: u16 = 5;
    pub const SOA: u16 = 6;
    pub const PTR: u16 = 12;
    pub const TXT: u16 = 16;
    pub const AAAA: u16 = 28;
    pub const SRV: u16 = 33;
    pub const OPT: u16 = 41;
    pub const IXFR: u16 = 251;
    pub const AXFR: u16 = 252;
    pub const ANY: u16 = 255;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    NoError = 0,
    FormatError = 1,
    ServerFailure = 2,
    NoSuchName = 3,
    NotImplemented = 4,
    Refused = 5,
}

pub const HEADER: usize = 12;
const INTERNET: u16 = 1;
const MIN_UDP_SIZE: u16 = 512;
/// Maximum UDP message size that we accept and send; clients on the same node need no fragmentation.
pub const MAX_UDP_SIZE: u16 = 4096;

#[derive(Clone, Debug)]
pub struct Query {
    pub id: u16,
    pub recursion_desired: bool,
    pub checking_disabled: bool,
    pub name: Name,
    pub kind: u16,
    pub class: u16,
    /// End of the question in the request.
    pub question_end: usize,
    pub extension: Option<Extension>,
}

/// The client's OPT record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    pub size: u16,
    pub version: u8,
    pub wants_signatures: bool,
}

/// Why a request cannot be resolved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryError {
    /// Not a query: replying could make two servers send to each other forever.
    Silence,
    Error(Code),
}

impl Query {
    pub fn read(request: &[u8]) -> Result<Self, QueryError> {
        let Some(header) = request.first_chunk::<HEADER>() else { return Err(QueryError::Silence) };
        if header[2] & 0x80 != 0 {
            return Err(QueryError::Silence);
        }
        if header[2] & 0x78 != 0 {
            return Err(QueryError::Error(Code::NotImplemented));
        }
        let number = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        if number(4) != 1 {
            return Err(QueryError::Error(Code::FormatError));
        }
        let broken = QueryError::Error(Code::FormatError);
        let (name, at) = read_name(request, HEADER).ok_or(broken)?;
        let (kind, class) = (read_number(request, at).ok_or(broken)?, read_number(request, at + 2).ok_or(broken)?);
        let question_end = at + 4;
        let records = usize::from(number(6)) + usize::from(number(8)) + usize::from(number(10));
        Ok(Self {
            id: number(0),
            recursion_desired: header[2] & 1 != 0,
            checking_disabled: header[3] & 0x10 != 0,
            name,
            kind,
            class,
            question_end,
            extension: read_extension(request, question_end, records).ok_or(broken)?,
        })
    }

    pub fn is_internet(&self) -> bool {
        matches!(self.class, INTERNET | 255)
    }

    /// The maximum response size that the client accepts over UDP.
    pub fn max_response_size(&self) -> usize {
        let size = self.extension.map_or(MIN_UDP_SIZE, |extension| extension.size);
        usize::from(size.clamp(MIN_UDP_SIZE, MAX_UDP_SIZE))
    }
}

/// Pointers in one name. Writers of messages need one; each costs time in which the name does not grow.
const MAX_POINTERS: usize = 16;

/// The name at a position, with pointers resolved, and the position after it.
pub fn read_name(message: &[u8], start: usize) -> Option<(Name, usize)> {
    let mut wire = Vec::with_capacity(64);
    let (mut at, mut end) = (start, None);
    let mut pointers = 0;
    loop {
        let length = *message.get(at)?;
        match length {
            0 => {
                wire.push(0);
                return Some((Name::from_wire(wire), end.unwrap_or(at + 1)));
            }
            1..=63 => {
                let label = message.get(at + 1..at + 1 + usize::from(length))?;
                wire.push(length);
                wire.extend(label.iter().map(u8::to_ascii_lowercase));
                at += 1 + usize::from(length);
            }
            0xc0..=0xff => {
                let target = usize::from(u16::from_be_bytes([length & 0x3f, *message.get(at + 1)?]));
                end.get_or_insert(at + 2);
                // Pointers may only point backwards, so that resolving them terminates.
                pointers += 1;
                if target >= at || pointers > MAX_POINTERS {
                    return None;
                }
                at = target;
            }
            _ => return None,
        }
        if wire.len() >= MAX_NAME_LENGTH {
            return None;
        }
    }
}

pub fn read_number(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes([*message.get(at)?, *message.get(at + 1)?]))
}

/// A record's position in a message.
pub struct RecordPosition {
    pub kind: u16,
    pub class: u16,
    pub time_to_live_at: usize,
    pub data: std::ops::Range<usize>,
}

/// Skips the record at a position.
pub fn read_record(message: &[u8], start: usize) -> Option<RecordPosition> {
    let (_, at) = read_name(message, start)?;
    let length = usize::from(read_number(message, at + 8)?);
    let data = at + 10..at + 10 + length;
    message.get(data.clone())?;
    Some(RecordPosition {
        kind: read_number(message, at)?,
        class: read_number(message, at + 2)?,
        time_to_live_at: at + 4,
        data,
    })
}

#[allow(clippy::option_option)]
fn read_extension(request: &[u8], mut at: usize, records: usize) -> Option<Option<Extension>> {
    let mut found = None;
    for _ in 0..records {
        let record = read_record(request, at)?;
        if record.kind == kind::OPT && found.is_none() {
            found = Some(Extension {
                size: record.class,
                version: *request.get(record.time_to_live_at + 1)?,
                wants_signatures: request.get(record.time_to_live_at + 2)? & 0x80 != 0,
            });
        }
        at = record.data.end;
    }
    Some(found)
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// `None` for the queried name.
    pub owner: Option<Name>,
    pub time_to_live: u32,
    pub data: Data,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Data {
    A(Ipv4Addr),
    Aaaa(Ipv6Addr),
    Cname(Name),
    Ptr(Name),
    Ns(Name),
    Txt(String),
    Srv {
        priority: u16,
        weight: u16,
        port: u16,
        target: Name,
    },
    Soa {
        server: Name,
        mailbox: Name,
        serial: u32,
        minimum: u32,
    },
    /// Data from an upstream resolver, without pointers.
    Raw {
        kind: u16,
        bytes: Vec<u8>,
    },
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sections {
    pub answers: Vec<Record>,
    pub authority: Vec<Record>,
    pub additional: Vec<Record>,
}

/// Writes a response to `out`. Records that do not fit into `limit` are left out and the response is marked truncated.
pub fn write(
    out: &mut Vec<u8>,
    request: &[u8],
    query: &Query,
    code: Code,
    is_ours: bool,
    sections: &Sections,
    limit: usize,
) {
    out.clear();
    let recursion = u8::from(query.recursion_desired);
    let checking = u8::from(query.checking_disabled) << 4;
    out.extend_from_slice(&query.id.to_be_bytes());
    out.extend_from_slice(&[0x80 | u8::from(is_ours) << 2 | recursion, 0x80 | checking | code as u8]);
    out.extend_from_slice(&[0, 1, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(request.get(HEADER..query.question_end).unwrap_or_default());
    let room = limit - if query.extension.is_some() { 11 } else { 0 };
    let mut known: Vec<(Vec<u8>, u16)> = Vec::new();
    let mut counts = [0u16; 3];
    let mut is_cut = false;
    'all: for (section, records) in
        [&sections.answers, &sections.authority, &sections.additional].into_iter().enumerate()
    {
        for record in records {
            let before = out.len();
            write_record(out, record, &mut known);
            if out.len() > room {
                out.truncate(before);
                // A response without its additional records is still complete.
                is_cut = section < 2;
                break 'all;
            }
            counts[section] += 1;
        }
    }
    if let Some(extension) = query.extension {
        counts[2] += 1;
        let bad_version = u8::from(extension.version > 0);
        let signatures = if extension.wants_signatures { 0x80 } else { 0 };
        out.push(0);
        out.extend_from_slice(&kind::OPT.to_be_bytes());
        out.extend_from_slice(&MAX_UDP_SIZE.to_be_bytes());
        out.extend_from_slice(&[bad_version, 0, signatures, 0, 0, 0]);
    }
    for (section, count) in counts.into_iter().enumerate() {
        out[6 + section * 2..8 + section * 2].copy_from_slice(&count.to_be_bytes());
    }
    if is_cut {
        out[2] |= 2;
    }
}

/// A question for another server. Nothing of a client's request but the question itself and two flags goes there: the
/// response is shared with other clients, and options such as a client's network would choose it.
pub fn forwarded_question(name: &Name, query: &Query) -> Vec<u8> {
    let checking = u8::from(query.checking_disabled) << 4;
    let mut bytes = vec![0, 0, 1, checking, 0, 1, 0, 0, 0, 0, 0, u8::from(query.extension.is_some())];
    bytes.extend_from_slice(name.wire());
    bytes.extend_from_slice(&query.kind.to_be_bytes());
    bytes.extend_from_slice(&query.class.to_be_bytes());
    if let Some(extension) = query.extension {
        let signatures = if extension.wants_signatures { 0x80 } else { 0 };
        bytes.push(0);
        bytes.extend_from_slice(&kind::OPT.to_be_bytes());
        bytes.extend_from_slice(&MAX_UDP_SIZE.to_be_bytes());
        bytes.extend_from_slice(&[0, 0, signatures, 0, 0, 0]);
    }
    bytes
}

/// Writes an error without records, for requests that could not be parsed completely.
pub fn write_error(out: &mut Vec<u8>, request: &[u8], code: Code) {
    out.clear();
    let Some(header) = request.first_chunk::<HEADER>() else { return };
    out.extend_from_slice(&[header[0], header[1], 0x80 | header[2] & 0x79, code as u8, 0, 0, 0, 0, 0, 0, 0, 0]);
}

fn write_record(out: &mut Vec<u8>, record: &Record, known: &mut Vec<(Vec<u8>, u16)>) {
    match &record.owner {
        None => out.extend_from_slice(&[0xc0, 12]),
        Some(name) => write_name(out, name, known),
    }
    let kind = match &record.data {
        Data::A(_) => kind::A,
        Data::Aaaa(_) => kind::AAAA,
        Data::Cname(_) => kind::CNAME,
        Data::Ptr(_) => kind::PTR,
        Data::Ns(_) => kind::NS,
        Data::Txt(_) => kind::TXT,
        Data::Srv { .. } => kind::SRV,
        Data::Soa { .. } => kind::SOA,
        Data::Raw { kind, .. } => *kind,
    };
    out.extend_from_slice(&kind.to_be_bytes());
    out.extend_from_slice(&INTERNET.to_be_bytes());
    out.extend_from_slice(&record.time_to_live.to_be_bytes());
    let length_at = out.len();
    out.extend_from_slice(&[0, 0]);
    match &record.data {
        Data::A(address) => out.extend_from_slice(&address.octets()),
        Data::Aaaa(address) => out.extend_from_slice(&address.octets()),
        Data::Cname(name) | Data::Ptr(name) | Data::Ns(name) => write_name(out, name, known),
        Data::Txt(text) => {
            for part in text.as_bytes().chunks(255) {
                out.push(part.len() as u8);
                out.extend_from_slice(part);
            }
        }
        Data::Srv { priority, weight, port, target } => {
            for number in [priority, weight, port] {
                out.extend_from_slice(&number.to_be_bytes());
            }
            // The target itself is not compressed, but later owners may point to it.
            remember(known, target, out.len());
            out.extend_from_slice(target.wire());
        }
        Data::Soa { server, mailbox, serial, minimum } => {
            write_name(out, server, known);
            write_name(out, mailbox, known);
            for number in [*serial, 7200, 1800, 86_400, *minimum] {
                out.extend_from_slice(&number.to_be_bytes());
            }
        }
        Data::Raw { bytes, .. } => out.extend_from_slice(bytes),
    }
    let length = u16::try_from(out.len() - length_at - 2).unwrap_or(u16::MAX);
    out[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
}

fn write_name(out: &mut Vec<u8>, name: &Name, known: &mut Vec<(Vec<u8>, u16)>) {
    if let Some((_, at)) = known.iter().find(|(wire, _)| wire == name.wire()) {
        out.extend_from_slice(&(0xc000 | at).to_be_bytes());
        return;
    }
    remember(known, name, out.len());
    out.extend_from_slice(name.wire());
}

fn remember(known: &mut Vec<(Vec<u8>, u16)>, name: &Name, at: usize) {
    // Pointers have 14 bits, and a search through many names costs more than it saves.
    if at < 0x3fff && known.len() < 64 && name.wire().len() > 2 {
        known.push((name.wire().to_vec(), u16::try_from(at).unwrap_or_default()));
    }
}

#[cfg(test)]
pub mod tests;
