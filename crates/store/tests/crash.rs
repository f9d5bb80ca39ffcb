//! Kills a process that writes to an embedded store, repeatedly at random moments, and checks what is left: every
//! acknowledged write, in order, and no watch event lost or repeated across the crashes.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use knarr_store::{Embedded, Error, Event, Notice, Options, Range, Revision, Store};
use rand::Rng;

const ROUNDS: usize = 120;
/// The maximum time a child writes before it is killed.
const MAX_RUN_TIME: Duration = Duration::from_millis(60);
const DIRECTORY: &str = "KNARR_CRASH_DIRECTORY";
/// The last revision that the parent knows; the child's watch starts there, and it compacts no further.
const KNOWN: &str = "KNARR_CRASH_KNOWN";

fn options() -> Options {
    Options { segment_bytes: 64 << 10, ..Options::default() }
}

/// What happened at a revision: the key, and a digest of the value unless it was deleted.
type Change = (String, Option<u32>);

#[test]
fn killed_again_and_again_it_keeps_every_acknowledged_write() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let mut known: BTreeMap<Revision, Change> = BTreeMap::new();
    let (mut acknowledged, mut watched) = (0, 0);
    for round in 0..ROUNDS {
        let newest = known.keys().next_back().copied().unwrap_or(1);
        let output = run_and_kill(directory.path(), newest);
        let remembered = remembered(directory.path(), newest);
        for (revision, change) in &output.acknowledged {
            assert_eq!(remembered.get(revision), Some(change), "round {round}: acknowledged at {revision}");
        }
        for (position, (revision, change)) in output.watched.iter().enumerate() {
            assert_eq!(*revision, newest + 1 + position as u64, "round {round}: an event was lost or repeated");
            assert_eq!(remembered.get(revision), Some(change), "round {round}: watched at {revision}");
        }
        acknowledged += output.acknowledged.len();
        watched += output.watched.len();
        known.extend(remembered);
        assert_state(directory.path(), &known);
    }
    println!("{ROUNDS} kills, {acknowledged} acknowledged writes, {watched} watch events, {} revisions", known.len());
    assert!(acknowledged > ROUNDS, "the children hardly wrote anything");
}

/// What a child reported before it was killed.
#[derive(Default)]
struct ChildOutput {
    acknowledged: Vec<(Revision, Change)>,
    watched: Vec<(Revision, Change)>,
}

fn run_and_kill(directory: &Path, known: Revision) -> ChildOutput {
    let mut child = Command::new(std::env::current_exe().expect("the test's own path"))
        .args(["--ignored", "--exact", "the_process_that_is_killed", "--nocapture", "--quiet"])
        .env(DIRECTORY, directory)
        .env(KNOWN, known.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let mut lines = BufReader::new(child.stdout.take().expect("the child's output")).lines().map_while(Result::ok);
    lines.by_ref().find(|line| line == "ready").expect("the child opens the store");
    let reader = std::thread::spawn(move || {
        let mut output = ChildOutput::default();
        lines.for_each(|line| output.parse(&line));
        output
    });
    std::thread::sleep(rand::rng().random_range(Duration::ZERO..MAX_RUN_TIME));
    child.kill().expect("the child is killed");
    child.wait().expect("the child is gone");
    reader.join().expect("the child's lines")
}

impl ChildOutput {
    /// `ack` or `event`, then revision, key, and digest or `-`. The last line may be cut short by the kill.
    fn parse(&mut self, line: &str) {
        let mut fields = line.split(' ');
        let (Some(kind), Some(revision), Some(key), Some(digest), Some(".")) =
            (fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return;
        };
        let change = (key.to_owned(), digest.parse().ok());
        let record = (revision.parse().expect("a revision"), change);
        match kind {
            "ack" => self.acknowledged.push(record),
            "event" => self.watched.push(record),
            _ => panic!("the child said {line}"),
        }
    }
}

/// Opens what the child left and returns all changes after `known`, which must be without gap.
fn remembered(directory: &Path, known: Revision) -> BTreeMap<Revision, Change> {
    let store = Embedded::open(directory, options()).expect("the store opens after the kill");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let newest = store.revision();
    let mut watch = store.watch("", known).expect("the history is there");
    let mut changes = BTreeMap::new();
    while changes.len() < (newest - known) as usize {
        let Some(Notice::Events(events)) = runtime.block_on(watch.next()) else { panic!("the history ends early") };
        changes.extend(events.iter().map(|event| (event.revision, change_of(event))));
    }
    assert!(changes.keys().copied().eq(known + 1..=newest), "a revision is missing");
    changes
}

fn assert_state(directory: &Path, known: &BTreeMap<Revision, Change>) {
    let store = Embedded::open(directory, options()).expect("the store opens again");
    let mut expected: BTreeMap<&str, u32> = BTreeMap::new();
    for (key, digest) in known.values() {
        match digest {
            Some(digest) => expected.insert(key, *digest),
            None => expected.remove(key.as_str()),
        };
    }
    let page = store.peek_range(&Range::default()).expect("the entries");
    let present: BTreeMap<&str, u32> =
        page.entries.iter().map(|entry| (entry.key.as_ref(), digest(&entry.value()))).collect();
    assert_eq!(present, expected);
}

fn change_of(event: &Event) -> Change {
    let key = event.current.as_ref().or(event.previous.as_ref()).expect("a version").key.to_string();
    (key, event.current.as_ref().map(|entry| digest(&entry.value())))
}

fn digest(value: &Bytes) -> u32 {
    crc32fast::hash(value)
}

/// Says a line in one write, so that a kill leaves whole lines, but perhaps the last.
fn say(kind: &str, revision: Revision, change: &Change) {
    let digest = change.1.map_or("-".to_owned(), |digest| digest.to_string());
    let line = format!("{kind} {revision} {} {digest} .\n", change.0);
    std::io::stdout().lock().write_all(line.as_bytes()).expect("the parent listens");
}

#[test]
#[ignore = "not a test: the process that the test above starts and kills"]
fn the_process_that_is_killed() {
    let (Ok(directory), Ok(known)) = (std::env::var(DIRECTORY), std::env::var(KNOWN)) else { return };
    let known = known.parse().expect("a revision");
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let store = Arc::new(Embedded::open(Path::new(&directory), options()).expect("the store opens"));
        println!("\nready");
        let mut watch = store.watch("", known).expect("the watch resumes");
        tokio::spawn(async move {
            while let Some(Notice::Events(events)) = watch.next().await {
                events.iter().for_each(|event| say("event", event.revision, &change_of(event)));
            }
        });
        let writers = (0..16).map(|writer| tokio::spawn(write_for_ever(store.clone(), writer)));
        let writers: Vec<_> = writers.collect();
        store.compact(known).await.expect("compaction");
        for writer in writers {
            writer.await.expect("a writer");
        }
    });
}

async fn write_for_ever(store: Arc<Embedded>, writer: usize) {
    loop {
        let (number, choice, filler, length) = {
            let mut random = rand::rng();
            (random.random_range(0..30), random.random_range(0..4), random.random(), random.random_range(0..4000))
        };
        // Some keys are fought over, some are not.
        let key = format!("/registry/{}/{number}", ["pods", "nodes", "secrets"][writer % 3]);
        let value = Bytes::from(vec![filler; length]);
        let written = match store.peek(&key) {
            None => store.create(&key, value.clone(), None).await.map(|entry| (entry.revision, Some(digest(&value)))),
            Some(entry) if choice == 0 => store.delete(&key, entry.revision).await.map(|revision| (revision, None)),
            Some(entry) => {
                let updated = store.update(&key, value.clone(), entry.revision, None).await;
                updated.map(|entry| (entry.revision, Some(digest(&value))))
            }
        };
        match written {
            Ok((revision, digest)) => say("ack", revision, &(key, digest)),
            Err(Error::Exists(_) | Error::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}
