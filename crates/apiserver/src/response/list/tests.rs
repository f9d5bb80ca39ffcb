use std::collections::HashMap;

use http_body_util::BodyExt;
use knarr_api::catalogue::Catalogue;

use super::*;
use crate::kinds::{Kinds, no_descriptions};

fn pods() -> Arc<Resource> {
    let kinds = Kinds::new(Catalogue::built_in(), &HashMap::new(), no_descriptions());
    kinds.resource("", "v1", "pods").unwrap().clone()
}

fn entries(resource: &Resource, count: usize) -> Vec<Arc<Entry>> {
    let entry = |at: usize| {
        let name = format!("pod-{at}");
        let object = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": name, "namespace": "a", "uid": name, "creationTimestamp": "2026-01-02T03:04:05Z",
                "annotations": {"text": "several\nlines \"quoted\"\n", "long": "x".repeat(900)},
            },
            "spec": {"containers": [{"name": "c", "image": "i"}]}, "status": {"phase": "Pending"},
        });
        Arc::new(Entry::new(
            format!("/registry/pods/a/{name}").into(),
            stored::encode(resource, &object),
            1,
            at as u64 + 2,
        ))
    };
    (0..count).map(entry).collect()
}

fn formats() -> Vec<Format> {
    let mut formats = Vec::new();
    for encoding in [Encoding::Json, Encoding::Yaml, Encoding::Protobuf] {
        for shape in [Shape::Whole, Shape::Table, Shape::PartialList] {
            for pretty in [false, true] {
                formats.push(Format { encoding, shape, pretty, ..Format::JSON });
            }
        }
    }
    formats
}

fn listed(entries: Vec<Arc<Entry>>) -> Listed {
    Listed { entries, revision: 77, continue_token: "next".into(), remaining: Some(3) }
}

/// The list as one value, encoded at once.
fn whole(resource: &Arc<Resource>, entries: &[Arc<Entry>], format: &Format) -> Value {
    let items = Items { resource: resource.clone(), format: *format, include: IncludeObject::Metadata };
    let values = entries.iter().map(|entry| items.value(entry).unwrap()).collect();
    items.document(list_metadata(&listed(Vec::new())), Some(values))
}

fn decode(bytes: &[u8], format: &Format) -> Value {
    match format.encoding {
        Encoding::Json => serde_json::from_slice(bytes).unwrap(),
        Encoding::Yaml => knarr_api::decode::untyped_yaml(bytes).unwrap().value,
        Encoding::Protobuf => knarr_api::protobuf::decode(bytes, None).unwrap(),
    }
}

#[tokio::test]
async fn chunks_make_the_same_list_as_one_piece() {
    let resource = pods();
    for count in [0, 1, 3, 400] {
        let entries = entries(&resource, count);
        for format in formats() {
            let response = list(&resource, listed(entries.clone()), &format, IncludeObject::Metadata).await.unwrap();
            let announced = response.body().length();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert!(announced.is_none_or(|length| length == body.len()), "{count} {format:?}");
            let expected = whole(&resource, &entries, &format);
            let expected = decode(&super::super::served_bytes(&expected, &format), &format);
            assert_eq!(decode(&body, &format), expected, "{count} {format:?}");
        }
    }
}

#[tokio::test]
async fn large_lists_are_sent_in_bounded_chunks() {
    let resource = pods();
    let entries = entries(&resource, 1000);
    for format in
        formats().into_iter().filter(|format| (format.encoding, format.shape) != (Encoding::Protobuf, Shape::Table))
    {
        let response = list(&resource, listed(entries.clone()), &format, IncludeObject::Metadata).await.unwrap();
        let mut body = response.into_body();
        let mut chunks = 0;
        while let Some(frame) = body.frame().await {
            let chunk = frame.unwrap().into_data().unwrap();
            assert!(chunk.len() <= JOINED_CHUNK_SIZE + 16 * 1024, "{} bytes, {format:?}", chunk.len());
            chunks += 1;
        }
        assert!(chunks >= 4, "{chunks} chunks, {format:?}");
    }
}

/// The processor time of this thread.
fn thread_time() -> std::time::Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid, and the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    std::time::Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[tokio::test]
async fn encoding_a_long_list_leaves_the_thread_to_other_requests() {
    use http::HeaderMap;
    use http::header::ACCEPT_ENCODING;

    let resource = pods();
    let entries = entries(&resource, 1500);
    let longest = Arc::new(parking_lot::Mutex::new(std::time::Duration::ZERO));
    let others = tokio::spawn({
        let longest = longest.clone();
        async move {
            loop {
                let before = thread_time();
                tokio::time::sleep(std::time::Duration::from_millis(1)).await;
                let mut longest = longest.lock();
                *longest = longest.max(thread_time() - before);
            }
        }
    });
    let mut gzip = HeaderMap::new();
    gzip.insert(ACCEPT_ENCODING, "gzip".parse().unwrap());
    for format in
        formats().into_iter().filter(|format| (format.encoding, format.shape) != (Encoding::Protobuf, Shape::Table))
    {
        for headers in [&HeaderMap::new(), &gzip] {
            *longest.lock() = std::time::Duration::ZERO;
            let response = list(&resource, listed(entries.clone()), &format, IncludeObject::Metadata).await.unwrap();
            let mut body = super::super::compress(response, headers).into_body();
            while let Some(frame) = body.frame().await {
                frame.unwrap();
            }
            let longest = *longest.lock();
            assert!(longest < std::time::Duration::from_millis(50), "{longest:?} for {format:?}");
        }
    }
    others.abort();
}

#[tokio::test]
async fn an_unreadable_object_fails_the_list() {
    let resource = pods();
    let mut entries = entries(&resource, 100);
    entries.insert(1, Arc::new(Entry::new("/registry/pods/a/x".into(), Bytes::from_static(b"{"), 1, 2)));
    for format in formats() {
        let failed = list(&resource, listed(entries.clone()), &format, IncludeObject::Metadata).await;
        assert_eq!(failed.err().map(|status| status.code), Some(500), "{format:?}");
    }
}
