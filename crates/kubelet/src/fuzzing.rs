//! Entry points for fuzzing the parsers of files that others write.

use std::path::Path;

use tokio::sync::mpsc;

use crate::container_logs::{self, LogOptions};

/// Parses a manifest of a static pod.
pub fn manifest(text: &str) {
    crate::source::fuzz_manifest(text);
}

/// Reads a container's log, whole and by its last lines: the end must be the end of the whole.
pub fn log(path: &Path) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return };
    let read = |options: LogOptions| {
        runtime.block_on(async {
            let (sender, mut receiver) = mpsc::channel(16);
            let sending = container_logs::send(path.to_owned(), options, sender, || true);
            let receiving = async {
                let mut text = Vec::new();
                while let Some(Ok(chunk)) = receiver.recv().await {
                    text.extend_from_slice(&chunk);
                }
                text
            };
            tokio::join!(sending, receiving).1
        })
    };
    let whole = read(LogOptions::default());
    let count = |text: &[u8]| text.iter().filter(|byte| **byte == b'\n').count();
    for tail in [0, 1, 3] {
        let end = read(LogOptions { tail: Some(tail), ..LogOptions::default() });
        assert!(whole.ends_with(&end), "the last {tail} lines are not the end");
        // Text may hold no line break of its own: each is the end of a line.
        assert!(count(&end) as u64 <= tail, "more than {tail} lines");
    }
    let limited = read(LogOptions { limit: Some(10), ..LogOptions::default() });
    assert!(limited.len() <= 10 && whole.starts_with(&limited));
    for stream in ["stdout", "stderr"] {
        let since = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        let options = LogOptions { stream: Some(stream.to_owned()), since: Some(since), ..LogOptions::default() };
        assert!(read(LogOptions { timestamps: true, ..options.clone() }).len() >= read(options).len());
    }
}
