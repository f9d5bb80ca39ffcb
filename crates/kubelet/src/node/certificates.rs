//! Certificates the node asks the API for: one to be known by, one to serve with. Both are renewed before they run out.

use std::io;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::api::PostParams;
use kube::{Api, Client};
use rcgen::{CertificateParams, DnType, KeyPair, SanType};

use crate::settings::CertificateFiles;

#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{path} can't be used")]
    File { path: PathBuf, source: io::Error },
    #[error("a key or request can't be made")]
    Make(#[from] rcgen::Error),
    #[error("the signing request was refused by the API")]
    Api(#[source] Box<kube::Error>),
    #[error("the signing request {name} was {verdict}: {message}")]
    Refused { name: String, verdict: String, message: String },
    #[error("the certificate in {0} can't be read")]
    Unreadable(PathBuf),
}

/// What a certificate is for.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// To be known to the API as this node.
    Client,
    /// To be known to the API as this node's network components.
    Network,
    /// To serve the node's endpoints under these names and addresses.
    Serving { names: Vec<String>, addresses: Vec<IpAddr> },
}

impl Purpose {
    fn signer(&self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Network => "kubernetes.io/kube-apiserver-client",
            Self::Serving { .. } => "kubernetes.io/kubelet-serving",
        }
    }

    fn usage(&self) -> &'static str {
        match self {
            Self::Client | Self::Network => "client auth",
            Self::Serving { .. } => "server auth",
        }
    }

    fn file_name(&self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Network => "network-client",
            Self::Serving { .. } => "kubelet-server",
        }
    }

    /// The group and the name that the certificate is for.
    fn subject(&self, node: &str) -> (&'static str, String) {
        match self {
            Self::Client | Self::Serving { .. } => ("system:nodes", format!("system:node:{node}")),
            Self::Network => (knarr_client::node_network::GROUP, knarr_client::node_network::user(node)),
        }
    }
}

pub fn files(folder: &Path, purpose: &Purpose) -> CertificateFiles {
    let name = purpose.file_name();
    CertificateFiles { certificate: folder.join(format!("{name}.crt")), key: folder.join(format!("{name}.key")) }
}

/// The pair on disk if it is good for a while, else a new one, asked of the API and waited for until someone approves.
pub async fn ensure(
    client: &Client,
    node: &str,
    folder: &Path,
    purpose: &Purpose,
) -> Result<CertificateFiles, CertificateError> {
    let files = files(folder, purpose);
    if files.key.exists() && renew_at(&files.certificate).is_ok_and(|at| at > Timestamp::now()) {
        return Ok(files);
    }
    request(client, node, folder, purpose).await?;
    Ok(files)
}

/// When a certificate should be replaced: at once if the node has moved since, else when it is to be renewed.
fn due(certificate: &Path, purpose: &Purpose) -> Result<Timestamp, CertificateError> {
    match covers(certificate, purpose)? {
        true => renew_at(certificate),
        false => Ok(Timestamp::UNIX_EPOCH),
    }
}

/// Whether a certificate is good for all names and addresses that are wanted.
fn covers(certificate: &Path, purpose: &Purpose) -> Result<bool, CertificateError> {
    use x509_parser::extensions::GeneralName;
    let Purpose::Serving { names, addresses } = purpose else { return Ok(true) };
    let unreadable = || CertificateError::Unreadable(certificate.to_path_buf());
    let pem = read(certificate)?;
    let parsed = pem.parse_x509().map_err(|_| unreadable())?;
    let Some(shown) = parsed.subject_alternative_name().map_err(|_| unreadable())? else { return Ok(false) };
    let shown = &shown.value.general_names;
    let has_name = |name: &String| shown.iter().any(|own| matches!(own, GeneralName::DNSName(own) if own == name));
    let has_address = |address: &IpAddr| {
        let octets = match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        };
        shown.iter().any(|own| matches!(own, GeneralName::IPAddress(own) if *own == octets))
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

/// When a certificate should be renewed: at four fifths of its life.
pub fn renew_at(certificate: &Path) -> Result<Timestamp, CertificateError> {
    let unreadable = || CertificateError::Unreadable(certificate.to_path_buf());
    let pem = read(certificate)?;
    let parsed = pem.parse_x509().map_err(|_| unreadable())?;
    let validity = parsed.validity();
    let from = Timestamp::from_second(validity.not_before.timestamp()).map_err(|_| unreadable())?;
    let until = Timestamp::from_second(validity.not_after.timestamp()).map_err(|_| unreadable())?;
    let life = until.duration_since(from);
    from.checked_add(life * 4 / 5).map_err(|_| unreadable())
}

/// Renews a certificate for as long as the node lives, and tells `renewed` of each new one and of each try that failed.
pub async fn keep(
    client: Client,
    node: String,
    folder: PathBuf,
    purpose: Purpose,
    renewed: impl Fn(Result<&CertificateFiles, ()>) + Send,
) {
    let files = files(&folder, &purpose);
    loop {
        let due = due(&files.certificate, &purpose).unwrap_or_else(|_| Timestamp::now());
        tokio::time::sleep(knarr_client::time::until(Timestamp::now(), due)).await;
        match request(&client, &node, &folder, &purpose).await {
            Ok(()) => {
                tracing::info!(certificate = %files.certificate.display(), "a certificate was renewed");
                renewed(Ok(&files));
            }
            Err(error) => {
                tracing::warn!(%error, source = ?std::error::Error::source(&error).map(ToString::to_string),
                    "a certificate can't be renewed yet");
                renewed(Err(()));
                tokio::time::sleep(Duration::from_secs(30)).await;
            }
        }
    }
}

async fn request(client: &Client, node: &str, folder: &Path, purpose: &Purpose) -> Result<(), CertificateError> {
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
    let files = files(folder, purpose);
    std::fs::create_dir_all(folder).map_err(|source| CertificateError::File { path: folder.into(), source })?;
    write_beside(&files.key, key.serialize_pem().as_bytes())?;
    write_beside(&files.certificate, &certificate)?;
    put_in_place(&files.key)?;
    put_in_place(&files.certificate)
}

/// Ends what an earlier life was killed in: a new certificate whose key is in place already follows it. To be called
/// before a pair is used for the first time.
pub fn settle(folder: &Path, purpose: &Purpose) -> Result<(), CertificateError> {
    let files = files(folder, purpose);
    match beside(&files.certificate).exists() && !beside(&files.key).exists() {
        true => put_in_place(&files.certificate),
        false => Ok(()),
    }
}

async fn sign(client: &Client, pem: String, purpose: &Purpose) -> Result<Vec<u8>, CertificateError> {
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let api = |error: kube::Error| CertificateError::Api(Box::new(error));
    let wanted = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some("csr-".into()), ..Default::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(pem.into_bytes()),
            signer_name: purpose.signer().to_string(),
            usages: Some(vec!["digital signature".into(), purpose.usage().into()]),
            ..Default::default()
        },
        status: None,
    };
    let created = requests.create(&PostParams::default(), &wanted).await.map_err(api)?;
    let name = created.metadata.name.unwrap_or_default();
    let begun = Timestamp::now();
    let mut pause = Duration::from_millis(50);
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
        // Requests are forgotten by the API after a while; then a new one must be made.
        if Timestamp::now().duration_since(begun) > SignedDuration::from_mins(15) {
            return Err(CertificateError::Refused {
                name,
                verdict: "left unanswered".into(),
                message: "nobody approved it in time".into(),
            });
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(5));
    }
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// No reader may see half a file, nor a certificate without its key.
fn write_beside(path: &Path, content: &[u8]) -> Result<(), CertificateError> {
    use std::io::Write;
    let failed = |source| CertificateError::File { path: path.to_path_buf(), source };
    let mut file = std::fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(beside(path))
        .map_err(failed)?;
    file.write_all(content).map_err(failed)?;
    file.sync_all().map_err(failed)
}

fn put_in_place(path: &Path) -> Result<(), CertificateError> {
    std::fs::rename(beside(path), path).map_err(|source| CertificateError::File { path: path.to_path_buf(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renewal_comes_before_the_end() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut parameters = CertificateParams::new(vec!["a".to_string()]).expect("parameters");
        parameters.not_before = rcgen::date_time_ymd(2026, 1, 1);
        parameters.not_after = rcgen::date_time_ymd(2026, 1, 11);
        let key = KeyPair::generate().expect("a key");
        let path = folder.path().join("c.crt");
        std::fs::write(&path, parameters.self_signed(&key).expect("signed").pem()).expect("written");
        let expected: Timestamp = "2026-01-09T00:00:00Z".parse().expect("a moment");
        assert_eq!(renew_at(&path).expect("a moment"), expected);
        for (name, address, at) in [
            ("a", None, expected),
            ("b", None, Timestamp::UNIX_EPOCH),
            ("a", Some([10, 0, 0, 1]), Timestamp::UNIX_EPOCH),
        ] {
            let addresses = address.into_iter().map(IpAddr::from).collect();
            let purpose = Purpose::Serving { names: vec![name.to_string()], addresses };
            assert_eq!(due(&path, &purpose).expect("a moment"), at, "{name} {address:?}");
        }
    }

    #[test]
    fn a_pair_that_was_half_replaced_is_whole_again() {
        for (left_beside, expected) in [
            (vec!["key"], ("old", "old")),
            (vec!["key", "crt"], ("old", "old")),
            (vec!["crt"], ("new", "new")),
            (vec![], ("old", "old")),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let files = files(folder.path(), &Purpose::Client);
            let is_moved = left_beside == ["crt"];
            std::fs::write(&files.key, if is_moved { "new" } else { "old" }).expect("written");
            std::fs::write(&files.certificate, "old").expect("written");
            for extension in &left_beside {
                std::fs::write(folder.path().join(format!("kubelet-client.{extension}.new")), "new").expect("written");
            }
            settle(folder.path(), &Purpose::Client).expect("settled");
            let text = |path: &Path| std::fs::read_to_string(path).expect("read");
            let found = (text(&files.key), text(&files.certificate));
            assert_eq!((found.0.as_str(), found.1.as_str()), expected, "{left_beside:?}");
        }
    }
}
