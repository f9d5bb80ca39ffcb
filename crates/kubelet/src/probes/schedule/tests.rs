use super::*;
use serde_json::json;

/// Succeeds from an age of the container on; records at which ages it was probed.
struct Server {
    started_at: Instant,
    listens_after: Duration,
    probed: Arc<Mutex<Vec<f64>>>,
    outcomes: Arc<Mutex<Vec<(f64, bool)>>>,
}

impl Prober for Server {
    async fn probe(&self, _: &Target) -> Option<bool> {
        let age = self.started_at.elapsed();
        self.probed.lock().push(age.as_secs_f64());
        Some(age >= self.listens_after)
    }

    fn report(&self, _: &str, outcome: bool) -> bool {
        self.outcomes.lock().push((self.started_at.elapsed().as_secs_f64(), outcome));
        true
    }
}

struct Case {
    title: &'static str,
    kind: ProbeKind,
    probe: serde_json::Value,
    /// How long after the probes were added the container starts.
    starts_after: f64,
    listens_after: f64,
    /// At which ages of the container its status changes.
    triggers: &'static [f64],
    probed: &'static [f64],
    outcomes: &'static [(f64, bool)],
}

async fn play(case: &Case) -> (Vec<f64>, Vec<(f64, bool)>) {
    let started = Instant::now();
    let started_at = started + Duration::from_secs_f64(case.starts_after);
    let (probed, outcomes) = (Arc::default(), Arc::default());
    let server = Server {
        started_at,
        listens_after: Duration::from_secs_f64(case.listens_after),
        probed: Arc::clone(&probed),
        outcomes: Arc::clone(&outcomes),
    };
    let slot = Arc::new(Slot::default());
    let timing = Timing::of(&serde_json::from_value(case.probe.clone()).expect("a probe"));
    let task = tokio::spawn(run(case.kind, timing, Duration::ZERO, slot.clone(), server));
    tokio::time::sleep_until(started_at).await;
    let target = Target {
        id: "one".into(),
        running: true,
        started_at,
        started: case.kind != ProbeKind::Startup,
        address: String::new(),
    };
    slot.put(Some(target));
    for trigger in case.triggers {
        tokio::time::sleep_until(started_at + Duration::from_secs_f64(*trigger)).await;
        slot.trigger();
    }
    tokio::time::sleep_until(started_at + Duration::from_secs(40)).await;
    task.abort();
    let rounded = |age: f64| (age * 10.0).round() / 10.0;
    let probed = probed.lock().iter().copied().map(rounded).collect();
    let outcomes = outcomes.lock().iter().map(|(age, outcome)| (rounded(*age), *outcome)).collect();
    (probed, outcomes)
}

#[tokio::test(start_paused = true)]
async fn probes_keep_to_the_rhythm_of_their_pod() {
    use ProbeKind::{Liveness, Readiness, Startup};
    let cases = [
        Case {
            title: "a server that listens soon is ready soon",
            kind: Readiness,
            probe: json!({ "periodSeconds": 10 }),
            starts_after: 2.0,
            listens_after: 0.3,
            triggers: &[0.0],
            probed: &[0.0, 1.0, 11.0, 21.0, 31.0],
            outcomes: &[(1.0, true)],
        },
        Case {
            title: "one that needs 24 seconds is not killed after 20",
            kind: Liveness,
            probe: json!({ "periodSeconds": 10 }),
            starts_after: 2.0,
            listens_after: 24.0,
            triggers: &[],
            probed: &[8.0, 18.0, 28.0, 38.0],
            outcomes: &[(28.0, true)],
        },
        Case {
            title: "after a liveness failure the container is left alone",
            kind: Liveness,
            probe: json!({ "periodSeconds": 5, "failureThreshold": 2 }),
            starts_after: 1.0,
            listens_after: 100.0,
            triggers: &[],
            probed: &[4.0, 9.0],
            outcomes: &[(9.0, false)],
        },
        Case {
            title: "the initial delay counts from the container's start",
            kind: Readiness,
            probe: json!({ "periodSeconds": 5, "initialDelaySeconds": 12 }),
            starts_after: 3.0,
            listens_after: 0.0,
            triggers: &[0.0],
            probed: &[16.0, 21.0, 26.0, 31.0, 36.0],
            outcomes: &[(16.0, true)],
        },
        Case {
            title: "a change of the status triggers a probe",
            kind: Readiness,
            probe: json!({ "periodSeconds": 20 }),
            starts_after: 1.0,
            listens_after: 4.0,
            triggers: &[0.0, 5.0],
            probed: &[0.0, 1.0, 5.0, 25.0],
            outcomes: &[(5.0, true)],
        },
        Case {
            title: "startup is probed until it succeeded",
            kind: Startup,
            probe: json!({ "periodSeconds": 3, "failureThreshold": 30 }),
            starts_after: 1.0,
            listens_after: 6.0,
            triggers: &[],
            probed: &[2.0, 5.0, 8.0],
            outcomes: &[(8.0, true)],
        },
    ];
    for case in cases {
        let (probed, outcomes) = play(&case).await;
        assert_eq!(probed, case.probed, "{}: probed", case.title);
        assert_eq!(outcomes, case.outcomes, "{}: outcomes", case.title);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_container_is_probed_after_one_on_hold() {
    let now = Instant::now();
    let timing = Timing::of(&serde_json::from_value(json!({ "failureThreshold": 1 })).expect("a probe"));
    let mut progress = Progress::new(ProbeKind::Liveness, timing);
    let target =
        |id: &str| Target { id: id.into(), running: true, started_at: now, started: true, address: String::new() };
    assert!(progress.is_due(&target("one"), now));
    assert_eq!(progress.record(false), Some(false));
    assert!(!progress.is_due(&target("one"), now), "it is about to be stopped");
    assert!(progress.is_due(&target("two"), now));
    assert_eq!(progress.record(false), Some(false), "and its failure is reported again");
    let unstarted = Target { started: false, ..target("three") };
    assert!(!progress.is_due(&unstarted, now), "its startup probe comes first");
}

#[test]
fn probes_of_adopted_containers_are_spread_over_their_period() {
    let timing = Timing::of(&serde_json::from_value(json!({ "periodSeconds": 10 })).expect("a probe"));
    let cases = [(3, 0.5, 5), (3, 0.0, 0), (10, 0.5, 0), (60, 0.9, 0)];
    for (age, fraction, expected) in cases {
        let offset = timing.offset(Duration::from_secs(age), fraction);
        assert_eq!(offset, Duration::from_secs(expected), "{age} s after the start");
    }
}

#[tokio::test(start_paused = true)]
async fn a_step_of_the_clock_changes_no_age() {
    let slot = Slot::default();
    let now = Instant::now();
    let at = |seconds| now + Duration::from_secs(seconds);
    let target = |id: &str, running, started_at| {
        Some(Target { id: id.into(), running, started_at, started: true, address: String::new() })
    };
    for (put, expected) in [
        (target("one", false, at(1)), at(1)),
        // It starts: only now its age is known.
        (target("one", true, at(5)), at(5)),
        (target("one", true, at(125)), at(5)),
        (target("two", true, at(130)), at(130)),
        (target("two", true, at(0)), at(130)),
    ] {
        slot.put(put);
        assert_eq!(slot.get().map(|target| target.started_at), Some(expected));
    }
    slot.put(None);
    assert!(slot.get().is_none());
}
