//! Each kind of violation is found in a history that was good before it was spoilt.

use std::time::Duration;

use super::*;

fn event(key: &str, version: Version, value: &str) -> Event {
    Event { key: key.into(), value: value.into(), version }
}

/// The register `a` is created and written three times, once without a response; `b` is created and deleted. Times are in
/// milliseconds.
fn good() -> Records {
    let zero = Instant::now();
    let at = |ms| zero + Duration::from_millis(ms);
    let write = |key: &str, value: &str, expected, outcome, from, to| Write {
        key: key.into(),
        value: value.into(),
        expected,
        outcome,
        started: at(from),
        ended: at(to),
    };
    let events = vec![
        event("a", 1, "first"),
        event("a", 2, "one"),
        event("b", 4, "short"),
        event("a", 5, "lost response"),
        event("b", 6, DELETED),
        event("a", 7, "two"),
    ];
    Records {
        writes: vec![
            write("a", "first", ABSENT, Outcome::Done(1), 0, 1),
            write("a", "one", 1, Outcome::Done(2), 2, 10),
            write("a", "late", 1, Outcome::Refused, 5, 20),
            write("b", "short", ABSENT, Outcome::Done(4), 15, 16),
            write("a", "lost response", 2, Outcome::Unknown, 20, 30),
            write("b", DELETED, 4, Outcome::Deleted, 32, 35),
            write("a", "two", 5, Outcome::Done(7), 40, 50),
            write("a", "no effect", 7, Outcome::Unknown, 60, 70),
        ],
        reads: vec![Read { key: "a".into(), value: "one".into(), version: 2, started: at(12), ended: at(14) }],
        lists: vec![List {
            version: 5,
            items: [("a".to_owned(), (5, "lost response".to_owned())), ("b".to_owned(), (4, "short".to_owned()))]
                .into(),
            started: at(31),
            ended: at(33),
        }],
        watches: vec![events.clone(), events],
    }
}

fn in_all_watches(records: &mut Records, change: impl Fn(&mut Vec<Event>)) {
    records.watches.iter_mut().for_each(change);
}

/// The time of a record after everything else.
fn afterwards(records: &Records) -> Instant {
    records.writes.iter().map(|write| write.ended).max().expect("writes") + Duration::from_millis(1)
}

type Spoil = fn(&mut Records);

#[test]
fn a_good_history_passes_and_each_violation_is_found() {
    assert_eq!(violations(&good()), [] as [String; 0]);
    let spoilers: &[(&str, Spoil)] = &[
        // Watches.
        ("saw", |records| records.watches[1].swap(1, 2)),
        ("saw", |records| records.watches[1].insert(1, event("a", 1, "first"))),
        ("missed", |records| drop(records.watches[1].remove(2))),
        ("missed", |records| drop(records.watches[1].remove(4))),
        ("watches 0 and 1 saw", |records| records.watches[1][2].value = "other".into()),
        // All watches missed the same event.
        ("a read saw a version that no watch saw", |records| {
            in_all_watches(records, |events| drop(events.remove(1)));
            records.writes.remove(1);
            records.writes[3].expected = 1;
        }),
        // Writes.
        ("was lost", |records| in_all_watches(records, |events| drop(events.pop()))),
        ("was lost", |records| in_all_watches(records, |events| drop(events.remove(4)))),
        ("was lost", |records| records.writes[1].outcome = Outcome::Done(3)),
        ("took effect", |records| records.writes[4].outcome = Outcome::Refused),
        ("took effect", |records| records.writes[5].outcome = Outcome::Refused),
        ("not the one it expected", |records| records.writes[6].expected = 2),
        ("not the one it expected", |records| records.writes[4].expected = 1),
        ("not the one it expected", |records| records.writes[3].expected = 2),
        ("nobody wrote", |records| in_all_watches(records, |events| events.push(event("a", 9, "from nowhere")))),
        ("took effect twice", |records| in_all_watches(records, |events| events.push(event("a", 9, "two")))),
        ("took effect twice", |records| in_all_watches(records, |events| events.push(event("b", 9, "short")))),
        ("two writes created", |records| {
            let mut again = records.writes[5].clone();
            again.outcome = Outcome::Unknown;
            records.writes.push(again);
        }),
        // Reads and lists.
        ("another value", |records| records.reads[0].value = "other".into()),
        ("no watch saw", |records| records.reads[0].version = 3),
        ("seen after", |records| {
            records.reads[0].started = afterwards(records);
            records.reads[0].ended = records.reads[0].started;
        }),
        ("a list at version 5 has None as b", |records| drop(records.lists[0].items.remove("b"))),
        ("which never was", |records| drop(records.lists[0].items.insert("c".into(), (3, "x".into())))),
        ("a list at version 6 has", |records| records.lists[0].version = 6),
        ("a list at version 5 has", |records| {
            drop(records.lists[0].items.insert("a".into(), (2, "one".into())));
        }),
        ("was seen after", |records| {
            records.lists[0].started = afterwards(records);
            records.lists[0].ended = records.lists[0].started;
        }),
        // Only the version of the list shows that it is too old: it lacks an object that was created.
        ("a list at version 3 was seen after 4", |records| {
            let started = records.writes[3].ended + Duration::from_millis(1);
            let items = [("a".to_owned(), (2, "one".to_owned()))].into();
            records.lists[0] = List { version: 3, items, started, ended: started };
        }),
        // A write without a response that took effect before it was sent.
        ("seen after", |records| {
            records.writes[4].started = afterwards(records);
            records.writes[4].ended = records.writes[4].started;
        }),
    ];
    for (number, (text, spoil)) in spoilers.iter().enumerate() {
        let mut records = good();
        spoil(&mut records);
        let found = violations(&records);
        assert!(found.iter().any(|violation| violation.contains(text)), "{number}, {text}: {found:?}");
    }
}
