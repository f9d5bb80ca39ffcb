//! Decides which pods may use an image that is on the node: all pods, if it was pulled without credentials or was not
//! pulled by the kubelet; otherwise pods with a secret it was pulled with.
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

/// A secret with which a pull succeeded.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SecretUsed {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub credential_hash: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Users {
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    node_pods_accessible: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    kubernetes_secrets: Vec<SecretUsed>,
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
    /// The kubelet did not pull it.
    NotPulledHere,
    /// It was pulled without credentials, or with these.
    Known,
    MustAuthenticate,
}

impl AccessDecision {
    /// The label value in metrics.
    pub fn label(self) -> &'static str {
        match self {
            Self::NotPulledHere => "credentialPolicyAllowed",
            Self::Known => "credentialRecordFound",
            Self::MustAuthenticate => "mustAuthenticate",
        }
    }
}

pub struct Access {
    pulling: PathBuf,
    pulled: PathBuf,
    records: Mutex<Records>,
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
    pub fn open(root: &Path) -> Self {
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
        Self { pulling, pulled, records: Mutex::new(records) }
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

    fn record_pull(&self, records: &mut Records, image: &str, id: &str, secret: Option<SecretUsed>) -> io::Result<()> {
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
        users.add(secret);
        if !is_new && *users == before {
            return Ok(());
        }
        record.last_updated_time = Timestamp::now();
        write(&self.pulled, &name, &record)?;
        records.by_image.insert(name, Some(record));
        Ok(())
    }

    /// Whether a pod with these secrets may use the image as it is there. `names` are all that the runtime has for it.
    pub fn check(
        &self,
        image: &str,
        id: &str,
        names: &[String],
        secrets: impl FnOnce() -> Vec<SecretUsed>,
    ) -> io::Result<AccessDecision> {
        let mut records = self.records.lock();
        let record = match records.by_image.get(&file_name(id)) {
            Some(Some(record)) => record,
            Some(None) => return Ok(AccessDecision::MustAuthenticate),
            None if records.intents.contains_key(&file_name(image)) => return Ok(AccessDecision::MustAuthenticate),
            None => return Ok(AccessDecision::NotPulledHere),
        };
        // An image that was pulled without credentials under any name is public.
        if record.credential_mapping.values().any(|users| users.node_pods_accessible) {
            return Ok(AccessDecision::Known);
        }
        let repository = super::credentials::repository_of(image);
        let Some(users) = record.credential_mapping.get(&repository) else {
            // The kubelet did not pull the image under this name.
            let is_there = names.iter().any(|name| super::credentials::repository_of(name) == repository);
            return Ok(if is_there { AccessDecision::NotPulledHere } else { AccessDecision::MustAuthenticate });
        };
        let known = secrets().into_iter().find(|secret| users.knows(secret));
        let Some(secret) = known else { return Ok(AccessDecision::MustAuthenticate) };
        // Record the same credentials in another secret, or new credentials in the same one.
        self.record_pull(&mut records, image, id, Some(secret))?;
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
    /// Records that the pull succeeded with this secret, or without any. If that fails the intent stays, and no pod has access.
    pub fn complete(mut self, id: &str, secret: Option<SecretUsed>) -> io::Result<()> {
        let mut records = self.access.records.lock();
        let done = self.access.record_pull(&mut records, self.image, id, secret);
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
    fn add(&mut self, secret: Option<SecretUsed>) {
        match secret {
            _ if self.node_pods_accessible => {}
            None => *self = Self { node_pods_accessible: true, ..Default::default() },
            Some(secret) => {
                self.kubernetes_secrets.retain(|known| !known.is_same_object(&secret));
                self.kubernetes_secrets.push(secret);
                self.kubernetes_secrets.sort();
            }
        }
    }

    fn knows(&self, secret: &SecretUsed) -> bool {
        self.kubernetes_secrets
            .iter()
            .any(|known| known.credential_hash == secret.credential_hash || known.is_same_object(secret))
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

    fn secret(name: &str, hash: &str) -> SecretUsed {
        SecretUsed { namespace: "n".into(), name: name.into(), uid: name.into(), credential_hash: hash.into() }
    }

    #[test]
    fn an_image_is_for_those_who_brought_credentials() {
        let directory = tempfile::tempdir().expect("a directory");
        let access = Access::open(directory.path());
        let check = |access: &Access, image: &str, id: &str, secrets: &[SecretUsed]| {
            access.check(image, id, &["r.io/loaded:1".to_owned()], || secrets.to_vec()).expect("checked")
        };
        let (good, renamed, renewed) = (secret("a", "1"), secret("b", "1"), secret("b", "2"));
        assert_eq!(check(&access, "r.io/old:1", "sha256:0", &[]), AccessDecision::NotPulledHere);
        let intent = access.start_pull("r.io/own:1").expect("recorded");
        assert_eq!(check(&access, "r.io/own:1", "sha256:1", &[]), AccessDecision::MustAuthenticate, "under way");
        intent.complete("sha256:1", Some(good.clone())).expect("recorded");
        access.start_pull("r.io/free:1").and_then(|intent| intent.complete("sha256:2", None)).expect("recorded");
        drop(access.start_pull("r.io/failed:1").expect("recorded"));
        let _cut_off = access.start_pull("r.io/cut-off:1").expect("recorded");
        let reopened = Access::open(directory.path());
        for access in [&access, &reopened] {
            for (image, id, secrets, expected) in [
                ("r.io/own:1", "sha256:1", vec![], AccessDecision::MustAuthenticate),
                ("r.io/own:1", "sha256:1", vec![secret("c", "3")], AccessDecision::MustAuthenticate),
                ("r.io/own:1", "sha256:1", vec![good.clone()], AccessDecision::Known),
                ("r.io/own:2", "sha256:1", vec![renamed.clone()], AccessDecision::Known),
                ("r.io/own:1", "sha256:1", vec![renewed.clone()], AccessDecision::Known),
                ("r.io/other:1", "sha256:1", vec![good.clone()], AccessDecision::MustAuthenticate),
                ("r.io/loaded:1", "sha256:1", vec![], AccessDecision::NotPulledHere),
                ("r.io/free:1", "sha256:2", vec![], AccessDecision::Known),
                ("r.io/same:1", "sha256:2", vec![], AccessDecision::Known),
                ("r.io/failed:1", "sha256:3", vec![], AccessDecision::NotPulledHere),
                ("r.io/cut-off:1", "sha256:3", vec![], AccessDecision::MustAuthenticate),
            ] {
                assert_eq!(check(access, image, id, &secrets), expected, "{image} {secrets:?}");
            }
        }
        assert_eq!(reopened.counts(), (1, 2));
        drop(reopened.start_pull("r.io/cut-off:1").expect("recorded"));
        reopened.keep_only(["sha256:2"].into_iter());
        assert_eq!(reopened.counts(), (0, 1));
        assert_eq!(check(&reopened, "r.io/own:1", "sha256:1", &[]), AccessDecision::NotPulledHere);
    }
}
