//! Content negotiation: the representation that a client accepts, and the encoding of its body.

use http::HeaderMap;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use knarr_api::status::Status;

use super::query::Query;

pub const JSON: &str = "application/json";
pub const YAML: &str = "application/yaml";
pub const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The encoding of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Json,
    Yaml,
    Protobuf,
}

/// What an object is converted to before it is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    Whole,
    Table,
    Partial,
    PartialList,
}

/// The representation of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    pub encoding: Encoding,
    pub shape: Shape,
    /// The version of `meta.k8s.io` for tables and partial objects.
    pub meta_version: &'static str,
    pub pretty: bool,
    /// Whether watches omit managed fields. Only Knarr's components request it; other servers ignore the parameter.
    pub omits_managed_fields: bool,
    /// Whether watches of nodes omit changes of nothing but heartbeats; requested likewise.
    pub omits_heartbeats: bool,
}

/// What is left out of a served object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trim {
    /// Leaves out everything but the metadata; the version is that of `meta.k8s.io`.
    pub metadata_only: Option<&'static str>,
    pub without_managed_fields: bool,
}

impl Format {
    pub const JSON: Format = Format {
        encoding: Encoding::Json,
        shape: Shape::Whole,
        meta_version: "v1",
        pretty: false,
        omits_managed_fields: false,
        omits_heartbeats: false,
    };

    /// Whether stored bytes can be sent unchanged.
    pub fn is_plain(&self) -> bool {
        self.encoding == Encoding::Json && self.shape == Shape::Whole && !self.pretty
    }

    /// What to leave out of the stored bytes, if they can be sent trimmed but otherwise unchanged.
    pub fn trim(&self) -> Option<Trim> {
        let metadata_only = match self.shape {
            Shape::Partial | Shape::PartialList => Some(self.meta_version),
            Shape::Whole if self.omits_managed_fields => None,
            Shape::Whole | Shape::Table => return None,
        };
        let is_compact = self.encoding == Encoding::Json && !self.pretty;
        is_compact.then_some(Trim { metadata_only, without_managed_fields: self.omits_managed_fields })
    }

    pub fn media_type(&self) -> &'static str {
        match self.encoding {
            Encoding::Json => JSON,
            Encoding::Yaml => YAML,
            Encoding::Protobuf => PROTOBUF,
        }
    }
}

/// The representations that a path can serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Custom resources have no protobuf form, and other messages.
    pub custom: bool,
    /// Lists can be watched, which the refusal mentions.
    pub list: bool,
    /// Whether tables and partial objects can be requested.
    pub shapes: bool,
}

/// Chooses the first representation that the client accepts, in its order of preference.
pub fn negotiate(headers: &HeaderMap, query: &Query, offer: Offer) -> Result<Format, Status> {
    let pretty = is_pretty(headers, query);
    let mut header = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).peekable();
    if header.peek().is_none() {
        return Ok(Format { pretty, ..Format::JSON });
    }
    let mut clauses: Vec<Clause<'_>> = header.flat_map(|value| value.split(',')).filter_map(Clause::parse).collect();
    if clauses.is_empty() {
        return Ok(Format { pretty, ..Format::JSON });
    }
    clauses.sort_by(|a, b| b.quality.total_cmp(&a.quality).then(a.is_wild().cmp(&b.is_wild())));
    let mut known_type = false;
    for clause in &clauses {
        for encoding in clause.encodings(offer) {
            known_type = true;
            if let Some(format) = clause.format(encoding, offer) {
                return Ok(Format { pretty: format.pretty || pretty, ..format });
            }
        }
    }
    Err(not_acceptable(offer, known_type))
}

/// Refuses a client that does not accept the only media type of a path.
pub fn only(headers: &HeaderMap, media_type: &str) -> Result<(), Status> {
    let mut accepted = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|clause| clause.split(';').next().unwrap_or_default().trim())
        .filter(|clause| !clause.is_empty())
        .peekable();
    if accepted.peek().is_none() || accepted.any(|clause| clause == "*/*" || clause == media_type) {
        return Ok(());
    }
    let text = format!("406: Not Acceptable\n\nAvailable representations: {media_type}");
    Err(Status::new(406, "NotAcceptable", text).with_empty_details())
}

/// The refusal that names the three media types of objects.
pub fn none_of_three() -> Status {
    Status::new(
        406,
        "NotAcceptable",
        format!("only the following media types are accepted: {JSON}, {YAML}, {PROTOBUF}"),
    )
}

/// Programs that people use directly get indented responses unless they request otherwise.
fn is_pretty(headers: &HeaderMap, query: &Query) -> bool {
    if let Some(text) = query.get("pretty").filter(|text| !text.is_empty()) {
        return matches!(text, "1" | "t" | "T" | "TRUE" | "true" | "True");
    }
    headers.get(USER_AGENT).is_some_and(|agent| {
        ["curl", "Wget", "Mozilla/5.0"].iter().any(|human| agent.as_bytes().starts_with(human.as_bytes()))
    })
}

fn not_acceptable(offer: Offer, known_type: bool) -> Status {
    if offer.custom || known_type {
        return none_of_three();
    }
    let types = format!("{JSON}, {YAML}, {PROTOBUF}");
    let streams = if offer.list { format!(", {JSON};stream=watch, {PROTOBUF};stream=watch") } else { String::new() };
    let text = format!("406: Not Acceptable\n\nAvailable representations: {types}{streams}");
    Status::new(406, "NotAcceptable", text).with_empty_details()
}

struct Clause<'a> {
    kind: &'a str,
    subtype: &'a str,
    quality: f32,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Clause<'a> {
    fn parse(text: &'a str) -> Option<Clause<'a>> {
        let mut parts = text.split(';').map(str::trim);
        let (kind, subtype) = match parts.next()? {
            "" => return None,
            "*" => ("*", "*"),
            media => media.split_once('/').unwrap_or((media, "*")),
        };
        let mut clause = Clause { kind, subtype, quality: 1.0, parameters: Vec::new() };
        for parameter in parts {
            let Some((key, value)) = parameter.split_once('=') else { continue };
            match (key.trim(), value.trim()) {
                ("q", value) => clause.quality = value.parse().unwrap_or(1.0),
                pair => clause.parameters.push(pair),
            }
        }
        Some(clause)
    }

    fn is_wild(&self) -> bool {
        self.kind == "*" || self.subtype == "*"
    }

    fn encodings(&self, offer: Offer) -> impl Iterator<Item = Encoding> {
        let (kind, subtype) = (self.kind.to_owned(), self.subtype.to_owned());
        [Encoding::Json, Encoding::Yaml, Encoding::Protobuf].into_iter().filter(move |encoding| {
            let own = match encoding {
                Encoding::Json => "json",
                Encoding::Yaml => "yaml",
                Encoding::Protobuf => "vnd.kubernetes.protobuf",
            };
            if *encoding == Encoding::Protobuf && offer.custom && !offer.shapes {
                return false;
            }
            (kind == "*" || kind == "application") && (subtype == "*" || subtype == own)
        })
    }

    fn parameter(&self, name: &str) -> &'a str {
        self.parameters.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| value)
    }

    fn format(&self, encoding: Encoding, offer: Offer) -> Option<Format> {
        let meta_version = if self.parameter("v") == "v1beta1" { "v1beta1" } else { "v1" };
        let meta = self.parameter("g") == "meta.k8s.io" && matches!(self.parameter("v"), "v1" | "v1beta1");
        let shape = match self.parameter("as") {
            "" if self.parameter("g").is_empty() && self.parameter("v").is_empty() => Shape::Whole,
            "Table" if meta && offer.shapes && encoding != Encoding::Protobuf => Shape::Table,
            "PartialObjectMetadata" if meta && offer.shapes => Shape::Partial,
            "PartialObjectMetadataList" if meta && offer.shapes => Shape::PartialList,
            _ => return None,
        };
        if encoding == Encoding::Protobuf && offer.custom && shape == Shape::Whole {
            return None;
        }
        if !matches!(self.parameter("stream"), "" | "watch") {
            return None;
        }
        Some(Format {
            encoding,
            shape,
            meta_version,
            pretty: self.parameter("pretty") == "1",
            omits_managed_fields: self.parameter("managedFields") == "none",
            omits_heartbeats: self.parameter("heartbeats") == "none",
        })
    }
}

/// The encoding of a request's body.
pub fn body_encoding(headers: &HeaderMap, custom: bool) -> Result<Encoding, Status> {
    match media_type(headers).to_ascii_lowercase().as_str() {
        "" | JSON => Ok(Encoding::Json),
        YAML => Ok(Encoding::Yaml),
        PROTOBUF if !custom => Ok(Encoding::Protobuf),
        _ => Err(unknown_format(&format!("{JSON}, {YAML}, {PROTOBUF}"))),
    }
}

/// The refusal of a body whose type is none of those accepted.
pub fn unknown_format(accepted: &str) -> Status {
    Status::unsupported_media_type(format!(
        "the body of the request was in an unknown format - accepted media types include: {accepted}"
    ))
}

/// The content type without its parameters.
pub fn media_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFER: Offer = Offer { custom: false, list: true, shapes: true };

    fn negotiated(accept: &str) -> Result<Format, Status> {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        negotiate(&headers, &Query::default(), OFFER)
    }

    #[test]
    fn the_first_known_representation_is_chosen() {
        let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(negotiated(table).unwrap().shape, Shape::Table);
        assert_eq!(negotiated("application/xml, */*").unwrap().encoding, Encoding::Json);
        assert_eq!(negotiated("application/json;q=0.5,application/yaml").unwrap().encoding, Encoding::Yaml);
        assert_eq!(
            negotiated("application/vnd.kubernetes.protobuf,application/json").unwrap().encoding,
            Encoding::Protobuf
        );
        let unknown = "application/json;as=Chart;v=v1;g=meta.k8s.io,application/json";
        assert_eq!(negotiated(unknown).unwrap().shape, Shape::Whole);
    }

    #[test]
    fn unknown_representations_are_refused() {
        assert!(
            negotiated("application/xml")
                .unwrap_err()
                .message
                .ends_with("application/vnd.kubernetes.protobuf;stream=watch")
        );
        let status = negotiated("application/json;as=Chart;v=v1;g=meta.k8s.io").unwrap_err();
        assert!(status.message.starts_with("only the following media types"));
    }

    #[test]
    fn people_get_indented_responses() {
        let mut headers = HeaderMap::new();
        headers.insert(USER_AGENT, "curl/8".parse().unwrap());
        assert!(negotiate(&headers, &Query::default(), OFFER).unwrap().pretty);
        assert!(!negotiate(&headers, &Query::parse("pretty=false"), OFFER).unwrap().pretty);
    }
}
