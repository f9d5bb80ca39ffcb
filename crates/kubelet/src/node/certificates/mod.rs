//! Client and serving certificates that the node requests from the API and renews before they expire.

mod self_signed;

pub use self_signed::ensure_self_signed;

use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use knarr_client::node_identity::{NETWORK, STORAGE};
use kube::api::PostParams;
use kube::{Api, Client};
use rcgen::{CertificateParams, DnType, KeyPair, SanType};

use crate::settings::CertificateFiles;

/// Why a certificate could not be requested, read or installed.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot use {path}")]
    File { path: PathBuf, source: io::Error },
    #[error("cannot create a key or signing request")]
    Make(#[from] rcgen::Error),
    #[error("the API server rejected the signing request")]
    Api(#[source] Box<kube::Error>),
    #[error("the signing request {name} was {verdict}: {message}")]
    Refused { name: String, verdict: String, message: String },
    #[error("error reading {0}, certificate and key must be supplied as a pair")]
    Incomplete(PathBuf),
    #[error("cannot read the certificate in {0}")]
    Unreadable(PathBuf),
}

/// How long to wait for the approval of a signing request.
const APPROVAL_TIMEOUT: Duration = Duration::from_secs(15 * 60);

/// Between two looks at whether a request is approved, at most.
const MAX_APPROVAL_INTERVAL: Duration = Duration::from_secs(5);

/// How often a certificate's age is compared with the clock.
const POLL_INTERVAL: Duration = Duration::from_secs(60);
/// Between requests for a certificate of the authority that signs now.
const INITIAL_BACKOFF: Duration = Duration::from_secs(15);
const MAX_BACKOFF: Duration = Duration::from_secs(3600);

/// The purpose of a certificate.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// Authenticates this node to the API server.
    Client,
    /// Authenticates this node's network components to the API server.
    Network,
    /// Authenticates this node's CSI controller to the API server.
    Storage,
    /// Serves the node's endpoints under these names and addresses.
    Serving { names: Vec<String>, addresses: Vec<IpAddr> },
}

impl Purpose {
    fn signer(&self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Network | Self::Storage => "kubernetes.io/kube-apiserver-client",
            Self::Serving { .. } => "kubernetes.io/kubelet-serving",
        }
    }

    fn usage(&self) -> &'static str {
        match self {
            Self::Client | Self::Network | Self::Storage => "client auth",
            Self::Serving { .. } => "server auth",
        }
    }

    fn file_name(&self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Network => "network-client",
            Self::Storage => "storage-client",
            Self::Serving { .. } => "kubelet-server",
        }
    }

    /// The group and the name in the certificate's subject.
    fn subject(&self, node: &str) -> (&'static str, String) {
        match self {
            Self::Client | Self::Serving { .. } => ("system:nodes", format!("system:node:{node}")),
            Self::Network => (NETWORK.group, NETWORK.user(node)),
            Self::Storage => (STORAGE.group, STORAGE.user(node)),
        }
    }
}

/// The paths of a certificate and its key.
pub fn files(directory: &Path, purpose: &Purpose) -> CertificateFiles {
    let name = purpose.file_name();
    CertificateFiles { certificate: directory.join(format!("{name}.crt")), key: directory.join(format!("{name}.key")) }
}

/// The pair on disk if it is not due for renewal. Otherwise requests a new one and waits for its approval.
pub async fn ensure(
    client: &Client,
    node: &str,
    directory: &Path,
    purpose: &Purpose,
) -> Result<CertificateFiles, CertificateError> {
    let files = files(directory, purpose);
    if files.key.exists() && renew_at(&files.certificate).is_ok_and(|at| at > Timestamp::now()) {
        return Ok(files);
    }
    request(client, node, directory, purpose).await?;
    Ok(files)
}

/// When a certificate must be replaced: at once if the node's addresses changed, otherwise when it is due for renewal.
fn due(certificate: &Path, purpose: &Purpose) -> Result<Timestamp, CertificateError> {
    match covers(certificate, purpose)? {
        true => renew_at(certificate),
        false => Ok(Timestamp::UNIX_EPOCH),
    }
}

/// Whether a certificate has all requested names and addresses.
fn covers(certificate: &Path, purpose: &Purpose) -> Result<bool, CertificateError> {
    use x509_parser::extensions::GeneralName;
    let Purpose::Serving { names, addresses } = purpose else { return Ok(true) };
    let unreadable = || CertificateError::Unreadable(certificate.to_path_buf());
    let pem = read(certificate)?;
    let parsed = pem.parse_x509().map_err(|_| unreadable())?;
    let Some(alternative_names) = parsed.subject_alternative_name().map_err(|_| unreadable())? else {
        return Ok(false);
    };
    let alternative_names = &alternative_names.value.general_names;
    let has_name =
        |name: &String| alternative_names.iter().any(|own| matches!(own, GeneralName::DNSName(own) if own == name));
    let has_address = |address: &IpAddr| {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        alternative_names.iter().any(|own| matches!(own, GeneralName::IPAddress(own) if *own == octets))
    };
    Ok(names.iter().all(has_name) && addresses.iter().all(has_address))
}

fn read(certificate: &Path) -> Result<x509_parser::pem::Pem, CertificateError> {
    let unreadable = || CertificateError::Unreadable(certificate.to_path_buf());
    let content =
        std::fs::read(certificate).map_err(|source| CertificateError::File { path: certificate.into(), source })?;
    x509_parser::pem::Pem::iter_from_buffer(&content).next().ok_or_else(unreadable)?.map_err(|_| unreadable())
}

/// When a certificate expires.
pub fn good_until(certificate: &Path) -> Result<Timestamp, CertificateError> {
    let unreadable = || CertificateError::Unreadable(certificate.to_path_buf());
    let pem = read(certificate)?;
    let parsed = pem.parse_x509().map_err(|_| unreadable())?;
    Timestamp::from_second(parsed.validity().not_after.timestamp()).map_err(|_| unreadable())
}

/// When a certificate should be renewed: after four fifths of its lifetime.
pub fn renew_at(certificate: &Path) -> Result<Timestamp, CertificateError> {
    let unreadable = || CertificateError::Unreadable(certificate.to_path_buf());
    let pem = read(certificate)?;
    let parsed = pem.parse_x509().map_err(|_| unreadable())?;
    let validity = parsed.validity();
    let from = Timestamp::from_second(validity.not_before.timestamp()).map_err(|_| unreadable())?;
    let until = Timestamp::from_second(validity.not_after.timestamp()).map_err(|_| unreadable())?;
    let lifetime = until.duration_since(from);
    from.checked_add(lifetime * 4 / 5).map_err(|_| unreadable())
}

/// Which authority of a file has signed a certificate, from 0. While a cluster replaces its authority, the file has two, and the
/// first one signs.
pub fn signer_of(certificate: &Path, authorities: &Path) -> Result<Option<usize>, CertificateError> {
    let unreadable = |path: &Path| CertificateError::Unreadable(path.to_path_buf());
    let pem = read(certificate)?;
    let parsed = pem.parse_x509().map_err(|_| unreadable(certificate))?;
    let content =
        std::fs::read(authorities).map_err(|source| CertificateError::File { path: authorities.into(), source })?;
    for (number, authority) in x509_parser::pem::Pem::iter_from_buffer(&content).enumerate() {
        let authority = authority.map_err(|_| unreadable(authorities))?;
        let authority = authority.parse_x509().map_err(|_| unreadable(authorities))?;
        if parsed.verify_signature(Some(authority.public_key())).is_ok() {
            return Ok(Some(number));
        }
    }
    Ok(None)
}

/// Failed renewals of client certificates.
pub static CLIENT_ERRORS: knarr_metrics::Counter = knarr_metrics::Counter::new(
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "[ALPHA] Failed renewals of the node's client certificates.",
    &[],
);

/// Renews a certificate forever: before it expires, when the node's addresses change, and when it is of an authority in a file
/// that is not the first one there. Calls `renewed` with each new one and after each failed attempt.
pub async fn keep(
    client: Client,
    node: String,
    directory: PathBuf,
    purpose: Purpose,
    authorities: Option<PathBuf>,
    renewed: impl Fn(Result<&CertificateFiles, ()>) + Send,
) {
    let files = files(&directory, &purpose);
    let mut backoff = INITIAL_BACKOFF;
    loop {
        let is_old = || {
            let signer = authorities.as_ref().map(|file| signer_of(&files.certificate, file));
            matches!(signer, Some(Ok(Some(number))) if number > 0)
        };
        let due = match due(&files.certificate, &purpose) {
            Ok(_) if is_old() => Timestamp::now(),
            Ok(due) => due,
            Err(_) => Timestamp::now(),
        };
        let wait = knarr_client::time::until(Timestamp::now(), due);
        if !wait.is_zero() {
            // In short steps: a clock that is set does not end a sleep.
            tokio::time::sleep(wait.min(POLL_INTERVAL)).await;
            continue;
        }
        match request(&client, &node, &directory, &purpose).await {
            Ok(()) => {
                tracing::info!(certificate = %files.certificate.display(), "renewed a certificate");
                renewed(Ok(&files));
                // A server that still signs with the old authority may have signed.
                if is_old() {
                    tokio::time::sleep(backoff).await;
                    backoff = (backoff * 2).min(MAX_BACKOFF);
                } else {
                    backoff = INITIAL_BACKOFF;
                }
            }
            Err(error) => {
                tracing::warn!(%error, source = ?std::error::Error::source(&error).map(ToString::to_string),
                    "cannot renew a certificate yet");
                if matches!(purpose, Purpose::Client) {
                    CLIENT_ERRORS.add(&[], 1);
                }
                renewed(Err(()));
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
        }
    }
}

async fn request(client: &Client, node: &str, directory: &Path, purpose: &Purpose) -> Result<(), CertificateError> {
    let key = KeyPair::generate()?;
    let mut parameters = CertificateParams::new(Vec::<String>::new())?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    let (group, name) = purpose.subject(node);
    parameters.distinguished_name.push(DnType::OrganizationName, group);
    parameters.distinguished_name.push(DnType::CommonName, name);
    if let Purpose::Serving { names, addresses } = purpose {
        for name in names {
            parameters.subject_alt_names.push(SanType::DnsName(name.as_str().try_into()?));
        }
        parameters.subject_alt_names.extend(addresses.iter().map(|address| SanType::IpAddress(*address)));
    }
    let pem = parameters.serialize_request(&key)?.pem()?;
    let certificate = sign(client, pem, purpose).await?;
    let files = files(directory, purpose);
    std::fs::create_dir_all(directory).map_err(|source| CertificateError::File { path: directory.into(), source })?;
    write_temporary(&files.key, key.serialize_pem().as_bytes(), 0o600)?;
    write_temporary(&files.certificate, &certificate, 0o600)?;
    install(&files.key)?;
    install(&files.certificate)
}

/// Finishes a replacement that a previous process was killed in: if the new key is in place, installs its certificate.
/// Call this before a pair is used for the first time.
pub fn finish_replacement(directory: &Path, purpose: &Purpose) -> Result<(), CertificateError> {
    let files = files(directory, purpose);
    match temporary_path(&files.certificate).exists() && !temporary_path(&files.key).exists() {
        true => install(&files.certificate),
        false => Ok(()),
    }
}

async fn sign(client: &Client, pem: String, purpose: &Purpose) -> Result<Vec<u8>, CertificateError> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let api = |error: kube::Error| CertificateError::Api(Box::new(error));
    let request = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("csr-".into()), ..Default::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: purpose.signer().to_string(),
            usages: Some(vec!["digital signature".into(), purpose.usage().into()]),
            ..Default::default()
        },
        status: None,
    };
    let created = requests.create(&PostParams::default(), &request).await.map_err(api)?;
    let name = created.metadata.name.unwrap_or_default();
    let deadline = tokio::time::Instant::now() + APPROVAL_TIMEOUT;
    let mut backoff = Duration::from_millis(50);
    loop {
        let current = requests.get(&name).await.map_err(api)?;
        let status = current.status.unwrap_or_default();
        if let Some(refusal) =
            status.conditions.iter().flatten().find(|condition| matches!(condition.type_.as_str(), "Denied" | "Failed"))
        {
            return Err(CertificateError::Refused {
                name,
                verdict: refusal.type_.to_lowercase(),
                message: refusal.message.clone().unwrap_or_default(),
            });
        }
        if let Some(certificate) = status.certificate {
            return Ok(certificate.0);
        }
        // The API server deletes old requests; then a new one must be created.
        if tokio::time::Instant::now() > deadline {
            return Err(CertificateError::Refused {
                name,
                verdict: "not handled".into(),
                message: "it was not approved in time".into(),
            });
        }
        tokio::time::sleep(backoff).await;
        if backoff < MAX_APPROVAL_INTERVAL {
            backoff = (backoff * 2).min(MAX_APPROVAL_INTERVAL);
            if backoff == MAX_APPROVAL_INTERVAL {
                // The first certificate of a node whose name is in use waits for an administrator.
                tracing::warn!(
                    request = name,
                    "a signing request is not approved yet; if the node exists, delete it or approve the request"
                );
            }
        }
    }
}

fn temporary_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Writes to a temporary file: readers must not see half a file, nor a certificate without its key.
fn write_temporary(path: &Path, content: &[u8], mode: u32) -> Result<(), CertificateError> {
    use std::io::Write;
    let failed = |source| CertificateError::File { path: path.to_path_buf(), source };
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(mode)
        .open(temporary_path(path))
        .map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    file.sync_all().map_err(failed)
}

fn install(path: &Path) -> Result<(), CertificateError> {
    knarr_files::rename_durably(&temporary_path(path), path)
        .map_err(|source| CertificateError::File { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests;
