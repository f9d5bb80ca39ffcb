//! Who may use an image that is on the node: all, if it was pulled without credentials or was there before, else those
//! who name a secret it was pulled with. The others show their own credentials to the registry first.
//!
//! What was pulled with what is noted below the node's folder, one file an image. That a pull has begun is noted before,
//! so that an image whose pull was cut off by a kill belongs to nobody rather than to all.

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
pub enum Verdict {
    /// It was not this node that pulled it.
    NotPulledHere,
    /// It was pulled without credentials, or with these.
    Known,
    MustAuthenticate,
}

impl Verdict {
    /// As it is counted.
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
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    /// By file name; none for what can't be read, which is nobody's.
    records: HashMap<String, Option<Record>>,
    /// How many pulls of an image are under way, by file name; none of those an earlier life began.
    intents: HashMap<String, usize>,
}

impl Access {
    /// `root` is where the node keeps its state.
    pub fn open(root: &Path) -> Self {
        let folder = root.join("image_manager");
        let (pulling, pulled) = (folder.join("pulling"), folder.join("pulled"));
        let mut noted = Noted::default();
        for (name, _) in files(&pulling) {
            noted.intents.insert(name, 0);
        }
        for (name, path) in files(&pulled) {
            let record = std::fs::read(&path).map_err(|error| error.to_string());
            let record = record.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
            if let Err(error) = &record {
                tracing::warn!(error, file = %path.display(), "how an image was pulled can't be read");
            }
            noted.records.insert(name, record.ok());
        }
        Self { pulling, pulled, noted: Mutex::new(noted) }
    }

    /// To be called before a pull.
    pub fn begin<'a>(&'a self, image: &'a str) -> io::Result<Intent<'a>> {
        let name = file_name(image);
        let mut noted = self.noted.lock();
        if !noted.intents.contains_key(&name) {
            write(&self.pulling, &name, &serde_json::json!({ "image": image }))?;
        }
        *noted.intents.entry(name).or_default() += 1;
        Ok(Intent { access: self, image, stays: false })
    }

    fn note(&self, noted: &mut Noted, image: &str, id: &str, secret: Option<SecretUsed>) -> io::Result<()> {
        let name = file_name(id);
        let mut record = noted.records.get(&name).cloned().flatten().unwrap_or_else(|| Record {
            image_ref: id.to_owned(),
            last_updated_time: Timestamp::now(),
            credential_mapping: BTreeMap::new(),
        });
        let place = super::credentials::place_of(image);
        let is_new = !record.credential_mapping.contains_key(&place);
        let users = record.credential_mapping.entry(place).or_default();
        let before = users.clone();
        users.add(secret);
        if !is_new && *users == before {
            return Ok(());
        }
        record.last_updated_time = Timestamp::now();
        write(&self.pulled, &name, &record)?;
        noted.records.insert(name, Some(record));
        Ok(())
    }

    /// Whether a pod with these secrets may use the image as it is there. `names` are all that the runtime has for it.
    pub fn judge(
        &self,
        image: &str,
        id: &str,
        names: &[String],
        secrets: impl FnOnce() -> Vec<SecretUsed>,
    ) -> io::Result<Verdict> {
        let mut noted = self.noted.lock();
        let record = match noted.records.get(&file_name(id)) {
            Some(Some(record)) => record,
            Some(None) => return Ok(Verdict::MustAuthenticate),
            None if noted.intents.contains_key(&file_name(image)) => return Ok(Verdict::MustAuthenticate),
            None => return Ok(Verdict::NotPulledHere),
        };
        // Under whichever name it came without credentials: what all can have needs no guarding.
        if record.credential_mapping.values().any(|users| users.node_pods_accessible) {
            return Ok(Verdict::Known);
        }
        let place = super::credentials::place_of(image);
        let Some(users) = record.credential_mapping.get(&place) else {
            // A name that no pull of ours brought was there before.
            let is_there = names.iter().any(|name| super::credentials::place_of(name) == place);
            return Ok(if is_there { Verdict::NotPulledHere } else { Verdict::MustAuthenticate });
        };
        let known = secrets().into_iter().find(|secret| users.knows(secret));
        let Some(secret) = known else { return Ok(Verdict::MustAuthenticate) };
        // The same credentials in another secret, or others in the same one, are good from now on.
        self.note(&mut noted, image, id, Some(secret))?;
        Ok(Verdict::Known)
    }

    /// Forgets all images but those that are there.
    pub fn keep_only<'a>(&self, there: impl Iterator<Item = &'a str>) {
        let there: std::collections::HashSet<String> = there.map(file_name).collect();
        self.noted.lock().records.retain(|name, _| {
            let stays = there.contains(name);
            if !stays && let Err(error) = std::fs::remove_file(self.pulled.join(name)) {
                tracing::warn!(%error, file = name, "the note of an image that is gone can't be removed");
            }
            stays
        });
    }

    /// How many pulls and how many pulled images are noted.
    pub fn counts(&self) -> (usize, usize) {
        let noted = self.noted.lock();
        (noted.intents.len(), noted.records.len())
    }
}

/// A pull under way, until it is dropped.
pub struct Intent<'a> {
    access: &'a Access,
    image: &'a str,
    stays: bool,
}

impl Intent<'_> {
    /// The pull succeeded with this secret, or without any. If that can't be noted, the intent stays: the image is nobody's.
    pub fn fulfil(mut self, id: &str, secret: Option<SecretUsed>) -> io::Result<()> {
        let mut noted = self.access.noted.lock();
        let done = self.access.note(&mut noted, self.image, id, secret);
        drop(noted);
        self.stays = done.is_err();
        done
    }
}

impl Drop for Intent<'_> {
    fn drop(&mut self) {
        let name = file_name(self.image);
        let mut noted = self.access.noted.lock();
        let Some(count) = noted.intents.get_mut(&name).filter(|_| !self.stays) else { return };
        *count = count.saturating_sub(1);
        if *count == 0 {
            noted.intents.remove(&name);
            if let Err(error) = std::fs::remove_file(self.access.pulling.join(name)) {
                tracing::warn!(%error, image = self.image, "the note of a pull can't be removed");
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

fn files(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let named = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry.path()));
    named.filter(|(name, _)| name.starts_with("sha256-")).collect()
}

/// Names of images hold what names of files may not.
fn file_name(image: &str) -> String {
    format!("sha256-{}", hexadecimal(&Sha256::digest(image)))
}

pub fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn write(folder: &Path, name: &str, content: &impl Serialize) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let beside = folder.join(format!(".{name}"));
    std::fs::write(&beside, serde_json::to_vec(content).map_err(io::Error::other)?)?;
    std::fs::rename(beside, folder.join(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(name: &str, hash: &str) -> SecretUsed {
        SecretUsed { namespace: "n".into(), name: name.into(), uid: name.into(), credential_hash: hash.into() }
    }

    #[test]
    fn an_image_is_for_those_who_brought_credentials() {
        let folder = tempfile::tempdir().expect("a folder");
        let access = Access::open(folder.path());
        let judge = |access: &Access, image: &str, id: &str, secrets: &[SecretUsed]| {
            access.judge(image, id, &["r.io/loaded:1".to_owned()], || secrets.to_vec()).expect("judged")
        };
        let (good, renamed, renewed) = (secret("a", "1"), secret("b", "1"), secret("b", "2"));
        assert_eq!(judge(&access, "r.io/old:1", "sha256:0", &[]), Verdict::NotPulledHere);
        let intent = access.begin("r.io/own:1").expect("noted");
        assert_eq!(judge(&access, "r.io/own:1", "sha256:1", &[]), Verdict::MustAuthenticate, "under way");
        intent.fulfil("sha256:1", Some(good.clone())).expect("noted");
        access.begin("r.io/free:1").and_then(|intent| intent.fulfil("sha256:2", None)).expect("noted");
        drop(access.begin("r.io/failed:1").expect("noted"));
        let _cut_off = access.begin("r.io/cut-off:1").expect("noted");
        let reopened = Access::open(folder.path());
        for access in [&access, &reopened] {
            for (image, id, secrets, expected) in [
                ("r.io/own:1", "sha256:1", vec![], Verdict::MustAuthenticate),
                ("r.io/own:1", "sha256:1", vec![secret("c", "3")], Verdict::MustAuthenticate),
                ("r.io/own:1", "sha256:1", vec![good.clone()], Verdict::Known),
                ("r.io/own:2", "sha256:1", vec![renamed.clone()], Verdict::Known),
                ("r.io/own:1", "sha256:1", vec![renewed.clone()], Verdict::Known),
                ("r.io/other:1", "sha256:1", vec![good.clone()], Verdict::MustAuthenticate),
                ("r.io/loaded:1", "sha256:1", vec![], Verdict::NotPulledHere),
                ("r.io/free:1", "sha256:2", vec![], Verdict::Known),
                ("r.io/same:1", "sha256:2", vec![], Verdict::Known),
                ("r.io/failed:1", "sha256:3", vec![], Verdict::NotPulledHere),
                ("r.io/cut-off:1", "sha256:3", vec![], Verdict::MustAuthenticate),
            ] {
                assert_eq!(judge(access, image, id, &secrets), expected, "{image} {secrets:?}");
            }
        }
        assert_eq!(reopened.counts(), (1, 2));
        drop(reopened.begin("r.io/cut-off:1").expect("noted"));
        reopened.keep_only(["sha256:2"].into_iter());
        assert_eq!(reopened.counts(), (0, 1));
        assert_eq!(judge(&reopened, "r.io/own:1", "sha256:1", &[]), Verdict::NotPulledHere);
    }
}
