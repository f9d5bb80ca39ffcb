//! Uploads: a small file in one request, a larger one in parts, each of which can be repeated.

use std::path::Path;

use bytes::Bytes;
use http::Method;
use http::header::ETAG;
use rusty_s3::actions::{CompleteMultipartUpload, CompleteMultipartUploadResponse, CreateMultipartUpload};
use tokio::io::AsyncReadExt as _;

use crate::{Error, Storage};

/// Held in memory while it is sent. S3 allows 10,000 parts of at least 5 MiB: this is enough for 156 GiB.
const PART_BYTES: usize = 16 << 20;
const MAX_PARTS: u16 = 10_000;

impl Storage {
    /// Stores a file as an object. The object is there when this returns, whole, or not at all.
    pub async fn put(&self, key: &str, path: &Path) -> Result<(), Error> {
        self.put_in_parts(key, path, PART_BYTES).await
    }

    pub(crate) async fn put_in_parts(&self, key: &str, path: &Path, part_bytes: usize) -> Result<(), Error> {
        let failed = |source| Error::File { path: path.to_owned(), source };
        let mut file = Parts { file: tokio::fs::File::open(path).await.map_err(failed)?, bytes: part_bytes };
        let first = file.next().await.map_err(failed)?;
        let second = file.next().await.map_err(failed)?;
        if second.is_empty() {
            let sign = || {
                let credentials = self.load_credentials()?;
                Ok(self.signed(|credentials| self.bucket.put_object(credentials, key), credentials.as_ref()))
            };
            return self.sender.send(&Method::PUT, sign, first).await.map(drop);
        }
        let upload = self.start_upload(key).await?;
        let uploaded = self.upload_parts(key, &upload, [first, second], &mut file, path).await;
        if uploaded.is_err() {
            // The parts would be paid for, for ever.
            if let Err(error) = self.abort_upload(key, &upload).await {
                tracing::warn!(%error, key, "cannot remove the parts of an upload that failed");
            }
        }
        uploaded
    }

    async fn start_upload(&self, key: &str) -> Result<String, Error> {
        let sign = || {
            let credentials = self.load_credentials()?;
            Ok(self.signed(|credentials| self.bucket.create_multipart_upload(credentials, key), credentials.as_ref()))
        };
        let text = self.sender.text(self.sender.send(&Method::POST, sign, Bytes::new()).await?).await?;
        let parsed = CreateMultipartUpload::parse_response(&text).map_err(|_| self.sender.unexpected())?;
        Ok(parsed.upload_id().to_owned())
    }

    async fn upload_parts(
        &self,
        key: &str,
        upload: &str,
        first: [Bytes; 2],
        rest: &mut Parts,
        path: &Path,
    ) -> Result<(), Error> {
        let mut tags: Vec<String> = Vec::new();
        let mut ready = first.into_iter();
        for number in 1.. {
            let part = match ready.next() {
                Some(part) => part,
                None => rest.next().await.map_err(|source| Error::File { path: path.to_owned(), source })?,
            };
            if part.is_empty() {
                break;
            }
            if number > MAX_PARTS {
                return Err(Error::TooLarge(path.to_owned()));
            }
            let sign = || {
                let credentials = self.load_credentials()?;
                let action = |credentials| self.bucket.upload_part(credentials, key, number, upload);
                Ok(self.signed(action, credentials.as_ref()))
            };
            let response = self.sender.send(&Method::PUT, sign, part).await?;
            let tag = response.headers().get(ETAG).and_then(|tag| tag.to_str().ok());
            tags.push(tag.ok_or_else(|| self.sender.unexpected())?.to_owned());
        }
        self.complete_upload(key, upload, &tags).await
    }

    async fn complete_upload(&self, key: &str, upload: &str, tags: &[String]) -> Result<(), Error> {
        let tags = || tags.iter().map(String::as_str);
        let body = CompleteMultipartUpload::new(&self.bucket, None, key, upload, tags()).body();
        let sign = || {
            let credentials = self.load_credentials()?;
            let action = |credentials| CompleteMultipartUpload::new(&self.bucket, credentials, key, upload, tags());
            Ok(self.signed(action, credentials.as_ref()))
        };
        let response = self.sender.send(&Method::POST, sign, body.into()).await?;
        let status = response.status();
        let text = self.sender.text(response).await?;
        // S3 starts to respond before it knows whether it succeeds.
        match CompleteMultipartUploadResponse::parse(&text) {
            Ok(_) => Ok(()),
            Err(_) => Err(self.sender.failure(status, &text)),
        }
    }

    async fn abort_upload(&self, key: &str, upload: &str) -> Result<(), Error> {
        let sign = || {
            let credentials = self.load_credentials()?;
            let action = |credentials| self.bucket.abort_multipart_upload(credentials, key, upload);
            Ok(self.signed(action, credentials.as_ref()))
        };
        self.sender.send(&Method::DELETE, sign, Bytes::new()).await.map(drop)
    }
}

/// Reads a file part by part.
struct Parts {
    file: tokio::fs::File,
    bytes: usize,
}

impl Parts {
    /// The next part, which is empty at the end.
    async fn next(&mut self) -> std::io::Result<Bytes> {
        let mut part = Vec::with_capacity(self.bytes);
        (&mut self.file).take(self.bytes as u64).read_to_end(&mut part).await?;
        Ok(part.into())
    }
}
