//! Decides which pods may use an image that is on the node: all pods, if it was pulled without credentials or was not
//! pulled by the kubelet; otherwise pods with a secret or a service account it was pulled with.
//!
//! Other pods must pull it with their own credentials first. The credentials of each pull are recorded below the
//! kubelet's root directory, one file per image. An intent is recorded before the pull, so that an image whose pull was
//! interrupted by a kill is accessible to no pod rather than to all.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::path::{Path, PathBuf};

use k8s_openapi::jiff::Timestamp;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::image_verification::Verification;

/// A secret with which a pull succeeded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretUsed {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub credential_hash: String,
}

/// A service account whose token a credential provider exchanged for the credentials of a pull.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AccountUsed {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// Whose credentials a pull succeeded with. Credentials of the node itself have no source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Secret(SecretUsed),
    Account(AccountUsed),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Users {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretUsed>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_service_accounts: Vec<AccountUsed>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Record {
    image_ref: String,
    last_updated_time: Timestamp,
    /// By the image's name without tag and digest.
    credential_mapping: BTreeMap<String, Users>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDecision {
    /// The policy asks for no credentials, such as for images that the kubelet did not pull.
    Exempt,
    /// It was pulled without credentials, or with these.
    Known,
    MustAuthenticate,
}

impl AccessDecision {
    /// The label value in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::Exempt => "credentialPolicyAllowed",
            Self::Known => "credentialRecordFound",
            Self::MustAuthenticate => "mustAuthenticate",
        }
    }
}

pub struct Access {
    pulling: PathBuf,
    pulled: PathBuf,
    records: Mutex<Records>,
    policy: Verification,
}

#[derive(Default)]
struct Records {
    /// By file name; none for an unreadable record, which gives access to no pod.
    by_image: HashMap<String, Option<Record>>,
    /// The number of running pulls of an image, by file name; zero for pulls of a previous process.
    intents: HashMap<String, usize>,
}

impl Access {
    /// `root` is where the node keeps its state.
    pub fn open(root: &Path, policy: Verification) -> Self {
        let directory = root.join("image_manager");
        let (pulling, pulled) = (directory.join("pulling"), directory.join("pulled"));
        let mut records = Records::default();
        for (name, _) in files(&pulling) {
            records.intents.insert(name, 0);
        }
        for (name, path) in files(&pulled) {
            let record = std::fs::read(&path).map_err(|error| error.to_string());
            let record = record.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
            if let Err(error) = &record {
                tracing::warn!(error, file = %path.display(), "cannot read the pull record of an image");
            }
            records.by_image.insert(name, record.ok());
        }
        Self { pulling, pulled, records: Mutex::new(records), policy }
    }

    /// To be called before a pull.
    pub fn start_pull<'a>(&'a self, image: &'a str) -> io::Result<Intent<'a>> {
        let name = file_name(image);
        let mut records = self.records.lock();
        if !records.intents.contains_key(&name) {
            write(&self.pulling, &name, &serde_json::json!({ "image": image }))?;
        }
        *records.intents.entry(name).or_default() += 1;
        Ok(Intent { access: self, image, stays: false })
    }

    fn record_pull(&self, records: &mut Records, image: &str, id: &str, source: Option<Source>) -> io::Result<()> {
        let name = file_name(id);
        let mut record = records.by_image.get(&name).cloned().flatten().unwrap_or_else(|| Record {
            image_ref: id.to_owned(),
            last_updated_time: Timestamp::now(),
            credential_mapping: BTreeMap::new(),
        });
        let repository = super::credentials::repository_of(image);
        let is_new = !record.credential_mapping.contains_key(&repository);
        let users = record.credential_mapping.entry(repository).or_default();
        let before = users.clone();
        users.add(source);
        if !is_new && *users == before {
            return Ok(());
        }
        record.last_updated_time = Timestamp::now();
        write(&self.pulled, &name, &record)?;
        records.by_image.insert(name, Some(record));
        Ok(())
    }

    /// Whether a pod with these credentials may use the image as it is there. `names` are all that the runtime has for it.
    pub fn check(
        &self,
        image: &str,
        id: &str,
        names: &[String],
        sources: impl FnOnce() -> Vec<Source>,
    ) -> io::Result<AccessDecision> {
        let mut records = self.records.lock();
        let known = records.by_image.get(&file_name(id));
        let is_pulled_here = known.is_some() || records.intents.contains_key(&file_name(image));
        if !self.policy.requires_credentials(image, is_pulled_here) {
            return Ok(AccessDecision::Exempt);
        }
        let Some(Some(record)) = known else { return Ok(AccessDecision::MustAuthenticate) };
        // An image that was pulled without credentials under any name is public.
        if record.credential_mapping.values().any(|users| users.node_pods_accessible) {
            return Ok(AccessDecision::Known);
        }
        let repository = super::credentials::repository_of(image);
        let Some(users) = record.credential_mapping.get(&repository) else {
            // The kubelet did not pull the image under this name.
            let is_there = names.iter().any(|name| super::credentials::repository_of(name) == repository);
            let is_exempt = is_there && !self.policy.requires_credentials(image, false);
            return Ok(if is_exempt { AccessDecision::Exempt } else { AccessDecision::MustAuthenticate });
        };
        let known = sources().into_iter().find(|source| users.knows(source));
        let Some(source) = known else { return Ok(AccessDecision::MustAuthenticate) };
        // Record the same credentials in another secret, or new credentials in the same one.
        self.record_pull(&mut records, image, id, Some(source))?;
        Ok(AccessDecision::Known)
    }

    /// Removes the records of images that are gone.
    pub fn keep_only<'a>(&self, there: impl Iterator<Item = &'a str>) {
        let there: std::collections::HashSet<String> = there.map(file_name).collect();
        self.records.lock().by_image.retain(|name, _| {
            let stays = there.contains(name);
            if !stays && let Err(error) = std::fs::remove_file(self.pulled.join(name)) {
                tracing::warn!(%error, file = name, "cannot remove the pull record of a deleted image");
            }
            stays
        });
    }

    /// How many pulls and how many pulled images are recorded.
    pub fn counts(&self) -> (usize, usize) {
        let records = self.records.lock();
        (records.intents.len(), records.by_image.len())
    }
}

/// A running pull, until it is dropped.
pub struct Intent<'a> {
    access: &'a Access,
    image: &'a str,
    stays: bool,
}

impl Intent<'_> {
    /// Records that the pull succeeded with credentials of this source, or with none. If that fails the intent stays, and no pod has access.
    pub fn complete(mut self, id: &str, source: Option<Source>) -> io::Result<()> {
        let mut records = self.access.records.lock();
        let done = self.access.record_pull(&mut records, self.image, id, source);
        drop(records);
        self.stays = done.is_err();
        done
    }
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        let name = file_name(self.image);
        let mut records = self.access.records.lock();
        let Some(count) = records.intents.get_mut(&name).filter(|_| !self.stays) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            records.intents.remove(&name);
            if let Err(error) = std::fs::remove_file(self.access.pulling.join(name)) {
                tracing::warn!(%error, image = self.image, "cannot remove a pull intent");
            }
        }
    }
}

impl Users {
    fn add(&mut self, source: Option<Source>) {
        match source {
            _ if self.node_pods_accessible => {}
            None => *self = Self { node_pods_accessible: true, ..Default::default() },
            Some(Source::Account(account)) => {
                self.kubernetes_service_accounts.retain(|known| *known != account);
                self.kubernetes_service_accounts.push(account);
                self.kubernetes_service_accounts.sort();
            }
            Some(Source::Secret(secret)) => {
                self.kubernetes_secrets.retain(|known| !known.is_same_object(&secret));
                self.kubernetes_secrets.push(secret);
                self.kubernetes_secrets.sort();
            }
        }
    }

    fn knows(&self, source: &Source) -> bool {
        match source {
            Source::Secret(secret) => self
                .kubernetes_secrets
                .iter()
                .any(|known| known.credential_hash == secret.credential_hash || known.is_same_object(secret)),
            Source::Account(account) => self.kubernetes_service_accounts.contains(account),
        }
    }
}

impl SecretUsed {
    fn is_same_object(&self, other: &Self) -> bool {
        (&self.namespace, &self.name, &self.uid) == (&other.namespace, &other.name, &other.uid)
    }
}

fn files(directory: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    named.filter(|(name, _)| name.starts_with("sha256-")).collect()
}

/// Image names contain characters that file names must not.
fn file_name(image: &str) -> String {
    format!("sha256-{}", hexadecimal(&Sha256::digest(image)))
}

pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write(directory: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let temporary = directory.join(format!(".{name}"));
    std::fs::write(&temporary, serde_json::to_vec(content).map_err(io::Error::other)?)?;
    std::fs::rename(temporary, directory.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(name: &str) -> Source {
        Source::Account(AccountUsed { namespace: "n".into(), name: name.into(), uid: name.into() })
    }

    fn secret(name: &str, hash: &str) -> Source {
        Source::Secret(SecretUsed {
            namespace: "n".into(),
            name: name.into(),
            uid: name.into(),
            credential_hash: hash.into(),
        })
    }

    #[test]
    fn an_image_is_for_those_who_brought_credentials() {
        let directory = tempfile::tempdir().expect("a directory");
        let access = Access::open(directory.path(), Verification::default());
        let check = |access: &Access, image: &str, id: &str, secrets: &[Source]| {
            access.check(image, id, &["r.io/loaded:1".to_owned()], || secrets.to_vec()).expect("checked")
        };
        let (good, renamed, renewed) = (secret("a", "1"), secret("b", "1"), secret("b", "2"));
        assert_eq!(check(&access, "r.io/old:1", "sha256:0", &[]), AccessDecision::Exempt);
        let intent = access.start_pull("r.io/own:1").expect("recorded");
        assert_eq!(check(&access, "r.io/own:1", "sha256:1", &[]), AccessDecision::MustAuthenticate, "under way");
        intent.complete("sha256:1", Some(good.clone())).expect("recorded");
        access.start_pull("r.io/free:1").and_then(|intent| intent.complete("sha256:2", None)).expect("recorded");
        access
            .start_pull("r.io/exchanged:1")
            .and_then(|intent| intent.complete("sha256:4", Some(account("a"))))
            .expect("recorded");
        drop(access.start_pull("r.io/failed:1").expect("recorded"));
        let _cut_off = access.start_pull("r.io/cut-off:1").expect("recorded");
        let reopened = Access::open(directory.path(), Verification::default());
        for access in [&access, &reopened] {
            for (image, id, secrets, expected) in [
                ("r.io/own:1", "sha256:1", vec![], AccessDecision::MustAuthenticate),
                ("r.io/own:1", "sha256:1", vec![secret("c", "3")], AccessDecision::MustAuthenticate),
                ("r.io/own:1", "sha256:1", vec![good.clone()], AccessDecision::Known),
                ("r.io/own:2", "sha256:1", vec![renamed.clone()], AccessDecision::Known),
                ("r.io/own:1", "sha256:1", vec![renewed.clone()], AccessDecision::Known),
                ("r.io/other:1", "sha256:1", vec![good.clone()], AccessDecision::MustAuthenticate),
                ("r.io/loaded:1", "sha256:1", vec![], AccessDecision::Exempt),
                ("r.io/free:1", "sha256:2", vec![], AccessDecision::Known),
                ("r.io/same:1", "sha256:2", vec![], AccessDecision::Known),
                ("r.io/exchanged:1", "sha256:4", vec![account("a")], AccessDecision::Known),
                ("r.io/exchanged:1", "sha256:4", vec![account("b")], AccessDecision::MustAuthenticate),
                ("r.io/failed:1", "sha256:3", vec![], AccessDecision::Exempt),
                ("r.io/cut-off:1", "sha256:3", vec![], AccessDecision::MustAuthenticate),
            ] {
                assert_eq!(check(access, image, id, &secrets), expected, "{image} {secrets:?}");
            }
        }
        assert_eq!(reopened.counts(), (1, 3));
        drop(reopened.start_pull("r.io/cut-off:1").expect("recorded"));
        reopened.keep_only(["sha256:2"].into_iter());
        assert_eq!(reopened.counts(), (0, 1));
        assert_eq!(check(&reopened, "r.io/own:1", "sha256:1", &[]), AccessDecision::Exempt);
    }
}
