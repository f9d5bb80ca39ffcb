//! The crate against a small S3 server on loopback.

use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::fake_storage::{BUCKET, FakeStorage, REGION, SECRET};
use crate::{Error, Settings, Storage};

struct Fixture {
    server: FakeStorage,
    directory: tempfile::TempDir,
    storage: Storage,
}

async fn fixture() -> Fixture {
    let server = FakeStorage::start().await;
    let directory = tempfile::tempdir().unwrap();
    let credentials = directory.path().join("credentials");
    FakeStorage::credentials(&credentials, SECRET);
    let settings = Settings {
        endpoint: Some(server.endpoint().parse().unwrap()),
        region: REGION.to_owned(),
        credentials: Some(credentials),
        authority: None,
    };
    let mut storage = Storage::new(BUCKET, &settings).unwrap();
    storage.sender.timeouts.backoff = Duration::from_millis(1);
    Fixture { server, directory, storage }
}

impl Fixture {
    fn file(&self, content: &[u8]) -> std::path::PathBuf {
        let path = self.directory.path().join("file");
        std::fs::write(&path, content).unwrap();
        path
    }

    fn fail(&self, statuses: &[StatusCode]) {
        self.server.state.lock().unwrap().failures = statuses.iter().copied().collect();
    }
}

#[tokio::test]
async fn objects_are_put_listed_read_and_deleted() {
    let fixture = fixture().await;
    let storage = &fixture.storage;
    let keys = ["a/knarr 1.snapshot", "a/knarr-2+é.snapshot", "a/x", "b"];
    for (number, key) in keys.iter().enumerate() {
        storage.put(key, &fixture.file(format!("content {number}").as_bytes())).await.unwrap();
    }
    let listed: Vec<String> = storage.list("a/").await.unwrap().into_iter().map(|object| object.key).collect();
    assert_eq!(listed, keys[..3]);
    assert_eq!(storage.list("b").await.unwrap()[0].bytes, 9);
    assert_eq!(storage.list("nothing").await.unwrap(), []);
    let copy = fixture.directory.path().join("copy");
    storage.get(keys[1], &copy).await.unwrap();
    assert_eq!(std::fs::read(&copy).unwrap(), b"content 1");
    storage.delete(keys[1]).await.unwrap();
    storage.delete(keys[1]).await.unwrap();
    let gone = storage.get(keys[1], &copy).await.unwrap_err().to_string();
    assert!(gone.contains("404") && gone.contains("NoSuchKey (as the test says)"), "{gone}");
    storage.put("empty", &fixture.file(b"")).await.unwrap();
    assert_eq!(storage.list("empty").await.unwrap()[0].bytes, 0);
}

#[tokio::test]
async fn large_files_are_put_in_parts() {
    let fixture = fixture().await;
    for length in [999, 1000, 1001, 5000, 5003] {
        let content: Vec<u8> = (0..length).map(|number| (number % 251) as u8).collect();
        fixture.storage.put_in_parts("large", &fixture.file(&content), 1000).await.unwrap();
        let state = fixture.server.state.lock().unwrap();
        assert_eq!(state.objects["large"], content, "{length}");
        assert!(state.uploads.is_empty());
    }
}

#[tokio::test]
async fn an_upload_that_fails_leaves_nothing() {
    let fixture = fixture().await;
    let path = fixture.file(&[7; 2500]);
    fixture.server.state.lock().unwrap().fails_to_complete = true;
    let error = fixture.storage.put_in_parts("large", &path, 1000).await.unwrap_err().to_string();
    assert!(error.contains("InternalError"), "{error}");
    let state = fixture.server.state.lock().unwrap();
    assert!(state.objects.is_empty() && state.uploads.is_empty());
}

#[tokio::test]
async fn failures_that_pass_are_retried_and_others_are_not() {
    let fixture = fixture().await;
    let path = fixture.file(b"content");
    fixture.fail(&[StatusCode::SERVICE_UNAVAILABLE, StatusCode::TOO_MANY_REQUESTS, StatusCode::INTERNAL_SERVER_ERROR]);
    fixture.storage.put("a", &path).await.unwrap();
    assert_eq!(fixture.server.keys(), ["a"]);
    let count = || fixture.server.state.lock().unwrap().requests;
    assert_eq!(count(), 4);
    fixture.fail(&[StatusCode::SERVICE_UNAVAILABLE; 9]);
    assert!(matches!(fixture.storage.put("a", &path).await, Err(Error::Status { .. })));
    assert_eq!(count(), 8);
    fixture.fail(&[StatusCode::FORBIDDEN]);
    assert!(fixture.storage.put("a", &path).await.is_err());
    assert_eq!(count(), 9);
}

#[tokio::test]
async fn wrong_credentials_are_refused_and_appear_in_no_error() {
    let fixture = fixture().await;
    let credentials = fixture.directory.path().join("credentials");
    FakeStorage::credentials(&credentials, "wrong-secret");
    let error = fixture.storage.list("").await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains("SignatureDoesNotMatch"), "{text}");
    assert!(!text.contains("X-Amz") && !text.contains("wrong-secret") && !text.contains("test-key"), "{text}");
    // They are read again for the next request.
    FakeStorage::credentials(&credentials, SECRET);
    assert_eq!(fixture.storage.list("").await.unwrap(), []);
}

#[tokio::test]
async fn a_storage_that_is_away_is_named_without_the_signature() {
    let mut fixture = fixture().await;
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let settings = Settings {
        endpoint: Some(format!("http://{free}").parse().unwrap()),
        region: REGION.to_owned(),
        credentials: Some(fixture.directory.path().join("credentials")),
        authority: None,
    };
    fixture.storage = Storage::new(BUCKET, &settings).unwrap();
    fixture.storage.sender.timeouts.backoff = Duration::from_millis(1);
    let error = fixture.storage.list("").await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(text.contains(&free.to_string()) && !text.contains("X-Amz"), "{text}");
}

/// A storage that sends the same pieces to everybody, and then stays silent if `hangs`, or else closes the connection. Returns
/// how many requests there were.
async fn raw(pieces: Vec<String>, hangs: bool) -> (Fixture, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    let mut fixture = fixture().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let settings = Settings {
        endpoint: Some(format!("http://{}", listener.local_addr().unwrap()).parse().unwrap()),
        region: REGION.to_owned(),
        credentials: Some(fixture.directory.path().join("credentials")),
        authority: None,
    };
    fixture.storage = Storage::new(BUCKET, &settings).unwrap();
    let timeouts = &mut fixture.storage.sender.timeouts;
    timeouts.backoff = Duration::from_millis(1);
    (timeouts.response, timeouts.stall) = (Duration::from_millis(300), Duration::from_millis(300));
    let requests = std::sync::Arc::<std::sync::atomic::AtomicUsize>::default();
    let counted = requests.clone();
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            counted.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            let pieces = pieces.clone();
            tokio::spawn(async move {
                let _ = connection.read(&mut [0; 4096]).await;
                for piece in pieces {
                    // The client hangs up when it has had enough.
                    let _ = connection.write_all(piece.as_bytes()).await;
                }
                if hangs {
                    let _ = connection.read(&mut [0; 4096]).await;
                    std::future::pending::<()>().await;
                }
            });
        }
    });
    (fixture, requests)
}

#[tokio::test]
async fn a_storage_that_hangs_fails_the_operation() {
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n".to_owned();
    for (pieces, attempts) in
        [(vec![], 4), (vec!["HTTP/1.1 200 OK\r\n".to_owned()], 4), (vec![head, "<List".to_owned()], 1)]
    {
        let (fixture, requests) = raw(pieces.clone(), true).await;
        let error = fixture.storage.list("").await.unwrap_err();
        assert!(matches!(error, Error::Timeout(_)), "{pieces:?}: {error:?}");
        assert_eq!(requests.load(std::sync::atomic::Ordering::SeqCst), attempts, "{pieces:?}");
        let copy = fixture.directory.path().join("copy");
        let error = fixture.storage.get("a", &copy).await.unwrap_err();
        assert!(matches!(error, Error::Timeout(_)), "{pieces:?}: {error:?}");
        let error = fixture.storage.put("a", &fixture.file(b"content")).await;
        // The body of the response to an upload says nothing.
        assert_eq!(error.is_err(), pieces.len() < 2, "{error:?}");
    }
}

#[tokio::test]
async fn responses_without_end_are_refused() {
    let huge = ["HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n".to_owned()].into_iter();
    let huge: Vec<String> = huge.chain((0..40).map(|_| "x".repeat(1 << 20))).collect();
    let (fixture, _) = raw(huge, false).await;
    assert!(matches!(fixture.storage.list("").await, Err(Error::Response(_))));
    assert!(matches!(fixture.storage.get("a", &fixture.directory.path().join("copy")).await, Err(Error::Response(_))));
    // A download that ends before its length is none either.
    let short = vec!["HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort".to_owned()];
    let (fixture, _) = raw(short, false).await;
    assert!(fixture.storage.get("a", &fixture.directory.path().join("copy")).await.is_err());
    // Pages that always promise another one.
    let objects = "<Contents><Key>key</Key><Size>1</Size></Contents>".repeat(80_000);
    let page = format!(
        "<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><EncodingType>url</EncodingType>\
         <IsTruncated>true</IsTruncated>{objects}<NextContinuationToken>t</NextContinuationToken></ListBucketResult>"
    );
    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", page.len());
    let (fixture, requests) = raw(vec![head, page], false).await;
    let error = fixture.storage.list("").await.unwrap_err();
    assert!(matches!(error, Error::LongList(_)), "{error:?}");
    assert!(requests.load(std::sync::atomic::Ordering::SeqCst) < 30);
}

#[test]
fn endpoints_with_credentials_or_queries_are_refused() {
    for endpoint in ["https://user:password@host", "https://host/?a=b", "ftp://host"] {
        let settings = Settings {
            endpoint: Some(endpoint.parse().unwrap()),
            region: REGION.to_owned(),
            credentials: None,
            authority: None,
        };
        assert!(matches!(Storage::new(BUCKET, &settings), Err(Error::Endpoint)), "{endpoint}");
    }
}
