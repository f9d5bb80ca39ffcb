use super::*;
use serde_json::json;

/// Succeeds from an age of the container on; notes at which ages it was asked.
struct Server {
    started_at: Instant,
    listens_after: Duration,
    asked: Arc<Mutex<Vec<f64>>>,
    verdicts: Arc<Mutex<Vec<(f64, bool)>>>,
}

impl Prober for Server {
    async fn probe(&self, _: &Target) -> Option<bool> {
        let age = self.started_at.elapsed();
        self.asked.lock().push(age.as_secs_f64());
        Some(age >= self.listens_after)
    }

    fn report(&self, _: &str, verdict: bool) -> bool {
        self.verdicts.lock().push((self.started_at.elapsed().as_secs_f64(), verdict));
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
    asked: &'static [f64],
    verdicts: &'static [(f64, bool)],
}

async fn play(case: &Case) -> (Vec<f64>, Vec<(f64, bool)>) {
    let begun = Instant::now();
    let started_at = begun + Duration::from_secs_f64(case.starts_after);
    let (asked, verdicts) = (Arc::default(), Arc::default());
    let server = Server {
        started_at,
        listens_after: Duration::from_secs_f64(case.listens_after),
        asked: Arc::clone(&asked),
        verdicts: Arc::clone(&verdicts),
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
    let asked = asked.lock().iter().copied().map(rounded).collect();
    let verdicts = verdicts.lock().iter().map(|(age, verdict)| (rounded(*age), *verdict)).collect();
    (asked, verdicts)
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
            asked: &[0.0, 1.0, 11.0, 21.0, 31.0],
            verdicts: &[(1.0, true)],
        },
        Case {
            title: "one that needs 24 seconds is not killed after 20",
            kind: Liveness,
            probe: json!({ "periodSeconds": 10 }),
            starts_after: 2.0,
            listens_after: 24.0,
            triggers: &[],
            asked: &[8.0, 18.0, 28.0, 38.0],
            verdicts: &[(28.0, true)],
        },
        Case {
            title: "after a liveness failure the container is left alone",
            kind: Liveness,
            probe: json!({ "periodSeconds": 5, "failureThreshold": 2 }),
            starts_after: 1.0,
            listens_after: 100.0,
            triggers: &[],
            asked: &[4.0, 9.0],
            verdicts: &[(9.0, false)],
        },
        Case {
            title: "the initial delay counts from the container's start",
            kind: Readiness,
            probe: json!({ "periodSeconds": 5, "initialDelaySeconds": 12 }),
            starts_after: 3.0,
            listens_after: 0.0,
            triggers: &[0.0],
            asked: &[16.0, 21.0, 26.0, 31.0, 36.0],
            verdicts: &[(16.0, true)],
        },
        Case {
            title: "a change of the status is a reason to look",
            kind: Readiness,
            probe: json!({ "periodSeconds": 20 }),
            starts_after: 1.0,
            listens_after: 4.0,
            triggers: &[0.0, 5.0],
            asked: &[0.0, 1.0, 5.0, 25.0],
            verdicts: &[(5.0, true)],
        },
        Case {
            title: "startup is asked until it succeeded",
            kind: Startup,
            probe: json!({ "periodSeconds": 3, "failureThreshold": 30 }),
            starts_after: 1.0,
            listens_after: 6.0,
            triggers: &[],
            asked: &[2.0, 5.0, 8.0],
            verdicts: &[(8.0, true)],
        },
    ];
    for case in cases {
        let (asked, verdicts) = play(&case).await;
        assert_eq!(asked, case.asked, "{}: asked", case.title);
        assert_eq!(verdicts, case.verdicts, "{}: verdicts", case.title);
    }
}

#[tokio::test(start_paused = true)]
async fn a_new_container_is_probed_after_one_on_hold() {
    let now = Instant::now();
    let timing = Timing::of(&serde_json::from_value(json!({ "failureThreshold": 1 })).expect("a probe"));
    let mut progress = Progress::new(ProbeKind::Liveness, timing);
    let target =
        |id: &str| Target { id: id.into(), running: true, started_at: now, started: true, address: String::new() };
    assert!(progress.wants(&target("one"), now));
    assert_eq!(progress.take(false), Some(false));
    assert!(!progress.wants(&target("one"), now), "it is about to be stopped");
    assert!(progress.wants(&target("two"), now));
    assert_eq!(progress.take(false), Some(false), "and its failure is told again");
    let unstarted = Target { started: false, ..target("three") };
    assert!(!progress.wants(&unstarted, now), "its startup probe comes first");
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
