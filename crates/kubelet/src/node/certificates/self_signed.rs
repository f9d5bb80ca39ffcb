//! A serving certificate that no authority of the cluster signs, kept in files: what a component serves that neither has a
//! certificate nor requests one.

use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};

use super::{CertificateError, CertificateFiles, install, write_temporary};

/// How long before now the validity starts, for clients whose clocks are late.
const EARLIER: Duration = Duration::from_secs(3600);
const VALIDITY: Duration = Duration::from_secs(365 * 24 * 3600);

/// The certificate and key of this name in a directory. If there are none, creates them for these names and addresses of a host. A
/// certificate without its key, or a key without its certificate, is an error rather than replaced.
pub fn ensure_self_signed(
    directory: &Path,
    name: &str,
    hosts: &[&str],
    now: Timestamp,
) -> Result<CertificateFiles, CertificateError> {
    let path = |extension: &str| directory.join(format!("{name}.{extension}"));
    let files = CertificateFiles { certificate: path("crt"), key: path("key") };
    let is_readable = |path: &Path| std::fs::File::open(path).is_ok();
    match (is_readable(&files.certificate), is_readable(&files.key)) {
        (true, true) => Ok(files),
        (true, false) => Err(CertificateError::Incomplete(files.key)),
        (false, true) => Err(CertificateError::Incomplete(files.certificate)),
        (false, false) => {
            let (certificate, key) = generate(hosts, now)?;
            std::fs::create_dir_all(directory)
                .map_err(|source| CertificateError::File { path: directory.into(), source })?;
            write_temporary(&files.key, key.as_bytes(), 0o600)?;
            write_temporary(&files.certificate, certificate.as_bytes(), 0o644)?;
            install(&files.key)?;
            install(&files.certificate)?;
            Ok(files)
        }
    }
}

/// A certificate for a host followed by the authority that signed it, and the key of the certificate. The key of the
/// authority is gone: it signs nothing else.
fn generate(hosts: &[&str], now: Timestamp) -> Result<(String, String), CertificateError> {
    let (seconds, host) = (now.as_second(), hosts.first().copied().unwrap_or_default());
    let (authority_key, key) = (KeyPair::generate()?, KeyPair::generate()?);
    let mut authority = parameters(&format!("{host}-ca@{seconds}"), now)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    authority.key_usages.push(KeyUsagePurpose::KeyCertSign);
    let authority_pem = authority.self_signed(&authority_key)?.pem();
    let mut leaf = parameters(&format!("{host}@{seconds}"), now)?;
    leaf.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    for &host in hosts {
        leaf.subject_alt_names.push(match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(host.try_into()?),
        });
    }
    let certificate = leaf.signed_by(&key, &Issuer::new(authority, authority_key))?;
    Ok((certificate.pem() + &authority_pem, key.serialize_pem()))
}

fn parameters(name: &str, now: Timestamp) -> Result<CertificateParams, CertificateError> {
    let mut parameters = CertificateParams::new(Vec::<String>::new())?;
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, name);
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::KeyEncipherment];
    let since_1970 = Duration::from_secs(u64::try_from(now.as_second()).unwrap_or_default());
    parameters.not_before = rcgen::date_time_ymd(1970, 1, 1) + since_1970.saturating_sub(EARLIER);
    parameters.not_after = parameters.not_before + VALIDITY;
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use rustls::sign::CertifiedKey;
    use rustls_pki_types::pem::PemObject as _;
    use rustls_pki_types::{CertificateDer, PrivateKeyDer};

    use super::*;

    fn now() -> Timestamp {
        "2026-11-17T15:00:00Z".parse().expect("a moment")
    }

    #[test]
    fn a_pair_is_created_once_and_can_be_served() {
        for hosts in [&["node-1"][..], &["10.0.0.7"], &["fd00::7"], &["localhost", "127.0.0.1"]] {
            let directory = tempfile::tempdir().expect("a directory");
            let below = directory.path().join("pki");
            let files = ensure_self_signed(&below, "kubelet", hosts, now()).expect("created");
            assert_eq!(files.certificate, below.join("kubelet.crt"));
            let mode = |path: &Path| std::fs::metadata(path).expect("there").permissions().mode() & 0o777;
            assert_eq!((mode(&files.certificate), mode(&files.key)), (0o644, 0o600));
            let chain: Vec<_> = CertificateDer::pem_file_iter(&files.certificate).expect("read").flatten().collect();
            let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
            let provider = rustls::crypto::aws_lc_rs::default_provider();
            CertifiedKey::from_der(chain, key, &provider).expect("a key that fits the certificate");
            assert_eq!(
                super::super::good_until(&files.certificate).expect("a moment").to_string(),
                "2027-11-17T14:00:00Z"
            );
            let first = std::fs::read(&files.certificate).expect("read");
            assert_eq!(first.windows(5).filter(|window| window == b"BEGIN").count(), 2, "with its authority");
            ensure_self_signed(&below, "kubelet", hosts, now()).expect("found");
            assert_eq!(std::fs::read(&files.certificate).expect("read"), first);
        }
    }

    #[test]
    fn half_a_pair_is_refused() {
        for (present, missing) in [("kubelet.crt", "kubelet.key"), ("kubelet.key", "kubelet.crt")] {
            let directory = tempfile::tempdir().expect("a directory");
            std::fs::write(directory.path().join(present), "x").expect("written");
            let error =
                ensure_self_signed(directory.path(), "kubelet", &["a"], now()).expect_err("refused").to_string();
            let path = directory.path().join(missing);
            let expected = format!("error reading {}, certificate and key must be supplied as a pair", path.display());
            assert_eq!(error, expected);
        }
    }

    #[test]
    fn a_directory_that_cannot_be_written_is_named() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("file");
        std::fs::write(&file, "").expect("written");
        let error = ensure_self_signed(&file.join("pki"), "kubelet", &["a"], now()).expect_err("refused").to_string();
        assert!(error.contains(&file.join("pki").display().to_string()), "{error}");
    }
}
