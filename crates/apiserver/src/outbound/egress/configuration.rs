//! EgressSelectorConfiguration: which proxy leads to which network. The messages are those of Kubernetes.

use std::path::{Path, PathBuf};

use knarr_api::field::{self, Errors};
use knarr_api::value::Read;
use serde_json::{Value, json};

use super::Network;
use crate::configuration_file::{FileError, Kind, Shape};

const KIND: Kind = Kind {
    group: "apiserver.k8s.io",
    versions: &["v1beta1", "v1alpha1"],
    kind: "EgressSelectorConfiguration",
    fields: &[(
        "egressSelections",
        Shape::List(&Shape::Object(&[
            ("name", Shape::Text),
            (
                "connection",
                Shape::Object(&[
                    ("proxyProtocol", Shape::Text),
                    (
                        "transport",
                        Shape::Object(&[
                            (
                                "tcp",
                                Shape::Object(&[
                                    ("url", Shape::Text),
                                    (
                                        "tlsConfig",
                                        Shape::Object(&[
                                            ("caBundle", Shape::Text),
                                            ("clientKey", Shape::Text),
                                            ("clientCert", Shape::Text),
                                            ("tlsServerName", Shape::Text),
                                        ]),
                                    ),
                                ]),
                            ),
                            ("uds", Shape::Object(&[("udsName", Shape::Text)])),
                        ]),
                    ),
                ]),
            ),
        ])),
    )],
};

const PROTOCOLS: [&str; 3] = ["Direct", "GRPC", "HTTPConnect"];
const NAMES: [&str; 3] = ["cluster", "controlplane", "etcd"];

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EgressError {
    #[error("failed to read egress selector config: unable to read egress selector configuration from {0:?} [{1}]")]
    Unreadable(PathBuf, String),
    #[error("failed to read egress selector config: {0}")]
    File(#[from] FileError),
    #[error("failed to validate egress selector configuration: {0}")]
    Invalid(String),
    #[error("failed to create dialer for egressSelection {0:?}: {1}")]
    Unusable(String, String),
}

/// A valid selection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    pub network: Network,
    pub connection: Connection,
}

/// How a network is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Connection {
    Direct,
    /// An HTTP proxy at a TCP address, with TLS if there are files for it.
    Tcp {
        address: String,
        tls: Option<TlsFiles>,
    },
    /// An HTTP proxy at a Unix socket.
    Socket(PathBuf),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    pub authorities: Option<PathBuf>,
    pub certificate: PathBuf,
    pub key: PathBuf,
    pub server_name: Option<String>,
}

pub fn read(path: &Path) -> Result<Vec<Selection>, EgressError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| EgressError::Unreadable(path.to_owned(), format!("open {}: {error}", path.display())))?;
    parse(&text)
}

pub fn parse(text: &str) -> Result<Vec<Selection>, EgressError> {
    let document = KIND.decode(text)?;
    let selections = document.items(&["egressSelections"]);
    let errors = validate(selections);
    match errors.0.as_slice() {
        [] => {}
        [one] => return Err(EgressError::Invalid(one.to_string())),
        several => {
            let all: Vec<String> = several.iter().map(ToString::to_string).collect();
            return Err(EgressError::Invalid(format!("[{}]", all.join(", "))));
        }
    }
    selections.iter().map(selection).collect()
}

fn validate(selections: &[Value]) -> Errors {
    let mut errors = Errors::new();
    let path = field::Path::root("service");
    let path = path.child("connection");
    for selection in selections {
        let connection = selection.at(&["connection"]);
        let transport = connection.at(&["transport"]);
        match connection.text(&["proxyProtocol"]) {
            "Direct" if transport.is_null() => {}
            "Direct" => errors.invalid(&path.child("transport"), "direct", "config must be absent for direct connect"),
            "HTTPConnect" => validate_http(&mut errors, transport, &path),
            "GRPC" if transport.is_null() => {
                errors.required(&path.child("transport"), "transport must be set for GRPC");
            }
            "GRPC" if !transport.has(&["uds"]) => errors.required(&path.child("uds"), "UDS must be set with GRPC"),
            "GRPC" => validate_socket(&mut errors, transport.at(&["uds"]), &path),
            other => errors.not_supported(&path.child("protocol"), other, &PROTOCOLS),
        }
    }
    let mut seen: Vec<String> = Vec::new();
    for (index, selection) in selections.iter().enumerate() {
        let name = selection.text(&["name"]).to_lowercase();
        if seen.contains(&name) {
            errors.duplicate(&path.index(index), name);
            continue;
        }
        if !NAMES.contains(&name.as_str()) {
            errors.not_supported(&path, name.as_str(), &NAMES);
        }
        seen.push(name);
    }
    errors
}

fn validate_http(errors: &mut Errors, transport: &Value, path: &field::Path<'_>) {
    if transport.is_null() {
        return errors.required(&path.child("transport"), "transport must be set for HTTPConnect");
    }
    match (transport.at(&["tcp"]), transport.at(&["uds"])) {
        (Value::Null, Value::Null) => errors.required(&path.child("tcp"), "One of TCP or UDS must be set"),
        (tcp, Value::Null) => validate_tcp(errors, tcp, path),
        (Value::Null, socket) => validate_socket(errors, socket, path),
        (tcp, _) => {
            let shown = json!({ "url": tcp.text(&["url"]) });
            errors.invalid(&path.child("tcp"), shown, "TCP and UDS cannot both be set");
        }
    }
}

fn validate_socket(errors: &mut Errors, socket: &Value, path: &field::Path<'_>) {
    if socket.text(&["udsName"]).is_empty() {
        errors.invalid(&path.child("udsName"), "nil", "must be present for UDS connections");
    }
}

fn validate_tcp(errors: &mut Errors, tcp: &Value, path: &field::Path<'_>) {
    let (url, tls) = (tcp.text(&["url"]), tcp.at(&["tlsConfig"]));
    if url.starts_with("http://") {
        if !tls.is_null() {
            errors.invalid(&path.child("tlsConfig"), "nil", "config must not be present when using HTTP");
        }
    } else if !url.starts_with("https://") {
        errors.invalid(&path.child("url"), url, "supported connection protocols are http:// and https://");
    } else if tls.is_null() {
        errors.required(&path.child("tlsConfig"), "TLSConfig must be present when using HTTPS");
    } else {
        let path = path.child("tlsConfig");
        for (name, missing, absent) in [
            ("caBundle", "", "TLS config ca bundle does not exist"),
            ("clientCert", "Using TLS requires clientCert", "TLS client cert does not exist"),
            ("clientKey", "Using TLS requires requires clientKey", "TLS client key does not exist"),
        ] {
            match tls.text(&[name]) {
                "" if missing.is_empty() => {}
                "" => errors.invalid(&path.child(name), "nil", missing),
                file if !Path::new(file).exists() => errors.invalid(&path.child(name), file, absent),
                _ => {}
            }
        }
    }
}

/// Reads a selection that was found valid.
fn selection(selection: &Value) -> Result<Selection, EgressError> {
    let name = selection.text(&["name"]).to_lowercase();
    let unusable = |why: &str| EgressError::Unusable(name.clone(), why.to_owned());
    let network = match name.as_str() {
        "cluster" => Network::Cluster,
        "etcd" => Network::Etcd,
        _ => Network::ControlPlane,
    };
    let connection = selection.at(&["connection"]);
    let transport = connection.at(&["transport"]);
    let connection = match connection.text(&["proxyProtocol"]) {
        "Direct" => Connection::Direct,
        "GRPC" => return Err(unusable("the proxyProtocol GRPC is not supported here")),
        _ if transport.has(&["uds"]) => Connection::Socket(PathBuf::from(transport.text(&["uds", "udsName"]))),
        _ => {
            let url: http::Uri =
                transport.text(&["tcp", "url"]).parse().map_err(|_| unusable("invalid proxy server url"))?;
            let host = url.host().ok_or_else(|| unusable("invalid proxy server url"))?;
            let tls = transport.at(&["tcp", "tlsConfig"]);
            let port = url.port_u16().unwrap_or(if tls.is_null() { 80 } else { 443 });
            let file = |name: &str| Some(tls.text(&[name])).filter(|text| !text.is_empty());
            let tls = (!tls.is_null()).then(|| TlsFiles {
                authorities: file("caBundle").map(PathBuf::from),
                certificate: file("clientCert").map(PathBuf::from).unwrap_or_default(),
                key: file("clientKey").map(PathBuf::from).unwrap_or_default(),
                server_name: file("tlsServerName").map(str::to_owned),
            });
            Connection::Tcp { address: format!("{host}:{port}"), tls }
        }
    };
    Ok(Selection { network, connection })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(selections: &str) -> Result<Vec<Selection>, String> {
        let text = format!(
            "apiVersion: apiserver.k8s.io/v1beta1\nkind: EgressSelectorConfiguration\negressSelections: {selections}\n"
        );
        parse(&text).map_err(|error| error.to_string())
    }

    #[test]
    fn selections_are_read() {
        let found = of("[{name: cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: /s}}}}, \
                         {name: ControlPlane, connection: {proxyProtocol: Direct}}, \
                         {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://p:8131'}}}}]")
        .unwrap();
        let connections: Vec<_> = found.iter().map(|one| (one.network, one.connection.clone())).collect();
        assert_eq!(
            connections,
            [
                (Network::Cluster, Connection::Socket("/s".into())),
                (Network::ControlPlane, Connection::Direct),
                (Network::Etcd, Connection::Tcp { address: "p:8131".to_owned(), tls: None }),
            ]
        );
    }

    /// The messages are those of kube-apiserver v1.36.
    #[test]
    fn wrong_selections_are_refused() {
        let invalid = "failed to validate egress selector configuration: ";
        for (selections, message) in [
            (
                "[{name: cluster, connection: {proxyProtocol: SOCKS}}]",
                "service.connection.protocol: Unsupported value: \"SOCKS\": supported values: \"Direct\", \"GRPC\", \
                 \"HTTPConnect\"",
            ),
            (
                "[{name: pods, connection: {proxyProtocol: Direct}}]",
                "service.connection: Unsupported value: \"pods\": supported values: \"cluster\", \"controlplane\", \"etcd\"",
            ),
            (
                "[{name: etcd, connection: {proxyProtocol: Direct}}, {name: ETCD, connection: {proxyProtocol: Direct}}]",
                "service.connection[1]: Duplicate value: \"etcd\"",
            ),
            (
                "[{name: etcd, connection: {proxyProtocol: Direct, transport: {uds: {udsName: /s}}}}]",
                "service.connection.transport: Invalid value: \"direct\": config must be absent for direct connect",
            ),
            (
                "[{name: etcd, connection: {proxyProtocol: HTTPConnect}}]",
                "service.connection.transport: Required value: transport must be set for HTTPConnect",
            ),
            (
                "[{name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://p'}}}}]",
                "service.connection.tlsConfig: Required value: TLSConfig must be present when using HTTPS",
            ),
            (
                "[{name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'ftp://p'}}}}]",
                "service.connection.url: Invalid value: \"ftp://p\": supported connection protocols are http:// and https://",
            ),
            (
                "[{name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'https://p', tlsConfig: \
                 {clientCert: /none, clientKey: ''}}}}}]",
                "[service.connection.tlsConfig.clientCert: Invalid value: \"/none\": TLS client cert does not exist, \
                 service.connection.tlsConfig.clientKey: Invalid value: \"nil\": Using TLS requires requires clientKey]",
            ),
            (
                "[{name: etcd, connection: {proxyProtocol: GRPC, transport: {uds: {}}}}]",
                "service.connection.udsName: Invalid value: \"nil\": must be present for UDS connections",
            ),
        ] {
            assert_eq!(of(selections).unwrap_err(), format!("{invalid}{message}"), "{selections}");
        }
        assert_eq!(
            of("[{name: cluster, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: /s}}}}]").unwrap_err(),
            "failed to create dialer for egressSelection \"cluster\": the proxyProtocol GRPC is not supported here"
        );
        assert!(of("[{name: cluster, other: 1}]").unwrap_err().contains("unknown field"));
    }
}
