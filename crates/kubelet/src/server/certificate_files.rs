//! The serving certificate of files that somebody else renews.

use std::time::Duration;

use super::ServingCertificate;
use crate::CertificateFiles;

/// How often the files are compared with what is served.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Serves what replaces the files. A pair that does not fit, as between the replacement of one file and of the other, is not
/// served; the previous one is.
pub async fn watch_files(files: CertificateFiles, certificate: ServingCertificate) {
    // The files may have changed since they were read for the first time.
    let mut served = None;
    loop {
        match contents(&files) {
            Ok(found) if served.as_ref() == Some(&found) => {}
            Ok(found) => match certificate.replace(&files.certificate, &files.key) {
                Ok(()) => {
                    if served.replace(found).is_some() {
                        tracing::info!(certificate = %files.certificate.display(), "reloaded the serving certificate");
                    }
                }
                Err(error) => tracing::warn!(%error, "cannot use the replaced serving certificate"),
            },
            Err(error) => tracing::warn!(%error, "cannot read the files of the serving certificate"),
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

/// The certificate and the key.
fn contents(files: &CertificateFiles) -> std::io::Result<(Vec<u8>, Vec<u8>)> {
    Ok((std::fs::read(&files.certificate)?, std::fs::read(&files.key)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (String, String) {
        let generated = rcgen::generate_simple_self_signed(vec!["a".to_owned()]).expect("a pair");
        (generated.cert.pem(), generated.signing_key.serialize_pem())
    }

    #[tokio::test(start_paused = true)]
    async fn a_replaced_pair_is_served_once_it_is_whole() {
        let directory = tempfile::tempdir().expect("a directory");
        let files =
            CertificateFiles { certificate: directory.path().join("a.crt"), key: directory.path().join("a.key") };
        let (first, second) = (pair(), pair());
        std::fs::write(&files.certificate, &first.0).expect("written");
        std::fs::write(&files.key, &first.1).expect("written");
        let certificate = ServingCertificate::from_files(&files.certificate, &files.key).expect("usable");
        let served = || certificate.current().cert.clone();
        let original = served();
        let watching = tokio::spawn(watch_files(files.clone(), certificate.clone()));
        tokio::time::sleep(CHECK_INTERVAL * 2).await;
        assert_eq!(served(), original);
        std::fs::write(&files.certificate, &second.0).expect("written");
        tokio::time::sleep(CHECK_INTERVAL * 2).await;
        assert_eq!(served(), original, "its key is still missing");
        std::fs::write(&files.key, &second.1).expect("written");
        tokio::time::sleep(CHECK_INTERVAL * 2).await;
        let replaced = served();
        assert_ne!(replaced, original);
        std::fs::remove_file(&files.key).expect("removed");
        std::fs::write(&files.certificate, "nonsense").expect("written");
        tokio::time::sleep(CHECK_INTERVAL * 2).await;
        assert_eq!(served(), replaced);
        watching.abort();
    }
}
