//! When the certificates in a server's data directory expire.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use x509_parser::pem::Pem;

/// Certificates that expire within this time are listed one by one. Knarr renews its own before that.
const SOON_DAYS: i64 = 30;

/// A certificate and when it expires.
struct Certificate {
    path: PathBuf,
    expires: Timestamp,
}

/// The first authority of the server, as DER.
pub fn authority(data: &Path) -> Option<Vec<u8>> {
    Some(read(&data.join("pki/ca.crt")).into_iter().next()?.contents)
}

/// Says when the authority and the first of the other certificates expire, and lists those that do so soon.
pub fn describe(data: &Path, now: Timestamp) -> String {
    let mut all = Vec::new();
    find(&data.join("pki"), &mut all);
    all.sort_by_key(|certificate| certificate.expires);
    let (authorities, others): (Vec<Certificate>, Vec<Certificate>) = all.into_iter().partition(is_authority);
    let mut text = String::new();
    for (what, certificates) in [("authority", &authorities), ("first of the others", &others)] {
        if let Some(first) = certificates.first() {
            text += &format!("{what}: {}, {}\n", validity(first.expires, now), name(first, data));
        }
    }
    let is_soon = |one: &&Certificate| days(one.expires, now) < SOON_DAYS;
    for certificate in authorities.iter().chain(&others).filter(is_soon) {
        text += &format!("EXPIRES SOON: {} {}\n", name(certificate, data), validity(certificate.expires, now));
    }
    if text.is_empty() { format!("none in {}\n", data.join("pki").display()) } else { text }
}

fn name(certificate: &Certificate, data: &Path) -> String {
    certificate.path.strip_prefix(data).unwrap_or(&certificate.path).display().to_string()
}

fn is_authority(certificate: &Certificate) -> bool {
    let file = certificate.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    file.ends_with("ca.crt") || file.ends_with("ca-cross.crt")
}

fn days(expires: Timestamp, now: Timestamp) -> i64 {
    (expires.as_second() - now.as_second()).div_euclid(24 * 3600)
}

fn validity(expires: Timestamp, now: Timestamp) -> String {
    match days(expires, now) {
        days if days < 0 => format!("EXPIRED on {}", expires.strftime("%Y-%m-%d")),
        days => format!("valid for {days} days, until {}", expires.strftime("%Y-%m-%d")),
    }
}

/// Collects the certificates below a directory. What cannot be read is no certificate of ours.
fn find(directory: &Path, all: &mut Vec<Certificate>) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => find(&path, all),
            Ok(_) if path.extension().is_some_and(|extension| extension == "crt" || extension == "pem") => {
                let ends = read(&path).into_iter().filter_map(|pem| {
                    Timestamp::from_second(pem.parse_x509().ok()?.validity().not_after.timestamp()).ok()
                });
                all.extend(ends.min().map(|expires| Certificate { path: path.clone(), expires }));
            }
            _ => {}
        }
    }
}

fn read(path: &Path) -> Vec<Pem> {
    let Ok(text) = std::fs::read(path) else { return Vec::new() };
    Pem::iter_from_buffer(&text).filter_map(Result::ok).filter(|pem| pem.label == "CERTIFICATE").collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_expires_soon_or_has_expired_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let pki = directory.path().join("pki/etcd");
        std::fs::create_dir_all(&pki).unwrap();
        let write = |path: &str, year| {
            let mut parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            parameters.not_after = rcgen::date_time_ymd(year, 1, 11);
            let key = rcgen::KeyPair::generate().unwrap();
            std::fs::write(directory.path().join(path), parameters.self_signed(&key).unwrap().pem()).unwrap();
        };
        write("pki/ca.crt", 2036);
        write("pki/apiserver.crt", 2027);
        write("pki/etcd/peer.crt", 2026);
        std::fs::write(directory.path().join("pki/broken.crt"), "-----BEGIN").unwrap();
        let at = |time: &str| describe(directory.path(), time.parse().unwrap());
        let text = at("2026-01-01T00:00:00Z");
        assert!(text.contains("authority: valid for 3662 days, until 2036-01-11, pki/ca.crt"), "{text}");
        assert!(text.contains("EXPIRES SOON: pki/etcd/peer.crt valid for 10 days"), "{text}");
        assert!(!text.contains("apiserver.crt"), "{text}");
        assert!(at("2026-02-01T00:00:00Z").contains("EXPIRED on 2026-01-11"));
        assert!(authority(directory.path()).is_some());
    }
}
