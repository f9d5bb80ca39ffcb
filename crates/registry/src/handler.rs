//! One request of the distribution API.

use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt as _;
use http::header::{ACCEPT_RANGES, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, LINK, LOCATION, RANGE};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::io::{AsyncReadExt as _, AsyncSeekExt as _, AsyncWriteExt as _};
use tokio_util::io::ReaderStream;

use crate::Access;
use crate::error::Error;
use crate::reference::{Digest, Name, Reference, Target};
use crate::store::Store;

/// A manifest is a list of digests; the specification asks for at least this much.
const MAX_MANIFEST: usize = 4 << 20;
/// How long a client may take for the next piece of a body.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// The most entries of one page of tags or repositories.
const MAX_PAGE: usize = 1000;

const DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");
const UPLOAD: HeaderName = HeaderName::from_static("docker-upload-uuid");
const VERSION: HeaderName = HeaderName::from_static("docker-distribution-api-version");

/// The body of a response.
pub type ResponseBody = UnsyncBoxBody<Bytes, std::io::Error>;

/// Handles a request. A failure becomes a response.
pub async fn handle<B>(store: &Store, access: Access, request: Request<B>) -> Response<ResponseBody>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    let is_head = request.method() == Method::HEAD;
    let mut response = match route(store, access, request).await {
        Ok(response) => response,
        Err(error) => error.response().map(full),
    };
    response.headers_mut().insert(VERSION, HeaderValue::from_static("registry/2.0"));
    if is_head {
        // The length stays: it is what was asked for.
        *response.body_mut() = full(Bytes::new());
    }
    response
}

async fn route<B>(store: &Store, access: Access, request: Request<B>) -> Result<Response<ResponseBody>, Error>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    let method = request.method().clone();
    let is_read = matches!(method, Method::GET | Method::HEAD);
    if access == Access::PullAndPush && is_of_web_page(request.headers()) {
        return Err(Error::WebPage);
    }
    let target = Target::parse(request.uri().path())?;
    if access == Access::Pull && !is_read {
        return Err(Error::Denied);
    }
    match target {
        Target::Root if is_read => Ok(json(StatusCode::OK, "{}".to_owned())),
        Target::Catalog if is_read => {
            let names = blocking(store, |store| Ok(store.list_repositories()?)).await?;
            Ok(page("repositories", None, "/v2/_catalog", names, &request))
        }
        Target::Tags(name) if is_read => {
            let own = name.clone();
            let tags = blocking(store, move |store| store.list_tags(&own)).await?;
            Ok(page("tags", Some(&name), &format!("/v2/{}/tags/list", name.as_str()), tags, &request))
        }
        Target::Manifest(name, reference) => manifest(store, name, reference, request).await,
        Target::Blob(_, digest) if is_read => blob(store, &digest, &request).await,
        Target::Blob(_, digest) if method == Method::DELETE => {
            blocking(store, move |store| store.delete_blob(&digest)).await?;
            Ok(empty(StatusCode::ACCEPTED))
        }
        Target::NewUpload(name) if method == Method::POST => start_upload(store, &name, request).await,
        Target::Upload(name, id) => upload(store, &name, id, request).await,
        _ => Err(Error::Unsupported),
    }
}

/// Whether a page in a browser on this host sent the request. Nobody has to sign in to push, so any page could, also by a name
/// of its own that it lets resolve to loopback. Programs that push send no origin, and use an address or `localhost`.
fn is_of_web_page(headers: &http::HeaderMap) -> bool {
    let is_own_host = |host: &str| {
        let name = host.parse::<http::uri::Authority>().ok();
        let name = name.as_ref().map(|authority| authority.host().trim_matches(['[', ']'])).unwrap_or_default();
        name == "localhost" || name.ends_with(".localhost") || name.parse::<std::net::IpAddr>().is_ok()
    };
    let host = headers.get(http::header::HOST);
    let is_foreign = host.is_some_and(|host| !host.to_str().is_ok_and(is_own_host));
    is_foreign || headers.contains_key(http::header::ORIGIN) || headers.contains_key("sec-fetch-site")
}

/// Runs an operation on files where it may block.
async fn blocking<T: Send + 'static>(
    store: &Store,
    operation: impl FnOnce(&Store) -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    let store = store.clone();
    match tokio::task::spawn_blocking(move || operation(&store)).await {
        Ok(result) => result,
        Err(error) => Err(Error::Disk(std::io::Error::other(error))),
    }
}

async fn manifest<B>(
    store: &Store,
    name: Name,
    reference: Reference,
    request: Request<B>,
) -> Result<Response<ResponseBody>, Error>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    match *request.method() {
        Method::GET | Method::HEAD => {
            let found = blocking(store, move |store| store.manifest(&name, &reference)).await?;
            let mut response = Response::new(full(Bytes::from(found.content.clone())));
            set(&mut response, CONTENT_TYPE, &found.media_type);
            set(&mut response, CONTENT_LENGTH, &found.content.len().to_string());
            set(&mut response, DIGEST, &found.digest.to_string());
            Ok(response)
        }
        Method::PUT => {
            let media_type = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let media_type = media_type.unwrap_or("application/vnd.oci.image.manifest.v1+json").to_owned();
            let content = read_small(request.into_body()).await?;
            let repository = name.clone();
            let digest =
                blocking(store, move |store| store.put_manifest(&repository, &reference, &media_type, &content))
                    .await?;
            let mut response = empty(StatusCode::CREATED);
            set(&mut response, LOCATION, &format!("/v2/{}/manifests/{digest}", name.as_str()));
            set(&mut response, DIGEST, &digest.to_string());
            Ok(response)
        }
        Method::DELETE => {
            blocking(store, move |store| store.delete_manifest(&name, &reference)).await?;
            Ok(empty(StatusCode::ACCEPTED))
        }
        _ => Err(Error::Unsupported),
    }
}

async fn blob<B>(store: &Store, digest: &Digest, request: &Request<B>) -> Result<Response<ResponseBody>, Error> {
    let mut file = match tokio::fs::File::open(store.blob(digest)).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(Error::BlobUnknown),
        file => file?,
    };
    let size = file.metadata().await?.len();
    let range = request.headers().get(RANGE).and_then(|value| value.to_str().ok());
    let (first, end) = range.map_or(Ok((0, size)), |range| parse_range(range, size))?;
    file.seek(std::io::SeekFrom::Start(first)).await?;
    let stream = ReaderStream::with_capacity(file.take(end - first), 1 << 16);
    let mut response = Response::new(StreamBody::new(stream.map_ok(Frame::data)).boxed_unsync());
    set(&mut response, CONTENT_LENGTH, &(end - first).to_string());
    set(&mut response, CONTENT_TYPE, "application/octet-stream");
    set(&mut response, ACCEPT_RANGES, "bytes");
    set(&mut response, DIGEST, &digest.to_string());
    if range.is_some() {
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
        set(&mut response, CONTENT_RANGE, &format!("bytes {first}-{}/{size}", end.saturating_sub(1)));
    }
    Ok(response)
}

/// The first byte of a range, and the one after its last.
pub(crate) fn parse_range(text: &str, size: u64) -> Result<(u64, u64), Error> {
    let wrong = || Error::Range { size };
    let (first, last) = text.strip_prefix("bytes=").and_then(|range| range.split_once('-')).ok_or_else(wrong)?;
    let first: u64 = first.parse().map_err(|_| wrong())?;
    let last: u64 = if last.is_empty() { u64::MAX - 1 } else { last.parse().map_err(|_| wrong())? };
    if first >= size || last < first {
        return Err(wrong());
    }
    Ok((first, size.min(last.saturating_add(1))))
}

async fn start_upload<B>(store: &Store, name: &Name, request: Request<B>) -> Result<Response<ResponseBody>, Error>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    // All repositories share their blobs, so there is nothing to mount.
    if let Some(mount) = query(&request, "mount")
        && let Ok(digest) = Digest::parse(&mount)
        && tokio::fs::try_exists(store.blob(&digest)).await?
    {
        return Ok(created(name, &digest));
    }
    let digest = query(&request, "digest").map(|digest| Digest::parse(&digest)).transpose()?;
    let id = blocking(store, |store| Ok(store.start_upload()?)).await?;
    match digest {
        Some(digest) => finish(store, name, id, digest, request.into_body()).await,
        None => Ok(progress(StatusCode::ACCEPTED, name, &id, 0)),
    }
}

async fn upload<B>(store: &Store, name: &Name, id: String, request: Request<B>) -> Result<Response<ResponseBody>, Error>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    match *request.method() {
        Method::GET => Ok(progress(StatusCode::NO_CONTENT, name, &id, size_of(store, &id).await?)),
        Method::PATCH => {
            check_order(&request, size_of(store, &id).await?)?;
            let size = receive(store, &id, request.into_body()).await?.metadata().await?.len();
            Ok(progress(StatusCode::ACCEPTED, name, &id, size))
        }
        Method::PUT => {
            check_order(&request, size_of(store, &id).await?)?;
            let digest = query(&request, "digest").ok_or(Error::DigestInvalid)?;
            let digest = Digest::parse(&digest)?;
            finish(store, name, id, digest, request.into_body()).await
        }
        Method::DELETE => {
            blocking(store, move |store| store.drop_upload(&id)).await?;
            Ok(empty(StatusCode::NO_CONTENT))
        }
        _ => Err(Error::Unsupported),
    }
}

async fn size_of(store: &Store, id: &str) -> Result<u64, Error> {
    match tokio::fs::metadata(store.upload(id)).await {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Err(Error::UploadUnknown),
        metadata => Ok(metadata?.len()),
    }
}

/// Refuses a piece that does not follow the one before.
fn check_order<B>(request: &Request<B>, size: u64) -> Result<(), Error> {
    let Some(range) = request.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok()) else { return Ok(()) };
    let first = range.trim_start_matches("bytes ").split('-').next().and_then(|first| first.parse::<u64>().ok());
    if first == Some(size) {
        return Ok(());
    }
    Err(Error::UploadInvalid(format!("the next byte is {size}")))
}

/// Appends a body to an upload, and returns its file, which nobody else writes to until it is closed.
async fn receive<B>(store: &Store, id: &str, mut body: B) -> Result<tokio::fs::File, Error>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    let own = id.to_owned();
    let mut file = tokio::fs::File::from_std(blocking(store, move |store| store.claim_upload(&own)).await?);
    while let Some(piece) = next(&mut body).await? {
        file.write_all(&piece).await?;
    }
    file.flush().await?;
    Ok(file)
}

async fn finish<B>(
    store: &Store,
    name: &Name,
    id: String,
    digest: Digest,
    body: B,
) -> Result<Response<ResponseBody>, Error>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    let claimed = receive(store, &id, body).await?;
    let expected = digest.clone();
    blocking(store, move |store| store.finish_upload(&id, &expected)).await?;
    drop(claimed);
    Ok(created(name, &digest))
}

/// The next piece of a body.
async fn next<B>(body: &mut B) -> Result<Option<Bytes>, Error>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    loop {
        let frame = tokio::time::timeout(READ_TIMEOUT, body.frame()).await.map_err(|_| Error::Slow)?;
        match frame.transpose().map_err(Error::Body)? {
            None => return Ok(None),
            Some(frame) => match frame.into_data() {
                Ok(data) => return Ok(Some(data)),
                // Trailers.
                Err(_) => continue,
            },
        }
    }
}

async fn read_small<B>(mut body: B) -> Result<Vec<u8>, Error>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Unpin,
{
    let mut content = Vec::new();
    while let Some(piece) = next(&mut body).await? {
        if content.len() + piece.len() > MAX_MANIFEST {
            return Err(Error::ManifestInvalid(format!("larger than {MAX_MANIFEST} bytes")));
        }
        content.extend_from_slice(&piece);
    }
    Ok(content)
}

/// A page of names, and where the next one is.
fn page<B>(
    field: &str,
    name: Option<&Name>,
    path: &str,
    mut names: Vec<String>,
    request: &Request<B>,
) -> Response<ResponseBody> {
    if let Some(last) = query(request, "last") {
        names.retain(|name| *name > last);
    }
    let asked = query(request, "n").and_then(|count| count.parse::<usize>().ok());
    let count = asked.unwrap_or(MAX_PAGE).min(MAX_PAGE);
    let is_cut = names.len() > count;
    names.truncate(count);
    let mut body = serde_json::json!({ field: names });
    if let Some(name) = name {
        body["name"] = name.as_str().into();
    }
    let mut response = json(StatusCode::OK, body.to_string());
    if let (true, Some(last)) = (is_cut, names.last()) {
        set(&mut response, LINK, &format!("<{path}?n={count}&last={last}>; rel=\"next\""));
    }
    response
}

/// A parameter of the query. Names, tags and digests need no escaping, except for colons.
fn query<B>(request: &Request<B>, name: &str) -> Option<String> {
    let pairs = request.uri().query()?.split('&').filter_map(|pair| pair.split_once('='));
    let value = pairs.into_iter().find(|(key, _)| *key == name).map(|(_, value)| value)?;
    Some(value.replace("%3A", ":").replace("%3a", ":").replace("%2F", "/").replace("%2f", "/"))
}

fn created(name: &Name, digest: &Digest) -> Response<ResponseBody> {
    let mut response = empty(StatusCode::CREATED);
    set(&mut response, LOCATION, &format!("/v2/{}/blobs/{digest}", name.as_str()));
    set(&mut response, DIGEST, &digest.to_string());
    response
}

fn progress(status: StatusCode, name: &Name, id: &str, size: u64) -> Response<ResponseBody> {
    let mut response = empty(status);
    set(&mut response, LOCATION, &format!("/v2/{}/blobs/uploads/{id}", name.as_str()));
    set(&mut response, RANGE, &format!("0-{}", size.saturating_sub(1)));
    set(&mut response, UPLOAD, id);
    response
}

fn empty(status: StatusCode) -> Response<ResponseBody> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}

fn json(status: StatusCode, text: String) -> Response<ResponseBody> {
    let mut response = Response::new(full(Bytes::from(text)));
    *response.status_mut() = status;
    set(&mut response, CONTENT_TYPE, "application/json");
    response
}

fn full(content: Bytes) -> ResponseBody {
    Full::new(content).map_err(|never| match never {}).boxed_unsync()
}

/// Sets a header. Values that no header can have, such as a media type with control characters, are left out.
fn set(response: &mut Response<ResponseBody>, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        response.headers_mut().insert(name, value);
    }
}
