//! A bucket, and what can be done with its objects.

use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use http::header::CONTENT_LENGTH;
use rusty_s3::actions::{ListObjectsV2, S3Action};
use rusty_s3::{Bucket, Credentials, UrlStyle};
use tokio::io::AsyncWriteExt as _;
use url::Url;

use crate::request::Sender;
use crate::{Error, credentials};

/// How long a signature is valid. Clocks differ; uploads of a part take a while.
const SIGNATURE_LIFETIME: Duration = Duration::from_secs(3600);
/// A storage that always promises another page would keep a list going for ever, and fill the memory.
const MAX_PAGES: usize = 1000;
const MAX_LIST_BYTES: usize = 64 << 20;

/// Where the storage is and who uses it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Amazon's of the region if there is none.
    pub endpoint: Option<Url>,
    pub region: String,
    /// A file with an access key; requests are not signed without one.
    pub credentials: Option<PathBuf>,
    /// The certificates that may have signed the storage's; the host's if there is none.
    pub authority: Option<PathBuf>,
}

/// A bucket.
#[derive(Clone)]
pub struct Storage {
    pub(crate) bucket: Bucket,
    pub(crate) sender: Sender,
    credentials: Option<PathBuf>,
}

/// An object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object {
    pub key: String,
    pub bytes: u64,
}

impl Storage {
    pub fn new(bucket: &str, settings: &Settings) -> Result<Self, Error> {
        let (endpoint, style) = match &settings.endpoint {
            // Other storages are often reached by names that no bucket can be put in front of.
            Some(endpoint) => (endpoint.clone(), UrlStyle::Path),
            None => {
                let url = format!("https://s3.{}.amazonaws.com", settings.region);
                (url.parse().map_err(|_| Error::Endpoint)?, UrlStyle::VirtualHost)
            }
        };
        if endpoint.query().is_some() || !endpoint.username().is_empty() || endpoint.password().is_some() {
            return Err(Error::Endpoint);
        }
        let server = endpoint.origin().ascii_serialization();
        let bucket = Bucket::new(endpoint, style, bucket.to_owned(), settings.region.clone());
        let bucket = bucket.map_err(|_| Error::Endpoint)?;
        Ok(Self { bucket, sender: Sender::new(settings, server)?, credentials: settings.credentials.clone() })
    }

    /// Signs an action with the present credentials.
    pub(crate) fn signed<'a, A: S3Action<'a>>(
        &self,
        action: impl FnOnce(Option<&'a Credentials>) -> A,
        credentials: Option<&'a Credentials>,
    ) -> Url {
        action(credentials).sign(SIGNATURE_LIFETIME)
    }

    pub(crate) fn load_credentials(&self) -> Result<Option<Credentials>, Error> {
        self.credentials.as_deref().map(credentials::load).transpose()
    }

    /// Writes an object to a file that only this user can read.
    pub async fn get(&self, key: &str, file: &Path) -> Result<(), Error> {
        let sign = || {
            let credentials = self.load_credentials()?;
            Ok(self.signed(|credentials| self.bucket.get_object(credentials, key), credentials.as_ref()))
        };
        let response = self.sender.send(&Method::GET, sign, Bytes::new()).await?;
        // S3 always gives the length. Without it, a response that never ends, or that was cut off, would be none.
        if response.headers().get(CONTENT_LENGTH).is_none() {
            return Err(self.sender.unexpected());
        }
        let failed = |source| Error::File { path: file.to_owned(), source };
        let mut options = tokio::fs::OpenOptions::new();
        let mut written =
            options.write(true).create(true).truncate(true).mode(0o600).open(file).await.map_err(failed)?;
        let mut body = response.into_body();
        while let Some(piece) = self.sender.piece(&mut body).await? {
            written.write_all(&piece).await.map_err(failed)?;
        }
        written.sync_all().await.map_err(failed)
    }

    /// The objects whose keys start with a prefix, in the order of their keys.
    pub async fn list(&self, prefix: &str) -> Result<Vec<Object>, Error> {
        let mut objects = Vec::new();
        let mut next: Option<String> = None;
        let mut bytes = 0;
        for _ in 0..MAX_PAGES {
            let sign = || {
                let credentials = self.load_credentials()?;
                let action = |credentials| {
                    let mut action = ListObjectsV2::new(&self.bucket, credentials);
                    action.with_prefix(prefix);
                    if let Some(token) = &next {
                        action.with_continuation_token(token);
                    }
                    action
                };
                Ok(self.signed(action, credentials.as_ref()))
            };
            let text = self.sender.text(self.sender.send(&Method::GET, sign, Bytes::new()).await?).await?;
            bytes += text.len();
            if bytes > MAX_LIST_BYTES {
                return Err(Error::LongList(self.sender.server().to_owned()));
            }
            let page = ListObjectsV2::parse_response(&text).map_err(|_| self.sender.unexpected())?;
            let listed = page.contents.into_iter();
            objects.extend(listed.map(|one| Object { key: one.key, bytes: one.size.unwrap_or_default() }));
            next = page.next_continuation_token;
            if next.is_none() {
                return Ok(objects);
            }
        }
        Err(Error::LongList(self.sender.server().to_owned()))
    }

    /// Deletes an object, which need not exist.
    pub async fn delete(&self, key: &str) -> Result<(), Error> {
        let sign = || {
            let credentials = self.load_credentials()?;
            Ok(self.signed(|credentials| self.bucket.delete_object(credentials, key), credentials.as_ref()))
        };
        self.sender.send(&Method::DELETE, sign, Bytes::new()).await.map(drop)
    }
}
